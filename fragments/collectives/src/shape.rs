//! Of a call over several sets: what lies where, what is done inside a set before and after, and
//! how long all of it is.

use crate::plan::{Call, Kind, Plan};
use crate::sets::{Sets, Way};
use std::sync::Arc;

/// Longer ones are for the layer below: it cuts them into pieces that are under way at the same
/// time.
const BYTES_MAX: u64 = 1 << 16;
/// The same of blocks that who stands for a set collects of its members, while these wait: Open
/// MPI's go from each to each at the same time.
const COLLECTED_MAX: u64 = 1 << 14;

/// Where a member has something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// What it gives.
    Own,
    /// Its result, which may be what it gives.
    Result,
    /// Memory of its own: mostly where it collects for others. See [`Shape::needs`].
    Stage,
    /// More of that.
    Other,
    /// What has come from another set, and is to be folded.
    Incoming,
}

/// So many bytes behind the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At(pub Place, pub u64);

/// What is done inside the set: from where members put what they put, where what they read goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside {
    /// How.
    pub plan: Plan,
    /// For those who put something.
    pub from: At,
    /// For those who read something.
    pub into: At,
}

/// A call of a communicator of several sets as one of its members sees it: a function of the call
/// and of the member (K8).
#[derive(Clone, Debug)]
pub struct Shape {
    pub(crate) sets: Arc<Sets>,
    pub(crate) kind: Kind,
    pub(crate) me: u32,
    pub(crate) set: u32,
    /// By which it is known who stands for which set.
    pub(crate) root: u32,
    /// Of a block; where blocks vary, of the longest.
    pub(crate) bytes: u64,
    /// Where blocks vary: of each rank's.
    lengths: Box<[u64]>,
    /// Of all that is collected.
    pub(crate) total: u64,
    pub(crate) way: Way,
    pub(crate) before: Option<Inside>,
    pub(crate) after: Option<Inside>,
}

impl Shape {
    /// `None`: the call is for somebody else, the same at all members. `commutes`: the operation
    /// of a fold; `lengths`: where blocks vary, by rank.
    pub fn new(
        sets: &Arc<Sets>,
        me: u32,
        call: Call,
        commutes: bool,
        lengths: &[u64],
    ) -> Option<Self> {
        let Call { kind, root, bytes, .. } = call;
        let blocks = u64::from(sets.size());
        let ordered = sets.keep_order();
        let (way, total) = match kind {
            Kind::Barrier | Kind::Allreduce => (Way::All, bytes),
            Kind::Bcast => (Way::From(sets.of(root)), bytes),
            Kind::Reduce => (Way::To(sets.of(root)), bytes),
            Kind::Allgather | Kind::ReduceScatterBlock => (Way::All, bytes * blocks),
            Kind::Allgatherv | Kind::ReduceScatter => (Way::All, lengths.iter().sum()),
            Kind::Gather => (Way::To(sets.of(root)), bytes * blocks),
            Kind::Scatter => (Way::From(sets.of(root)), bytes * blocks),
            Kind::Alltoall => (Way::Pairs, bytes * blocks * sets.largest() as u64),
            Kind::Scan | Kind::Exscan if ordered => (Way::After, bytes),
            _ => return None,
        };
        let collects =
            matches!(kind, Kind::Allgather | Kind::Allgatherv | Kind::Gather | Kind::Alltoall);
        let most = if collects { COLLECTED_MAX } else { BYTES_MAX };
        if total > most || (kind.folds() && !commutes && !ordered) {
            return None;
        }
        let rooted = matches!(kind, Kind::Bcast | Kind::Reduce | Kind::Gather | Kind::Scatter);
        let mut shape = Self {
            sets: Arc::clone(sets),
            kind,
            me,
            set: sets.of(me),
            root: if rooted { root } else { 0 },
            bytes,
            lengths: lengths.into(),
            total,
            way,
            before: None,
            after: None,
        };
        // Of all sets alike: whether a call can be cut does not depend on the number of members.
        shape.before = shape.inside_before(call.element)?.filter(|_| shape.size() > 1);
        shape.after = shape.inside_after(call.element)?.filter(|_| shape.size() > 1);
        Some(shape)
    }

    fn inside_before(&self, element: u64) -> Option<Option<Inside>> {
        let own = At(Place::Own, 0);
        let collected = At(self.place(), 0);
        let (kind, bytes, element, from, into) = match self.kind {
            Kind::Barrier => (Kind::Arrive, 0, 1, own, collected),
            Kind::Bcast | Kind::Scatter => return Some(None),
            Kind::Allgather | Kind::Gather => {
                (Kind::Gather, self.bytes, 1, own, At(self.place(), self.start(self.set)))
            }
            // In places of equal length, from a copy that is as long.
            Kind::Allgatherv => {
                (Kind::Gather, self.bytes, 1, At(Place::Stage, 0), At(Place::Other, 0))
            }
            Kind::Alltoall => (Kind::Gather, self.row(), 1, self.arranged(), At(Place::Other, 0)),
            _ => (Kind::Reduce, self.total, element, own, collected),
        };
        Some(Some(Inside { plan: self.plan(kind, bytes, element)?, from, into }))
    }

    fn inside_after(&self, element: u64) -> Option<Option<Inside>> {
        let (result, collected) = (At(Place::Result, 0), At(self.place(), 0));
        let (kind, bytes, element, from, into) = match self.kind {
            Kind::Barrier => (Kind::Leave, 0, 1, result, result),
            // A result is bytes when it is spread.
            Kind::Bcast | Kind::Allreduce | Kind::Allgather | Kind::Allgatherv => {
                (Kind::Bcast, self.total, 1, collected, collected)
            }
            Kind::Scatter => {
                (Kind::Scatter, self.bytes, 1, At(self.place(), self.start(self.set)), result)
            }
            Kind::ReduceScatterBlock | Kind::ReduceScatter => {
                let into = if self.varies() { At(Place::Stage, 0) } else { result };
                (Kind::Scatter, self.bytes, 1, self.scattered(), into)
            }
            Kind::Alltoall => {
                let into = if self.ordered() { result } else { At(Place::Stage, 0) };
                (Kind::Scatter, self.row(), 1, At(Place::Stage, 0), into)
            }
            Kind::Scan | Kind::Exscan => (self.kind, self.bytes, element, self.first(), result),
            _ => return Some(None),
        };
        Some(Some(Inside { plan: self.plan(kind, bytes, element)?, from, into }))
    }

    fn plan(&self, kind: Kind, bytes: u64, element: u64) -> Option<Plan> {
        let root = self.sets.place(self.sets.stands_for(self.set, self.root));
        Plan::new(Call { kind, size: self.size(), root, bytes, element })
    }

    /// Is there nothing that anybody gives, nor anybody to wait for?
    pub fn is_empty(&self) -> bool {
        self.total == 0 && !self.kind.has_no_data()
    }

    /// Does this member stand for its set?
    pub fn stands_for_set(&self) -> bool {
        self.me == self.sets.stands_for(self.set, self.root)
    }

    /// Who stands for a set.
    pub fn stands_for(&self, set: u32) -> u32 {
        self.sets.stands_for(set, self.root)
    }

    /// What is done inside the set before others are asked, and after.
    pub fn inside(&self) -> [Option<Inside>; 2] {
        [self.before, self.after]
    }

    /// Bytes of [`Place::Stage`] and of [`Place::Other`] that this member needs.
    pub fn needs(&self) -> [u64; 2] {
        let (stands, ordered) = (self.stands_for_set(), self.ordered());
        let (of_total, of_one) = (if stands { self.total } else { 0 }, self.bytes);
        match self.kind {
            Kind::Reduce | Kind::Gather | Kind::Scatter if self.place() == Place::Stage => {
                [of_total, 0]
            }
            Kind::Allgather if self.place() == Place::Stage => [self.total, 0],
            Kind::Allgatherv => {
                let places = if stands { u64::from(self.size()) * of_one } else { 0 };
                [self.total.max(of_one), places]
            }
            Kind::ReduceScatter | Kind::ReduceScatterBlock => {
                let places = if stands { u64::from(self.size()) * of_one } else { 0 };
                [of_total.max(of_one), places]
            }
            Kind::Alltoall => {
                let rows = self.row() * u64::from(self.size());
                if stands { [rows; 2] } else { [if ordered { 0 } else { self.row() }, 0] }
            }
            Kind::Scan | Kind::Exscan => [of_total; 2],
            _ => [0; 2],
        }
    }

    /// The same of [`Place::Incoming`].
    pub fn needs_of_incoming(&self) -> u64 {
        if self.kind.folds() && self.stands_for_set() { self.total } else { 0 }
    }

    /// Where who stands for a set collects, or has what it spreads.
    pub(crate) fn place(&self) -> Place {
        let is_root = self.me == self.root;
        match self.kind {
            Kind::Reduce if is_root => Place::Result,
            Kind::Gather if is_root && self.ordered() => Place::Result,
            Kind::Scatter if is_root && self.ordered() => Place::Own,
            Kind::Allgather if self.ordered() => Place::Result,
            Kind::Barrier | Kind::Bcast | Kind::Allreduce => Place::Result,
            _ => Place::Stage,
        }
    }

    /// Do blocks lie in the order of sets where they lie in that of ranks?
    pub(crate) fn ordered(&self) -> bool {
        self.sets.keep_order()
    }

    pub(crate) fn varies(&self) -> bool {
        self.kind.varies()
    }

    /// Members of the own set.
    pub(crate) fn size(&self) -> u32 {
        self.members().len() as u32
    }

    /// Which one of the members of its set this one is.
    pub(crate) fn place_in_set(&self) -> u32 {
        self.sets.place(self.me)
    }

    pub(crate) fn members(&self) -> &[u32] {
        self.sets.members(self.set)
    }

    /// Of a rank's block.
    pub(crate) fn length(&self, rank: u32) -> u64 {
        self.lengths.get(rank as usize).copied().unwrap_or(self.bytes)
    }

    /// In the order of sets: bytes before those of this one's members.
    pub(crate) fn start(&self, set: u32) -> u64 {
        let before = self.sets.before(set);
        if !self.varies() {
            return u64::from(before) * self.bytes;
        }
        self.sets.ranks().take(before as usize).map(|rank| self.length(rank)).sum()
    }

    /// In the order of ranks: bytes before those of this one.
    pub(crate) fn start_of_rank(&self, rank: u32) -> u64 {
        if !self.varies() {
            return u64::from(rank) * self.bytes;
        }
        (0..rank).map(|rank| self.length(rank)).sum()
    }

    /// Of an alltoall: what one member gives all of them.
    pub(crate) fn row(&self) -> u64 {
        u64::from(self.sets.size()) * self.bytes
    }

    /// Of an alltoall: where a member has its row in the order of sets.
    pub(crate) fn arranged(&self) -> At {
        At(if self.ordered() { Place::Own } else { Place::Stage }, 0)
    }

    /// Of a reduce_scatter: where blocks of the members of the own set follow each other, in places
    /// of equal length.
    pub(crate) fn scattered(&self) -> At {
        match self.ordered() && !self.varies() {
            true => At(Place::Stage, self.start(self.set)),
            false => At(Place::Other, 0),
        }
    }

    /// Of a scan: what a member gives in its set: the first one gives what all before it have, too.
    pub(crate) fn first(&self) -> At {
        match self.set > 0 && self.stands_for_set() {
            true => At(Place::Stage, 0),
            false => At(Place::Own, 0),
        }
    }
}
