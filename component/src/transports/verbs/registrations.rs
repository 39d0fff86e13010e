//! Memory of this process that peers may read: registered when something in it is first exposed.
//!
//! Lasting memory (segments of the payload log) stays registered when nothing in it is exposed any
//! more; other memory does not: nobody would say that the program has given it back. A process that
//! is copied for a checkpoint copies registered pages at once, in the pause. So memory in which
//! nothing is exposed is deregistered before ([`Registrations::release_idle`]), and what may be
//! exposed at a time has a limit.
//!
//! Invariants:
//! * V8 Memory is registered while something in it is exposed, and is deregistered before it is
//!   another's.

use crate::transports::verbs::api::{REMOTE_READ, Verbs, VerbsError};
use core::ops::Range;

/// Registered memory in which something is exposed: no more is registered beyond that, but for a
/// message that is longer by itself.
const EXPOSED_BYTES_MAX: usize = 32 << 20;
/// After so many refusals nothing more is registered.
const REFUSALS_MAX: u32 = 3;

/// A registered range.
struct Registration<R> {
    memory: Range<usize>,
    region: R,
    rkey: u32,
    /// Exposures in it.
    exposures: u32,
    /// It stays without any.
    lasts: bool,
}

/// See the module's documentation.
pub struct Registrations<V: Verbs> {
    all: Vec<Registration<V::Region>>,
    refusals: u32,
}

impl<V: Verbs> Default for Registrations<V> {
    fn default() -> Self {
        Self { all: Vec::new(), refusals: 0 }
    }
}

impl<V: Verbs> Registrations<V> {
    /// Something is exposed in this memory: its remote key. `lasts`: nobody gives the memory back
    /// without [`Self::forget`].
    ///
    /// # Errors
    /// `None`: enough is exposed, or nothing can be registered any more. Otherwise the first
    /// time what the library says.
    ///
    /// # Safety
    /// It stays mapped until it is forgotten; otherwise as long as something in it is exposed.
    pub unsafe fn expose(
        &mut self,
        verbs: &V,
        device: V::Device,
        memory: Range<usize>,
        lasts: bool,
    ) -> Result<u32, Option<VerbsError>> {
        if let Some(known) = self.all.iter_mut().find(|known| known.lasts && known.memory == memory)
        {
            known.exposures += 1;
            return Ok(known.rkey);
        }
        let exposed = self.all.iter().filter(|known| known.exposures > 0);
        let bytes: usize = exposed.map(|known| known.memory.len()).sum();
        let is_too_much = bytes > 0 && bytes + memory.len() > EXPOSED_BYTES_MAX;
        if is_too_much || self.refusals >= REFUSALS_MAX {
            return Err(None);
        }
        let start = memory.start as *mut u8;
        let register = || {
            // SAFETY: the caller's promise.
            unsafe { verbs.register(device, start, memory.len(), REMOTE_READ) }
        };
        let region = match register() {
            Ok(region) => region,
            Err(_) => {
                // Most often the limit of locked memory.
                self.release_idle(verbs);
                register().map_err(|error| {
                    self.refusals += 1;
                    (self.refusals == REFUSALS_MAX).then_some(error)
                })?
            }
        };
        let rkey = verbs.keys(region).1;
        self.all.push(Registration { memory, region, rkey, exposures: 1, lasts });
        Ok(rkey)
    }

    /// An exposure in this memory is over.
    pub fn withdraw(&mut self, verbs: &V, memory: &Range<usize>, rkey: u32) {
        let found = self.all.iter().position(|of| of.rkey == rkey && of.memory == *memory);
        let Some(at) = found else { return };
        let of = &mut self.all[at];
        // Memory may have been given back, and registered again with the same key.
        of.exposures = of.exposures.saturating_sub(1);
        if of.exposures == 0 && !of.lasts {
            verbs.deregister(self.all.swap_remove(at).region);
        }
    }

    /// This memory is given back. Nothing in it is exposed.
    pub fn forget(&mut self, verbs: &V, memory: &Range<usize>) {
        self.retain(verbs, |of| of.memory != *memory);
    }

    /// Deregister memory in which nothing is exposed.
    pub fn release_idle(&mut self, verbs: &V) {
        self.retain(verbs, |of| of.exposures > 0);
    }

    /// Deregister all: no queue pair is left.
    pub fn clear(&mut self, verbs: &V) {
        self.retain(verbs, |_| false);
    }

    fn retain(&mut self, verbs: &V, stays: impl Fn(&Registration<V::Region>) -> bool) {
        self.all.retain(|of| {
            let stays = stays(of);
            if !stays {
                verbs.deregister(of.region);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::verbs::fake::{Nature, World};

    #[test]
    fn lasting_memory_stays_registered_and_other_memory_does_not() {
        let world = World::new(1, Nature::default());
        let verbs = world.node(0);
        let device = verbs.open("fake0").unwrap();
        let mut all = Registrations::<crate::transports::verbs::fake::Fake>::default();
        let memory = [0u8; 4096];
        let start = memory.as_ptr() as usize;
        let (log, program) = (start..start + 2048, start + 2048..start + 4096);
        let mut expose = |memory: &Range<usize>, lasts| {
            // SAFETY: it outlives the registrations.
            let key = unsafe { all.expose(&verbs, device, memory.clone(), lasts) };
            (key.unwrap(), world.live(0) - 1)
        };
        let (key, _) = expose(&log, true);
        assert_eq!(expose(&log, true), (key, 1), "registered once");
        let (own, live) = expose(&program, false);
        assert_eq!(live, 2);
        let (again, live) = expose(&program, false);
        assert!(live == 3 && again != own);
        let live = || world.live(0) - 1;
        all.withdraw(&verbs, &program, own);
        assert_eq!(live(), 2);
        all.withdraw(&verbs, &log, key);
        all.release_idle(&verbs);
        assert_eq!(live(), 2, "one of two exposures is over");
        all.withdraw(&verbs, &log, key);
        assert_eq!(live(), 2, "it lasts");
        all.release_idle(&verbs);
        all.forget(&verbs, &log);
        assert_eq!(live(), 1);
        all.clear(&verbs);
        assert_eq!(live(), 0);
        verbs.close(device);
    }

    #[test]
    fn what_is_exposed_has_a_limit() {
        let world = World::new(1, Nature::default());
        let verbs = world.node(0);
        let device = verbs.open("fake0").unwrap();
        let mut all = Registrations::<crate::transports::verbs::fake::Fake>::default();
        let memory = |n: usize| (n << 24)..(n << 24) + (16 << 20);
        for n in 1..=2 {
            // SAFETY: the fake does not touch what nobody reads.
            let key = unsafe { all.expose(&verbs, device, memory(n), true) }.unwrap();
            if n == 1 {
                all.withdraw(&verbs, &memory(1), key);
            }
        }
        // SAFETY: as above.
        let mut more = |n| unsafe { all.expose(&verbs, device, memory(n), true) };
        assert!(more(3).is_ok() && more(3).is_ok(), "the first one is idle");
        assert_eq!(more(4), Err(None));
        let mut alone = Registrations::<crate::transports::verbs::fake::Fake>::default();
        let long = (1 << 30)..(1 << 30) + (64 << 20);
        // SAFETY: as above.
        let key = unsafe { alone.expose(&verbs, device, long.clone(), true) }.unwrap();
        alone.forget(&verbs, &long);
        // SAFETY: as above.
        let again = unsafe { alone.expose(&verbs, device, long.clone(), true) };
        assert!(again.is_ok_and(|again| again != key));
        alone.withdraw(&verbs, &long, key);
        alone.release_idle(&verbs);
        // The regions that `all` has, and the long one.
        assert_eq!(world.live(0) - 1, 4, "what is exposed stays registered");
    }
}
