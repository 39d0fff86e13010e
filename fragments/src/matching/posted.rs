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
#[derive(Clone, Debug, Default)]
pub struct Posted {
    /// Not empty: all posted receives, oldest first, and their pattern; the table is empty.
    alike: VecDeque<u32>,
    pattern: Option<Key>,
    table: KeyTable,
    clock: u64,
    /// How many receives wait with a wildcard: source only, tag only, both.
    wild: [usize; 3],
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
        if self.alike.is_empty() && self.table.is_empty() && wild.is_none() {
            self.pattern = Some(pattern);
            self.alike.push_back(slot);
            return;
        }
        self.use_table();
        if let Some(w) = wild {
            self.wild[w] += 1;
        }
        self.clock += 1;
        self.table.insert(slot, pattern, self.clock);
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
        }
        was
    }

    /// Which receive takes a message with this envelope? It is taken out.
    #[inline]
    pub fn take(&mut self, message: Key) -> Option<u32> {
        if let Some(pattern) = self.pattern {
            return if pattern == message { self.alike.pop_front() } else { None };
        }
        if self.wild == [0; 3] { self.table.pop(&message) } else { self.take_among_wild(message) }
    }

    fn take_among_wild(&mut self, message: Key) -> Option<u32> {
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
        let (_, slot, w) = best?;
        self.table.remove(slot);
        if let Some(w) = w {
            self.wild[w] -= 1;
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
        self.table.check();
    }
}
