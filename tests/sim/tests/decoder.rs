//! Whatever bytes a peer sends, the engine answers with an error or goes on: it does not panic,
//! and it does not allocate more than a small multiple of what came in.

use proptest::prelude::*;
use rustbtl_fragments::engine::{ReceivedVector, ReceivedVectorError, Side};
use rustbtl_fragments::ids::PeerId;
use rustbtl_sim::decoder::{busy, feed};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most that one allocation may take: a table of all context ids is 256 KiB.
const ALLOCATION_MAX: usize = 1 << 20;

fn modest<R>(run: impl FnOnce() -> R) -> R {
    LARGEST.set(0);
    let result = run();
    assert!(LARGEST.get() <= ALLOCATION_MAX, "{} bytes at once", LARGEST.get());
    result
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..600)) {
        modest(|| feed(&data));
    }

    /// Headers that are right in all but one field reach the deeper checks.
    #[test]
    fn arbitrary_fields_are_survived(
        frames in prop::collection::vec(
            (1u32..4, 1u8..12, 0u8..16, small(), small(), tag(), small64(), small64(),
             prop::collection::vec(any::<u8>(), 0..80)),
            0..20,
        )
    ) {
        modest(|| {
            let (mut engine, mut host) = busy(0);
            if frames.len() % 2 == 1 {
                engine.hold(Side::Internal);
                engine.hold(Side::Outgoing);
            }
            for (from, kind, flags, context, source, tag, sequence, total, payload) in frames {
                let mut frame = vec![0; 32];
                frame[4..7].copy_from_slice(&[0xB4, kind, flags]);
                frame[8..12].copy_from_slice(&context.to_le_bytes());
                frame[12..16].copy_from_slice(&source.to_le_bytes());
                frame[16..20].copy_from_slice(&tag.to_le_bytes());
                frame[24..32].copy_from_slice(&sequence.to_le_bytes());
                frame.extend_from_slice(&total.to_le_bytes());
                frame.extend_from_slice(&payload);
                let length = frame.len() as u32;
                frame[..4].copy_from_slice(&length.to_le_bytes());
                let _ = engine.on_frame(&mut host, PeerId(from), &frame);
                engine.check();
            }
        });
    }

    /// What engines really send, with a few bytes changed.
    #[test]
    fn mutated_frames_are_survived(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..12),
        from in 1u32..4,
    ) {
        let (_, sender) = busy(from);
        let mut frames = sender.frames;
        for (frame, at, value) in changes {
            let frame = frame.get_mut(&mut frames);
            let at = at.index(frame.len().min(48));
            frame[at] = value;
        }
        modest(|| {
            let (mut engine, mut host) = busy(0);
            for frame in frames {
                let _ = engine.on_frame(&mut host, PeerId(from), &frame);
                engine.check();
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Received vectors arrive from other processes.
    #[test]
    fn arbitrary_received_vectors_are_survived(
        entries in prop::collection::vec((0u32..4, small(), tag(), small(), small64()), 0..40),
        cut in any::<prop::sample::Index>(),
        change in any::<(prop::sample::Index, u8)>(),
    ) {
        let mut bytes = b"Hld1".to_vec();
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        for (what, context, lane, lanes, number) in entries {
            bytes.extend_from_slice(&what.to_le_bytes());
            bytes.extend_from_slice(&context.to_le_bytes());
            bytes.extend_from_slice(&lane.to_le_bytes());
            bytes.extend_from_slice(&lanes.to_le_bytes());
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        modest(|| {
            if let Ok(held) = ReceivedVector::decode(&bytes) {
                // Counts of 0, which no engine sends, go.
                let encoded = held.encode();
                prop_assert_eq!(ReceivedVector::decode(&encoded).unwrap().encode(), encoded);
            }
            let short = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(ReceivedVector::decode(short), Err(ReceivedVectorError::Length));
            let (at, value) = change;
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] = value;
            let _ = ReceivedVector::decode(&damaged);
            Ok(())
        })?;
    }
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..5, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn small64() -> impl Strategy<Value = u64> {
    let id = (0u64..20, 0u64..20).prop_map(|(index, generation)| (generation << 32) | index);
    prop_oneof![4 => 0u64..5, 4 => id, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn tag() -> impl Strategy<Value = i32> {
    let strange = prop_oneof![any::<i32>(), Just(i32::MIN)];
    prop_oneof![4 => Just(1), 2 => Just(-5), 2 => Just(-300), 2 => strange]
}
