//! All interleavings of a producer and a consumer, by loom. The protocol is the real code of
//! `producer.rs` and `consumer.rs` over a memory whose every 8 bytes loom watches: plain accesses
//! through an `UnsafeCell` (a race is an error), publish words as atomics that may return any
//! value that the memory model allows, stale payload included.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p rustbtl-ring --lib models`

use crate::{Consumer, LINE, Memory, Producer, frame_bytes_max, order};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const WORDS_PER_LINE: usize = LINE / 8;

/// One cache line: its publish word, and one cell for each of its words.
struct CacheLine {
    publish: AtomicU64,
    words: Vec<UnsafeCell<u64>>,
}

struct Shared {
    lines: Vec<CacheLine>,
    consumed: AtomicU64,
}

#[derive(Clone)]
struct Model(Arc<Shared>);

impl Model {
    fn new(bytes: usize) -> Self {
        let line = || CacheLine {
            publish: AtomicU64::new(0),
            words: (0..WORDS_PER_LINE).map(|_| UnsafeCell::new(0)).collect(),
        };
        let lines = (0..bytes / LINE).map(|_| line()).collect();
        Self(Arc::new(Shared { lines, consumed: AtomicU64::new(0) }))
    }

    /// Read the word at `at` as the consumer of a published frame.
    fn word(&self, at: usize) -> u64 {
        let (line, word) = (at / LINE, at % LINE / 8);
        if word == 0 {
            // Part of a payload: plainly readable, since it was written before the publish.
            return self.0.lines[line].publish.load(Ordering::Relaxed);
        }
        // SAFETY: loom checks that nobody writes meanwhile.
        self.0.lines[line].words[word].with(|p| unsafe { *p })
    }
}

// SAFETY: a model: `pointer` is never used to read.
unsafe impl Memory for Model {
    fn bytes(&self) -> usize {
        self.0.lines.len() * LINE
    }
    fn poll(&self, at: usize) -> u64 {
        self.0.lines[at / LINE].publish.load(order::FRAME_POLL)
    }
    fn publish(&self, at: usize, word: u64) {
        self.0.lines[at / LINE].publish.store(word, order::FRAME_PUBLISH);
    }
    fn clear(&self, at: usize) {
        // The first word of a line as plain memory, too: clearing what the consumer still reads
        // is a race.
        // SAFETY: loom checks that nobody accesses it meanwhile.
        self.0.lines[at / LINE].words[0].with_mut(|p| unsafe { *p = 0 });
        self.0.lines[at / LINE].publish.store(0, order::CLEAR);
    }
    fn consumed(&self) -> u64 {
        self.0.consumed.load(order::ROOM_ACQUIRE)
    }
    fn release(&self, position: u64) {
        self.0.consumed.store(position, order::ROOM_RELEASE);
    }
    fn pointer(&self, _at: usize) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn write(&self, at: usize, from: &[u8]) {
        assert!(at.is_multiple_of(8) && from.len().is_multiple_of(8));
        for (i, bytes) in from.chunks(8).enumerate() {
            let at = at + 8 * i;
            let (line, word) = (at / LINE, at % LINE / 8);
            let value = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            // SAFETY: loom checks that nobody accesses it meanwhile.
            self.0.lines[line].words[word].with_mut(|p| unsafe { *p = value });
            if word == 0 {
                self.0.lines[line].publish.store(value, Ordering::Relaxed);
            }
        }
    }
}

fn value(number: u64, at: usize) -> u64 {
    (number + 1) << 32 | (at as u64 + 1)
}

fn push(ring: &mut Producer<Model>, number: u64, words: usize) -> bool {
    let bytes: Vec<u8> = (0..words)
        .flat_map(|i| {
            if i == 0 { 8 * words as u64 | (number + 1) << 32 } else { value(number, i) }
                .to_le_bytes()
        })
        .collect();
    let (header, payload) = bytes.split_at(8);
    ring.try_push(header, payload)
}

fn pop(memory: &Model, ring: &mut Consumer<Model>, number: u64, words: usize) -> bool {
    let Some((at, len)) = ring.peek_at().expect("no damage") else { return false };
    assert_eq!(len, 8 * words, "frame {number}");
    for i in 1..words {
        assert_eq!(memory.word(at + 8 * i), value(number, i), "word {i} of frame {number}");
        if (at + 8 * i).is_multiple_of(LINE) {
            // The line's first word counts as read, for the race with `clear`.
            // SAFETY: loom checks that nobody writes meanwhile.
            memory.0.lines[(at + 8 * i) / LINE].words[0].with(|p| unsafe { *p });
        }
    }
    ring.consume();
    true
}

/// Frames of these sizes (in words) through a ring of so many lines, every interleaving.
fn all_interleavings(lines: usize, sizes: &'static [usize], preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let memory = Model::new(lines * LINE);
        assert!(sizes.iter().all(|words| 8 * words <= frame_bytes_max(memory.bytes())));
        let mut input = Producer::new(memory.clone());
        let mut output = Consumer::new(memory.clone());
        let sender = thread::spawn(move || {
            for (number, &words) in sizes.iter().enumerate() {
                while !push(&mut input, number as u64, words) {
                    thread::yield_now();
                }
            }
        });
        for (number, &words) in sizes.iter().enumerate() {
            while !pop(&memory, &mut output, number as u64, words) {
                thread::yield_now();
            }
        }
        assert_eq!(output.peek_at(), Ok(None));
        sender.join().expect("the sender");
    });
}

#[test]
fn published_frames_are_complete() {
    all_interleavings(8, &[4, 8, 2], 3);
}

#[test]
fn stale_payload_is_never_a_header() {
    // Two lines of payload, then small frames over them a lap later.
    all_interleavings(8, &[16, 16, 16, 4, 4, 4], 2);
}

#[test]
fn a_record_that_does_not_fit_wraps() {
    all_interleavings(8, &[4, 16, 16, 12, 16, 4], 2);
}

#[test]
fn a_full_ring_waits_for_room() {
    all_interleavings(8, &[16; 5], 2);
}

#[test]
fn a_ring_that_was_restarted_early_continues_in_its_rest() {
    // The consumer keeps up for two frames, and reaches the third when others are behind it.
    all_interleavings(16, &[4; 6], 2);
}
