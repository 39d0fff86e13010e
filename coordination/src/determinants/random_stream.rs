//! The random numbers of the system that the program draws (getrandom and the like).
//!
//! Source: docs/adr/0029. They need no record: a generator in the process' memory, which is seeded
//! by the kernel, is part of its snapshot. A process that is restored and draws again is given the
//! same bytes, whatever others know of them.
//!
//! Each draw is SHA-256 over the secret state and a counter; then the state is replaced by its own
//! hash, so that what was drawn cannot be found out from a later state.
//!
//! Invariants:
//! * N1 What is drawn depends on the seeds and on the lengths of the draws before, on nothing else.
//! * N2 Nothing is drawn before the first seed.

use sha2::{Digest, Sha256};

const STATE_BYTES: usize = 32;

/// What goes in front of the state, by what is made of it.
const NEXT: u8 = 0;
const DRAW: u8 = 1;
const SEED: u8 = 2;

/// See the module's documentation.
#[derive(Clone, Default)]
pub struct RandomStream {
    state: Option<[u8; STATE_BYTES]>,
}

/// Without the state, which is a secret.
impl core::fmt::Debug for RandomStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RandomStream").field("seeded", &self.state.is_some()).finish()
    }
}

impl RandomStream {
    /// Has it a seed?
    pub fn is_seeded(&self) -> bool {
        self.state.is_some()
    }

    /// A seed, beside those that it has had.
    pub fn seed(&mut self, seed: [u8; STATE_BYTES]) {
        let before = self.state.unwrap_or_default();
        let hash = Sha256::new().chain_update([SEED]).chain_update(before);
        self.state = Some(hash.chain_update(seed).finalize().into());
    }

    /// Fill `out`. False: it has no seed, and `out` is as it was (N2). No memory is allocated.
    pub fn draw(&mut self, out: &mut [u8]) -> bool {
        let Some(state) = self.state else { return false };
        for (counter, block) in (0u64..).zip(out.chunks_mut(STATE_BYTES)) {
            let hash = Sha256::new().chain_update([DRAW]).chain_update(state);
            let bytes = hash.chain_update(counter.to_le_bytes()).finalize();
            block.copy_from_slice(&bytes[..block.len()]);
        }
        self.state = Some(Sha256::new().chain_update([NEXT]).chain_update(state).finalize().into());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw<const N: usize>(stream: &mut RandomStream) -> [u8; N] {
        let mut out = [0; N];
        assert!(stream.draw(&mut out));
        out
    }

    #[test]
    fn n1_a_copy_draws_the_same_and_another_seed_something_else() {
        let mut stream = RandomStream::default();
        stream.seed([7; 32]);
        draw::<3>(&mut stream);
        let mut snapshot = stream.clone();
        let first: ([u8; 8], [u8; 100]) = (draw(&mut stream), draw(&mut stream));
        assert_eq!((draw(&mut snapshot), draw(&mut snapshot)), first);
        assert_ne!(first.0[..], first.1[..8]);
        snapshot.seed([8; 32]);
        stream.seed([9; 32]);
        assert_ne!(draw::<8>(&mut snapshot), draw::<8>(&mut stream));
    }

    #[test]
    fn n2_nothing_is_drawn_without_a_seed() {
        let mut stream = RandomStream::default();
        let mut out = [5; 4];
        assert!(!stream.draw(&mut out) && !stream.is_seeded());
        assert_eq!(out, [5; 4]);
        stream.seed([0; 32]);
        assert!(stream.draw(&mut []) && stream.is_seeded());
        assert_eq!(format!("{stream:?}"), "RandomStream { seeded: true }");
    }

    #[test]
    fn bytes_of_long_draws_are_all_drawn() {
        let mut stream = RandomStream::default();
        stream.seed([1; 32]);
        let mut seen = [0u32; 256];
        for byte in draw::<65536>(&mut stream) {
            seen[usize::from(byte)] += 1;
        }
        // 256 each; the deviation is 16.
        assert!(seen.iter().all(|count| (128..400).contains(count)), "{seen:?}");
    }
}
