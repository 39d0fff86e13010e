//! Each promise of the payload log, one test; the names say which invariant.

mod common;

use common::*;
use rustbtl_checkpoint::{LogLimits, PayloadLog};
use rustbtl_fragments::host::LogFull;
use rustbtl_fragments::ids::{PeerId, SetId};

#[test]
fn invariant_1_a_record_stays_at_its_address_while_others_come_and_go() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    let kept = entry(0, 0, 3000);
    let record = append(&mut log, &kept).unwrap();
    let address = log.payload(record).as_ptr();
    for round in 1..20 {
        for number in 0..50 {
            append(&mut log, &entry(1, round * 100 + number, 700)).unwrap();
        }
        log.trim(SetId(0), |entry| entry.sequence.0 != 0);
        log.check();
    }
    assert_eq!(log.payload(record), payload(&kept));
    assert_eq!(log.payload(record).as_ptr(), address);
}

#[test]
fn invariant_2_each_destination_has_its_own_order() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    for number in 0..300 {
        append(&mut log, &entry([3, 4, 15][number as usize % 3], number, 100)).unwrap();
    }
    let sequences = |peer| -> Vec<u64> {
        chain(&log, peer).iter().map(|(_, entry)| entry.sequence.0).collect()
    };
    assert_eq!(sequences(3), (0..300).step_by(3).collect::<Vec<_>>());
    assert_eq!(sequences(15), (2..300).step_by(3).collect::<Vec<_>>());
    assert_eq!(sequences(5), []);
}

#[test]
fn invariant_2_a_walk_goes_on_though_its_place_was_trimmed() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    let records: Vec<_> =
        (0..200).map(|number| append(&mut log, &entry(0, number, 500)).unwrap()).collect();
    log.trim(SetId(0), |entry| entry.sequence.0 < 120 || entry.sequence.0 % 2 == 0);
    for (at, expected) in [(0, 121), (119, 121), (120, 121), (150, 151), (151, 153)] {
        let (_, found) = log.next(PeerId(0), Some(records[at])).unwrap();
        assert_eq!(found.sequence.0, expected, "after {at}");
    }
    assert_eq!(log.next(PeerId(0), Some(records[199])), None);
}

#[test]
fn invariant_3_a_segment_without_live_records_is_used_again() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    for round in 0..50 {
        for number in 0..20 {
            append(&mut log, &entry(0, round * 20 + number, 2000)).unwrap();
        }
        log.trim(SetId(0), |_| true);
        log.check();
    }
    assert!(log.memory().allocations < 16, "{} allocations", log.memory().allocations);
}

#[test]
fn invariant_4_large_payloads_fill_their_segment_without_gaps() {
    let limits = LogLimits::default();
    let mut log = PayloadLog::new(Vectors::with_spill(0), limits);
    for number in 0..8 + 1 + 2 {
        let record = append(&mut log, &entry(0, number, 1 << 20)).unwrap();
        assert_eq!(log.payload(record).len(), 1 << 20);
    }
    // 1 + 2 + 4 + 4 MiB of payload segments and one index segment.
    assert_eq!(log.counters().reserved_bytes, (11 << 20) + (64 << 10));
    log.check();
}

#[test]
fn invariant_4_an_index_segment_is_used_no_further_than_ids_reach() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), LogLimits::default());
    append(&mut log, &entry(0, 0, 5 << 20)).unwrap();
    log.trim(SetId(0), |_| true);
    // The recycled segment of 5 MiB becomes an index segment; ids reach 4 MiB.
    let records: Vec<_> =
        (1..12_000).map(|number| append(&mut log, &entry(0, number, 1024)).unwrap()).collect();
    log.check();
    for (record, number) in records.into_iter().zip(1..) {
        assert_eq!(log.entry(record), Some(entry(0, number, 1024)));
    }
}

#[test]
fn invariant_5_the_fullest_set_is_known() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    assert_eq!(log.largest_set(), None);
    append(&mut log, &entry(5, 0, 1000)).unwrap();
    append(&mut log, &entry(15, 1, 3000)).unwrap();
    append(&mut log, &entry(6, 2, 1500)).unwrap();
    assert_eq!(log.largest_set(), Some((SetId(10), 3000)));
    assert_eq!(log.bytes_of(SetId(0)), 2500);
    log.trim(SetId(10), |_| true);
    assert_eq!(log.largest_set(), Some((SetId(0), 2500)));
    assert_eq!(log.counters().bytes_peak, 5500);
}

#[test]
fn invariant_6_past_the_budget_segments_are_spilled_and_trimming_brings_them_back() {
    let mut log = PayloadLog::new(Vectors::with_spill(1 << 20), small(32 << 10));
    for number in 0..60 {
        append(&mut log, &entry(0, number, 2000)).unwrap();
        log.check();
    }
    let full = log.counters();
    assert!(full.reserved_bytes <= 32 << 10);
    assert!(full.spilled_bytes >= 80 << 10, "{full:?}");
    log.trim(SetId(0), |_| true);
    log.check();
    let record = append(&mut log, &entry(0, 99, 2000)).unwrap();
    assert_eq!(log.payload(record), payload(&entry(0, 99, 2000)));
    assert!(log.counters().spilled_bytes <= 64 << 10, "what exceeds the free list is freed");
    assert!(log.counters().reserved_bytes > 0);
}

#[test]
fn invariant_6_free_segments_of_other_sizes_make_room_within_the_budget() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(48 << 10));
    append(&mut log, &entry(0, 0, 10)).unwrap();
    append(&mut log, &entry(10, 1, 20_000)).unwrap();
    log.trim(SetId(10), |_| true);
    assert!(log.counters().free_bytes > 0);
    append(&mut log, &entry(0, 2, 40_000)).expect("40 KB fit once the free 20 KB are freed");
    log.check();
}

#[test]
fn invariant_6_a_thousand_sets_with_few_messages_cost_one_small_segment_each() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), LogLimits::default());
    for set in 0..1000 {
        for number in 0..3 {
            append(&mut log, &entry(set * 10, number, 100)).unwrap();
        }
    }
    assert_eq!(log.counters().reserved_bytes, 1000 * (64 << 10));
}

#[test]
fn invariant_7_payloads_larger_than_any_segment_keep_the_order() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    for (number, bytes) in [10, 100_000, 20, 9_000, 16_384, 30].into_iter().enumerate() {
        append(&mut log, &entry(0, number as u64, bytes)).unwrap();
    }
    let order: Vec<_> = chain(&log, 0).iter().map(|(_, entry)| entry.sequence.0).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    log.check();
}

#[test]
fn invariant_8_a_refused_message_leaves_no_trace() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(16 << 10));
    append(&mut log, &entry(0, 0, 100)).unwrap();
    let before = (chain(&log, 0), log.counters());
    assert_eq!(append(&mut log, &entry(0, 1, 50_000)), Err(LogFull { bytes: 50_000 }));
    assert_eq!(append(&mut log, &entry(77, 1, 50_000)), Err(LogFull { bytes: 50_000 }));
    log.check();
    let after = log.counters();
    assert_eq!(chain(&log, 0), before.0);
    assert_eq!((after.bytes, after.messages_total), (before.1.bytes, 1));
    assert_eq!(after.refused, 2);
    append(&mut log, &entry(0, 2, 2000)).expect("there is memory for a smaller one");
}

#[test]
fn invariant_8_absurd_lengths_are_refused_before_anything_is_allocated() {
    let mut log = PayloadLog::new(Vectors::with_spill(usize::MAX), small(u64::MAX / 2));
    for bytes in [1 << 48, 1 << 62, u64::MAX] {
        let mut entry = entry(0, 0, 0);
        entry.bytes = bytes;
        assert_eq!(log.append(&entry, |_| unreachable!()), Err(LogFull { bytes }));
    }
    assert_eq!(log.memory().allocations, 0);
}

#[test]
#[should_panic(expected = "was trimmed while in use")]
fn invariant_9_the_payload_of_a_trimmed_record_is_nothing_to_send() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    let record = append(&mut log, &entry(0, 0, 10)).unwrap();
    log.trim(SetId(0), |_| true);
    append(&mut log, &entry(0, 1, 10)).unwrap();
    assert_eq!(log.get(record), None);
    log.payload(record);
}

#[test]
fn limits_can_change_while_the_log_is_in_use() {
    let mut log = PayloadLog::new(Vectors::with_spill(1 << 20), small(4 << 20));
    for number in 0..100 {
        append(&mut log, &entry(0, number, 1500)).unwrap();
    }
    log.trim(SetId(0), |entry| entry.sequence.0 < 50);
    assert!(log.counters().free_bytes > 0);
    log.set_limits(LogLimits { free_bytes_max: 0, ..small(8 << 10) });
    log.check();
    assert_eq!(log.counters().free_bytes, 0);
    append(&mut log, &entry(0, 100, 30_000)).unwrap();
    assert!(log.counters().spilled_bytes > 0, "the new budget holds for new segments");
    log.check();
}

#[test]
#[should_panic(expected = "the set of a peer never changes")]
fn a_peer_cannot_move_to_another_set() {
    let mut log = PayloadLog::new(Vectors::with_spill(0), small(4 << 20));
    append(&mut log, &entry(0, 0, 10)).unwrap();
    let mut moved = entry(0, 1, 10);
    moved.set = SetId(30);
    let _ = append(&mut log, &moved);
}

/// Messages of 1 KiB to a peer until the log reports that it is nearly full; how many bytes that
/// took.
fn until_nearly_full(log: &mut PayloadLog<Vectors>, peer: u32, next: &mut u64) -> u64 {
    for bytes in (0..).step_by(1024) {
        if log.take_nearly_full() {
            return bytes;
        }
        append(log, &entry(peer, *next, 1024)).unwrap();
        *next += 1;
    }
    unreachable!("the log takes everything")
}

#[test]
fn invariant_10_each_mark_is_told_once_until_trimming_brings_the_log_below_it() {
    let budget = 1 << 20;
    let (mut log, mut next) = (PayloadLog::new(Vectors::with_spill(0), small(budget)), 0);
    let half = until_nearly_full(&mut log, 0, &mut next);
    assert!(half <= budget / 2 && half > budget * 2 / 5, "{half}: records take memory, too");
    assert!(!log.take_nearly_full(), "reported once");
    // A checkpoint that frees nothing does not postpone the next watermark.
    let mut more = 0;
    for _ in 0..3 {
        more += until_nearly_full(&mut log, 0, &mut next);
        assert_eq!(log.trim(SetId(0), |_| false).messages, 0);
    }
    assert!(more > budget * 3 / 10 && more < budget * 3 / 8 + (64 << 10), "{more}");
    assert_eq!(log.counters().spilled_bytes_peak, 0);
    assert!(log.is_nearly_full());
    log.trim(SetId(0), |_| true);
    assert!(!log.take_nearly_full() && !log.is_nearly_full());
    let half = until_nearly_full(&mut log, 0, &mut next);
    assert!(half <= budget / 2 && half > budget * 2 / 5, "{half}");
    log.check();
}

#[test]
fn invariant_10_what_was_trimmed_in_time_is_not_told_and_a_lower_budget_is() {
    let mut log = PayloadLog::new(Vectors::with_spill(1 << 20), small(64 << 10));
    for number in 0..40 {
        append(&mut log, &entry(0, number, 1024)).unwrap();
    }
    log.trim(SetId(0), |_| true);
    assert!(!log.take_nearly_full());
    append(&mut log, &entry(0, 40, 1024)).unwrap();
    log.set_limits(small(4 << 10));
    assert!(log.take_nearly_full());
    // All is spilled on purpose: checkpoints save nothing.
    let mut log = PayloadLog::new(Vectors::with_spill(1 << 20), small(0));
    append(&mut log, &entry(0, 0, 1024)).unwrap();
    assert!(!log.take_nearly_full());
    assert!(log.counters().spilled_bytes_peak > 0);
}

#[test]
fn what_was_made_ready_is_used_first_and_keeps_to_the_limits() {
    let limits = LogLimits { free_bytes_max: 1 << 20, ..LogLimits::default() };
    let mut log = PayloadLog::new(
        Vectors::with_spill(0),
        LogLimits { segment_bytes_min: 256 << 10, segment_bytes_max: 256 << 10, ..limits },
    );
    assert_eq!(log.prefault(100 << 10), 0, "less than a segment");
    assert_eq!(log.prefault(600 << 10), 512 << 10);
    assert_eq!(log.prefault(u64::MAX), 1 << 20, "no more than is kept free");
    let reserved = log.counters().reserved_bytes;
    assert_eq!(reserved, 1 << 20);
    for number in 0..64 {
        append(&mut log, &entry(0, number, 8 << 10)).unwrap();
    }
    assert!(log.counters().free_bytes < 512 << 10);
    log.check();
    let mut log = PayloadLog::new(
        Vectors::with_spill(0),
        LogLimits {
            budget_bytes: 300 << 10,
            segment_bytes_min: 256 << 10,
            segment_bytes_max: 256 << 10,
            ..limits
        },
    );
    assert_eq!(log.prefault(1 << 20), 256 << 10, "within the budget");
    log.check();
}

/// Messages of many sizes to two sets. Where the first byte of each lies.
fn round(log: &mut PayloadLog<Vectors>, next: &mut u64) -> Vec<usize> {
    let sizes = [100, 3000, 70_000, 9_000, 500, 20_000, 16_384, 1];
    let messages = (0..120).map(|number| (number % 2 * 10, sizes[number as usize % sizes.len()]));
    let places = messages.map(|(peer, bytes)| {
        *next += 1;
        let record = append(log, &entry(peer, *next, bytes)).unwrap();
        log.payload(record).as_ptr() as usize
    });
    places.collect()
}

fn trim_all(log: &mut PayloadLog<Vectors>) {
    log.trim(SetId(0), |_| true);
    log.trim(SetId(10), |_| true);
    log.check();
}

#[test]
fn w_a_log_that_was_as_full_once_takes_no_fresh_memory() {
    let limits = LogLimits { free_bytes_max: 8 << 20, ..small(8 << 20) };
    let (mut log, mut next) = (PayloadLog::new(Vectors::with_spill(0), limits), 0);
    // Until segments have grown to their largest size.
    for _ in 0..3 {
        round(&mut log, &mut next);
        trim_all(&mut log);
    }
    let allocations = log.memory().allocations;
    for _ in 0..20 {
        round(&mut log, &mut next);
        trim_all(&mut log);
        let counters = log.counters();
        assert_eq!(counters.free_bytes, counters.reserved_bytes, "nothing was given back");
    }
    assert_eq!(log.memory().allocations, allocations);
}

#[test]
fn memory_that_was_used_last_is_used_first_unless_a_snapshot_shares_it() {
    let limits = LogLimits { segment_bytes_min: 16 << 10, ..small(1 << 20) };
    let mut log = PayloadLog::new(Vectors::with_spill(0), limits);
    // One segment full of small messages; where it lies.
    let fill = |log: &mut PayloadLog<Vectors>, set: u32| {
        let records: Vec<_> =
            (0..15).map(|number| append(log, &entry(set, number, 1000)).unwrap()).collect();
        log.payload(records[0]).as_ptr() as usize
    };
    let [a, b, c, d] = [0, 10, 20, 30].map(|set| fill(&mut log, set));
    let trim = |log: &mut PayloadLog<Vectors>, sets: &[u32]| {
        for &set in sets {
            log.trim(SetId(set), |_| true);
        }
    };
    trim(&mut log, &[0, 10, 20]);
    assert_eq!(fill(&mut log, 0), c, "caches may still have it");
    log.trim(SetId(0), |_| true);
    assert!(log.free_segments().map(|of| of.as_ptr() as usize + 40).eq([a, b, c]));
    // A snapshot shares what is in use, and what is trimmed after it is copied page by page.
    log.snapshot_taken();
    log.trim(SetId(30), |_| true);
    assert_eq!([0, 10, 20, 30].map(|set| fill(&mut log, set)), [c, b, a, d]);
    // It was written to again, so it is like any other.
    trim(&mut log, &[0, 10, 20, 30]);
    assert_eq!(fill(&mut log, 0), d);
    log.check();
}
