//! What a window is: its memory here, what is known of others, and which addresses may be touched.

use crate::error::RmaError;
use crate::ids::CommRank;
use crate::layout::Layout;
use crate::wire::Place;
use std::collections::BTreeMap;

/// How the window was made (MPI-3.1 §11.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavor {
    /// MPI_Win_create.
    Create,
    /// MPI_Win_allocate.
    Allocate,
    /// MPI_Win_create_dynamic: nothing but what is attached.
    Dynamic,
    /// MPI_Win_allocate_shared: loads and stores of others, too.
    Shared,
}

/// The memory of one process's window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub bytes: u64,
    /// Bytes that one of a displacement stands for; at least 1.
    pub unit: u32,
}

/// What is known when a window is made. All members have gathered the extents of all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// How it was made.
    pub flavor: Flavor,
    /// Own rank in the window's group.
    pub me: CommRank,
    /// Own address of the first byte (dynamic: not used).
    pub base: u64,
    /// Extents of all ranks, in their order (dynamic: 0 bytes, unit 1).
    pub extents: Vec<Extent>,
    /// The info key `no_locks`.
    pub no_locks: bool,
}

impl Setup {
    /// Has the window's group this rank?
    pub fn knows(&self, rank: CommRank) -> bool {
        (rank.0 as usize) < self.extents.len()
    }

    pub(crate) fn extent(&self, rank: CommRank) -> Extent {
        let none = Extent { bytes: 0, unit: 1 };
        self.extents.get(rank.0 as usize).copied().unwrap_or(none)
    }

    /// Is the data of an operation inside of the target's window? Always so for dynamic ones: only
    /// the target knows.
    ///
    /// # Errors
    /// `Rank`, `Range`.
    pub fn check_range(
        &self,
        target: CommRank,
        displacement: i64,
        layout: &Layout,
    ) -> Result<(), RmaError> {
        if !self.knows(target) {
            return Err(RmaError::Rank);
        }
        if self.flavor == Flavor::Dynamic {
            return Ok(());
        }
        let Extent { bytes, unit } = self.extent(target);
        let Some(span) = layout.span() else { return Ok(()) };
        let at = i128::from(displacement) * i128::from(unit);
        match at + span.first >= 0 && at + span.end <= i128::from(bytes) {
            true => Ok(()),
            false => Err(RmaError::Range),
        }
    }
}

/// Names memory that is attached, for the whole life of the window: a transport that registers
/// memory keeps its own keys by it, and a key that is used after MPI_Win_detach finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RegionKey(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    bytes: u64,
    key: RegionKey,
}

/// Memory that is attached to a dynamic window.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Regions {
    by_address: BTreeMap<u64, Region>,
    next_key: u32,
}

impl Regions {
    /// MPI_Win_attach.
    ///
    /// # Errors
    /// `Attach`: overlaps what is attached, or goes beyond the end of memory.
    pub fn attach(&mut self, address: u64, bytes: u64) -> Result<RegionKey, RmaError> {
        let end = address.checked_add(bytes).ok_or(RmaError::Attach)?;
        let below = self.by_address.range(..=address).next_back();
        let overlaps = below.is_some_and(|(&at, r)| at == address || at + r.bytes > address)
            || self.by_address.range(address..end).next().is_some();
        if overlaps {
            return Err(RmaError::Attach);
        }
        self.next_key += 1;
        let key = RegionKey(self.next_key);
        self.by_address.insert(address, Region { bytes, key });
        Ok(key)
    }

    /// MPI_Win_detach.
    ///
    /// # Errors
    /// `Attach`: nothing was attached at this address.
    pub fn detach(&mut self, address: u64) -> Result<RegionKey, RmaError> {
        self.by_address.remove(&address).map(|region| region.key).ok_or(RmaError::Attach)
    }

    /// Are all of these bytes attached, in one region or in several beside each other? (What was
    /// attached piece by piece may be accessed at once.)
    pub fn hold(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((&first, _)) = self.by_address.range(..=address).next_back() else { return false };
        let mut upto = first;
        for (&at, region) in self.by_address.range(first..) {
            if at != upto {
                return false;
            }
            upto = at + region.bytes;
            if upto >= end {
                return true;
            }
        }
        false
    }

    /// W1: regions do not overlap.
    ///
    /// # Panics
    /// If they do.
    pub fn check(&self) {
        let mut end = 0;
        for (&at, region) in &self.by_address {
            assert!(at >= end, "W1: regions overlap");
            end = at + region.bytes;
        }
    }
}

/// Own address that a part of an operation begins to count from.
///
/// # Errors
/// `Range`: not all of it is inside of the window or of attached regions.
pub(crate) fn resolve(setup: &Setup, regions: &Regions, place: &Place) -> Result<u64, RmaError> {
    if setup.flavor != Flavor::Dynamic {
        setup.check_range(setup.me, place.displacement, &place.layout)?;
        let unit = i64::from(setup.extent(setup.me).unit);
        return Ok(setup.base.wrapping_add_signed(place.displacement.wrapping_mul(unit)));
    }
    let base = place.displacement as u64;
    let step = place.layout.primitive().extent() as u64;
    place.layout.rows(place.part.first, place.part.bytes, |at, elements| {
        let address = base.checked_add_signed(at).ok_or(RmaError::Range)?;
        let bytes = elements.checked_mul(step).ok_or(RmaError::Range)?;
        regions.hold(address, bytes).then_some(()).ok_or(RmaError::Range)
    })?;
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Block;
    use crate::memory::Part;
    use crate::primitive::Primitive;

    fn setup(flavor: Flavor) -> Setup {
        let extents = vec![Extent { bytes: 100, unit: 4 }, Extent { bytes: 16, unit: 8 }];
        Setup { flavor, me: CommRank(0), base: 5000, extents, no_locks: false }
    }

    #[test]
    fn ranges_are_checked_in_the_targets_units() {
        let setup = setup(Flavor::Create);
        let check = |rank, at, layout: &Layout| setup.check_range(CommRank(rank), at, layout);
        assert_eq!(check(0, 24, &Layout::bytes(4)), Ok(()));
        assert_eq!(check(0, 24, &Layout::bytes(5)), Err(RmaError::Range));
        assert_eq!(check(0, 25, &Layout::bytes(0)), Ok(()), "no data, no memory");
        assert_eq!(check(1, 2, &Layout::bytes(1)), Err(RmaError::Range));
        assert_eq!(check(1, -1, &Layout::bytes(1)), Err(RmaError::Range));
        assert_eq!(check(2, 0, &Layout::bytes(1)), Err(RmaError::Rank));
        assert_eq!(check(0, i64::MAX, &Layout::bytes(u64::MAX)), Err(RmaError::Range));
        let back = Block { displacement: 0, stride: -8, length: 1, repeats: 3 };
        let primitive = Primitive::I64;
        let back = Layout::Described { primitive, count: 1, extent: 0, blocks: vec![back] };
        assert_eq!(check(0, 3, &back), Err(RmaError::Range));
        assert_eq!(check(0, 4, &back), Ok(()));
    }

    #[test]
    fn dynamic_windows_know_what_is_attached() {
        let mut regions = Regions::default();
        let first = regions.attach(1000, 50).expect("free");
        for (address, bytes) in [(1000, 1), (990, 11), (1049, 1), (900, 500), (u64::MAX, 2)] {
            assert_eq!(regions.attach(address, bytes), Err(RmaError::Attach), "{address}");
        }
        regions.attach(1050, 50).expect("beside it");
        regions.attach(1101, 9).expect("a byte behind it");
        regions.check();
        assert!(
            [(1000, 1), (1049, 1), (1049, 2), (1050, 50), (1000, 100), (1101, 9), (1100, 0)]
                .into_iter()
                .all(|(address, bytes)| regions.hold(address, bytes))
        );
        assert!(
            [(999, 1), (999, 2), (1099, 2), (1000, 101), (1050, 60), (1101, 10), (u64::MAX, 2)]
                .into_iter()
                .all(|(address, bytes)| !regions.hold(address, bytes))
        );
        let setup = setup(Flavor::Dynamic);
        let at = |displacement, count| {
            let layout = Layout::bytes(count);
            resolve(
                &setup,
                &regions,
                &Place { displacement, layout, part: Part { first: 0, bytes: count } },
            )
        };
        assert_eq!((at(1010, 90), at(1010, 91)), (Ok(1010), Err(RmaError::Range)));
        assert_eq!(at(-1, 4), Err(RmaError::Range));
        assert_eq!(regions.detach(1000), Ok(first));
        assert_eq!(regions.detach(1000), Err(RmaError::Attach));
        assert!(!regions.hold(1010, 1));
        assert_ne!(regions.attach(1000, 50), Ok(first), "a key is never used again");
    }
}
