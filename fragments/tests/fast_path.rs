//! The fast path: which messages take it, and that it does what the slow path does.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::{Null, Pair};
use rustbtl_fragments::engine::{Engine, Mode, ReceiveOutcome, SendOutcome, Source, TagMatch};
use rustbtl_fragments::ids::{CommRank, ContextId, Incarnation, PeerId, ReceiveId, SetId};
use rustbtl_fragments::wire::{FrameType, Header};
use std::collections::VecDeque;

/// The fast path of a message whose receive is not posted, and the frames that must not take it.
#[test]
fn only_the_next_expected_message_takes_the_fast_path() {
    let mut pair = Pair::new();
    let (to, comm, from) = (CommRank(1), pair.comm, PeerId(0));
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let named = Source::Rank(CommRank(0));
    let mut sent = |tag: i32, bytes: u64| {
        let sent = engines[0].send(&mut hosts[0], comm, to, tag, Mode::Standard, bytes, bytes, 0);
        assert!(sent.is_ok());
        hosts[0].frame.clone()
    };
    let frames = [sent(3, 8), sent(3, 16), sent(4, 8), sent(-2, 8), sent(3, 8)];
    let (engine, host) = (&mut engines[1], &mut hosts[1]);
    let mut fast = |engine: &mut Engine<Null>, at: usize, source, tag, room: u64| {
        engine.receive_fast_path(host, from, &frames[at], (comm, source, tag), &mut { room })
    };
    let three = TagMatch::Is(3);
    // The sender is unknown: the slow path creates its channel.
    assert_eq!(fast(engine, 0, named, three, 8), None);
    let wanted = engine.wants(comm, named, three).unwrap();
    let first = engine.on_frame_for(&mut Null::new(), from, &frames[0], wanted, &mut 8);
    assert!(matches!(first, Ok(Some(_))));
    assert_eq!(fast(engine, 2, named, TagMatch::Is(4), 8), None, "out of order");
    assert_eq!(fast(engine, 1, named, TagMatch::Is(4), 8), None, "another tag");
    assert_eq!(fast(engine, 1, Source::Any, three, 8), None, "a wildcard");
    assert_eq!(fast(engine, 1, named, TagMatch::Any, 8), None, "a wildcard");
    assert_eq!(fast(engine, 1, Source::Rank(CommRank(1)), three, 8), None, "another rank");
    let mut of_another_incarnation = frames[1].clone();
    of_another_incarnation[20] ^= 1;
    let mut cut = frames[1].clone();
    cut.pop();
    let mut with_flags = frames[1].clone();
    with_flags[6] = 1;
    for frame in [&of_another_incarnation, &cut, &with_flags] {
        let taken =
            engine.receive_fast_path(&mut Null::new(), from, frame, (comm, named, three), &mut 8);
        assert_eq!(taken, None);
    }
    let before = *engine.counters();
    let status = fast(engine, 1, named, three, 8).unwrap();
    assert_eq!((status.source, status.tag, status.bytes), (CommRank(0), 3, 16));
    assert!(status.truncated, "16 bytes into 8");
    let now = engine.counters();
    assert_eq!(now.received_internal_messages, before.received_internal_messages + 1);
    assert_eq!(now.received_internal_bytes, before.received_internal_bytes + 16);
    assert_eq!(fast(engine, 1, named, three, 16), None, "it came already");
    // A receive that was posted before takes precedence.
    let post = |engine: &mut Engine<Null>, tag| {
        engine.receive(&mut Null::new(), comm, named, TagMatch::Is(tag), 8, 7)
    };
    assert!(matches!(post(engine, 4), ReceiveOutcome::Pending(_)));
    assert_eq!(fast(engine, 2, named, TagMatch::Is(4), 8), None);
    engine.check();
}

/// The fast path of posted receives.
#[test]
fn the_oldest_of_uniform_receives_takes_its_message_and_no_other_one() {
    let mut pair = Pair::new();
    let (to, comm, from) = (CommRank(1), pair.comm, PeerId(0));
    let (engines, hosts) = (&mut pair.engines, &mut pair.hosts);
    let mut sent = |tag: i32| {
        assert!(engines[0].send(&mut hosts[0], comm, to, tag, Mode::Standard, 8, 8, 0).is_ok());
        hosts[0].frame.clone()
    };
    let frames = [sent(3), sent(3), sent(5)];
    let (engine, host) = (&mut engines[1], &mut hosts[1]);
    assert!(!engine.complete_fast_path(host, from, &frames[0]), "nothing is posted");
    // The first frame of a sender takes the slow path, which creates its channel.
    assert!(engine.on_frame(host, from, &frames[0]).is_ok());
    let post = |engine: &mut Engine<Null>, host: &mut Null, tag| {
        engine.receive(host, comm, Source::Rank(CommRank(0)), TagMatch::Is(tag), 8, 42)
    };
    assert!(matches!(post(engine, host, 3), ReceiveOutcome::Complete(_)));
    assert!(matches!(post(engine, host, 3), ReceiveOutcome::Pending(_)));
    assert!(matches!(post(engine, host, 3), ReceiveOutcome::Pending(_)));
    assert!(!engine.complete_fast_path(host, from, &frames[2]), "not what is expected");
    assert_eq!(host.completed, 0);
    assert!(engine.complete_fast_path(host, from, &frames[1]));
    assert_eq!(host.completed, 1);
    assert!(!engine.complete_fast_path(host, from, &frames[1]), "it came already");
    engine.check();
}

/// Uniform receives have no ids, until one is needed or another receive is posted.
#[test]
fn uniform_receives_keep_their_order_when_they_get_ids() {
    let mut pair = Pair::new();
    let (comm, from) = (pair.comm, PeerId(0));
    let one = Source::Rank(CommRank(0));
    let mut frames = VecDeque::new();
    for tag in [3; 12] {
        pair.send(0, tag, 8);
        frames.push_back(pair.hosts[0].frame.clone());
    }
    let (engine, host) = (&mut pair.engines[1], &mut pair.hosts[1]);
    let post = |engine: &mut Engine<Null>, host: &mut Null, source, tag, token| {
        let posted = engine.receive(host, comm, source, TagMatch::Is(tag), 8, token);
        let ReceiveOutcome::Pending(id) = posted else { panic!("{posted:?}") };
        engine.check();
        id
    };
    // A frame takes the fast path if it can.
    let mut come = |engine: &mut Engine<Null>, host: &mut Null| {
        let frame = frames.pop_front().unwrap();
        let fast = engine.complete_fast_path(host, from, &frame);
        assert!(fast || engine.on_frame(host, from, &frame).is_ok());
        engine.check();
        (fast, host.last)
    };
    let posted = |engine: &mut Engine<Null>, host: &mut Null, tokens: core::ops::Range<u64>| {
        tokens.for_each(|token| assert_eq!(post(engine, host, one, 3, token), ReceiveId::NONE));
    };
    posted(engine, host, 0..3);
    assert!(!engine.is_matching_idle() && engine.unfinished().0 == 3);
    assert_eq!(come(engine, host), (false, 0), "its sender is unknown");
    assert_eq!(come(engine, host), (true, 1));
    assert!(!engine.cancel_receive(ReceiveId::NONE));

    posted(engine, host, 3..5);
    engine.assign_receive_ids(host);
    let tokens: Vec<u64> = host.assigned_ids.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [2, 3, 4], "oldest first");
    let [second, third] = [1, 2].map(|at: usize| host.assigned_ids[at].1);
    assert_eq!(engine.receive_name(third).map(|name| name.number), Some(5));
    assert!(engine.cancel_receive(second) && !engine.cancel_receive(second));
    engine.check();
    assert_ne!(post(engine, host, one, 3, 5), ReceiveId::NONE, "others have ids");
    assert_eq!([2, 4, 5].map(|_| come(engine, host)), [2, 4, 5].map(|token| (false, token)));
    assert!(!engine.cancel_receive(third), "it came");

    posted(engine, host, 6..8);
    host.assigned_ids.clear();
    assert_ne!(post(engine, host, Source::Any, 3, 8), ReceiveId::NONE);
    assert_eq!(host.assigned_ids.len(), 2, "a wildcard: those before it have to be known");
    assert_eq!([6, 7, 8].map(|_| come(engine, host).1), [6, 7, 8]);
    assert_ne!(post(engine, host, one, 4, 9), post(engine, host, one, 3, 10));
    assert_eq!(come(engine, host), (false, 10), "another tag");
}

/// Detached sends: complete before their receiver has asked for them.
#[test]
fn a_detached_send_is_complete_at_once_and_not_completed_again() {
    let mut pair = Pair::new();
    let (to, comm) = (CommRank(1), pair.comm);
    let long = |engine: &mut Engine<Null>, host: &mut Null, mode| {
        let sent = engine.send(host, comm, to, 3, mode, 10_000, 10_000, 0);
        let Ok(SendOutcome::Pending(id)) = sent else { panic!("{sent:?}") };
        id
    };
    let inside = long(&mut pair.engines[0], &mut pair.hosts[0], Mode::Standard);
    assert!(!pair.engines[0].detach_send(inside), "it is in no log");
    // The same process in a set of its own.
    pair.engines[0] = Engine::new(PeerId(0), SetId(5), Incarnation(0));
    pair.engines[0].add_comm(ContextId(0), CommRank(0), 2, 0);
    let synchronous = long(&mut pair.engines[0], &mut pair.hosts[0], Mode::Synchronous);
    assert!(!pair.engines[0].detach_send(synchronous), "its match is awaited");
    let early = long(&mut pair.engines[0], &mut pair.hosts[0], Mode::Standard);
    assert_eq!(pair.engines[0].detached_sends(), 0);
    assert!(pair.engines[0].detach_send(early) && !pair.engines[0].detach_send(early));
    assert_eq!(pair.engines[0].detached_sends(), 1);
    pair.engines[0].check();
    let waits = long(&mut pair.engines[0], &mut pair.hosts[0], Mode::Standard);
    // All of them are requested, in the order in which they were sent.
    for (send, completed) in [(synchronous, 1), (early, 1), (waits, 2)] {
        let grant = Header::control(FrameType::Grant, Incarnation(0), Incarnation(0), send.0, 0);
        let (engine, host) = (&mut pair.engines[0], &mut pair.hosts[0]);
        assert!(engine.on_frame(host, PeerId(1), &grant.encode()).is_ok());
        assert_eq!(host.completed, completed);
        assert!(!engine.detach_send(send), "it was sent");
        engine.check();
    }
    assert_eq!(pair.engines[0].detached_sends(), 0);
}
