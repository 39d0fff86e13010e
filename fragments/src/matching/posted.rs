//! Posted receives: which one takes an arriving message?
//!
//! Source: MPI-3.1 §3.5. A message takes the receive that was posted first among those that match
//! it. A receive waits under its own pattern; a message is looked up under the (at most four)
//! patterns that match it and takes the oldest.

use super::table::{ANY_SOURCE, ANY_TAG, Key, KeyTable};

/// Receives, by slot number.
#[derive(Clone, Debug, Default)]
pub struct Posted {
    table: KeyTable,
    clock: u64,
    /// How many receives wait with a wildcard: source only, tag only, both.
    wild: [usize; 3],
    /// Replay takes part in matching.
    forced: bool,
    /// `wild` or `forced`.
    slow: bool,
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
        self.clock += 1;
        self.insert_at(slot, pattern, self.clock);
    }

    /// Post a receive at the position in the order that it had before (no receive with the same
    /// pattern may be younger).
    pub fn insert_at(&mut self, slot: u32, pattern: Key, order: u64) {
        if let Some(w) = wildness(&pattern) {
            self.wild[w] += 1;
            self.slow = true;
        }
        self.table.insert(slot, pattern, order);
    }

    /// The place of a posted receive in the order.
    pub fn order(&self, slot: u32) -> u64 {
        self.table.order(slot)
    }

    /// Replay takes part in matching, or no longer.
    #[cold]
    pub fn force(&mut self, forced: bool) {
        self.forced = forced;
        self.weigh();
    }

    fn weigh(&mut self) {
        self.slow = self.forced || self.wild != [0; 3];
    }

    /// Nothing but envelopes without wildcards counts?
    #[inline]
    pub fn is_plain(&self) -> bool {
        !self.slow
    }

    /// [`Posted::take`] where [`Posted::is_plain`].
    #[inline(always)]
    pub fn take_plain(&mut self, message: Key) -> Option<u32> {
        self.table.pop(&message)
    }

    /// The place of the receive that takes a message with this envelope.
    #[cold]
    pub fn oldest(&self, message: Key) -> Option<u64> {
        self.choose(message).map(|(order, ..)| order)
    }

    /// Remove a receive that has not matched. False: it is not posted.
    #[inline]
    pub fn remove(&mut self, slot: u32, pattern: &Key) -> bool {
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
        self.table.len()
    }

    /// None posted?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Assert the invariants of the table below.
    pub fn check(&self) {
        assert_eq!(self.slow, self.forced || self.wild != [0; 3], "slow");
        self.table.check();
    }
}
