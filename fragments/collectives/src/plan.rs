//! A call as steps. In each step some members put a piece of their data where others read it.

use core::ops::Range;

/// Bytes beside the flag in one cache line.
pub const LINE_BYTES: u64 = 48;
/// Lines of a member, which steps use in turn.
pub const LINES: u64 = 8;
/// Bytes of one of a member's larger slots.
pub const CHUNK_BYTES: u64 = 1 << 16;
/// Larger slots of a member, which steps use in turn.
pub const CHUNKS: u64 = 4;
/// A broadcast is cut so that its root writes while others read.
const BCAST_BYTES: u64 = 1 << 15;
/// Longer ones are for the layer below.
const BCAST_BYTES_MAX: u64 = 1 << 19;
/// The same of what is folded.
const FOLD_BYTES_MAX: u64 = 1 << 19;
/// The same of a block that one member gives another.
const BLOCK_BYTES_MAX: u64 = 1 << 16;
/// Up to so many bytes everybody folds everything: one step instead of two.
const FOLD_ALL_BYTES: u64 = 1 << 13;

/// What MPI calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// MPI_Barrier.
    Barrier,
    /// MPI_Bcast.
    Bcast,
    /// MPI_Reduce.
    Reduce,
    /// MPI_Allreduce.
    Allreduce,
    /// MPI_Allgather.
    Allgather,
    /// MPI_Alltoall.
    Alltoall,
    /// MPI_Gather.
    Gather,
    /// MPI_Scatter.
    Scatter,
    /// MPI_Reduce_scatter_block.
    ReduceScatterBlock,
    /// MPI_Scan.
    Scan,
    /// MPI_Exscan.
    Exscan,
    /// MPI_Gatherv.
    Gatherv,
    /// MPI_Scatterv.
    Scatterv,
    /// MPI_Allgatherv.
    Allgatherv,
    /// MPI_Alltoallv, MPI_Alltoallw.
    Alltoallv,
    /// MPI_Reduce_scatter.
    ReduceScatter,
    /// A part of a barrier: the root learns that all are there.
    Arrive,
    /// A part of a barrier: the root lets the others go on.
    Leave,
}

impl Kind {
    /// Those of MPI, in the order of glue.h.
    pub const ALL: [Self; 16] = [
        Self::Barrier,
        Self::Bcast,
        Self::Reduce,
        Self::Allreduce,
        Self::Allgather,
        Self::Alltoall,
        Self::Gather,
        Self::Scatter,
        Self::ReduceScatterBlock,
        Self::Scan,
        Self::Exscan,
        Self::Gatherv,
        Self::Scatterv,
        Self::Allgatherv,
        Self::Alltoallv,
        Self::ReduceScatter,
    ];

    /// Does each member put something else for each of the others?
    fn has_blocks(self) -> bool {
        use Kind::{Alltoall, Alltoallv, ReduceScatter, ReduceScatterBlock, Scatter, Scatterv};
        matches!(
            self,
            Alltoall | Alltoallv | ReduceScatter | ReduceScatterBlock | Scatter | Scatterv
        )
    }

    /// Are blocks of different length?
    pub fn varies(self) -> bool {
        use Kind::{Allgatherv, Alltoallv, Gatherv, ReduceScatter, Scatterv};
        matches!(self, Gatherv | Scatterv | Allgatherv | Alltoallv | ReduceScatter)
    }

    /// By which call all members learn how long the longest block is, where not everybody knows it
    /// of all: how often they are cut, and whether the call is for somebody else, depends on it.
    pub fn longest_by(self) -> Option<Self> {
        match self {
            Self::Gatherv | Self::Scatterv => Some(Self::Bcast),
            Self::Alltoallv => Some(Self::Allgather),
            _ => None,
        }
    }

    /// Does nobody put anything?
    pub fn has_no_data(self) -> bool {
        matches!(self, Self::Barrier | Self::Arrive | Self::Leave)
    }

    /// Is its result folded?
    pub fn folds(self) -> bool {
        use Kind::{Allreduce, Exscan, Reduce, ReduceScatter, ReduceScatterBlock, Scan};
        matches!(self, Reduce | Allreduce | ReduceScatterBlock | ReduceScatter | Scan | Exscan)
    }
}

/// A call, the same at all members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Which one.
    pub kind: Kind,
    /// Members.
    pub size: u32,
    /// For those that have one.
    pub root: u32,
    /// Of what one member gives another; where that varies, of the longest.
    pub bytes: u64,
    /// Bytes that a fold must not tear; 1 where nothing is folded.
    pub element: u64,
}

/// Some of the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Everybody.
    All,
    /// This one.
    One(u32),
    /// Everybody else.
    AllBut(u32),
}

impl Who {
    /// Is this one of them?
    #[inline]
    pub fn has(self, member: u32) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == member,
            Self::AllBut(one) => one != member,
        }
    }
}

/// What a writer's slot holds in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The piece of its data.
    Block,
    /// The piece of each of its blocks, one after the other.
    Blocks,
    /// The part of the result that it has folded, of the piece.
    Part,
}

/// What a reader does with the slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// The piece of each writer goes to where that writer's block is; of its only one: to the
    /// piece's place.
    Copy,
    /// The piece of the result.
    Fold,
    /// The own part of the piece of the result.
    FoldPart,
    /// The parts of the others.
    CopyParts,
}

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Who puts something.
    pub writers: Who,
    /// Who reads it.
    pub readers: Who,
    /// What is put.
    pub put: Put,
    /// What is done with it.
    pub take: Take,
    /// Where the piece begins in a block.
    pub at: u64,
    /// Bytes of the piece.
    pub bytes: u64,
    /// Does it fit beside the flag?
    pub line: bool,
}

/// The steps of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The call.
    pub call: Call,
    /// Bytes of a piece.
    piece: u64,
    steps: u64,
}

impl Plan {
    /// `None`: the call is for somebody else: it is long, where data goes faster from one memory
    /// to the other, or an element does not fit into a slot.
    #[inline]
    pub fn new(call: Call) -> Option<Self> {
        let Call { kind, bytes, .. } = call;
        let blocks = if kind.has_blocks() { u64::from(call.size) } else { 1 };
        // No division for what is short.
        if bytes <= FOLD_ALL_BYTES && bytes * blocks <= FOLD_ALL_BYTES {
            let steps = u64::from(bytes > 0 || kind.has_no_data());
            return Some(Self { call, piece: bytes, steps });
        }
        Self::of_long(call, blocks)
    }

    #[cold]
    fn of_long(call: Call, blocks: u64) -> Option<Self> {
        let longest = match call.kind {
            Kind::Bcast => BCAST_BYTES_MAX,
            kind if kind.folds() => FOLD_BYTES_MAX,
            _ => BLOCK_BYTES_MAX,
        };
        if call.bytes > longest {
            return None;
        }
        let room = if call.kind == Kind::Bcast { BCAST_BYTES } else { CHUNK_BYTES / blocks };
        // Pieces of whole cache lines, where that can be.
        let whole = room - room % (call.element * 64);
        let piece = if whole > 0 { whole } else { room - room % call.element };
        if piece == 0 {
            return None;
        }
        let mut plan = Self { call, piece, steps: call.bytes.div_ceil(piece) };
        if plan.in_parts() {
            plan.steps *= 2;
        }
        Some(plan)
    }

    /// Does each member fold a part?
    fn in_parts(&self) -> bool {
        self.call.kind == Kind::Allreduce && self.call.bytes > FOLD_ALL_BYTES
    }

    /// How many (K5).
    #[inline]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One of them.
    #[inline]
    pub fn step(&self, number: u64) -> Step {
        let Call { kind, size, root, bytes, .. } = self.call;
        let (all, one, others) = (Who::All, Who::One(root), Who::AllBut(root));
        let (writers, readers) = match kind {
            Kind::Bcast | Kind::Scatter | Kind::Scatterv | Kind::Leave => (one, others),
            Kind::Reduce | Kind::Gather | Kind::Gatherv | Kind::Arrive => (others, one),
            _ => (all, all),
        };
        let (piece, half) = match self.in_parts() {
            true => (number / 2, number % 2),
            false => (number, 0),
        };
        let at = piece * self.piece;
        let length = self.piece.min(bytes - at.min(bytes));
        let (put, take) = match kind {
            Kind::Allreduce if self.in_parts() && half == 0 => (Put::Block, Take::FoldPart),
            Kind::Allreduce if self.in_parts() => (Put::Part, Take::CopyParts),
            Kind::ReduceScatterBlock | Kind::ReduceScatter => (Put::Blocks, Take::Fold),
            kind if kind.folds() => (Put::Block, Take::Fold),
            kind if kind.has_blocks() => (Put::Blocks, Take::Copy),
            _ => (Put::Block, Take::Copy),
        };
        let blocks = if put == Put::Blocks { u64::from(size) } else { 1 };
        let line = !self.in_parts() && length * blocks <= LINE_BYTES;
        Step { writers, readers, put, take, at, bytes: length, line }
    }

    /// A member's part of a piece: bytes from its beginning.
    #[inline]
    pub fn part(&self, step: &Step, member: u32) -> Range<u64> {
        let elements = step.bytes / self.call.element;
        let from = |member: u64| elements * member / u64::from(self.call.size) * self.call.element;
        from(u64::from(member))..from(u64::from(member) + 1)
    }

    /// What a member puts into its slot: pairs of where it lies in the member's data and how long
    /// it is, one after the other. Of [`Put::Part`]: where it lies in the result.
    #[inline]
    pub fn puts(&self, step: &Step, member: u32) -> Puts {
        match step.put {
            Put::Block => Puts { at: step.at, bytes: step.bytes, stride: 0, left: 1 },
            Put::Part => {
                let part = self.part(step, member);
                let bytes = part.end - part.start;
                Puts { at: step.at + part.start, bytes, stride: 0, left: 1 }
            }
            Put::Blocks => {
                let (stride, left) = (self.call.bytes, self.call.size);
                Puts { at: step.at, bytes: step.bytes, stride, left }
            }
        }
    }

    /// Where blocks vary: bytes of the piece of a block of this length.
    pub fn piece_of(&self, step: &Step, block: u64) -> u64 {
        block.saturating_sub(step.at).min(step.bytes)
    }

    /// Where blocks vary: which of those that it gives a writer puts into its slot. The place of
    /// each is as long as that of the longest.
    pub fn gives(&self, step: &Step) -> Range<u32> {
        if step.put == Put::Blocks { 0..self.call.size } else { 0..1 }
    }

    /// Where blocks vary: which of those that a writer gives is this reader's.
    pub fn gives_to(&self, reader: u32) -> u32 {
        if self.call.kind.has_blocks() { reader } else { 0 }
    }

    /// Where blocks vary: which of those that a reader gets is this writer's.
    pub fn gets_from(&self, writer: u32) -> u32 {
        match self.call.kind {
            Kind::Scatterv | Kind::ReduceScatter => 0,
            _ => writer,
        }
    }

    /// What a reader reads of a writer's slot; where blocks vary: at most.
    #[inline]
    pub fn reads(&self, step: &Step, reader: u32, writer: u32) -> Range<u64> {
        match (step.put, step.take) {
            (Put::Blocks, _) => {
                let at = u64::from(reader) * step.bytes;
                at..at + step.bytes
            }
            (Put::Part, _) => {
                let part = self.part(step, writer);
                0..part.end - part.start
            }
            (Put::Block, Take::FoldPart) => self.part(step, reader),
            (Put::Block, _) => 0..step.bytes,
        }
    }

    /// Where in the result a reader puts what it has read of a writer, or folded.
    #[inline]
    pub fn goes_to(&self, step: &Step, reader: u32, writer: u32) -> u64 {
        match step.take {
            Take::Copy if !matches!(step.writers, Who::One(_)) => {
                u64::from(writer) * self.call.bytes + step.at
            }
            Take::Copy | Take::Fold => step.at,
            Take::FoldPart => step.at + self.part(step, reader).start,
            Take::CopyParts => step.at + self.part(step, writer).start,
        }
    }

    /// Where in its own data a reader has what it would read of itself.
    #[inline]
    pub fn own(&self, step: &Step, reader: u32) -> u64 {
        match step.put {
            Put::Blocks => u64::from(reader) * self.call.bytes + step.at,
            _ => step.at + self.reads(step, reader, reader).start,
        }
    }

    /// Whose data a reader folds (K4: from the last to the first).
    #[inline]
    pub fn folds(&self, reader: u32) -> Range<u32> {
        match self.call.kind {
            Kind::Scan => 0..reader + 1,
            Kind::Exscan => 0..reader,
            _ => 0..self.call.size,
        }
    }

    /// Where blocks vary: does a member copy one of itself?
    pub fn copies_own(&self, member: u32) -> bool {
        match self.call.kind {
            Kind::Allgatherv | Kind::Alltoallv => true,
            Kind::Gatherv | Kind::Scatterv => member == self.call.root,
            _ => false,
        }
    }

    /// The block that a member copies of itself, where they do not vary: where it lies in its
    /// data, where it goes in the result.
    pub fn own_block(&self, member: u32) -> Option<(u64, u64)> {
        let block = u64::from(member) * self.call.bytes;
        match self.call.kind {
            Kind::Allgather => Some((0, block)),
            Kind::Alltoall => Some((block, block)),
            Kind::Gather if member == self.call.root => Some((0, block)),
            Kind::Scatter if member == self.call.root => Some((block, 0)),
            _ => None,
        }
    }
}

/// See [`Plan::puts`].
#[derive(Clone, Copy, Debug)]
pub struct Puts {
    at: u64,
    bytes: u64,
    stride: u64,
    left: u32,
}

impl Iterator for Puts {
    type Item = (u64, u64);

    #[inline]
    fn next(&mut self) -> Option<(u64, u64)> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        self.at += self.stride;
        Some((at, self.bytes))
    }
}
