//! Hash table of first-in-first-out queues: the index behind both halves of matching.
//!
//! Each item is in exactly one queue, that of its [`Key`]; finding the oldest item of a key, adding
//! and removing are O(1), however many items wait (10,000 posted receives cost what one costs).
//! Items are small integers chosen by the caller; nodes live in one array indexed by them.
//!
//! Invariants:
//! * T1 The first node of each key, and no other, is on its bucket's chain.
//! * T2 The nodes of a key are linked oldest first; `order` rises strictly along them.
//! * T3 `keys` is the number of chained nodes, `items` that of all nodes.

/// The key of a queue: context id, source rank or [`ANY_SOURCE`], tag or [`ANY_TAG`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Context id.
    pub context: u32,
    /// Rank in the communicator.
    pub source: u32,
    /// Tag.
    pub tag: i32,
}

impl Key {
    /// Does it belong to the program, not to the library itself (MPI_ANY_TAG included)?
    #[inline]
    pub fn is_user(&self) -> bool {
        self.tag as u32 <= ANY_TAG as u32
    }

    /// Does a receive with this pattern take a message with this envelope (MPI-3.1 §3.2.4)?
    pub fn takes(&self, message: &Self) -> bool {
        self.context == message.context
            && (self.source == ANY_SOURCE || self.source == message.source)
            && (self.tag == message.tag || (self.tag == ANY_TAG && message.tag >= 0))
    }
}

/// The source of receives that take any.
pub const ANY_SOURCE: u32 = u32::MAX;
/// The tag of receives that take any (no tag of Open MPI's has this value).
pub const ANY_TAG: i32 = i32::MIN;

const NIL: u32 = u32::MAX;
const BUCKETS_MIN: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    used: bool,
    order: u64,
    /// Next first-of-its-key in the bucket (T1).
    chain: u32,
    /// Neighbours of the same key; `tail` is valid at the first one.
    prev: u32,
    next: u32,
    tail: u32,
}

const FREE: Node = Node {
    key: Key { context: 0, source: 0, tag: 0 },
    used: false,
    order: 0,
    chain: NIL,
    prev: NIL,
    next: NIL,
    tail: NIL,
};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct KeyTable {
    buckets: Vec<u32>,
    nodes: Vec<Node>,
    keys: usize,
    items: usize,
}

impl Default for KeyTable {
    fn default() -> Self {
        Self { buckets: vec![NIL; BUCKETS_MIN], nodes: Vec::new(), keys: 0, items: 0 }
    }
}

impl KeyTable {
    #[inline]
    fn bucket(&self, key: &Key) -> usize {
        // Fibonacci hashing of the three words; the high half of a product mixes best.
        let low = (u64::from(key.source) << 32) | u64::from(key.tag as u32);
        let mixed = (low ^ (u64::from(key.context) << 17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (((mixed >> 32) ^ mixed) as usize) & (self.buckets.len() - 1)
    }

    /// Nothing in it?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// How many items are in it.
    pub fn len(&self) -> usize {
        self.items
    }

    /// The oldest item of `key`.
    #[inline]
    pub fn first(&self, key: &Key) -> Option<u32> {
        self.first_in(self.bucket(key), key)
    }

    #[inline]
    fn first_in(&self, bucket: usize, key: &Key) -> Option<u32> {
        let mut at = self.buckets[bucket];
        while at != NIL {
            let node = &self.nodes[at as usize];
            if node.key == *key {
                return Some(at);
            }
            at = node.chain;
        }
        None
    }

    /// The order of an item that is in the table.
    #[inline]
    pub fn order(&self, item: u32) -> u64 {
        self.nodes[item as usize].order
    }

    /// Add `item` as the youngest of `key`; `order` is larger than that of its elders.
    #[inline]
    pub fn insert(&mut self, item: u32, key: Key, order: u64) {
        let at = item as usize;
        if at >= self.nodes.len() {
            self.nodes.resize(at + 1, FREE);
        }
        debug_assert!(!self.nodes[at].used, "item {item} is in the table already");
        self.items += 1;
        let bucket = self.bucket(&key);
        let mut node = Node { key, used: true, order, tail: item, ..FREE };
        if let Some(first) = self.first_in(bucket, &key) {
            let last = self.nodes[first as usize].tail;
            node.prev = last;
            self.nodes[last as usize].next = item;
            self.nodes[first as usize].tail = item;
        } else {
            node.chain = self.buckets[bucket];
            self.buckets[bucket] = item;
            self.keys += 1;
        }
        self.nodes[at] = node;
        if self.keys > self.buckets.len() {
            self.grow();
        }
    }

    /// Take out the oldest item of `key`: what `first` and `remove` do, in one walk.
    #[inline]
    pub fn pop(&mut self, key: &Key) -> Option<u32> {
        let bucket = self.bucket(key);
        let (mut before, mut at) = (NIL, self.buckets[bucket]);
        loop {
            if at == NIL {
                return None;
            }
            let node = &self.nodes[at as usize];
            if node.key == *key {
                break;
            }
            (before, at) = (at, node.chain);
        }
        self.items -= 1;
        let node = &mut self.nodes[at as usize];
        node.used = false;
        let (next, chain, tail) = (node.next, node.chain, node.tail);
        let heir = if next == NIL {
            self.keys -= 1;
            chain
        } else {
            let heir = &mut self.nodes[next as usize];
            (heir.prev, heir.chain, heir.tail) = (NIL, chain, tail);
            next
        };
        if before == NIL {
            self.buckets[bucket] = heir;
        } else {
            self.nodes[before as usize].chain = heir;
        }
        Some(at)
    }

    /// Take an item out, wherever it stands in its queue. False: it was not in the table.
    pub fn remove(&mut self, item: u32) -> bool {
        let Some(&node) = self.nodes.get(item as usize) else { return false };
        if !node.used {
            return false;
        }
        self.items -= 1;
        self.nodes[item as usize].used = false;
        if node.prev != NIL {
            self.nodes[node.prev as usize].next = node.next;
            if node.next != NIL {
                self.nodes[node.next as usize].prev = node.prev;
            } else {
                // It was the last: the first of the key must know the new one.
                let first = self.first(&node.key);
                if let Some(first) = first {
                    self.nodes[first as usize].tail = node.prev;
                }
            }
            return true;
        }
        // It was the first of its key: the next one takes its place on the chain.
        let heir = if node.next == NIL {
            self.keys -= 1;
            node.chain
        } else {
            let next = &mut self.nodes[node.next as usize];
            next.prev = NIL;
            next.chain = node.chain;
            next.tail = node.tail;
            node.next
        };
        let bucket = self.bucket(&node.key);
        let mut at = self.buckets[bucket];
        if at == item {
            self.buckets[bucket] = heir;
            return true;
        }
        while self.nodes[at as usize].chain != item {
            at = self.nodes[at as usize].chain;
        }
        self.nodes[at as usize].chain = heir;
        true
    }

    #[cold]
    fn grow(&mut self) {
        let firsts: Vec<u32> = self.chained().collect();
        let size = self.buckets.len() * 2;
        self.buckets.clear();
        self.buckets.resize(size, NIL);
        for item in firsts {
            let bucket = self.bucket(&self.nodes[item as usize].key);
            self.nodes[item as usize].chain = self.buckets[bucket];
            self.buckets[bucket] = item;
        }
    }

    fn chained(&self) -> impl Iterator<Item = u32> + '_ {
        self.buckets.iter().flat_map(move |&head| {
            core::iter::successors((head != NIL).then_some(head), move |&at| {
                let next = self.nodes[at as usize].chain;
                (next != NIL).then_some(next)
            })
        })
    }

    /// Assert T1–T3.
    pub fn check(&self) {
        let (mut keys, mut items) = (0, 0);
        for first in self.chained() {
            keys += 1;
            let head = &self.nodes[first as usize];
            assert!(head.used && head.prev == NIL, "T1: {first} is first of its key");
            assert_eq!(self.first(&head.key), Some(first), "T1: one chained node per key");
            let (mut at, mut last) = (first, first);
            while at != NIL {
                items += 1;
                let node = &self.nodes[at as usize];
                assert!(node.used && node.key == head.key, "T2: same key along the queue");
                if at != first {
                    assert_eq!(node.prev, last, "T2: links agree");
                    assert!(node.order > self.nodes[last as usize].order, "T2: oldest first");
                }
                last = at;
                at = node.next;
            }
            assert_eq!(head.tail, last, "T2: tail");
        }
        assert_eq!((keys, items), (self.keys, self.items), "T3");
    }
}
