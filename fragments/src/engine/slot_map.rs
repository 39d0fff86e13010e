//! A slot map: slots with generations, so that an id of a removed value finds nothing.

use slab::Slab;

/// A slab whose ids carry a generation. `T` is found by the whole id only.
#[derive(Clone, Debug)]
pub struct SlotMap<T> {
    slab: Slab<(u32, T)>,
    generation: u32,
}

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self { slab: Slab::new(), generation: 0 }
    }
}

impl<T> SlotMap<T> {
    /// Insert `value`; gives index and generation.
    #[inline]
    pub fn insert(&mut self, value: T) -> (u32, u32) {
        self.generation = self.generation.wrapping_add(1);
        (self.slab.insert((self.generation, value)) as u32, self.generation)
    }

    /// The value under this id, unless it was removed.
    #[inline]
    pub fn get(&self, index: u32, generation: u32) -> Option<&T> {
        match self.slab.get(index as usize) {
            Some((g, value)) if *g == generation => Some(value),
            _ => None,
        }
    }

    /// The same, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        match self.slab.get_mut(index as usize) {
            Some((g, value)) if *g == generation => Some(value),
            _ => None,
        }
    }

    /// Remove it.
    #[inline]
    pub fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        self.get(index, generation)?;
        Some(self.slab.remove(index as usize).1)
    }

    /// The value in a slot that is known to be in use.
    #[inline]
    pub fn at(&self, index: u32) -> &T {
        &self.slab[index as usize].1
    }

    /// The same, to change.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self.slab[index as usize].1
    }

    /// Remove the value of a slot that is known to be in use.
    #[inline]
    pub fn take(&mut self, index: u32) -> T {
        self.slab.remove(index as usize).1
    }

    /// Generation of a slot that is known to be in use.
    #[inline]
    pub fn generation(&self, index: u32) -> u32 {
        self.slab[index as usize].0
    }

    /// All, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        self.slab.iter().map(|(index, (generation, value))| (index as u32, *generation, value))
    }

    /// All, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, u32, &mut T)> {
        self.slab.iter_mut().map(|(index, (generation, value))| (index as u32, *generation, value))
    }

    /// How many are in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }
}
