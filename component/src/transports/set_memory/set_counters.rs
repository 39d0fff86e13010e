//! Where the ranks of a set that all live on this node count how far they are in a line
//! (`coordination::quiescence`, the way by counts): one word for each station.

use core::sync::atomic::{AtomicU64, Ordering};
use rustbtl_coordination::quiescence::{CounterPhase, PhaseCounter};

/// A cache line of its own, behind that of the first rank of the set.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SetCounters {
    words: [AtomicU64; CounterPhase::ALL.len()],
}

impl SetCounters {
    /// One more has come, after all that it has put into rings. False: others are in a newer line.
    pub fn come(&self, checkpoint: u64, station: CounterPhase, open: bool) -> bool {
        let word = &self.words[station as usize];
        // [set_counters] frames that were published before are seen by whoever sees the count.
        let next = |now| PhaseCounter(now).arrive(checkpoint, open).map(|next| next.0);
        word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
    }

    /// Who has come.
    pub fn look(&self, station: CounterPhase) -> PhaseCounter {
        // [set_counters]
        PhaseCounter(self.words[station as usize].load(Ordering::Acquire))
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
                        for station in CounterPhase::ALL {
                            if station == CounterPhase::Drained {
                                cells[me].store(checkpoint, Ordering::Relaxed);
                            }
                            let open = checkpoint % RANKS as u64 == me as u64;
                            assert!(counters.come(checkpoint, station, open));
                            let said = loop {
                                let word = counters.look(station);
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
                            assert!(station != CounterPhase::Drained || cells.iter().all(seen));
                        }
                    }
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        assert!(!counters.come(7, CounterPhase::Drained, true), "an older line");
    }
}
