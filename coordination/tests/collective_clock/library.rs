//! The library below: collectives whose state is in no image. Each communicator has the calls that
//! somebody has entered and not all have left. A restart makes all of it new.

use crate::program::{Comm, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// One collective: communicator, and the how-manieth there.
pub type Key = (usize, u64);

#[derive(Debug)]
struct Collective {
    call: u64,
    kind: Kind,
    root: usize,
    entered: BTreeMap<usize, u64>,
    left: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub struct Library {
    calls: BTreeMap<Key, Collective>,
    /// How many calls a rank has made on a communicator.
    counts: BTreeMap<(usize, usize), u64>,
}

impl Library {
    /// A rank calls, with a value.
    pub fn enter(
        &mut self,
        rank: usize,
        comm: usize,
        (call, kind, root): (u64, Kind, usize),
        value: u64,
    ) -> Key {
        let count = self.counts.entry((comm, rank)).or_default();
        let key = (comm, *count);
        *count += 1;
        let (entered, left) = (BTreeMap::new(), BTreeSet::new());
        let fresh = Collective { call, kind, root, entered, left };
        let collective = self.calls.entry(key).or_insert(fresh);
        let same = (collective.call, collective.kind, collective.root);
        assert_eq!(same, (call, kind, root), "rank {rank} is in another collective than others");
        assert_eq!(collective.entered.insert(rank, value & 0xFFFF_FFFF), None);
        key
    }

    /// What a rank gets, if it may leave. It has left then.
    pub fn leave(&mut self, rank: usize, key: Key, comms: &[Comm]) -> Option<u64> {
        let members = &comms[key.0].members;
        let collective = self.calls.get_mut(&key)?;
        let entered = &collective.entered;
        let sum = |of: &[usize]| {
            let values = of.iter().map(|member| entered.get(member).copied());
            values.sum::<Option<u64>>()
        };
        let at = members.iter().position(|&member| member == rank).unwrap();
        let n = members.len();
        let value = match collective.kind {
            Kind::All | Kind::Nested => sum(members)?,
            Kind::FromRoot => sum(&[collective.root])?,
            Kind::ToRoot if rank == collective.root => sum(members)?,
            Kind::ToRoot => 0,
            Kind::Neighbours => sum(&[members[(at + 1) % n], members[(at + n - 1) % n]])?,
        };
        assert!(collective.left.insert(rank));
        if collective.left.len() == n {
            self.calls.remove(&key);
        }
        Some(value)
    }

    /// Collectives that are half done.
    pub fn half_done(&self) -> usize {
        self.calls.len()
    }

    /// The functions below after a restart: they know nothing.
    pub fn lose(&mut self) {
        *self = Self::default();
    }
}
