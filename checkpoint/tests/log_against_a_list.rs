//! The payload log against the simplest thing that does the same: a list of entries.

mod common;

use common::*;
use proptest::prelude::*;
use rustbtl_checkpoint::PayloadLog;
use rustbtl_fragments::host::LogEntry;
use rustbtl_fragments::ids::{LogRecord, PeerId};

#[derive(Clone, Debug)]
enum Step {
    Append {
        peer: u32,
        bytes: usize,
    },
    /// Drop what `modulo` and `rest` choose of a set's messages up to a sequence number.
    Trim {
        set: u32,
        upto_percent: u64,
        modulo: u64,
    },
    MemoryFails(bool),
    CloneIt,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![
        6 => 0..200_usize,
        3 => 900..1200_usize,
        3 => 1000..9000_usize,
        1 => 8000..40_000_usize,
        1 => prop::sample::select(vec![1024, 1025, 4096, 8192, 16_384, 16_385]),
    ];
    let step = prop_oneof![
        20 => (0..40_u32, bytes).prop_map(|(peer, bytes)| Step::Append { peer, bytes }),
        2 => (0..4_u32, 0..=100_u64, 1..4_u64).prop_map(|(set, upto_percent, modulo)| {
            Step::Trim { set: set * 10, upto_percent, modulo }
        }),
        1 => any::<bool>().prop_map(Step::MemoryFails),
        1 => Just(Step::CloneIt),
    ];
    prop::collection::vec(step, 1..250)
}

/// The oracle.
#[derive(Default)]
struct List {
    live: Vec<(LogRecord, LogEntry, usize)>,
    dead: Vec<(LogRecord, PeerId)>,
    bytes_peak: u64,
}

impl List {
    fn bytes(&self) -> u64 {
        self.live.iter().map(|(_, entry, _)| entry.bytes).sum()
    }

    fn compare(&self, log: &PayloadLog<Vectors>, same_addresses: bool) {
        log.check();
        let counters = log.counters();
        assert_eq!(counters.messages, self.live.len() as u64);
        assert_eq!((counters.bytes, counters.bytes_peak), (self.bytes(), self.bytes_peak));
        for (record, entry, address) in &self.live {
            assert_eq!(log.entry(*record), Some(*entry), "invariant 1: metadata");
            assert_eq!(log.payload(*record), payload(entry), "invariant 1: payload");
            if same_addresses {
                assert_eq!(log.payload(*record).as_ptr() as usize, *address, "invariant 1");
            }
        }
        for (record, to) in &self.dead {
            assert_eq!(log.get(*record), None, "invariant 9: {record:?}");
            assert_eq!(log.entry(*record), None, "invariant 9: {record:?}");
            if let Some((found, entry)) = log.next(*to, Some(*record)) {
                assert_eq!(entry.to, *to);
                assert!(log.get(found).is_some());
            }
        }
        for peer in 0..40 {
            let mut expected = self.live.iter().filter(|(_, entry, _)| entry.to.0 == peer);
            for (record, entry) in chain(log, peer) {
                let (record_too, entry_too, _) = expected.next().expect("invariant 2: too many");
                assert_eq!((record, entry), (*record_too, *entry_too), "invariant 2: order");
            }
            assert!(expected.next().is_none(), "invariant 2: too few");
        }
    }
}

fn run(steps: Vec<Step>, budget_bytes: u64, spill_bytes: usize) {
    let mut log = PayloadLog::new(Vectors::with_spill(spill_bytes), small(budget_bytes));
    let mut list = List::default();
    let mut same_addresses = true;
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Append { peer, bytes } => {
                let entry = entry(peer, number as u64, bytes);
                let before = log.counters();
                match append(&mut log, &entry) {
                    Ok(record) => {
                        let address = log.payload(record).as_ptr() as usize;
                        list.live.push((record, entry, address));
                        list.bytes_peak = list.bytes_peak.max(list.bytes());
                    }
                    Err(full) => {
                        assert_eq!(full.bytes, entry.bytes);
                        assert_eq!(log.counters().messages_total, before.messages_total);
                        list.compare(&log, same_addresses);
                    }
                }
            }
            Step::Trim { set, upto_percent, modulo } => {
                let limit = number as u64 * upto_percent / 100;
                let received = |entry: &LogEntry| {
                    entry.sequence.0 <= limit && entry.sequence.0.is_multiple_of(modulo)
                };
                let trimmed = log.trim(set_of(set), received);
                let bytes = list.bytes();
                let (mut dead, live) = std::mem::take(&mut list.live)
                    .into_iter()
                    .partition(|(_, entry, _)| entry.set == set_of(set) && received(entry));
                list.live = live;
                assert_eq!(trimmed.messages, dead.len() as u64);
                assert_eq!(trimmed.bytes, bytes - list.bytes());
                list.dead.extend(dead.drain(..).map(|(record, entry, _)| (record, entry.to)));
                list.compare(&log, same_addresses);
            }
            Step::MemoryFails(fails) => log.memory_mut().memory_fails = fails,
            Step::CloneIt => {
                log = log.clone();
                same_addresses = false;
            }
        }
    }
    list.compare(&log, same_addresses);
    for set in [0, 10, 20, 30] {
        log.trim(set_of(set), |_| true);
    }
    log.check();
    let counters = log.counters();
    assert_eq!((counters.messages, counters.bytes), (0, 0));
    assert_eq!(counters.reserved_bytes + counters.spilled_bytes, counters.free_bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_log_within_its_budget_does_what_a_list_does(steps in steps()) {
        run(steps, 64 << 20, 0);
    }

    #[test]
    fn a_log_that_spills_does_what_a_list_does(steps in steps()) {
        run(steps, 48 << 10, 64 << 20);
    }

    #[test]
    fn a_log_that_refuses_loses_nothing_it_holds(steps in steps()) {
        run(steps, 48 << 10, 40 << 10);
    }
}
