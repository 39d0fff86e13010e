//! Set A (ranks 0 and 1) and set B (ranks 2 and 3), and what their messages piggyback.

use crate::coordinator::determinants::tests::*;
use rustbtl_coordination::determinants::{Piggybacked, PiggybackedEntry, PiggybackedPlaces};

pub(super) const A: SetId = SET;
pub(super) const B: SetId = SetId(2);
pub(super) const NEXT: Incarnation = Incarnation(1);

/// All determinants stay here, and are persisted.
pub(super) fn persisting() -> Determinants {
    let mut all = Determinants::new(0);
    all.enable_persistence();
    for rank in 0..4 {
        all.handle(10, &hello(rank, rank / 2 * 2, FIRST));
    }
    all
}

/// Places of a set from `from` on: rank and number of each that is replayed. The others hold what
/// the other set had recorded up to the place of this number.
pub(super) fn places(set: SetId, from: u64, entries: &[Option<(u32, u64)>]) -> Piggybacked {
    let other = if set == A { B } else { A };
    let entry = |(at, entry): (u64, &Option<(u32, u64)>)| match *entry {
        Some((rank, number)) => {
            let numbered = Numbered { number, determinant: determinant(at as u32) };
            PiggybackedEntry::Own(PeerId(rank), numbered)
        }
        None => {
            let places = PiggybackedPlaces { set: other, incarnation: FIRST, upto: at + 1 };
            PiggybackedEntry::Received(places)
        }
    };
    let entries = (from..).zip(entries).map(entry).collect();
    Piggybacked { set, incarnation: FIRST, from, entries }
}

/// `rank` has recorded at this place what was piggybacked to it.
pub(super) fn piggybacked_at(rank: u32, at: u64, piggybacked: &Piggybacked) -> FromNode {
    let message = FromRank::Piggybacked { incarnation: FIRST, at, bytes: piggybacked.encode() };
    FromNode::Rank { rank: PeerId(rank), message }
}

/// `rank` has recorded that at this place, and does not say what is in it.
pub(super) fn named_at(rank: u32, at: u64, piggybacked: &Piggybacked) -> FromNode {
    names_at(rank, at, &piggybacked.places())
}

fn names_at(rank: u32, at: u64, places: &PiggybackedPlaces) -> FromNode {
    let mut bytes = Vec::new();
    rank_batch::append_places(&mut bytes, at, places);
    let message = FromRank::Determinants { incarnation: FIRST, from: 0, bytes };
    FromNode::Rank { rank: PeerId(rank), message }
}

/// What was persisted, and what was reported stable to whom, in this order.
fn steps(out: &[Out]) -> Vec<String> {
    let persisted = |batches: &[(SetId, &Vec<u8>)]| {
        let upto = |(set, batch): &(SetId, &Vec<u8>)| {
            let DeterminantBatch { upto, .. } = DeterminantBatch::decode(batch).unwrap();
            (upto > 0).then(|| format!("{set} persisted to {upto}"))
        };
        let all: Vec<String> = batches.iter().filter_map(upto).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    };
    let step = |out: &Out| match out {
        Out::Persist(batches) => {
            persisted(&batches.iter().map(|(set, batch)| (*set, batch)).collect::<Vec<_>>())
        }
        Out::PersistAll(set, batch) => persisted(&[(*set, batch)]),
        Out::Rank(rank, ToRank::Stable { upto, .. }) => Some(format!("{rank} stable {upto}")),
        _ => None,
    };
    out.iter().filter_map(step).collect()
}

/// Where the next incarnation of a set begins to record, and how many determinants its ranks
/// replay.
pub(super) fn replays(all: &mut Determinants, set: SetId) -> (u64, Vec<usize>) {
    let members = [PeerId(set.0), PeerId(set.0 + 1)];
    let messages = all.replay(set, NEXT, &members);
    let ToRank::Replay { at, .. } = messages[0].1 else { panic!("{messages:?}") };
    let count = |(_, message): &(PeerId, ToRank)| match message {
        ToRank::Replay { bytes, .. } => rank_batch::read_numbered(bytes).unwrap().len(),
        other => panic!("{other:?}"),
    };
    (at, messages.iter().map(count).collect())
}

#[test]
fn what_was_piggybacked_is_in_the_order_of_its_set_and_persisted_before_its_place_counts() {
    let mut all = persisting();
    all.take_out();
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0)), Some((0, 1))])));
    assert_eq!(steps(&all.take_out()), ["0 persisted to 2 and 2 persisted to 1", "2 stable 1"]);
    // Its own rank sends it, too: it is reported stable, and nothing is here twice.
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    assert_eq!(steps(&all.take_out()), ["0 stable 2"]);
    all.handle(10, &recorded(1, FIRST, 0, &[2]));
    assert_eq!(steps(&all.take_out()), ["0 persisted to 3", "1 stable 3"]);
    // And so does the other one once more.
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0)), Some((0, 1))])));
    assert_eq!(steps(&all.take_out()), ["2 stable 1"]);
    assert_eq!(replays(&mut all, A), (3, vec![2, 1]));
}

#[test]
fn who_waits_for_what_others_have_received_is_notified() {
    let mut all = persisting();
    all.handle(10, &recorded(1, FIRST, 0, &[1]));
    assert_eq!(steps(&all.take_out()), [""; 0], "place 0 of A is missing");
    all.handle(10, &piggybacked_at(3, 0, &places(A, 0, &[Some((0, 0))])));
    let wanted = ["0 persisted to 2 and 2 persisted to 1", "1 stable 2", "3 stable 1"];
    assert_eq!(steps(&all.take_out()), wanted);
}

#[test]
fn what_was_piggybacked_counts_when_all_places_before_its_own_are_here() {
    let mut all = persisting();
    all.take_out();
    all.handle(10, &piggybacked_at(2, 1, &places(A, 1, &[Some((0, 1))])));
    all.handle(10, &piggybacked_at(3, 2, &places(A, 2, &[Some((1, 0))])));
    assert_eq!(steps(&all.take_out()), [""; 0]);
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0))])));
    let wanted = ["0 persisted to 3 and 2 persisted to 3", "2 stable 3", "3 stable 3"];
    assert_eq!(steps(&all.take_out()), wanted);
    assert_eq!(replays(&mut all, A), (3, vec![2, 1]));
}

/// A reports that a place of B holds something of A. How much of it is only known when everything
/// is here that A had recorded before that report, or B reports it.
#[test]
fn a_place_of_which_another_set_only_knows_that_it_holds_something_waits_for_that() {
    let mut all = persisting();
    all.take_out();
    // Rank 0 has recorded 0 and 1, which were piggybacked to rank 2 and are its place 1. Places 0
    // and 1 of B were piggybacked back to rank 1, which is place 2 of A.
    let (theirs, back) = (places(A, 0, &[Some((0, 0)), Some((0, 1))]), [Some((2, 0)), None]);
    all.handle(10, &piggybacked_at(1, 2, &places(B, 0, &back)));
    assert_eq!(all.next(B, FIRST), None);
    // B reports it.
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    all.handle(10, &piggybacked_at(2, 1, &theirs));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(3), Some(2)));
    assert_eq!(replays(&mut all, A), (2, vec![2, 0]));

    // A reports it.
    let mut all = persisting();
    all.handle(10, &piggybacked_at(1, 2, &places(B, 0, &back)));
    all.take_out();
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(3), Some(2)));
    // B's order begins in the middle; then place 2 and what it holds in one piece (4).
    let place = "0 persisted to 3 and 2 persisted to 2";
    assert_eq!(steps(&all.take_out()), ["0 persisted to 2", place, "0 stable 3", "1 stable 3"]);
    assert_eq!(replays(&mut all, B), (1, vec![1, 0]));
}

/// In whatever order they come: the same is here as if they had been handled one by one.
#[test]
fn messages_that_are_handled_together_are_settled_and_persisted_once() {
    let messages = [
        piggybacked_at(1, 2, &places(B, 0, &[Some((2, 0)), None])),
        recorded(2, FIRST, 0, &[0]),
        piggybacked_at(2, 1, &places(A, 0, &[Some((0, 0)), Some((0, 1))])),
        recorded(0, FIRST, 0, &[0, 1]),
    ];
    let whole = ["0 persisted to 3 and 2 persisted to 2", "0 stable 3", "1 stable 3", "2 stable 2"];
    for first in 0..messages.len() {
        let mut all = persisting();
        let order = messages[first..].iter().chain(&messages[..first]);
        all.handle_all(10, order);
        assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(3), Some(2)));
        let mut steps = steps(&all.take_out());
        // An order that begins in the middle has what is before it persisted.
        let pieces = steps.iter().filter(|step| step.contains("persisted")).count();
        assert!(pieces <= 2, "{steps:?}");
        steps.drain(..pieces - 1);
        steps[1..].sort_unstable();
        assert_eq!(steps, whole, "from {first}");
        assert_eq!(replays(&mut all, A), (2, vec![2, 0]));
    }
}

#[test]
fn a_place_whose_content_is_not_here_counts_when_the_set_it_is_of_has_sent_that() {
    let theirs = places(A, 0, &[Some((0, 0)), Some((1, 0))]);
    let mut all = persisting();
    all.handle(10, &named_at(2, 0, &theirs));
    all.handle(10, &recorded(2, FIRST, 0, &[1]));
    all.take_out();
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    assert_eq!(steps(&all.take_out()), ["0 persisted to 1", "0 stable 1"], "not all of it");
    all.handle(10, &recorded(1, FIRST, 0, &[1]));
    let whole = ["0 persisted to 2 and 2 persisted to 2", "1 stable 2", "2 stable 2"];
    assert_eq!(steps(&all.take_out()), whole);
    // Its order may go so far already.
    all.handle(10, &named_at(3, 2, &theirs));
    assert_eq!(steps(&all.take_out()), ["2 persisted to 3", "3 stable 3"]);
    // Nor does it matter who was first.
    let mut all = persisting();
    all.handle(10, &named_at(2, 0, &theirs));
    all.handle(10, &piggybacked_at(2, 0, &theirs));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(2), Some(1)));
    let mut all = persisting();
    all.handle(10, &piggybacked_at(2, 1, &theirs));
    all.handle(10, &named_at(2, 1, &theirs));
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(2), Some(2)));
    assert_eq!(replays(&mut all, A), (2, vec![1, 1]));
}

/// Each answers the other: every place waits for one of the other set.
#[test]
fn places_that_wait_for_each_other_in_turn_all_count() {
    let rounds = 50;
    let of = |rank: u32, set: SetId, from: u64| {
        let mut bytes = Vec::new();
        for round in 0..rounds {
            rank_batch::append(&mut bytes, 2 * round, &determinant(round as u32));
            let (incarnation, upto) = (FIRST, 2 * round + from);
            let places = PiggybackedPlaces { set, incarnation, upto };
            rank_batch::append_places(&mut bytes, 2 * round + 1, &places);
        }
        let message = FromRank::Determinants { incarnation: FIRST, from: 0, bytes };
        FromNode::Rank { rank: PeerId(rank), message }
    };
    // Place 2n + 1 of A holds places of B to 2n + 1, and that of B places of A to 2n + 2.
    let (first, second) = (of(0, B, 1), of(2, A, 2));
    for order in [[&first, &second], [&second, &first]] {
        let mut all = persisting();
        all.handle_all(10, order);
        assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(100), Some(100)));
        let mut all = persisting();
        for message in order {
            all.handle(10, message);
        }
        assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(100), Some(100)));
        assert_eq!(replays(&mut all, A), (50, vec![50, 0]));
    }
}

#[test]
fn a_place_whose_content_is_not_here_waits_for_an_order_that_has_not_begun() {
    let theirs = places(A, 0, &[Some((0, 0))]);
    let mut all = persisting();
    all.handle(10, &named_at(2, 0, &theirs));
    all.handle(10, &recorded(3, FIRST, 0, &[1]));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (None, Some(0)));
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (Some(1), Some(2)));
    // Of an incarnation that is over it has what was here; of one that has not begun it waits.
    assert_eq!(replays(&mut all, A), (1, vec![1, 0]));
    all.replayed(A);
    all.handle(10, &named_at(2, 2, &theirs));
    assert_eq!(all.next(B, FIRST), Some(3));
    let next = PiggybackedPlaces { set: A, incarnation: NEXT, upto: 2 };
    all.handle(10, &names_at(2, 3, &next));
    assert_eq!((all.next(A, NEXT), all.next(B, FIRST)), (Some(1), Some(3)));
    all.handle(10, &hello(0, 0, NEXT));
    all.handle(10, &recorded(0, NEXT, 1, &[1]));
    assert_eq!((all.next(A, NEXT), all.next(B, FIRST)), (Some(2), Some(4)));
}

#[test]
fn what_another_incarnation_has_piggybacked_is_not_replayed_and_counts_if_it_was_here() {
    let mut all = persisting();
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    assert_eq!(replays(&mut all, A), (1, vec![1, 0]));
    all.replayed(A);
    all.take_out();
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0))])));
    let out = all.take_out();
    assert_eq!(
        (steps(&out), orphans(&out)),
        (vec!["2 persisted to 1".into(), "2 stable 1".into()], vec![])
    );
    // What was not is lost.
    all.handle(10, &piggybacked_at(2, 1, &places(A, 1, &[Some((0, 1))])));
    all.handle(10, &piggybacked_at(2, 2, &places(A, 1, &[Some((0, 1))])));
    assert_eq!((all.next(A, NEXT), all.next(B, FIRST)), (Some(1), Some(1)));
    assert_eq!(orphans(&all.take_out()), [(B, A)], "once");
    // Nor does it begin an order.
    let mut all = persisting();
    all.handle(10, &hello(0, 0, NEXT));
    all.handle(10, &hello(1, 0, NEXT));
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0))])));
    assert_eq!((all.next(A, FIRST), all.next(B, FIRST)), (None, Some(0)));
}

/// Who depends on what of whom.
fn orphans(out: &[Out]) -> Vec<(SetId, SetId)> {
    let orphan = |out: &Out| match out {
        Out::Orphan(set, lost) => Some((*set, *lost)),
        _ => None,
    };
    out.iter().filter_map(orphan).collect()
}

/// C has received a message of B that depends on what A had recorded.
#[test]
fn what_a_piggybacked_place_names_must_be_here_before_it_counts() {
    const C: SetId = SetId(4);
    let mut all = persisting();
    all.handle(10, &hello(4, 4, FIRST));
    let of_b = places(B, 0, &[Some((2, 0)), None, Some((2, 1))]);
    all.handle(10, &piggybacked_at(4, 0, &of_b));
    assert_eq!((all.next(B, FIRST), all.next(C, FIRST)), (Some(1), Some(0)));
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    assert_eq!((all.next(B, FIRST), all.next(C, FIRST)), (Some(3), Some(1)));
    // If A fails with B, C is an orphan; if only A does, B sends it.
    for fail_together in [true, false] {
        let mut all = persisting();
        all.handle(10, &hello(4, 4, FIRST));
        all.handle(10, &piggybacked_at(4, 0, &of_b));
        let mut asked = vec![(PeerId(4), C, FIRST)];
        if fail_together {
            all.fence(B, FIRST, NEXT, asked.clone());
        } else {
            asked.push((PeerId(2), B, FIRST));
        }
        all.fence(A, FIRST, NEXT, asked);
        let answers = |rank, set, recorded| {
            let message = FromRank::Fenced { set, before: NEXT, incarnation: FIRST, recorded };
            FromNode::Rank { rank: PeerId(rank), message }
        };
        all.handle(10, &answers(4, A, 1));
        all.handle(10, &answers(2, A, 2));
        assert_eq!(orphans(&all.take_out()).len(), usize::from(fail_together));
        if !fail_together {
            all.handle(10, &piggybacked_at(2, 1, &places(A, 0, &[Some((0, 0)), Some((0, 1))])));
            assert!(all.take_out().contains(&Out::Fenced(A, NEXT)));
        }
    }
}

#[test]
fn of_a_set_of_which_nothing_is_known_yet_it_is_kept() {
    let mut all = Determinants::new(0);
    // A, which is lost, does not connect to another coordinator.
    all.resume([]);
    all.handle(10, &hello(2, 2, FIRST));
    all.handle(10, &piggybacked_at(2, 0, &places(A, 0, &[Some((0, 0))])));
    assert_eq!(all.next(A, FIRST), Some(1));
    assert_eq!(replays(&mut all, A), (1, vec![1, 0]));
}

#[test]
fn places_that_hold_what_was_piggybacked_stay_places_for_another_coordinator() {
    let mut all = persisting();
    let mut batches = Vec::new();
    all.handle(10, &recorded(2, FIRST, 0, &[0]));
    all.handle(10, &piggybacked_at(3, 1, &places(A, 0, &[Some((0, 0))])));
    all.handle(10, &recorded(2, FIRST, 1, &[2]));
    all.handle(10, &piggybacked_at(3, 3, &places(A, 1, &[Some((0, 1))])));
    let out: Vec<Out> = all.take_out();
    let of_b = |out: Out| match out {
        Out::Persist(all) => {
            Some(Out::Persist(all.into_iter().filter(|(set, _)| *set == B).collect()))
        }
        out => matches!(out, Out::PersistAll(B, _)).then_some(out),
    };
    persisted(&out.into_iter().filter_map(of_b).collect::<Vec<_>>(), &mut batches);
    let at: Vec<u64> = batches.iter().flat_map(|n| &n.records).map(|record| record.at).collect();
    assert_eq!((batches.last().unwrap().upto, at), (4, vec![0, 2]));

    let mut all = Determinants::new(0);
    all.enable_persistence();
    all.resume([batches]);
    persisted(&all.take_out(), &mut Vec::new());
    assert_eq!(all.next(B, FIRST), Some(4));
    all.handle(10, &hello(3, 2, FIRST));
    all.handle(10, &recorded(3, FIRST, 0, &[4]));
    assert_eq!(stable(&all.take_out()), [(3, 5)]);
    // The next incarnation has no such places.
    assert_eq!(replays(&mut all, B), (3, vec![2, 1]));
}

#[test]
fn who_is_not_of_this_incarnation_or_sends_nonsense_changes_nothing() {
    let mut all = persisting();
    all.take_out();
    let (incarnation, at, bytes) = (NEXT, 0, places(A, 0, &[Some((0, 0))]).encode());
    let message = FromRank::Piggybacked { incarnation, at, bytes };
    assert!(all.handle(10, &FromNode::Rank { rank: PeerId(2), message }), "nobody else needs it");
    assert_eq!(all.take_out(), []);
    let (bytes, nonsense) = (Vec::new(), names_at(2, 0, &places(B, 0, &[None]).places()));
    let of_nobody = FromRank::Determinants { incarnation: NEXT, from: 0, bytes };
    all.handle(10, &FromNode::Rank { rank: PeerId(2), message: of_nobody });
    assert_eq!(all.take_out(), []);
    all.handle(10, &nonsense);
    assert!(matches!(&all.take_out()[..], [Out::Log(e)] if e["event"] == "protocol_error"));
    for bytes in [vec![1, 2], places(B, 0, &[Some((2, 0))]).encode()] {
        let message = FromRank::Piggybacked { incarnation: FIRST, at, bytes };
        all.handle(10, &FromNode::Rank { rank: PeerId(2), message });
        let out = all.take_out();
        assert!(
            matches!(&out[..], [Out::Log(event)] if event["event"] == "protocol_error"),
            "{out:?}"
        );
    }
    all.handle(10, &recorded(2, FIRST, 0, &[1]));
    assert_eq!((all.next(B, FIRST), stable(&all.take_out())), (Some(0), vec![]), "a hole");
}

/// What a rank sends in one piece is not in the order of its places: content that was piggybacked
/// to it comes before what it has recorded itself.
#[test]
fn a_rank_is_notified_of_its_last_place_whatever_comes_last() {
    for late in [vec![], vec![1]] {
        let mut all = persisting();
        all.handle(10, &piggybacked_at(3, 3, &places(A, 0, &[Some((0, 0))])));
        all.handle(10, &recorded(3, FIRST, 0, &[1]));
        all.handle(10, &recorded(2, FIRST, 0, &[0]));
        let to_rank_3 = |all: &mut Determinants| {
            stable(&all.take_out()).into_iter().rfind(|(rank, _)| *rank == 3)
        };
        assert_eq!(to_rank_3(&mut all), Some((3, 2)));
        if !late.is_empty() {
            // Sent again by another way.
            all.handle(10, &recorded(3, FIRST, 0, &late));
            assert_eq!(to_rank_3(&mut all), Some((3, 2)));
        }
        all.handle(10, &recorded(2, FIRST, 1, &[2]));
        assert_eq!(to_rank_3(&mut all), Some((3, 4)), "it waits for that to send more");
    }
}

/// A frame of B cannot name what it depends on: A is asked to send what it has recorded.
#[test]
fn whoever_has_what_a_frame_waits_for_is_asked_once() {
    const C: SetId = SetId(4);
    let gated = |rank| FromNode::Rank { rank: PeerId(rank), message: FromRank::FrameGated {} };
    let asked = |all: &mut Determinants| -> Vec<u32> {
        let rank = |out: &Out| match out {
            Out::Rank(rank, ToRank::FlushDeterminants {}) => Some(rank.0),
            _ => None,
        };
        all.take_out().iter().filter_map(rank).collect()
    };
    let name = |rank, at, set, upto| {
        let mut bytes = Vec::new();
        rank_batch::append_name(
            &mut bytes,
            at,
            &PiggybackedPlaces { set, incarnation: FIRST, upto },
        );
        let message = FromRank::Determinants { incarnation: FIRST, from: 0, bytes };
        FromNode::Rank { rank: PeerId(rank), message }
    };
    let mut all = persisting();
    all.handle(10, &hello(4, 4, FIRST));
    all.handle(10, &name(2, 0, A, 1));
    assert_eq!(asked(&mut all), [0_u32; 0], "nobody waits");
    all.handle_all(10, [&gated(2), &name(2, 1, A, 2)]);
    assert_eq!(asked(&mut all), [0, 1]);
    all.handle_all(10, [&gated(3), &name(3, 2, A, 2)]);
    assert_eq!(asked(&mut all), [0_u32; 0], "it is asked already");
    // A waits itself: for what C has recorded, and has only its name.
    all.handle(10, &name(0, 0, C, 5));
    assert_eq!(asked(&mut all), [4]);
    // It may say so when all that it has is here.
    let mut all = persisting();
    all.handle(10, &name(2, 0, A, 1));
    all.handle_all(10, [&gated(3)]);
    assert_eq!(asked(&mut all), [0, 1]);
    // When what it waits for is here, nobody of B's waits.
    let mut all = persisting();
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    all.handle_all(10, [&gated(2), &name(2, 0, A, 1)]);
    all.handle(10, &name(2, 1, A, 2));
    assert_eq!(asked(&mut all), [0_u32; 0]);
}
