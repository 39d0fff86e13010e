//! With the coordinator's end of the connection.

use super::*;
use crate::determinants::outbox::put;
use crate::determinants::outbox::take_batch;
use crate::determinants::set_order::COUNTS;
use crate::transports::set_memory::Counts;
use rustbtl_coordination::control::FromRank;
use rustbtl_coordination::determinants::rank_batch::{self, Recorded};
use rustbtl_coordination::determinants::{
    Determinant, NondetCall, Numbered, Outcome, PiggybackedPlaces,
};
use rustbtl_fragments::ids::SetId;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

const SECRET: [u8; 32] = [7; 32];

/// The coordinator's end of a connection of whoever proves itself.
fn accept(listener: &TcpListener) -> Option<Stream> {
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = [0; handshake::HELLO];
    stream.read_exact(&mut hello).unwrap();
    let names = Names::decode(&hello, CONTROL).unwrap();
    let agreement = KeyAgreement::new([1; 32]);
    let nonce = agreement.nonce();
    let mine = Names { from: COORDINATOR, to: names.from, nonce, ..names };
    let challenge = handshake::challenge(&SECRET, &hello, &mine);
    stream.write_all(&challenge).unwrap();
    let mut proof = [0; handshake::PROOF];
    stream.read_exact(&mut proof).ok()?;
    handshake::check_proof(&SECRET, &hello, &challenge, &proof).unwrap();
    let verdict = Verdict::Accepted(0);
    stream.write_all(&handshake::welcome(&SECRET, &hello, &challenge, verdict)).unwrap();
    let keys = agreement.agree(&names.nonce, &SECRET, &hello, &challenge).unwrap();
    let session = Session::of_target(&keys);
    let (incoming, outgoing) = (FrameBuffer::new(), Vec::new());
    let mut stream = Stream { socket: stream, session, incoming, outgoing };
    let first = FromNode::DirectConnection { rank: PeerId(5) };
    assert_eq!(read(&mut stream), first);
    Some(stream)
}

fn read(stream: &mut Stream) -> FromNode {
    loop {
        if let Some(message) = stream.incoming.next_message::<FromNode>().unwrap() {
            return message;
        }
        let mut piece = [0; 1000];
        let bytes = stream.socket.read(&mut piece).unwrap();
        stream.take_in(&piece[..bytes]).unwrap();
    }
}

fn read_of_rank(stream: &mut Stream) -> FromRank {
    match read(stream) {
        FromNode::Rank { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn answer(stream: &mut Stream, upto: u64) {
    let answer = ToRank::Stable { incarnation: Incarnation(2), upto };
    stream.send(&answer.encode().unwrap());
    stream.flush().unwrap();
}

/// It answers `answers` times.
fn coordinator(listener: &TcpListener, answers: u64) -> Vec<u64> {
    let Some(mut stream) = accept(listener) else { return Vec::new() };
    let mut from_numbers = Vec::new();
    while (from_numbers.len() as u64) < answers {
        let FromRank::Determinants { from, .. } = read_of_rank(&mut stream) else { continue };
        from_numbers.push(from);
        answer(&mut stream, from + 1);
    }
    from_numbers
}

fn record(number: u64) {
    let bytes = vec![9; 3];
    outbox().push_back(DeterminantBatch::Own { from: number, last_at: number, bytes });
}

fn until(link: &CoordinatorLink, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() && Instant::now() < end {
        link.poll();
        thread::yield_now();
    }
    assert!(done());
}

/// One test: there is one outbox in a process.
#[test]
fn determinants_go_out_one_at_a_time_and_again_when_the_connection_breaks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = thread::spawn(move || {
        assert!(coordinator(&listener, 9).is_empty(), "who does not know the secret");
        coordinator(&listener, 3)
    });
    let link = &CoordinatorLink::new();
    link.begin(PeerId(5), Incarnation(2), true);
    assert!(link.send(true) == BatchSend::NotOpen && link.descriptor().is_none());
    link.open(&format!("nonsense {address}"), &[8; 32]);
    assert!(link.descriptor().is_none(), "the coordinator does not prove itself");
    link.open(&address.to_string(), &SECRET);
    assert!(link.descriptor().is_some_and(|fd| fd >= FD_MIN));

    record(0);
    assert!(link.send(false) == BatchSend::Sent && link.awaits_answer());
    record(1);
    assert_eq!(link.send(false), BatchSend::Sent);
    until(link, || !link.unstable().is_empty() && link.unstable()[0].last_at() == 1);
    until(link, || !link.awaits_answer());
    record(2);
    assert!(
        link.send(false) == BatchSend::Sent && !link.set_stable(Incarnation(1), 99),
        "of another incarnation"
    );
    assert_eq!(link.unstable().len(), 1);
    assert_eq!(there.join().unwrap(), [0, 1, 2]);
    // It closes the connection behind its last answer.
    until(link, || link.descriptor().is_none());
    assert!(link.has_broken() && !link.has_broken());
    record(3);
    assert_eq!(link.send(true), BatchSend::NotOpen);
    link.sent_by_guardian(take_batch().unwrap());
    assert_eq!(link.unstable().last().map(DeterminantBatch::last_at), Some(3));
    link.end();
    assert!(link.unstable().is_empty());
    what_nobody_waits_for_is_gathered();
    what_was_piggybacked_is_named_and_its_content_follows_if_it_is_missed();
    what_waits_too_long_for_an_answer_goes_all_the_same();
}

fn what_waits_too_long_for_an_answer_goes_all_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = thread::spawn(move || accept(&listener).unwrap());
    let link = &CoordinatorLink::new();
    link.begin(PeerId(5), Incarnation(2), true);
    link.open(&address.to_string(), &SECRET);
    let mut there = there.join().unwrap();
    record(0);
    assert_eq!(link.send(false), BatchSend::Sent);
    assert!(matches!(read_of_rank(&mut there), FromRank::Determinants { from: 0, .. }));
    record(1);
    assert_eq!(link.send(false), BatchSend::Sent, "whoever takes in the answer sees to it");
    link.lock().sent_ns = u64::MAX;
    link.send_overdue();
    assert!(link.has_unsent() && !link.set_polled(false), "somebody has to come");
    link.lock().sent_ns = 0;
    link.send_overdue();
    assert!(matches!(read_of_rank(&mut there), FromRank::Determinants { from: 1, .. }));
    assert!(!link.has_unsent());
    link.end();
}

/// Its time never comes here, so that a slow machine changes nothing.
fn what_nobody_waits_for_is_gathered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = thread::spawn(move || coordinator(&listener, 2));
    let counts: &'static Counts = Box::leak(Box::default());
    COUNTS.store(core::ptr::from_ref(counts).cast_mut(), Ordering::Release);
    let link = &CoordinatorLink::new();
    link.begin(PeerId(5), Incarnation(2), false);
    link.open(&address.to_string(), &SECRET);
    record(0);
    assert_eq!(link.send(false), BatchSend::Sent, "the first");
    until(link, || !link.awaits_answer());
    link.lock().sent_ns = u64::MAX;
    assert!(link.send(false) == BatchSend::Sent && !link.has_unsent(), "there is nothing");
    assert!(link.set_polled(false), "nobody has to come for it");
    record(1);
    assert_eq!(link.send(false), BatchSend::Later);
    link.poll();
    assert!(link.has_unsent() && !link.awaits_answer());
    assert!(link.set_polled(true) && link.is_polled());
    assert!(!link.set_polled(false) && !link.is_polled(), "it has to come");
    counts.wanted.store(2, Ordering::Relaxed);
    assert_eq!(link.send(false), BatchSend::Sent, "a frame waits");
    until(link, || !link.awaits_answer());
    assert!(link.set_polled(false) && !link.has_unsent());
    assert_eq!(there.join().unwrap(), [0, 1]);
    COUNTS.store(core::ptr::null_mut(), Ordering::Release);
    link.end();
}

fn received(at: u64) -> PiggybackedPlaces {
    let places = PiggybackedPlaces { set: SetId(70), incarnation: Incarnation(1), upto: 100 + at };
    let bytes = vec![at as u8];
    outbox().push_back(DeterminantBatch::Carried { at, places, bytes });
    places
}

fn own(number: u64, at: u64) -> Determinant {
    let (call, outcome) = (NondetCall::file(1, 8), Outcome::Value(number));
    let determinant = Determinant::Outcome { call, outcome };
    put(&mut outbox(), at, &Numbered { number, determinant: determinant.clone() });
    determinant
}

/// (2) Each flush is one piece, however much is in it.
fn what_was_piggybacked_is_named_and_its_content_follows_if_it_is_missed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = thread::spawn(move || accept(&listener).unwrap());
    let counts: &'static Counts = Box::leak(Box::default());
    COUNTS.store(core::ptr::from_ref(counts).cast_mut(), Ordering::Release);
    let link = &CoordinatorLink::new();
    link.begin(PeerId(5), Incarnation(2), false);
    link.open(&address.to_string(), &SECRET);
    let mut there = there.join().unwrap();

    let incarnation = Incarnation(2);
    let content = |at: u64| FromRank::Piggybacked { incarnation, at, bytes: vec![at as u8] };
    let (first, second) = (own(7, 0), received(1));
    let (third, fourth) = (own(8, 2), received(3));
    assert_eq!(link.send(false), BatchSend::Sent);
    assert!(link.awaits_answer() && link.has_unsent(), "somebody has to come for the content");
    let FromRank::Determinants { from: 7, bytes, .. } = read_of_rank(&mut there) else {
        panic!("something else was sent")
    };
    let recorded = [
        (0, Recorded::Own(first)),
        (1, Recorded::Received(second)),
        (2, Recorded::Own(third)),
        (3, Recorded::Received(fourth)),
    ];
    assert_eq!(rank_batch::read_recorded(&bytes).unwrap(), recorded);
    // Nothing new, and its time has not come; then it has. Of the first two all is stable.
    link.lock().sent_ns = u64::MAX;
    assert_eq!(link.send(false), BatchSend::Sent);
    answer(&mut there, 2);
    until(link, || link.unstable().len() == 2);
    link.lock().sent_ns = 0;
    link.poll();
    assert_eq!(read_of_rank(&mut there), content(3));
    // Once. A frame that waits has all of it sent, and says so.
    received(4);
    link.lock().sent_ns = u64::MAX;
    counts.wanted.store(5, Ordering::Relaxed);
    link.send(true);
    let (gated, all) = (read_of_rank(&mut there), read_of_rank(&mut there));
    assert_eq!((gated, all), (FromRank::FrameGated {}, content(4)));
    // The same if it is one of another rank of the set, and what was named before.
    link.lock().sent_ns = 0;
    answer(&mut there, 5);
    until(link, || !link.awaits_answer());
    counts.wanted.store(0, Ordering::Relaxed);
    received(5);
    assert_eq!(link.send(false), BatchSend::Sent);
    assert!(matches!(read_of_rank(&mut there), FromRank::Determinants { .. }));
    received(6);
    link.lock().sent_ns = u64::MAX;
    counts.wanted.store(7, Ordering::Relaxed);
    link.poll();
    assert_eq!(read_of_rank(&mut there), FromRank::FrameGated {});
    assert_eq!(read_of_rank(&mut there), content(5));
    assert_eq!(read_of_rank(&mut there), content(6));
    // What is resent has its content.
    assert_eq!(
        link.unstable().iter().map(|batch| batch.message(incarnation)).collect::<Vec<_>>(),
        [content(5), content(6)]
    );
    // All is sent, and the frame still waits: it is said again when something is stable.
    link.send(true);
    answer(&mut there, 6);
    until(link, || link.unstable().len() == 1);
    link.send(true);
    received(7);
    link.send(true);
    assert_eq!(read_of_rank(&mut there), FromRank::FrameGated {});
    assert_eq!(read_of_rank(&mut there), FromRank::FrameGated {}, "with what is new");
    assert_eq!(read_of_rank(&mut there), content(7));
    // Another coordinator does not know of it.
    drop(there);
    until(link, || link.descriptor().is_none());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = thread::spawn(move || accept(&listener).unwrap());
    link.open(&address.to_string(), &SECRET);
    let mut there = there.join().unwrap();
    there.socket.set_read_timeout(Some(core::time::Duration::from_secs(20))).unwrap();
    link.send(true);
    assert_eq!(read_of_rank(&mut there), FromRank::FrameGated {});
    COUNTS.store(core::ptr::null_mut(), Ordering::Release);
    link.end();
}
