//! Which messages a replay withholds, until when, and in which order they are matched after that.
//! (`tests/sim` does the same at random.)

#[path = "../benches/null/mod.rs"]
#[allow(dead_code)]
mod null;

use null::{Null, Pair};
use rustbtl_fragments::engine::{Engine, ReceiveOutcome, ReplayDeterminants, Source, TagMatch};
use rustbtl_fragments::ids::{CommId, CommRank, MessageName, MessageSeq, PeerId, ReceiveName};

const SENDER: Source = Source::Rank(CommRank(0));

/// The sender's messages, and their receiver, which replays.
struct Job {
    pair: Pair,
    comm: CommId,
}

impl Job {
    fn new(known: &ReplayDeterminants) -> Self {
        let pair = Pair::new();
        let mut job = Self { comm: pair.comm, pair };
        job.begin_replay(known);
        job
    }

    fn begin_replay(&mut self, known: &ReplayDeterminants) {
        let (engine, host) = self.receiver();
        engine.begin_replay(host, known);
        engine.check();
    }

    fn receiver(&mut self) -> (&mut Engine<Null>, &mut Null) {
        (&mut self.pair.engines[1], &mut self.pair.hosts[1])
    }

    fn arrive(&mut self, tags: &[i32]) {
        for tag in tags {
            self.pair.send(0, *tag, 8);
            self.pair.deliver(1);
            self.pair.engines[1].check();
        }
    }

    /// Post a receive. Is it complete?
    fn receive(&mut self, source: Source, tag: TagMatch, token: u64) -> bool {
        let comm = self.comm;
        let (engine, host) = self.receiver();
        let outcome = engine.receive(host, comm, source, tag, 8, token);
        engine.check();
        matches!(outcome, ReceiveOutcome::Complete(_))
    }

    fn end_replay(&mut self) {
        let (engine, host) = self.receiver();
        engine.end_replay(host);
        engine.check();
    }

    fn completed(&self) -> (u64, u64) {
        (self.pair.hosts[1].completed, self.pair.hosts[1].last)
    }
}

fn receive_name(number: u64) -> ReceiveName {
    ReceiveName { context: 0, lane: 0, number }
}

fn message_name(sequence: u64) -> MessageName {
    MessageName { from: PeerId(0), context: 0, lane: 0, sequence: MessageSeq(sequence) }
}

/// The program has done something later that is known: it cancelled receive 9.
fn known() -> ReplayDeterminants {
    ReplayDeterminants { cancelled: vec![receive_name(9)], ..ReplayDeterminants::default() }
}

/// A checkpoint in a replay has an undecided receive, messages that are withheld for it, and a
/// receive from a named source behind it. Later determinants decide the first.
fn rolled_back_to_a_replay(later: &ReplayDeterminants) -> Job {
    let mut job = Job::new(&known());
    assert!(!job.receive(Source::Any, TagMatch::Any, 1));
    assert!(!job.receive(SENDER, TagMatch::Any, 2));
    job.arrive(&[5, 6]);
    assert_eq!(job.completed(), (0, 0), "withheld");
    job.begin_replay(later);
    job
}

/// The program may wait for the second before it does what is still to be replayed.
#[test]
fn a_message_is_free_once_the_receive_that_it_was_withheld_for_is_bound() {
    let matches = vec![(receive_name(1), message_name(0))];
    let job = rolled_back_to_a_replay(&ReplayDeterminants { matches, ..known() });
    assert_eq!(job.completed(), (2, 2), "each has its message");
    assert!(job.pair.engines[1].is_replaying());
    assert_eq!(job.pair.hosts[1].matched, [], "the match is known");
}

#[test]
fn a_message_is_free_once_the_receive_that_it_was_withheld_for_is_cancelled() {
    let cancelled = vec![receive_name(1), receive_name(9)];
    let mut job =
        rolled_back_to_a_replay(&ReplayDeterminants { cancelled, ..ReplayDeterminants::default() });
    assert_eq!(job.completed(), (1, 2));
    assert!(job.receive(SENDER, TagMatch::Is(6), 3), "the second waits like any other");
}

/// The only message that was withheld is a determinant's: what follows in its stream is free.
#[test]
fn a_message_that_comes_after_a_withheld_one_that_is_claimed_is_free() {
    let mut job = Job::new(&known());
    assert!(!job.receive(Source::Any, TagMatch::Is(5), 1));
    job.arrive(&[5]);
    let (cancelled, claimed) = (vec![receive_name(1), receive_name(9)], vec![message_name(0)]);
    job.begin_replay(&ReplayDeterminants { cancelled, claimed, ..ReplayDeterminants::default() });
    assert!(!job.receive(SENDER, TagMatch::Is(6), 2));
    job.arrive(&[6]);
    assert_eq!(job.completed(), (1, 2));
}

/// Nothing decides the receive: it keeps its place, and its message.
#[test]
fn a_message_stays_withheld_while_its_receive_is_undecided() {
    let mut job = rolled_back_to_a_replay(&known());
    assert_eq!(job.completed(), (0, 0));
    job.end_replay();
    assert_eq!(job.completed(), (2, 2));
    assert_eq!(job.pair.hosts[1].matched, [(receive_name(1), message_name(0))]);
}

/// Only what comes after a withheld message is withheld with it. The program may wait for what
/// came before.
#[test]
fn a_message_that_came_before_a_withheld_one_is_free() {
    let mut job = Job::new(&known());
    assert!(!job.receive(Source::Any, TagMatch::Is(6), 1));
    job.arrive(&[5, 6]);
    assert!(!job.receive(Source::Any, TagMatch::Is(7), 2));
    assert!(job.receive(SENDER, TagMatch::Is(5), 3));
}

/// MPI-3.1 §3.5: two messages of a sender that match the same receive are received in their order,
/// whichever was withheld first.
#[test]
fn withheld_messages_do_not_overtake_each_other() {
    let mut job = Job::new(&known());
    assert!(!job.receive(Source::Any, TagMatch::Is(6), 1));
    job.arrive(&[5, 6, 6]);
    assert!(!job.receive(Source::Any, TagMatch::Any, 2));
    job.end_replay();
    let taken = [(receive_name(2), message_name(0)), (receive_name(1), message_name(1))];
    assert_eq!(job.pair.hosts[1].matched, taken);
}
