//! Unexpected messages: which one does a receive take?
//!
//! Source: MPI-3.1 §3.5. A receive takes the message that arrived first among those that match its
//! pattern. A message is indexed under its envelope and, once the program has used a wildcard,
//! under each pattern with wildcards that would match it: so every receive needs one look-up.

use super::table::{ANY_SOURCE, ANY_TAG, Key, KeyTable};

/// Messages, by slot number.
#[derive(Clone, Debug, Default)]
pub struct Unexpected {
    /// Index entries of slot s: 4 s (envelope), 4 s + 1 (any source), + 2 (any tag), + 3 (both).
    table: KeyTable,
    /// Envelope and order of arrival of each message, by slot.
    arrived: Vec<Option<(u64, Key)>>,
    clock: u64,
    len: usize,
    /// A wildcard was used, so the entries + 1 to + 3 exist.
    wild: bool,
}

impl Unexpected {
    /// A message without a receive.
    #[inline]
    pub fn insert(&mut self, slot: u32, envelope: Key) {
        self.clock += 1;
        self.len += 1;
        let at = slot as usize;
        if at >= self.arrived.len() {
            self.arrived.resize(at + 1, None);
        }
        self.arrived[at] = Some((self.clock, envelope));
        self.table.insert(slot * 4, envelope, self.clock);
        if self.wild {
            self.index_wild(slot, envelope, self.clock);
        }
    }

    fn index_wild(&mut self, slot: u32, envelope: Key, order: u64) {
        let any_source = Key { source: ANY_SOURCE, ..envelope };
        self.table.insert(slot * 4 + 1, any_source, order);
        if envelope.tag >= 0 {
            self.table.insert(slot * 4 + 2, Key { tag: ANY_TAG, ..envelope }, order);
            self.table.insert(slot * 4 + 3, Key { tag: ANY_TAG, ..any_source }, order);
        }
    }

    #[cold]
    fn index_all_wild(&mut self) {
        self.wild = true;
        let mut all: Vec<(u64, u32, Key)> = self
            .arrived
            .iter()
            .enumerate()
            .filter_map(|(slot, entry)| entry.map(|(order, key)| (order, slot as u32, key)))
            .collect();
        all.sort_unstable_by_key(|&(order, ..)| order);
        for (order, slot, key) in all {
            self.index_wild(slot, key, order);
        }
    }

    /// The message that a receive with this pattern takes; it stays.
    #[inline]
    pub fn find(&mut self, pattern: Key) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        if (pattern.source == ANY_SOURCE || pattern.tag == ANY_TAG) && !self.wild {
            self.index_all_wild();
        }
        self.table.first(&pattern).map(|entry| entry / 4)
    }

    /// Take a message out.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        let Some(entry) = self.arrived.get_mut(slot as usize) else { return };
        let Some((_, envelope)) = entry.take() else { return };
        self.len -= 1;
        self.table.remove(slot * 4);
        if self.wild {
            self.table.remove(slot * 4 + 1);
            if envelope.tag >= 0 {
                self.table.remove(slot * 4 + 2);
                self.table.remove(slot * 4 + 3);
            }
        }
    }

    /// The messages of one communicator, oldest first.
    pub fn of_context(&self, context: u32) -> Vec<u32> {
        let mut found: Vec<(u64, u32)> = self
            .arrived
            .iter()
            .enumerate()
            .filter_map(|(slot, entry)| match entry {
                Some((order, key)) if key.context == context => Some((*order, slot as u32)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Does this message wait?
    pub fn holds(&self, slot: u32) -> bool {
        self.arrived.get(slot as usize).is_some_and(Option::is_some)
    }

    /// All messages, oldest first.
    pub fn in_order(&self) -> Vec<u32> {
        let mut all: Vec<(u64, u32)> = (0..)
            .zip(&self.arrived)
            .filter_map(|(slot, entry)| entry.map(|(order, _)| (order, slot)))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Envelopes of the waiting messages.
    pub fn envelopes(&self) -> impl Iterator<Item = &Key> {
        self.arrived.iter().flatten().map(|(_, key)| key)
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Assert the invariants of the table below.
    pub fn check(&self) {
        self.table.check();
        assert_eq!(self.len, self.arrived.iter().flatten().count());
    }
}
