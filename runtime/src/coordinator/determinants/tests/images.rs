//! Images that depend on what is not here yet.

use crate::coordinator::determinants::tests::piggybacked::{
    A, NEXT, persisting, piggybacked_at, places,
};
use crate::coordinator::determinants::tests::*;

const CHECKPOINT: CheckpointId = CheckpointId(4);

fn clock(rank: u32, recorded: u64) -> FromNode {
    let message =
        FromRank::EventClock { checkpoint: CHECKPOINT, clock: 0, incarnation: FIRST, recorded };
    FromNode::Rank { rank: PeerId(rank), message }
}

fn image(rank: u32) -> FromNode {
    let (bytes, raw_bytes, ns, lost_ns, checksum) = (1, 1, 1, 0, 1);
    let (rank, checkpoint) = (PeerId(rank), CHECKPOINT);
    FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum }
}

/// What the job is notified of only now.
fn delivered(all: &mut Determinants) -> Vec<(u64, FromNode)> {
    let delivered = |out| match out {
        Out::Deliver(agent, message) => Some((agent, message)),
        _ => None,
    };
    all.take_out().into_iter().filter_map(delivered).collect()
}

/// Ranks 2 and 3 of B have their snapshots, with 2 places and none before; rank 2's image is
/// deferred.
fn deferred() -> Determinants {
    let mut all = persisting();
    assert!(all.handle(10, &clock(2, 2)));
    assert!(all.handle(10, &clock(3, 0)));
    assert!(all.handle(10, &image(2)), "nobody is notified");
    assert!(!all.handle(10, &image(3)), "it depends on nothing");
    assert_eq!(delivered(&mut all), []);
    all
}

#[test]
fn an_image_is_stored_when_everything_is_here_that_its_set_had_recorded() {
    let mut all = deferred();
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    assert_eq!(delivered(&mut all), []);
    all.handle(10, &piggybacked_at(3, 1, &places(A, 0, &[Some((0, 0))])));
    let out = all.take_out();
    let at = |what: fn(&Out) -> bool| out.iter().position(what).unwrap();
    let (note, handle) =
        (at(|o| matches!(o, Out::Persist(..))), at(|o| matches!(o, Out::Deliver(..))));
    assert!(note < handle, "another coordinator has it as well");
    assert_eq!(out[handle], Out::Deliver(10, image(2)));
    all.handle(10, &recorded(3, FIRST, 0, &[2]));
    assert_eq!(delivered(&mut all), [], "once");
    // What is here already is not waited for.
    all.handle(10, &clock(3, 3));
    assert!(!all.handle(10, &image(3)));
}

fn asked(all: &mut Determinants, now: u64) -> usize {
    all.ask_for_missing(now);
    let is_question = |out: &Out| matches!(out, Out::Rank(_, ToRank::ResendDeterminants {}));
    all.take_out().iter().filter(|out| is_question(out)).count()
}

/// What was lost without a trace is sent again by somebody.
#[test]
fn ranks_are_asked_for_what_an_image_has_waited_for_for_long() {
    let mut all = deferred();
    assert_eq!(asked(&mut all, 1_000), 0, "seen for the first time");
    assert_eq!(asked(&mut all, 2_900), 0);
    let everybody = all.ranks.len();
    assert_eq!(asked(&mut all, 3_000), everybody, "of all sets: A may have what B's place names");
    assert_eq!(asked(&mut all, 4_900), 0);
    assert_eq!(asked(&mut all, 5_000), everybody);
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    all.handle(10, &piggybacked_at(3, 1, &places(A, 0, &[Some((0, 0))])));
    assert_eq!(delivered(&mut all), [(10, image(2))]);
    assert_eq!(asked(&mut all, 60_000), 0);
}

#[test]
fn of_an_aborted_checkpoint_a_failed_set_and_a_lost_agent_nothing_is_delivered() {
    let ends: [fn(&mut Determinants); 3] = [
        |all| all.aborted(CHECKPOINT),
        |all| all.fence(SetId(2), FIRST, NEXT, vec![]),
        |all| all.agent_gone(10),
    ];
    for (which, end) in ends.into_iter().enumerate() {
        let mut all = deferred();
        end(&mut all);
        all.handle(10, &recorded(2, FIRST, 0, &[0, 1]));
        assert_eq!(delivered(&mut all), [], "{which}");
    }
    let mut all = deferred();
    all.aborted(CheckpointId(3));
    all.fence(A, FIRST, NEXT, vec![]);
    all.agent_gone(11);
    all.handle(10, &recorded(2, FIRST, 0, &[0, 1]));
    assert_eq!(delivered(&mut all), [(10, image(2))], "others do not matter");
}

#[test]
fn a_coordinator_that_knows_nothing_of_a_snapshot_defers_no_image() {
    let mut all = Determinants::new(0);
    all.resume([]);
    all.set_clock(CHECKPOINT, PeerId(2), 7);
    all.handle(10, &hello(2, 2, FIRST));
    assert!(!all.handle(10, &image(2)));
}
