//! Properties of the ring, against a plain queue. (Interleavings: `models.rs`, under loom.)
// The two ends of a ring are two threads.
#![allow(clippy::disallowed_methods)]

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A frame with this many bytes of payload; every byte depends on its number. Payload bytes are
/// never zero, so that a stale one is taken for a header by a ring that does not keep invariant 1.
fn frame(number: u64, payload: usize) -> (Vec<u8>, Vec<u8>) {
    let mut header = vec![0xB2; 32];
    header[..4].copy_from_slice(&(32 + payload as u32).to_le_bytes());
    header[24..32].copy_from_slice(&number.to_le_bytes());
    let payload = (0..payload).map(|i| ((number as usize * 7 + i) % 255) as u8 + 1).collect();
    (header, payload)
}

fn bytes(frame: (*const u8, usize)) -> Vec<u8> {
    // SAFETY: a peeked frame is valid until it is consumed.
    unsafe { std::slice::from_raw_parts(frame.0, frame.1) }.to_vec()
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    PushWith(usize),
    Pop,
}

fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..=max).prop_map(Step::Push),
        1 => (0..=max).prop_map(Step::PushWith),
        4 => Just(Step::Pop),
    ];
    prop::collection::vec(step, 1..400)
}

fn against_the_oracle(ring_bytes: usize, steps: &[Step]) {
    let (mut input, mut output) = heap(ring_bytes);
    let mut oracle = VecDeque::new();
    let mut number = 0;
    for step in steps {
        match *step {
            Step::Push(payload) | Step::PushWith(payload) => {
                let (header, payload) = frame(number, payload);
                let pushed = match step {
                    Step::Push(_) => input.try_push(&header, &payload),
                    _ => input.try_push_with(&header, payload.len(), |to, n| {
                        // SAFETY: the ring gives room for n bytes.
                        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, n) };
                    }),
                };
                if pushed {
                    oracle.push_back([header, payload].concat());
                    number += 1;
                } else {
                    // Invariant 4: an empty ring has room for everything.
                    assert!(!oracle.is_empty(), "an empty ring refused {step:?}");
                }
            }
            Step::Pop => {
                let first = output.peek().expect("no damage").map(bytes);
                let again = output.peek().expect("no damage").map(bytes);
                assert_eq!(first, again, "peek is idempotent");
                assert_eq!(first, oracle.pop_front());
                output.consume();
            }
        }
        // Invariant 4: what is read is released in time.
        assert!(output.state().1 <= ring_bytes / 4);
    }
    while let Some(expected) = oracle.pop_front() {
        assert_eq!(output.peek().expect("no damage").map(bytes), Some(expected));
        output.consume();
    }
    assert_eq!(output.peek(), Ok(None));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_smallest_ring_is_a_queue(steps in steps(512 / 4 - 32)) {
        against_the_oracle(512, &steps);
    }

    #[test]
    fn a_ring_is_a_queue(steps in steps(4096 / 4 - 32)) {
        against_the_oracle(4096, &steps);
    }

    #[test]
    fn small_frames_fill_a_ring_to_the_brim(steps in steps(40)) {
        against_the_oracle(1024, &steps);
    }

    #[test]
    fn damaged_memory_never_leads_outside_the_ring(
        word in prop_oneof![
            any::<u64>(),
            (0..20u64).prop_map(|line| line << 38 | u64::from(SKIP)),
        ],
        at in 0usize..16,
    ) {
        let (mut input, mut output) = heap(1024);
        // Records in front bring the consumer to `at`.
        for n in 0..at {
            let (header, payload) = frame(n as u64, 0);
            prop_assert_eq!(input.try_push(&header, &payload), n < 15);
        }
        while output.peek().expect("no damage").is_some() {
            output.consume();
        }
        if at < 15 {
            input.overwrite(word);
            match output.peek() {
                Ok(Some((_, len))) => prop_assert!(len <= 1024 / 4 && at * LINE + len <= 1024),
                Ok(None) => prop_assert!(word == 0 || word as u32 == SKIP),
                Err(damage) => prop_assert_eq!(damage.word, word),
            }
        }
    }
}

#[test]
fn frames_of_every_length_arrive() {
    let (mut input, mut output) = heap(8192);
    let lengths = if cfg!(miri) { 0..130 } else { 0..2048 - 31 };
    for n in lengths {
        let (header, payload) = frame(n as u64, n);
        assert!(input.try_push(&header, &payload));
        let got = output.peek().expect("no damage").map(bytes);
        assert_eq!(got, Some([header, payload].concat()));
        output.consume();
    }
}

#[test]
fn the_first_part_is_used_alone_while_the_consumer_keeps_up() {
    let ring_bytes = 1 << 16;
    let (mut input, mut output) = heap(ring_bytes);
    for n in 0..if cfg!(miri) { 300 } else { 5000 } {
        let (header, payload) = frame(n, (n as usize * 37) % 900);
        assert!(input.try_push(&header, &payload));
        let (at, len) = output.peek_at().expect("no damage").expect("a frame");
        assert!(at + len <= cached_part_bytes(ring_bytes), "frame {n} at {at}");
        output.consume();
    }
    let (header, payload) = frame(0, 1000);
    let frames = (0..100).take_while(|_| input.try_push(&header, &payload)).count();
    assert!(frames * 1024 > ring_bytes * 3 / 4, "a stream gets the whole ring");
}

#[test]
fn consume_without_peek_does_nothing() {
    let (mut input, mut output) = heap(512);
    output.consume();
    let (header, payload) = frame(1, 5);
    assert!(input.try_push(&header, &payload));
    output.consume();
    assert!(output.is_ready() && output.peek().expect("no damage").is_some());
}

#[test]
#[should_panic(expected = "does not fit")]
fn a_frame_that_can_never_fit_is_an_error_of_the_caller() {
    let (mut input, _output) = heap(512);
    let (header, payload) = frame(1, 512);
    input.try_push(&header, &payload);
}

#[test]
fn two_threads_agree() {
    let frames: u64 = if cfg!(miri) { 300 } else { 300_000 };
    let (mut input, mut output) = heap(2048);
    let size = |n: u64| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55) as usize % 480;
    let sender = std::thread::spawn(move || {
        for n in 0..frames {
            let (header, payload) = frame(n, size(n));
            while !input.try_push(&header, &payload) {
                std::thread::yield_now();
            }
        }
    });
    for n in 0..frames {
        let got = loop {
            match output.peek().expect("no damage") {
                Some(frame) => break bytes(frame),
                None => std::thread::yield_now(),
            }
        };
        let (header, payload) = frame(n, size(n));
        assert!(got == [header, payload].concat(), "frame {n}");
        output.consume();
    }
    sender.join().expect("the sender");
}
