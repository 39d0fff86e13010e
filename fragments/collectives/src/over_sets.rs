//! A call of a communicator whose members are of several sets: inside each set, between those that
//! stand for the sets, inside each set again.

use crate::member::{Host, Member};
use crate::plan::{Call, Kind, Plan};
use crate::sets::{Move, Moves, Sets, Side, Way};

/// Longer ones are for the layer below: it cuts them into pieces that are under way at the same
/// time.
const BYTES_MAX: u64 = 1 << 16;

/// Where a member has what it works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// What it gives.
    Own,
    /// Its result.
    Result,
    /// Memory of its own: it has no result, and collects for another one.
    Scratch,
}

/// What comes from other sets.
pub trait SetsHost: Host {
    /// From now on, inside the set, data is read here and goes there.
    fn enter(&mut self, from: Place, into: Place);

    /// Send what is collected in `of` to who stands for this set. It must not be changed before
    /// [`Self::are_sent`].
    fn send(&mut self, of: Place, set: u32);

    /// Has everything that was sent left?
    fn are_sent(&mut self) -> bool;

    /// Is what this set sends here? The first question asks for it.
    fn is_here(&mut self, of: Place, set: u32, side: Side) -> bool;

    /// Fold it into what is collected, or put it there.
    fn take_from(&mut self, of: Place, set: u32, side: Side);
}

/// A call as a member takes part in it: a function of the call and of the member (K8).
#[derive(Clone, Debug)]
pub struct Crossing {
    before: Option<Plan>,
    /// Of who stands for its set.
    moves: Option<Moves>,
    after: Option<Plan>,
    place: Place,
    root: u32,
    /// Nobody is in its set with whom it folds.
    copies_own: bool,
    stage: Stage,
    current: Option<Move>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Start,
    Before,
    Between,
    Sent,
    After,
    Over,
}

impl Crossing {
    /// `None`: the call is for somebody else, the same at all members. `commutes`: the operation
    /// of a fold.
    pub fn new(sets: &Sets, me: u32, call: Call, commutes: bool) -> Option<Self> {
        let Call { kind, root, bytes, .. } = call;
        let set = sets.of(me);
        let (before, way, after) = match kind {
            Kind::Barrier => (Some(Kind::Arrive), Way::All, Some(Kind::Leave)),
            Kind::Bcast => (None, Way::From(sets.of(root)), Some(Kind::Bcast)),
            Kind::Reduce => (Some(Kind::Reduce), Way::To(sets.of(root)), None),
            Kind::Allreduce => (Some(Kind::Reduce), Way::All, Some(Kind::Bcast)),
            _ => return None,
        };
        if bytes > BYTES_MAX || (kind.folds() && !commutes && !sets.keep_order()) {
            return None;
        }
        // Of all sets alike: how a call is cut does not depend on the number of members.
        let root = if matches!(kind, Kind::Bcast | Kind::Reduce) { root } else { 0 };
        let stands = sets.stands_for(set, root);
        let size = sets.members(set).len() as u32;
        let inside = |kind: Kind| {
            // A result is bytes when it is spread.
            let element = if kind.folds() { call.element } else { 1 };
            Plan::new(Call { kind, size, root: sets.place(stands), bytes, element })
        };
        let before = before.map(inside).map_or(Some(None), |plan| plan.map(Some))?;
        let after = after.map(inside).map_or(Some(None), |plan| plan.map(Some))?;
        let place = if kind == Kind::Reduce && me != root { Place::Scratch } else { Place::Result };
        let moves = (me == stands).then(|| Moves::new(way, sets.count(), set));
        Some(Self {
            before: before.filter(|_| size > 1),
            moves,
            after: after.filter(|_| size > 1),
            place,
            root,
            copies_own: size == 1 && kind.folds(),
            stage: Stage::Start,
            current: None,
        })
    }

    /// Does this member wait for other sets?
    pub fn stands_for_set(&self) -> bool {
        self.moves.is_some()
    }

    /// By which it is known who stands for which set: [`Sets::stands_for`].
    pub fn root(&self) -> u32 {
        self.root
    }

    /// Where it collects.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Must what it gives be copied to where it collects, before all else?
    pub fn copies_own(&self) -> bool {
        self.copies_own
    }

    /// True: the call is over. False: somebody is awaited; call it again.
    pub fn advance<H: SetsHost>(&mut self, member: &mut Member, host: &mut H) -> bool {
        loop {
            self.stage = match self.stage {
                Stage::Start => {
                    host.enter(Place::Own, self.place);
                    Stage::Before
                }
                Stage::Before => match &self.before {
                    Some(plan) if !member.advance(plan, host) => return false,
                    _ => Stage::Between,
                },
                Stage::Between => match self.current.or_else(|| self.moves.as_mut()?.next()) {
                    None => Stage::Sent,
                    Some(next) => {
                        self.current = Some(next);
                        if !self.make(next, host) {
                            return false;
                        }
                        self.current = None;
                        Stage::Between
                    }
                },
                Stage::Sent => {
                    // Who spreads it inside may do that first: it is only read.
                    host.enter(self.place, self.place);
                    Stage::After
                }
                Stage::After => match &self.after {
                    Some(plan) if !member.advance(plan, host) => return false,
                    _ => Stage::Over,
                },
                Stage::Over => return self.moves.is_none() || host.are_sent(),
            };
        }
    }

    fn make<H: SetsHost>(&mut self, next: Move, host: &mut H) -> bool {
        match next {
            Move::Send(set) => host.send(self.place, set),
            Move::Take(set, side) => {
                // K9. Both are asked: they are awaited together.
                let ready = host.is_here(self.place, set, side) & host.are_sent();
                if !ready {
                    return false;
                }
                host.take_from(self.place, set, side);
            }
        }
        true
    }
}
