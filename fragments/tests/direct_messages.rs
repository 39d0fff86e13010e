//! Messages whose receiver is the driver (one-sided communication): never matched, handed over in
//! order, long ones received into the driver's memory.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::Pair;
use rustbtl_fragments::engine::{ReceiveOutcome, Source, TagMatch};
use rustbtl_fragments::host::DIRECT_TAGS;

const FIRST: i32 = *DIRECT_TAGS.start();

#[test]
fn they_are_handed_over_and_match_nothing() {
    let mut pair = Pair::new();
    let comm = pair.comm;
    // A receive that takes everything of the program.
    let (engine, host) = (&mut pair.engines[1], &mut pair.hosts[1]);
    let wild = engine.receive(host, comm, Source::Any, TagMatch::Any, 64, 9);
    assert!(matches!(wild, ReceiveOutcome::Pending(_)));
    for (tag, bytes) in [(FIRST, 8), (FIRST + 1, 4), (FIRST, 0)] {
        pair.send(0, tag, bytes);
        pair.deliver(1);
    }
    let handed: Vec<_> = pair.hosts[1].direct.iter().map(|(of, bytes)| (*of, *bytes)).collect();
    assert_eq!(handed, [((0, 0, FIRST), 8), ((0, 0, FIRST + 1), 4), ((0, 0, FIRST), 0)]);
    assert_eq!(pair.hosts[1].completed, 0, "the receive still waits");
    let (receives, messages, _) = pair.engines[1].unfinished();
    assert_eq!((receives, messages), (1, 0), "nothing of them is kept");
    pair.send(0, 5, 8);
    pair.deliver(1);
    assert_eq!((pair.hosts[1].completed, pair.hosts[1].last), (1, 9));
}

#[test]
fn a_long_one_is_received_into_the_drivers_memory() {
    let mut pair = Pair::new();
    pair.hosts[1].room_for = Some(77);
    // Longer than what travels with the announcement, shorter than the host's memory.
    pair.hosts[0].eager_bytes_max = 1000;
    pair.send(0, FIRST, 3000);
    pair.deliver(1);
    assert_eq!((pair.hosts[1].completed, pair.hosts[1].direct.len()), (0, 0));
    // What the receiver asks for, and what comes.
    pair.deliver(0);
    pair.deliver(1);
    assert_eq!((pair.hosts[1].completed, pair.hosts[1].last), (1, 77));
    assert_eq!(pair.engines[1].unfinished().0, 0);
}
