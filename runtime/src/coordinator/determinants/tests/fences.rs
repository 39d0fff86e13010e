//! Before A is sent what it replays: what B has received of it.

use crate::coordinator::determinants::tests::piggybacked::{
    A, B, NEXT, named_at, persisting, piggybacked_at, places, replays,
};
use crate::coordinator::determinants::tests::*;

const SECOND: Incarnation = Incarnation(2);

fn fenced(rank: u32, set: SetId, before: Incarnation, recorded: u64) -> FromNode {
    let message = FromRank::Fenced { set, before, incarnation: FIRST, recorded };
    FromNode::Rank { rank: PeerId(rank), message }
}

fn asked(ranks: &[u32]) -> Vec<(PeerId, SetId, Incarnation)> {
    ranks.iter().map(|&rank| (PeerId(rank), SetId(rank / 2 * 2), FIRST)).collect()
}

/// Who was asked about which set.
fn fence_requests(out: &[Out]) -> Vec<(u32, u32, u16)> {
    let call = |out: &Out| match out {
        Out::Rank(rank, ToRank::Fence { set, before }) => Some((rank.0, set.0, before.0)),
        _ => None,
    };
    out.iter().filter_map(call).collect()
}

fn complete(all: &mut Determinants) -> Vec<(SetId, Incarnation)> {
    let fenced = |out: &Out| match out {
        Out::Fenced(set, before) => Some((*set, *before)),
        _ => None,
    };
    all.take_out().iter().filter_map(fenced).collect()
}

#[test]
fn it_waits_for_all_answers_and_for_what_they_name() {
    let mut all = persisting();
    all.take_out();
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    assert_eq!(fence_requests(&all.take_out()), [(2, 0, 1), (3, 0, 1)]);
    assert!(all.handle(10, &fenced(3, A, NEXT, 0)));
    // Agent and direct connection are not ordered.
    assert!(all.handle(10, &fenced(2, A, NEXT, 2)));
    assert_eq!(complete(&mut all), []);
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    assert_eq!(complete(&mut all), []);
    all.handle(10, &piggybacked_at(3, 1, &places(A, 0, &[Some((1, 0))])));
    assert_eq!(complete(&mut all), [(A, NEXT)]);
    all.handle(10, &recorded(3, FIRST, 0, &[2]));
    assert_eq!(complete(&mut all), [], "reported once");
    assert_eq!(replays(&mut all, A), (1, vec![0, 1]));
    assert!(all.fences.is_empty());
}

/// What A has reported of B's place would make it look as if all of it were here.
#[test]
fn it_waits_for_what_a_place_holds_though_the_failed_set_has_reported_that_there_is_something() {
    let mut all = persisting();
    all.handle(10, &piggybacked_at(1, 2, &places(B, 0, &[Some((2, 0)), None])));
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    all.handle(10, &fenced(2, A, NEXT, 2));
    all.handle(10, &fenced(3, A, NEXT, 2));
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    assert_eq!(complete(&mut all), []);
    all.handle(10, &piggybacked_at(2, 1, &places(A, 0, &[Some((0, 0)), Some((0, 1))])));
    assert_eq!(complete(&mut all), [(A, NEXT)]);
    assert_eq!(replays(&mut all, A), (2, vec![2, 0]));
}

/// A would have sent it itself.
#[test]
fn it_waits_for_the_content_of_places_that_were_only_named() {
    let theirs = places(A, 0, &[Some((0, 0)), Some((0, 1))]);
    let mut all = persisting();
    all.handle(10, &named_at(2, 0, &theirs));
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    all.handle(10, &fenced(2, A, NEXT, 1));
    all.handle(10, &fenced(3, A, NEXT, 1));
    assert_eq!(complete(&mut all), []);
    all.handle(10, &piggybacked_at(2, 0, &theirs));
    assert_eq!(complete(&mut all), [(A, NEXT)]);
    assert_eq!(replays(&mut all, A), (2, vec![2, 0]));
}

#[test]
fn nobody_who_has_failed_is_waited_for() {
    let mut all = persisting();
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    all.handle(10, &fenced(2, A, NEXT, 7));
    assert_eq!(complete(&mut all), []);
    all.fence(B, FIRST, NEXT, vec![]);
    assert_eq!(complete(&mut all), [(A, NEXT), (B, NEXT)]);
}

#[test]
fn a_set_that_fails_again_asks_again_and_earlier_answers_do_not_count() {
    let mut all = persisting();
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    all.handle(10, &fenced(2, A, NEXT, 0));
    all.take_out();
    all.fence(A, NEXT, SECOND, asked(&[2, 3]));
    assert_eq!(fence_requests(&all.take_out()), [(2, 0, 2), (3, 0, 2)]);
    all.handle(10, &fenced(2, A, NEXT, 0));
    all.handle(10, &fenced(3, A, NEXT, 0));
    assert_eq!(complete(&mut all), []);
    all.handle(10, &fenced(2, A, SECOND, 0));
    all.handle(10, &fenced(3, A, SECOND, 0));
    assert_eq!(complete(&mut all), [(A, SECOND)]);
    let messages = all.replay(A, SECOND, &[PeerId(0), PeerId(1)]);
    assert!(
        matches!(messages[0].1, ToRank::Replay { at: 1, .. }),
        "what the first incarnation has recorded"
    );
}

#[test]
fn who_connects_again_and_has_not_answered_is_asked_again() {
    let mut all = persisting();
    all.fence(A, FIRST, NEXT, asked(&[2, 3]));
    all.handle(10, &fenced(3, A, NEXT, 0));
    all.take_out();
    all.handle(11, &hello(2, 2, FIRST));
    all.handle(11, &hello(3, 2, FIRST));
    assert_eq!(fence_requests(&all.take_out()), [(2, 0, 1)]);
    all.handle(11, &fenced(2, A, NEXT, 0));
    assert_eq!(complete(&mut all), [(A, NEXT)]);
    all.handle(11, &hello(2, 2, FIRST));
    assert_eq!(fence_requests(&all.take_out()), []);
}

#[test]
fn the_order_of_the_failed_incarnation_is_persisted_until_the_next_one_is_sent_it() {
    // Nothing of it has been sent.
    let mut all = persisting();
    all.take_out();
    all.fence(A, FIRST, NEXT, asked(&[2]));
    let out = all.take_out();
    assert!(matches!(&out[..], [Out::PersistAll(A, _), Out::Rank(..)]), "{out:?}");
    // It has been restarted, and connects.
    all.handle(10, &hello(0, 0, NEXT));
    all.handle(10, &hello(1, 0, NEXT));
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((1, 0))])));
    all.handle(10, &recorded(0, NEXT, 0, &[0]));
    assert_eq!((all.next(A, FIRST), all.next(A, NEXT)), (Some(1), None));
    all.handle(10, &fenced(2, A, NEXT, 1));
    assert_eq!(complete(&mut all), [(A, NEXT)]);
    assert_eq!(replays(&mut all, A), (1, vec![0, 1]));
    // Now it records.
    all.handle(10, &recorded(0, NEXT, 0, &[1]));
    assert_eq!(all.next(A, NEXT), Some(2));
}
