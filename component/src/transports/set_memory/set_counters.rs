//! Where the ranks of a set that all live on this node count how far they are in a checkpoint
//! (`coordination::quiescence`, the way by counts): one word for each phase.

use core::sync::atomic::{AtomicU64, Ordering};
use rustbtl_coordination::quiescence::{CounterPhase, PhaseCounter};

/// A cache line of its own, behind that of the first rank of the set.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SetCounters {
    words: [AtomicU64; CounterPhase::ALL.len()],
}

impl SetCounters {
    /// One more has come, after all that it has put into rings. False: others are in a newer
    /// checkpoint.
    pub fn arrive(&self, checkpoint: u64, phase: CounterPhase, open: bool) -> bool {
        let word = &self.words[phase as usize];
        // [set_counters] frames that were published before are seen by whoever sees the count.
        let next = |now| PhaseCounter(now).arrive(checkpoint, open).map(|next| next.0);
        word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
    }

    /// Who has come.
    pub fn load(&self, phase: CounterPhase) -> PhaseCounter {
        // [set_counters]
        PhaseCounter(self.words[phase as usize].load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    /// What is written before a process comes is read by all after they have met, line by line.
    #[test]
    fn what_was_done_before_is_seen_by_all() {
        const RANKS: usize = 5;
        let counters = Arc::new(SetCounters::default());
        let cells: Arc<Vec<AtomicU64>> = Arc::new((0..RANKS).map(|_| AtomicU64::new(0)).collect());
        let ranks: Vec<_> = (0..RANKS)
            .map(|me| {
                let (counters, cells) = (Arc::clone(&counters), Arc::clone(&cells));
                thread::spawn(move || {
                    for checkpoint in 1..=200 {
                        for phase in CounterPhase::ALL {
                            if phase == CounterPhase::Drained {
                                cells[me].store(checkpoint, Ordering::Relaxed);
                            }
                            let open = checkpoint % RANKS as u64 == me as u64;
                            assert!(counters.arrive(checkpoint, phase, open));
                            let said = loop {
                                let word = counters.load(phase);
                                if let Some(open) = word.all_arrived(checkpoint, RANKS) {
                                    break open;
                                }
                                assert!(
                                    word.checkpoint() <= checkpoint,
                                    "nobody is further without us"
                                );
                                thread::yield_now();
                            };
                            assert!(said, "one has said it, and all know");
                            let seen =
                                |cell: &AtomicU64| cell.load(Ordering::Relaxed) == checkpoint;
                            assert!(phase != CounterPhase::Drained || cells.iter().all(seen));
                        }
                    }
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        assert!(!counters.arrive(7, CounterPhase::Drained, true), "an older checkpoint");
    }
}
