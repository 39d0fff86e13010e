//! Registered memory, and its keys. Slots are used again, with another generation in the key, and
//! not any more when they have had them all: a peer may have kept what each stands for.

use crate::abi::Sge;
use crate::host::{Keys, RegionSpec};
use crate::names::{NO_KEY, SLOTS_MAX, keys, slot_of};
use crate::objects::PdId;

/// A region.
#[derive(Debug)]
pub(crate) struct Region<T> {
    pub(crate) pd: PdId,
    pub(crate) spec: RegionSpec,
    pub(crate) real: T,
    pub(crate) real_keys: Keys,
    /// Virtual ones.
    pub(crate) keys: Keys,
}

/// All of a process.
#[derive(Debug)]
pub(crate) struct Regions<T> {
    slots: Vec<(u8, Option<Region<T>>)>,
    free: Vec<usize>,
    /// Of each slot's first key: differs between processes, so that one's key seldom is another's.
    first: u8,
}

impl<T> Regions<T> {
    pub(crate) const fn new(process: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), first: (process as u8).wrapping_mul(37) }
    }

    /// A place, and the keys that its region will have. It is taken by `fill` only.
    pub(crate) fn place(&mut self) -> Option<(usize, Keys)> {
        if self.free.is_empty() {
            if self.slots.len() == SLOTS_MAX {
                return None;
            }
            self.free.push(self.slots.len());
            self.slots.push((self.first, None));
        }
        let slot = *self.free.last()?;
        let (local, remote) = keys(slot, self.slots[slot].0);
        Some((slot, Keys { local, remote }))
    }

    pub(crate) fn fill(&mut self, slot: usize, region: Region<T>) {
        self.free.retain(|&free| free != slot);
        self.slots[slot].1 = Some(region);
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Region<T>> {
        self.slots.get(slot)?.1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Region<T>> {
        self.slots.get_mut(slot)?.1.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: usize) -> Option<Region<T>> {
        let (generation, region) = self.slots.get_mut(slot)?;
        let region = region.take()?;
        *generation = generation.wrapping_add(1);
        // The one that has been free for longest is used first.
        if *generation != self.first {
            self.free.insert(0, slot);
        }
        Some(region)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Region<T>)> {
        let live = |(slot, (_, region)): (usize, &'_ (u8, Option<Region<T>>))| {
            region.as_ref().map(|_| slot)
        };
        let live = self.slots.iter().enumerate().filter_map(live);
        live.filter_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// The region of a local key.
    fn of(&self, local: u32) -> Option<&Region<T>> {
        self.get(slot_of(local)?).filter(|region| region.keys.local == local)
    }

    /// The real key for a virtual one; an impossible one if there is none.
    pub(crate) fn real_local(&self, local: u32) -> u32 {
        self.of(local).map_or(NO_KEY, |region| region.real_keys.local)
    }

    /// Where in memory an element is. None: its key does not allow it.
    pub(crate) fn memory_of(&self, sge: &Sge) -> Option<u64> {
        let spec = self.of(sge.lkey)?.spec;
        let offset = sge.addr.checked_sub(spec.iova.unwrap_or(spec.start))?;
        let fits = offset.checked_add(sge.length.into())? <= spec.bytes;
        fits.then(|| spec.start + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_key_is_used_twice() {
        let mut regions = Regions::new(200);
        let mut seen = BTreeSet::new();
        let spec = RegionSpec { start: 0, bytes: 1, iova: None, access: 0 };
        for _ in 0..2000 {
            let (slot, keys) = regions.place().expect("room");
            assert!(seen.insert(keys.remote), "{:#x} again", keys.remote);
            let real_keys = Keys { local: 1, remote: 1 };
            regions.fill(slot, Region { pd: PdId(0), spec, real: (), real_keys, keys });
            assert!(regions.remove(slot).is_some());
        }
        // As few places as can be.
        assert_eq!(regions.slots.len(), 8);
    }
}
