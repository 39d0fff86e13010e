//! Where things lie in a node segment. Pure arithmetic: both ends compute it from the header's
//! fields and refuse a segment that says anything else.
//!
//! ```text
//! 0                 header (one page)
//! RANKS_AT          per rank: its line, its bell, its set's counters, its bitmap, its export table
//! controls_at       per ordered pair: the consumer's line of the ring
//! slots_at          per rank: what its set has recorded; pages of their own, since most ranks are
//!                   not the first of a set
//! window_group_at   per rank: what neighbours need to act on its windows, and of the first rank of
//!                   a set what they have done; pages of their own
//! rings_at          per ordered pair: the ring
//! ```

use crate::transports::set_memory::{Counts, SetCounters, Slots};
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustbtl_ring::{Control, LINE};
use rustbtl_rma::direct::{ENTRIES, SetGroup, TargetLine, WindowEntry};

/// First word of every node segment: "rustbtl" and the format's generation.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rustbtl\x01");
/// Version of everything in this file and of the ring's protocol.
pub const VERSION: u32 = 6;
/// Processes on one node, at most.
pub const RANKS_MAX: usize = 4096;
/// Exported sends per rank at a time.
pub const EXPORTS: usize = 1024;

const PAGE: usize = 4096;
const RANKS_AT: usize = PAGE;

/// What the creator of a segment writes.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Number of local ranks.
    pub ranks: AtomicU32,
    /// Bytes of one ring.
    pub ring_bytes: AtomicU64,
    /// Bytes of the whole segment.
    pub total_bytes: AtomicU64,
    /// User id of the creator.
    pub uid: AtomicU32,
    /// How many ranks have attached (the creator included).
    pub attached: AtomicU32,
}

/// State of a rank: attached (0: nothing yet).
pub const STATE_ATTACHED: u32 = 1;
/// State of a rank: it said goodbye and publishes nothing more.
pub const STATE_LEFT: u32 = 2;

/// What a rank publishes for the others. Written by it alone but for `counts`.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RankLine {
    /// `STATE_*`.
    pub state: AtomicU32,
    /// Process id.
    pub pid: AtomicU32,
    /// Address of a word in its memory that holds `probe_value`.
    pub probe_address: AtomicU64,
    /// A random value.
    pub probe_value: AtomicU64,
    /// Of the first rank of a set, for the whole set.
    pub counts: Counts,
}

/// Counts what others have to tell this rank: a ring used for the first time, a goodbye.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Bell {
    /// Grows with each announcement.
    pub rings: AtomicU64,
}

/// Memory on offer for a pull.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct Export {
    /// Complement of the send id; 0: free.
    pub tag: AtomicU64,
    /// Address in the owner's memory.
    pub address: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
    /// Local index of the rank it is meant for.
    pub to: AtomicU64,
}

/// Sizes and offsets of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of local ranks.
    pub ranks: usize,
    /// Bytes of one ring.
    pub ring_bytes: usize,
}

impl Layout {
    /// Ring size for a number of local ranks: the rings of a node grow with its square.
    pub const fn default_ring_bytes(ranks: usize) -> usize {
        match ranks {
            0..=8 => 128 << 10,
            9..=16 => 64 << 10,
            17..=64 => 32 << 10,
            _ => 16 << 10,
        }
    }

    /// Words of the bitmap of senders that one rank has.
    pub const fn bitmap_words(&self) -> usize {
        self.ranks.div_ceil(64)
    }

    const fn bitmap_bytes(&self) -> usize {
        (self.bitmap_words() * 8).next_multiple_of(LINE)
    }

    const fn rank_bytes(&self) -> usize {
        size_of::<RankLine>() + 2 * LINE + self.bitmap_bytes() + EXPORTS * size_of::<Export>()
    }

    const fn pairs(&self) -> usize {
        self.ranks * (self.ranks - 1)
    }

    /// Offset of a rank's `RankLine`.
    pub const fn rank_at(&self, rank: usize) -> usize {
        RANKS_AT + rank * self.rank_bytes()
    }

    /// Offset of a rank's `Bell`.
    pub const fn bell_at(&self, rank: usize) -> usize {
        self.rank_at(rank) + size_of::<RankLine>()
    }

    /// Offset of the `SetCounters` of the set whose first rank this is.
    pub const fn set_counters_at(&self, rank: usize) -> usize {
        self.bell_at(rank) + LINE
    }

    /// Offset of a rank's bitmap of senders.
    pub const fn bitmap_at(&self, rank: usize) -> usize {
        self.set_counters_at(rank) + LINE
    }

    /// Offset of a rank's export table.
    pub const fn exports_at(&self, rank: usize) -> usize {
        self.bitmap_at(rank) + self.bitmap_bytes()
    }

    const fn controls_at(&self) -> usize {
        RANKS_AT + self.ranks * self.rank_bytes()
    }

    /// Offset of the `Slots` of the set whose first rank this is.
    pub const fn slots_at(&self, rank: usize) -> usize {
        let start = self.controls_at() + self.pairs() * size_of::<Control>();
        start.next_multiple_of(PAGE) + rank * size_of::<Slots>()
    }

    /// Cells of one rank: for each entry one of each rank.
    pub const fn window_cells(&self) -> usize {
        ENTRIES * self.ranks
    }

    /// What each rank shares of windows.
    pub const fn window_bytes(&self) -> usize {
        let cells = self.window_cells() * size_of::<AtomicU64>();
        (Self::WINDOW_CELLS + cells).next_multiple_of(PAGE)
    }

    /// Offset of the `SetGroup` of the set whose first rank this is.
    pub const fn window_group_at(&self, rank: usize) -> usize {
        self.slots_at(self.ranks) + rank * self.window_bytes()
    }

    /// Offset of a rank's `TargetLine` behind its `SetGroup`.
    pub const WINDOW_LINE: usize = size_of::<SetGroup>();
    /// Offset of a rank's entries of windows, from there as well.
    pub const WINDOW_ENTRIES: usize = Self::WINDOW_LINE + size_of::<TargetLine>();
    /// Offset of their cells.
    pub const WINDOW_CELLS: usize = Self::WINDOW_ENTRIES + ENTRIES * size_of::<WindowEntry>();

    const fn rings_at(&self) -> usize {
        self.window_group_at(self.ranks)
    }

    /// Number of the ring from one rank to another (never itself).
    const fn pair(&self, from: usize, to: usize) -> usize {
        from * (self.ranks - 1) + to - (to > from) as usize
    }

    /// Offset of the consumer's line of a ring.
    pub const fn control_at(&self, from: usize, to: usize) -> usize {
        self.controls_at() + self.pair(from, to) * size_of::<Control>()
    }

    /// Offset of a ring.
    pub const fn ring_at(&self, from: usize, to: usize) -> usize {
        self.rings_at() + self.pair(from, to) * self.ring_bytes
    }

    /// Bytes of the whole segment.
    pub const fn total_bytes(&self) -> usize {
        (self.rings_at() + self.pairs() * self.ring_bytes).next_multiple_of(PAGE)
    }
}

const _: () = {
    assert!(size_of::<Header>() <= PAGE);
    assert!(size_of::<RankLine>() == 2 * LINE);
    assert!(size_of::<Bell>() == LINE);
    assert!(size_of::<SetCounters>() == LINE);
    assert!(size_of::<Export>() == 32);
    assert!(size_of::<Slots>().is_multiple_of(PAGE));
    assert!(size_of::<Control>() == LINE);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_parts_overlap() {
        for ranks in [1, 2, 3, 65, 130] {
            let layout = Layout { ranks, ring_bytes: 16 << 10 };
            let mut parts = vec![(0, PAGE)];
            for i in 0..ranks {
                parts.push((layout.rank_at(i), LINE));
                parts.push((layout.bell_at(i), LINE));
                parts.push((layout.set_counters_at(i), LINE));
                parts.push((layout.slots_at(i), size_of::<Slots>()));
                parts.push((layout.window_group_at(i), size_of::<SetGroup>()));
                parts.push((layout.window_group_at(i) + Layout::WINDOW_LINE, LINE));
                parts.push((layout.window_group_at(i) + Layout::WINDOW_ENTRIES, ENTRIES * LINE));
                parts.push((
                    layout.window_group_at(i) + Layout::WINDOW_CELLS,
                    8 * layout.window_cells(),
                ));
                parts.push((layout.bitmap_at(i), 8 * layout.bitmap_words()));
                parts.push((layout.exports_at(i), EXPORTS * size_of::<Export>()));
                for j in (0..ranks).filter(|&j| j != i) {
                    parts.push((layout.control_at(i, j), LINE));
                    parts.push((layout.ring_at(i, j), layout.ring_bytes));
                }
            }
            parts.sort_unstable();
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} with {ranks} ranks");
            }
            let (start, bytes) = parts[parts.len() - 1];
            assert!(start + bytes <= layout.total_bytes());
        }
    }
}
