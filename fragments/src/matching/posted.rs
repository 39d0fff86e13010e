//! Posted receives: which one takes an arriving message?
//!
//! Source: MPI-3.1 §3.5. A message takes the receive that was posted first among those that match
//! it. A receive waits under its own pattern; a message looks under the (at most four) patterns
//! that match it and takes the oldest.

use super::table::{ANY_SOURCE, ANY_TAG, Key, KeyTable};
use std::collections::VecDeque;

/// Receives, by slot number.
///
/// While all that are posted have the same pattern without wildcards (a window of receives from
/// one sender), they are in a plain queue; with the first other one all of them go to the table.
/// Where `rare` holds they are in the table.
#[derive(Clone, Debug, Default)]
pub struct Posted {
    /// Not empty: all posted receives, oldest first, and their pattern; the table is empty.
    alike: VecDeque<u32>,
    pattern: Option<Key>,
    table: KeyTable,
    clock: u64,
    /// How many receives wait with a wildcard: source only, tag only, both.
    wild: [usize; 3],
    /// Replay has a say in matching.
    forced: bool,
    /// `wild` or `forced`.
    rare: bool,
}

fn wildness(key: &Key) -> Option<usize> {
    match (key.source == ANY_SOURCE, key.tag == ANY_TAG) {
        (false, false) => None,
        (true, false) => Some(0),
        (false, true) => Some(1),
        (true, true) => Some(2),
    }
}

impl Posted {
    /// Post receive `slot`.
    #[inline]
    pub fn insert(&mut self, slot: u32, pattern: Key) {
        if self.pattern == Some(pattern) {
            self.alike.push_back(slot);
        } else {
            self.insert_other(slot, pattern);
        }
    }

    /// The first one, or one that differs from the others.
    #[inline(never)]
    fn insert_other(&mut self, slot: u32, pattern: Key) {
        let wild = wildness(&pattern);
        if self.is_empty() && wild.is_none() && !self.forced {
            self.pattern = Some(pattern);
            self.alike.push_back(slot);
            return;
        }
        self.use_table();
        if let Some(w) = wild {
            self.wild[w] += 1;
            self.rare = true;
        }
        self.clock += 1;
        self.table.insert(slot, pattern, self.clock);
    }

    /// Post a receive at the place in the order that it had before (no receive with the same
    /// pattern may be younger).
    #[cold]
    pub fn insert_at(&mut self, slot: u32, pattern: Key, order: u64) {
        self.use_table();
        if let Some(w) = wildness(&pattern) {
            self.wild[w] += 1;
            self.rare = true;
        }
        self.table.insert(slot, pattern, order);
    }

    /// The place of a posted receive in the order.
    #[cold]
    pub fn order(&mut self, slot: u32) -> u64 {
        self.use_table();
        self.table.order(slot)
    }

    /// Replay has a say in matching, or not any more.
    #[cold]
    pub fn force(&mut self, forced: bool) {
        self.use_table();
        self.forced = forced;
        self.weigh();
    }

    fn weigh(&mut self) {
        self.rare = self.forced || self.wild != [0; 3];
    }

    /// Nothing but envelopes without wildcards counts?
    #[inline]
    pub fn is_plain(&self) -> bool {
        !self.rare
    }

    /// What the oldest receive of such a queue takes.
    #[inline]
    pub fn next(&self) -> Option<Key> {
        if self.alike.is_empty() { None } else { self.pattern }
    }

    /// [`Posted::take`] where [`Posted::is_plain`].
    #[inline(always)]
    pub fn take_plain(&mut self, message: Key) -> Option<u32> {
        if let Some(pattern) = self.pattern {
            return if pattern == message { self.alike.pop_front() } else { None };
        }
        self.table.pop(&message)
    }

    /// The place of the receive that takes a message with this envelope.
    #[cold]
    pub fn oldest(&mut self, message: Key) -> Option<u64> {
        self.use_table();
        self.choose(message).map(|(order, ..)| order)
    }

    /// From now on until nothing is posted the table is used.
    fn use_table(&mut self) {
        let Some(pattern) = self.pattern.take() else { return };
        while let Some(slot) = self.alike.pop_front() {
            self.clock += 1;
            self.table.insert(slot, pattern, self.clock);
        }
    }

    /// Take back a receive that has not matched. False: it is not here.
    #[inline]
    pub fn remove(&mut self, slot: u32, pattern: &Key) -> bool {
        self.use_table();
        let was = self.table.remove(slot);
        if was && let Some(w) = wildness(pattern) {
            self.wild[w] -= 1;
            self.weigh();
        }
        was
    }

    /// Which receive takes a message with this envelope? It is taken out.
    #[inline]
    pub fn take(&mut self, message: Key) -> Option<u32> {
        if self.wild == [0; 3] { self.take_plain(message) } else { self.take_among_wild(message) }
    }

    fn choose(&self, message: Key) -> Option<(u64, u32, Option<usize>)> {
        let exact = self.table.first(&message);
        let any_source = Key { source: ANY_SOURCE, ..message };
        // MPI_ANY_TAG must not see the library's own tags.
        let user = message.tag >= 0;
        let patterns = [
            (self.wild[0] > 0, any_source),
            (user && self.wild[1] > 0, Key { tag: ANY_TAG, ..message }),
            (user && self.wild[2] > 0, Key { tag: ANY_TAG, ..any_source }),
        ];
        let mut best = exact.map(|slot| (self.table.order(slot), slot, None));
        for (w, (look, pattern)) in patterns.into_iter().enumerate() {
            if look && let Some(slot) = self.table.first(&pattern) {
                let order = self.table.order(slot);
                if best.is_none_or(|(oldest, ..)| order < oldest) {
                    best = Some((order, slot, Some(w)));
                }
            }
        }
        best
    }

    fn take_among_wild(&mut self, message: Key) -> Option<u32> {
        let (_, slot, w) = self.choose(message)?;
        self.table.remove(slot);
        if let Some(w) = w {
            self.wild[w] -= 1;
            self.weigh();
        }
        Some(slot)
    }

    /// How many receives are posted.
    pub fn len(&self) -> usize {
        self.table.len() + self.alike.len()
    }

    /// None posted?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.alike.is_empty()
    }

    /// Assert the invariants of the table below.
    pub fn check(&self) {
        assert!(self.alike.is_empty() || self.table.is_empty(), "posted in one place");
        assert!(self.alike.is_empty() || self.pattern.is_some(), "the queue has a pattern");
        assert!(!self.rare || self.pattern.is_none(), "rare: all are in the table");
        assert_eq!(self.rare, self.forced || self.wild != [0; 3], "rare");
        self.table.check();
    }
}
