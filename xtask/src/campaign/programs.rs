//! What runs in the campaigns of failures in jobs that go on.

use super::draw::PROGRAMS;
use crate::test::collectives_component::{self, COLLECTIVES, OVERLAP};
use crate::test::file_contents::{IN_C, IN_FORTRAN};
use crate::test::one_sided_component::{
    ADDRESSES, AFTER_NONBLOCKING, HALO, POLL, REGIONS, RING as FENCES, SETS, STORE, TABLE, THREADS,
    TRANSPOSE, WAITS,
};
use crate::test::workloads::{HPCC, Program, RING};

/// Programs that read what they have written.
const READERS: [Entry; 2] = [entry(&IN_C, &[2, 3, 4, 6]), entry(&IN_FORTRAN, &[2, 3, 4, 6])];

/// Programs with windows: of every synchronization mode, kind of memory and thread level.
const ONE_SIDED: [Entry; 13] = [
    entry(&FENCES, &[2, 3, 4, 6]),
    entry(&HALO, &[2, 3, 4, 6]),
    entry(&STORE, &[2, 3, 4, 6]),
    entry(&POLL, &[2, 3, 4, 6]),
    entry(&SETS, &[4, 6]),
    entry(&TABLE, &[2, 3, 4, 6]),
    entry(&TRANSPOSE, &[2, 4]),
    entry(&REGIONS, &[2, 3, 4, 6]),
    // Memory of a window that two or three sets share.
    Entry { options: &["--mca", "vprotocol_correlated_sets", "core"], ..entry(&SETS, &[4, 6]) },
    entry(&THREADS, &[2, 3, 4]),
    entry(&ADDRESSES, &[2, 3, 4, 6]),
    entry(&WAITS, &[4, 6]),
    entry(&AFTER_NONBLOCKING, &[4, 6]),
];

/// Programs that do little but collectives, of ours and over sets.
const COLLECTIVE: [Entry; 5] = [
    entry(&COLLECTIVES, &[4, 6]),
    entry(&OVERLAP, &[2, 3, 4, 6]),
    entry(&RING, &[2, 3, 4, 6]),
    entry(&COLLECTIVES, &[2, 3, 4, 6]),
    entry(&HPCC, &[2, 4]),
];

/// A program of a campaign.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Which.
    pub program: &'static Program,
    /// Numbers of ranks that it may have.
    pub ranks: &'static [u32],
    /// Options of all its jobs.
    pub options: &'static [&'static str],
}

const fn entry(program: &'static Program, ranks: &'static [u32]) -> Entry {
    Entry { program, ranks, options: &[] }
}

/// What runs in a campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Programs {
    /// Programs of the other campaigns.
    Usual,
    /// The same, and after them [`READERS`].
    All,
    /// [`ONE_SIDED`].
    OneSided,
    /// [`COLLECTIVE`].
    Collectives,
}

impl Programs {
    /// How many there are.
    pub fn count(self) -> usize {
        match self {
            Self::Usual => PROGRAMS.len(),
            Self::All => PROGRAMS.len() + READERS.len(),
            Self::OneSided => ONE_SIDED.len(),
            Self::Collectives => COLLECTIVE.len(),
        }
    }

    /// One of them.
    pub fn get(self, index: usize) -> Entry {
        match (self, index.checked_sub(PROGRAMS.len())) {
            (Self::OneSided, _) => ONE_SIDED[index],
            (Self::Collectives, _) => {
                Entry { options: &collectives_component::OPTIONS, ..COLLECTIVE[index] }
            }
            (Self::Usual | Self::All, None) => entry(&PROGRAMS[index].0, PROGRAMS[index].1),
            (Self::Usual | Self::All, Some(reader)) => READERS[reader],
        }
    }
}
