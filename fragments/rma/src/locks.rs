//! The lock of one target's window: who holds it, who waits (MPI-3.1 §11.5.3).
//!
//! First come, first served: a shared lock does not overtake an exclusive one that waits, or those
//! who lock again and again would keep it out. But if nothing has changed for long, it does (L2):
//! who holds the lock may be waiting for another one, behind an exclusive one there. Two ranks in
//! MPI_Win_lock_all, and two in MPI_Win_lock, can be in such a ring, and the program is sound.

use crate::direct::{EntryRef, Locked};
use crate::ids::CommRank;
use std::collections::{BTreeSet, VecDeque};

/// So often [`LockQueue::stood`] is called without a change before a shared lock overtakes.
const STOOD_LONG: u8 = 2;

/// State of a lock.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LockQueue {
    exclusive: Option<CommRank>,
    shared: BTreeSet<CommRank>,
    waiting: VecDeque<CommRank>,
    stood: u8,
}

impl LockQueue {
    /// Nobody has it, nobody waits.
    pub fn is_idle(&self) -> bool {
        self.exclusive.is_none() && self.shared.is_empty() && self.waiting.is_empty()
    }

    /// Could it be given to one more?
    pub fn is_available(&self, exclusive: bool) -> bool {
        self.exclusive.is_none() && (!exclusive || self.shared.is_empty())
    }

    /// Is it the turn of `source`? Otherwise it waits from now on. `is_free`: those who took the
    /// lock directly leave room for it.
    pub fn ask(&mut self, source: CommRank, exclusive: bool, is_free: bool) -> bool {
        let first = self.waiting.front().is_none_or(|&first| first == source);
        let overtakes = !exclusive && self.stood >= STOOD_LONG;
        if (first || overtakes) && is_free && self.is_available(exclusive) {
            return true;
        }
        if !self.waiting.contains(&source) {
            self.waiting.push_back(source);
        }
        false
    }

    /// Give it to `source`, whoever else waits.
    pub fn grant(&mut self, source: CommRank, exclusive: bool) {
        if self.waiting.front().is_none_or(|&first| first == source) {
            self.stood = 0;
        }
        self.waiting.retain(|&other| other != source);
        if exclusive {
            self.exclusive = Some(source);
        } else {
            self.shared.insert(source);
        }
    }

    /// `source` gives it back; false: it had none.
    pub fn release(&mut self, source: CommRank) -> bool {
        let had = self.is_held_by(source);
        if had {
            self.stood = 0;
            self.exclusive = None;
            self.shared.remove(&source);
        }
        had
    }

    /// Time has passed, and the same wait.
    pub(crate) fn stood(&mut self) {
        if !self.waiting.is_empty() {
            self.stood = self.stood.saturating_add(1);
        }
    }

    /// Neighbours take the lock directly only where this leaves room for it.
    pub(crate) fn publish(&self, locked: &Locked<'_>, entry: EntryRef<'_>) {
        let exclusive = self.exclusive.is_some();
        locked.set_by_message(entry, exclusive, self.shared.len(), self.waiting.len());
    }

    /// Those that wait, in their order.
    pub fn waiting(&self) -> impl Iterator<Item = CommRank> + '_ {
        self.waiting.iter().copied()
    }

    /// Who holds it.
    pub fn holders(&self) -> impl Iterator<Item = CommRank> + '_ {
        self.exclusive.iter().chain(&self.shared).copied()
    }

    /// Does `source` hold it?
    pub fn is_held_by(&self, source: CommRank) -> bool {
        self.exclusive == Some(source) || self.shared.contains(&source)
    }

    /// L1: one holder of an exclusive lock, or any number of shared ones; who holds it does not
    /// wait, who waits does so once.
    ///
    /// # Panics
    /// If it is not so.
    pub fn check(&self) {
        assert!(self.exclusive.is_none() || self.shared.is_empty(), "L1: exclusive and shared");
        let waiting: BTreeSet<_> = self.waiting().collect();
        assert!(waiting.len() == self.waiting.len(), "L1: waits twice");
        assert!(self.holders().all(|holder| !waiting.contains(&holder)), "L1: holder waits");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lock_does_not_overtake() {
        let [a, b, c, d] = [0, 1, 2, 3].map(CommRank);
        let mut lock = LockQueue::default();
        assert!(lock.is_idle() && lock.ask(a, false, true));
        lock.grant(a, false);
        assert!(!lock.ask(b, true, true) && !lock.ask(c, false, true) && !lock.ask(b, true, true));
        assert_eq!(lock.waiting().collect::<Vec<_>>(), [b, c]);
        assert!(lock.release(a) && !lock.release(a));
        assert!(!lock.ask(c, false, true), "b waits in front");
        assert!(lock.ask(b, true, true));
        lock.grant(b, true);
        lock.check();
        assert!(!lock.ask(c, false, true) && !lock.ask(d, false, true));
        assert!(lock.release(b) && lock.ask(c, false, true));
        lock.grant(c, false);
        assert!(lock.ask(d, false, true));
        lock.grant(d, false);
        lock.check();
        assert_eq!(lock.holders().collect::<Vec<_>>(), [c, d]);
        assert!(!lock.is_available(true) && lock.is_available(false));
        assert!(lock.release(c) && lock.release(d) && lock.is_idle());
    }

    #[test]
    fn shared_locks_overtake_where_nothing_has_changed_for_long() {
        let [a, b, c, d] = [0, 1, 2, 3].map(CommRank);
        let mut lock = LockQueue::default();
        lock.grant(a, false);
        assert!(!lock.ask(b, true, true) && !lock.ask(c, false, true) && !lock.ask(d, false, true));
        lock.stood();
        assert!(!lock.ask(c, false, true), "not for long");
        lock.stood();
        assert!(!lock.ask(b, true, true) && !lock.ask(c, false, false), "it is not free");
        assert!(lock.ask(c, false, true));
        lock.grant(c, false);
        assert!(lock.ask(d, false, true), "all that wait with it");
        lock.grant(d, false);
        lock.check();
        assert!(lock.release(d) && !lock.ask(d, false, true), "there was a change");
        assert!(lock.release(a) && lock.release(c) && lock.ask(b, true, true));
        lock.grant(b, true);
        for _ in 0..3 {
            lock.stood();
        }
        assert!(!lock.ask(d, false, true), "who holds it alone keeps it");
    }
}
