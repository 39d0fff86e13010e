//! What the engine allocates: nothing on the short way, nothing that grows with time.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::Pair;
use rustbtl_fragments::engine::{Mode, Received, Source, TagMatch};
use rustbtl_fragments::ids::{CommRank, ContextId, PeerId};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        let _ = LIVE.try_with(|live| live.set(live.get() + layout.size() as i64));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _ = LIVE.try_with(|live| live.set(live.get() - layout.size() as i64));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls_in_ten_thousand(mut step: impl FnMut(i32)) -> u64 {
    (0..200).for_each(&mut step);
    let before = CALLS.get();
    (0..10_000).for_each(&mut step);
    CALLS.get() - before
}

#[test]
fn an_expected_message_allocates_nothing() {
    let mut pair = Pair::new();
    let calls = calls_in_ten_thousand(|tag| {
        pair.receive(1, tag % 100, 8);
        pair.send(0, tag % 100, 8);
        pair.deliver(1);
    });
    assert_eq!(calls, 0);
}

#[test]
fn an_unexpected_message_allocates_nothing_once_buffers_are_there() {
    let mut pair = Pair::new();
    let calls = calls_in_ten_thousand(|tag| {
        let bytes = (tag as u64 * 37) % 2000;
        for _ in 0..3 {
            pair.send(0, tag % 100, bytes);
            pair.deliver(1);
        }
        (0..3).for_each(|_| pair.receive(1, tag % 100, bytes));
    });
    assert!(calls < 30, "{calls} allocations, one for each size class at most");
}

/// A communicator is made, used and freed, for ever, with a new instance each time.
#[test]
fn communicators_that_come_and_go_leave_nothing() {
    let mut pair = Pair::new();
    let mut turn = |instance: u16| {
        let context = ContextId::new(9, instance);
        let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
        let comm = engines[0].add_comm(context, CommRank(0), 2, 0);
        let (to, bytes) = (CommRank(1), 16);
        let sent = engines[0].send(&mut hosts[0], comm, to, 1, Mode::Standard, bytes, bytes, 0);
        assert!(sent.is_ok());
        // The message is here before the communicator.
        let frame = hosts[0].frame.clone();
        assert!(engines[1].on_frame(&mut hosts[1], PeerId(0), &frame).is_ok());
        let far = engines[1].add_comm(context, CommRank(1), 2, 0);
        let source = Source::Rank(CommRank(0));
        engines[1].receive(&mut hosts[1], far, source, TagMatch::Is(1), bytes, 0);
        engines[0].del_comm(comm);
        engines[1].del_comm(far);
        engines[1].check();
        assert_eq!(engines[1].open(), (0, 0, 0));
    };
    (0..100).for_each(&mut turn);
    let before = LIVE.get();
    (100..20_000).for_each(&mut turn);
    assert!(LIVE.get() - before < 4096, "{} bytes more", LIVE.get() - before);
}

/// The message of a later communicator with the same context id waits for it, while the earlier
/// one is in use and when it is freed (as it happens when a process executes its past again).
#[test]
fn a_message_of_a_later_communicator_is_not_taken_by_an_earlier_one() {
    let mut pair = Pair::new();
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let later = engines[0].add_comm(ContextId::new(9, 2), CommRank(0), 2, 0);
    let sent = engines[0].send(&mut hosts[0], later, CommRank(1), 1, Mode::Standard, 16, 16, 0);
    assert!(sent.is_ok());
    let earlier = engines[1].add_comm(ContextId::new(9, 1), CommRank(1), 2, 0);
    let frame = hosts[0].frame.clone();
    assert!(engines[1].on_frame(&mut hosts[1], PeerId(0), &frame).is_ok());
    assert_eq!(engines[1].probe(earlier, Source::Any, TagMatch::Any), None);
    engines[1].del_comm(earlier);
    let later = engines[1].add_comm(ContextId::new(9, 2), CommRank(1), 2, 0);
    let status = engines[1].probe(later, Source::Any, TagMatch::Any);
    assert_eq!(status.map(|status| status.bytes), Some(16));
}

/// Issue 2: at most 64 bytes of engine state for a process that is never talked to.
#[test]
fn a_peer_that_is_never_talked_to_costs_less_than_64_bytes() {
    const SIZE: u32 = 100_000;
    let mut pair = Pair::new();
    let (engine, host) = (&mut pair.engines[0], &mut pair.hosts[0]);
    let before = LIVE.get();
    let world = engine.add_comm(ContextId::new(7, 0), CommRank(0), SIZE, 0);
    // The last of them is talked to: everything up to it must have its place.
    let last = CommRank(SIZE - 1);
    assert!(engine.send(host, world, last, 1, Mode::Standard, 8, 8, 0).is_ok());
    let each = (LIVE.get() - before) as f64 / f64::from(SIZE);
    println!("{each:.1} bytes a peer");
    assert!(each <= 64.0, "{each} bytes a peer");
}

/// What a process costs that is talked to, measured at 1,000 of them, both ways.
#[test]
fn a_thousand_peers_cost_less_than_a_kilobyte_each() {
    const SIZE: u32 = 1000;
    let mut pair = Pair::new();
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let before = LIVE.get();
    let world = engines[0].add_comm(ContextId::new(7, 0), CommRank(0), SIZE, 0);
    for rank in 1..SIZE {
        let to = CommRank(rank);
        let sent = engines[0].send(&mut hosts[0], world, to, 1, Mode::Standard, 8, 8, 0);
        assert!(sent.is_ok());
        let source = Source::Rank(to);
        engines[0].receive(&mut hosts[0], world, source, TagMatch::Is(1), 8, 0);
    }
    let each = (LIVE.get() - before) as f64 / f64::from(SIZE);
    println!("{each:.0} bytes a peer");
    assert!(each <= 1024.0, "{each} bytes a peer");
}

/// The short ways: sent without a token, received without being posted.
#[test]
fn what_is_sent_now_is_received_unposted() {
    let mut pair = Pair::new();
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let comms =
        [0, 1].map(|me| engines[me].add_comm(ContextId::new(7, 0), CommRank(me as u32), 2, 0));
    let mut bytes = 8;
    let to = CommRank(1);
    assert!(!engines[0].send_now(&mut hosts[0], comms[0], to, 3, &mut bytes, 8), "no channel yet");
    assert!(engines[0].send(&mut hosts[0], comms[0], to, 3, Mode::Standard, 8, 8, 0).is_ok());
    let first = hosts[0].frame.clone();
    assert!(engines[0].send_now(&mut hosts[0], comms[0], to, 4, &mut bytes, 8));
    let second = hosts[0].frame.clone();
    let (named, from) = (Source::Rank(CommRank(0)), PeerId(0));
    let wanted = engines[1].wants(comms[1], named, TagMatch::Is(3)).unwrap();
    let status = engines[1].on_frame_for(&mut hosts[1], from, &first, wanted, &mut bytes).unwrap();
    assert_eq!(status.map(|status| (status.tag, status.bytes)), Some((3, 8)));
    // Another message waits for its receive, and then nothing is received unposted.
    let status = engines[1].on_frame_for(&mut hosts[1], from, &second, wanted, &mut bytes).unwrap();
    assert_eq!(status, None);
    assert_eq!(engines[1].wants(comms[1], named, TagMatch::Is(4)), None);
    engines[1].check();
    let here = engines[1].probe(comms[1], Source::Any, TagMatch::Is(4));
    assert_eq!(here.map(|status| status.bytes), Some(8));
    // The receive that was not posted has its number all the same.
    let tag = TagMatch::Is(5);
    let next = engines[1].receive(&mut hosts[1], comms[1], Source::Any, tag, bytes, 0);
    let ReceiveOutcome::Pending(id) = next else { panic!("{next:?}") };
    assert_eq!(engines[1].receive_name(id).map(|name| name.number), Some(2));
}

#[test]
fn a_match_from_any_source_is_told_though_its_receive_is_not_posted() {
    let mut pair = Pair::new();
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let (to, comm) = (CommRank(1), pair.comm);
    assert!(engines[0].send(&mut hosts[0], comm, to, 3, Mode::Standard, 8, 8, 0).is_ok());
    let frame = hosts[0].frame.clone();
    let wanted = engines[1].wants(comm, Source::Any, TagMatch::Any).unwrap();
    let status = engines[1].on_frame_for(&mut hosts[1], PeerId(0), &frame, wanted, &mut 8).unwrap();
    assert_eq!(status.map(|status| status.tag), Some(3));
    let [(receive, message)] = hosts[1].matched[..] else { panic!("{:?}", hosts[1].matched) };
    assert_eq!((receive.lane, receive.number), (0, 1));
    assert_eq!((message.from, message.lane), (PeerId(0), 0));
}
