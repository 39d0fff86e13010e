//! The short ways: who may take them, and that they do what the long way does.

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::{Null, Pair};
use rustbtl_fragments::engine::{Engine, Mode, Received, Sent, Source, TagMatch};
use rustbtl_fragments::ids::{CommRank, ContextId, Incarnation, PeerId, ReceiveId, SetId};
use rustbtl_fragments::wire::{FrameType, Header};
use std::collections::VecDeque;

/// The short way of a message whose receive is not posted, and who must not take it.
#[test]
fn only_the_very_message_that_comes_next_is_received_exactly() {
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
    let mut exactly = |engine: &mut Engine<Null>, at: usize, source, tag, room: u64| {
        engine.receive_fast_path(host, from, &frames[at], (comm, source, tag), &mut { room })
    };
    let three = TagMatch::Is(3);
    // Nothing is known of the sender: the long way makes its channel.
    assert_eq!(exactly(engine, 0, named, three, 8), None);
    let wanted = engine.wants(comm, named, three).unwrap();
    let first = engine.on_frame_for(&mut Null::new(), from, &frames[0], wanted, &mut 8);
    assert!(matches!(first, Ok(Some(_))));
    assert_eq!(exactly(engine, 2, named, TagMatch::Is(4), 8), None, "out of order");
    assert_eq!(exactly(engine, 1, named, TagMatch::Is(4), 8), None, "another tag");
    assert_eq!(exactly(engine, 1, Source::Any, three, 8), None, "a wildcard");
    assert_eq!(exactly(engine, 1, named, TagMatch::Any, 8), None, "a wildcard");
    assert_eq!(exactly(engine, 1, Source::Rank(CommRank(1)), three, 8), None, "another rank");
    let mut of_another_life = frames[1].clone();
    of_another_life[20] ^= 1;
    let mut cut = frames[1].clone();
    cut.pop();
    let mut with_flags = frames[1].clone();
    with_flags[6] = 1;
    for frame in [&of_another_life, &cut, &with_flags] {
        let taken =
            engine.receive_fast_path(&mut Null::new(), from, frame, (comm, named, three), &mut 8);
        assert_eq!(taken, None);
    }
    let before = *engine.counters();
    let status = exactly(engine, 1, named, three, 8).unwrap();
    assert_eq!((status.source, status.tag, status.bytes), (CommRank(0), 3, 16));
    assert!(status.truncated, "16 bytes into 8");
    let now = engine.counters();
    assert_eq!(now.received_internal_messages, before.received_internal_messages + 1);
    assert_eq!(now.received_internal_bytes, before.received_internal_bytes + 16);
    assert_eq!(exactly(engine, 1, named, three, 16), None, "it came already");
    // A receive that was posted before comes first.
    let post = |engine: &mut Engine<Null>, tag| {
        engine.receive(&mut Null::new(), comm, named, TagMatch::Is(tag), 8, 7)
    };
    assert!(matches!(post(engine, 4), ReceiveOutcome::Pending(_)));
    assert_eq!(exactly(engine, 2, named, TagMatch::Is(4), 8), None);
    engine.check();
}

/// The way of receives that are posted.
#[test]
fn the_oldest_of_receives_that_are_alike_takes_its_message_and_no_other_one() {
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
    // The first frame of a sender goes the long way, on which its channel is made.
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

/// Receives that are alike have no ids, until somebody needs one or another receive is posted.
#[test]
fn receives_that_are_alike_keep_their_order_when_they_get_ids() {
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
    // A frame goes the short way if there is one.
    let mut come = |engine: &mut Engine<Null>, host: &mut Null| {
        let frame = frames.pop_front().unwrap();
        let short = engine.complete_fast_path(host, from, &frame);
        assert!(short || engine.on_frame(host, from, &frame).is_ok());
        engine.check();
        (short, host.last)
    };
    let posted = |engine: &mut Engine<Null>, host: &mut Null, tokens: core::ops::Range<u64>| {
        tokens.for_each(|token| assert_eq!(post(engine, host, one, 3, token), ReceiveId::NONE));
    };
    posted(engine, host, 0..3);
    assert!(!engine.is_matching_idle() && engine.unfinished().0 == 3);
    assert_eq!(come(engine, host), (false, 0), "its sender was not heard of");
    assert_eq!(come(engine, host), (true, 1));
    assert!(!engine.cancel_receive(ReceiveId::NONE));

    posted(engine, host, 3..5);
    engine.assign_receive_ids(host);
    let tokens: Vec<u64> = host.named.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [2, 3, 4], "oldest first");
    let [second, third] = [1, 2].map(|at: usize| host.named[at].1);
    assert_eq!(engine.receive_name(third).map(|name| name.number), Some(5));
    assert!(engine.cancel_receive(second) && !engine.cancel_receive(second));
    engine.check();
    assert_ne!(post(engine, host, one, 3, 5), ReceiveId::NONE, "others have ids");
    assert_eq!([2, 4, 5].map(|_| come(engine, host)), [2, 4, 5].map(|token| (false, token)));
    assert!(!engine.cancel_receive(third), "it came");

    posted(engine, host, 6..8);
    host.named.clear();
    assert_ne!(post(engine, host, Source::Any, 3, 8), ReceiveId::NONE);
    assert_eq!(host.named.len(), 2, "a wildcard: those before it have to be known");
    assert_eq!([6, 7, 8].map(|_| come(engine, host).1), [6, 7, 8]);
    assert_ne!(post(engine, host, one, 4, 9), post(engine, host, one, 3, 10));
    assert_eq!(come(engine, host), (false, 10), "another tag");
}

/// Sends that are complete before anybody has asked for them.
#[test]
fn who_need_not_wait_is_complete_early_and_not_told_again() {
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
    assert_eq!(pair.engines[0].late(), 0);
    assert!(pair.engines[0].detach_send(early) && !pair.engines[0].detach_send(early));
    assert_eq!(pair.engines[0].late(), 1);
    pair.engines[0].check();
    let waits = long(&mut pair.engines[0], &mut pair.hosts[0], Mode::Standard);
    // All of them are asked for, in the order in which they were sent.
    for (send, completed) in [(synchronous, 1), (early, 1), (waits, 2)] {
        let grant = Header::control(FrameType::Grant, Incarnation(0), Incarnation(0), send.0, 0);
        let (engine, host) = (&mut pair.engines[0], &mut pair.hosts[0]);
        assert!(engine.on_frame(host, PeerId(1), &grant.encode()).is_ok());
        assert_eq!(host.completed, completed);
        assert!(!engine.detach_send(send), "it has gone");
        engine.check();
    }
    assert_eq!(pair.engines[0].late(), 0);
}
