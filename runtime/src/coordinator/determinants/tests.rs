//! Two sets of two ranks on three nodes: agent 10 with ranks 0 and 1, agent 11 with 2 and 3, and
//! agent 12 with nobody.

pub(crate) mod fences;
pub(crate) mod images;
pub(crate) mod piggybacked;

use crate::coordinator::determinants::*;
use rustbtl_coordination::determinants::{
    AppliedRun, CallKind, Determinant, DeterminantBatch, DirectRun, NondetCall, Outcome,
};
use rustbtl_fragments::ids::{CommRank, ContextId};

const SET: SetId = SetId(0);
const FIRST: Incarnation = Incarnation(0);

fn hello(rank: u32, set: u32, incarnation: Incarnation) -> FromNode {
    let message = FromRank::Hello {
        rank: PeerId(rank),
        size: 4,
        pid: 1,
        incarnation,
        version: String::new(),
        set: SetId(set),
        endpoint: vec![],
    };
    FromNode::Rank { rank: PeerId(rank), message }
}

fn job(agents: &[u64]) -> Determinants {
    let mut all = Determinants::new(1);
    for &agent in agents {
        all.agent_here(agent);
    }
    for rank in 0..4 {
        let (rank, size, pid) = (PeerId(rank), 4, 1);
        let guardian = FromNode::Guardian { rank, size, pid, incarnation: FIRST };
        assert!(!all.handle(10 + u64::from(rank.0) / 2, &guardian));
        assert!(!all.handle(10, &hello(rank.0, rank.0 / 2 * 2, FIRST)), "others need it, too");
    }
    all.take_out();
    all
}

fn determinant(place: u32) -> Determinant {
    let call = NondetCall::requests(CallKind::WaitAny, 9);
    Determinant::Outcome { call, outcome: Outcome::Requests(vec![place]) }
}

/// `rank` has recorded these, from its number `from` on, at these places.
fn recorded(rank: u32, incarnation: Incarnation, from: u64, places: &[u64]) -> FromNode {
    let mut bytes = Vec::new();
    for &at in places {
        rank_batch::append(&mut bytes, at, &determinant(at as u32));
    }
    let message = FromRank::Determinants { incarnation, from, bytes };
    FromNode::Rank { rank: PeerId(rank), message }
}

fn stable(out: &[Out]) -> Vec<(u32, u64)> {
    let messages = |out: &Out| match out {
        Out::Rank(rank, ToRank::Stable { upto, .. }) => Some((rank.0, *upto)),
        _ => None,
    };
    out.iter().filter_map(messages).collect()
}

/// What is sent to which replica: the places.
fn replicated(out: &[Out]) -> Vec<(u64, Vec<u64>)> {
    let sent = |out: &Out| match out {
        Out::Agent(agent, ToNode::StoreDeterminants { batch }) => {
            let records = DeterminantBatch::decode(batch).unwrap().records;
            Some((*agent, records.iter().map(|record| record.at).collect()))
        }
        _ => None,
    };
    out.iter().filter_map(sent).collect()
}

fn ack(all: &mut Determinants, agent: u64, incarnation: Incarnation, upto: u64) -> Vec<Out> {
    assert!(all.handle(agent, &FromNode::DeterminantsReplicated { set: SET, incarnation, upto }));
    all.take_out()
}

#[test]
fn nothing_is_stable_before_all_that_is_before_it_and_before_it_is_kept_on_another_node() {
    let mut all = job(&[10, 11, 12]);
    assert!(all.handle(10, &recorded(0, FIRST, 0, &[1, 2])));
    let out = all.take_out();
    assert_eq!(
        (stable(&out), replicated(&out)),
        (vec![], vec![(11, vec![])]),
        "place 0 is missing"
    );
    assert!(all.handle(10, &recorded(1, FIRST, 0, &[0])));
    let out = all.take_out();
    assert_eq!((stable(&out), replicated(&out)), (vec![], vec![(11, vec![0, 1, 2])]));
    assert_eq!(stable(&ack(&mut all, 11, FIRST, 2)), [(0, 2), (1, 2)]);
    // Rank 1 has nothing more to wait for.
    assert_eq!(stable(&ack(&mut all, 11, FIRST, 3)), [(0, 3)]);
    assert_eq!(stable(&ack(&mut all, 11, FIRST, 3)), []);
}

#[test]
fn with_one_node_the_coordinator_has_them_and_reports_it() {
    let mut all = job(&[10]);
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    assert_eq!(stable(&all.take_out()), [(0, 1)]);
    let mut all = job(&[10, 11]);
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    all.take_out();
    all.agent_gone(11);
    let out = all.take_out();
    assert_eq!(stable(&out), [(0, 1)]);
    let reported =
        |out: &Out| matches!(out, Out::Log(event) if event["kept_by"] == "the coordinator alone");
    assert!(out.iter().any(reported), "{out:?}");
}

#[test]
fn a_replica_that_is_lost_or_refuses_is_replaced_and_the_new_one_gets_all() {
    let mut all = job(&[10, 11, 12]);
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    ack(&mut all, 11, FIRST, 1);
    all.handle(10, &recorded(0, FIRST, 1, &[1]));
    all.take_out();
    let reason = String::new();
    assert!(all.handle(11, &FromNode::DeterminantsNotReplicated { set: SET, reason }));
    let out = all.take_out();
    assert_eq!((stable(&out), replicated(&out)), (vec![], vec![(12, vec![0, 1])]));
    assert_eq!(stable(&ack(&mut all, 12, FIRST, 2)), [(0, 2)]);
    // The set's own agent is none.
    all.agent_gone(12);
    assert_eq!(replicated(&all.take_out()), []);
}

#[test]
fn a_set_that_moves_to_the_node_of_its_replica_gets_another_replica() {
    let mut all = job(&[10, 11, 12]);
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    ack(&mut all, 11, FIRST, 1);
    let (rank, size, pid) = (PeerId(0), 4, 1);
    all.handle(11, &FromNode::Guardian { rank, size, pid, incarnation: FIRST });
    let out = all.take_out();
    assert_eq!(replicated(&out), [(12, vec![0])]);
    assert!(out.contains(&Out::Agent(11, ToNode::DropDeterminants { set: SET })));
}

/// The coordinator before this one was killed before it had persisted anything.
#[test]
fn after_a_failover_all_are_asked_for_what_they_have_recorded() {
    let mut all = Determinants::new(0);
    all.enable_persistence();
    all.resume([]);
    all.handle(10, &hello(0, 0, FIRST));
    assert!(!all.handle(10, &FromNode::Rank { rank: PeerId(0), message: FromRank::Ready {} }));
    assert_eq!(all.take_out(), [Out::Rank(PeerId(0), ToRank::ResendDeterminants {})]);
    all.handle(10, &recorded(0, FIRST, 0, &[0]));
    assert_eq!(stable(&all.take_out()), [(0, 1)]);
}

#[test]
fn what_is_sent_again_is_answered_again_and_replicated_once() {
    let mut all = job(&[10, 11]);
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    ack(&mut all, 11, FIRST, 2);
    let ready = FromNode::Rank { rank: PeerId(0), message: FromRank::Ready {} };
    assert!(!all.handle(10, &ready));
    assert_eq!(all.take_out(), [Out::Rank(PeerId(0), ToRank::ResendDeterminants {})]);
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    let out = all.take_out();
    assert_eq!((stable(&out), replicated(&out)), (vec![(0, 2)], vec![]));
}

#[test]
fn a_checkpoint_covers_what_is_before_its_clocks_at_the_replicas_too() {
    let mut all = job(&[10, 11]);
    all.handle(10, &recorded(0, FIRST, 5, &[0, 1]));
    all.handle(10, &recorded(1, FIRST, 8, &[2]));
    let checkpoint = CheckpointId(3);
    for (rank, clock) in [(0, 6), (1, 9)] {
        let message =
            FromRank::EventClock { checkpoint, clock, incarnation: Incarnation(0), recorded: 0 };
        assert!(all.handle(10, &FromNode::Rank { rank: PeerId(rank), message }));
    }
    all.take_out();
    all.trim(PeerId(0), checkpoint);
    all.trim(PeerId(1), checkpoint);
    let out = all.take_out();
    let less = |out: &Out| match out {
        Out::Agent(agent, ToNode::TrimDeterminants { clocks, .. }) => Some((*agent, clocks.len())),
        _ => None,
    };
    assert_eq!(out.iter().filter_map(less).collect::<Vec<_>>(), [(11, 2)], "once for the set");
    let messages = all.replay(SET, Incarnation(1), &[PeerId(0), PeerId(1)]);
    let numbers = |(_, message): &(PeerId, ToRank)| match message {
        ToRank::Replay { at: 1, bytes, .. } => {
            rank_batch::read_numbered(bytes).unwrap().iter().map(|n| n.number).collect()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(messages.iter().map(numbers).collect::<Vec<Vec<u64>>>(), [vec![6], vec![]]);
}

#[test]
fn a_set_in_rollback_gets_a_prefix_of_its_order_and_waits_until_that_is_replicated_again() {
    let mut all = job(&[10, 11, 12]);
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    all.handle(10, &recorded(1, FIRST, 0, &[3]));
    all.take_out();
    let next = Incarnation(1);
    let messages = all.replay(SET, next, &[PeerId(0), PeerId(1)]);
    let sent = |at: usize| match &messages[at] {
        (rank, ToRank::Replay { incarnation, at: 2, bytes }) if *incarnation == next => {
            (rank.0, rank_batch::read_numbered(bytes).unwrap().len())
        }
        other => panic!("{other:?}"),
    };
    // Place 2 was lost, so what came after it never happened.
    assert_eq!([sent(0), sent(1)], [(0, 2), (1, 0)]);
    all.replayed(SET);
    let out = all.take_out();
    assert_eq!((stable(&out), replicated(&out)), (vec![], vec![(11, vec![0, 1])]));
    // Reports of the failed incarnation do not count.
    all.handle(10, &recorded(0, FIRST, 2, &[2]));
    assert_eq!(stable(&ack(&mut all, 11, FIRST, 3)), []);
    assert_eq!(stable(&ack(&mut all, 11, next, 2)), [(0, 2), (1, 2)]);
    all.handle(10, &recorded(1, next, 0, &[2]));
    assert_eq!(replicated(&all.take_out()), [(11, vec![2])]);
    assert_eq!(stable(&ack(&mut all, 11, next, 3)), [(1, 3)]);
}

#[test]
fn what_is_too_long_for_a_message_is_sent_in_pieces() {
    let mut all = job(&[10, 11]);
    let places: Vec<u64> = (0..1_200_000).collect();
    for (piece, places) in places.chunks(400_000).enumerate() {
        all.handle(10, &recorded(0, FIRST, piece as u64 * 400_000, places));
    }
    let messages = all.replay(SET, Incarnation(1), &[PeerId(0), PeerId(1)]);
    let mut numbers = Vec::new();
    for (rank, message) in &messages {
        let ToRank::Replay { bytes, .. } = message else { panic!("{message:?}") };
        assert!(bytes.len() < REPLAY_BYTES + 100);
        let read = rank_batch::read_numbered(bytes).unwrap();
        assert!(rank.0 == 0 || read.is_empty());
        numbers.extend(read.iter().map(|numbered| numbered.number));
    }
    assert!(messages.len() > 2 && numbers == places);
}

#[test]
fn damage_is_logged_and_changes_nothing() {
    let mut all = job(&[10]);
    let (incarnation, from, bytes) = (FIRST, 0, vec![0, 99]);
    let message = FromRank::Determinants { incarnation, from, bytes };
    assert!(all.handle(10, &FromNode::Rank { rank: PeerId(0), message }));
    assert!(matches!(&all.take_out()[..], [Out::Log(event)] if event["event"] == "protocol_error"));
}

/// What another coordinator would read.
fn persisted(out: &[Out], batches: &mut Vec<DeterminantBatch>) {
    for out in out {
        match out {
            Out::Persist(of_sets) => {
                batches.extend(of_sets.iter().map(|(_, b)| DeterminantBatch::decode(b).unwrap()));
            }
            Out::PersistAll(_, batch) => *batches = vec![DeterminantBatch::decode(batch).unwrap()],
            _ => {}
        }
    }
}

#[test]
fn what_is_reported_stable_is_persisted_before_and_another_coordinator_replays_it() {
    let mut all = Determinants::new(0);
    all.enable_persistence();
    all.handle(10, &hello(0, 0, FIRST));
    all.handle(10, &hello(1, 0, FIRST));
    let mut batches = Vec::new();
    persisted(&all.take_out(), &mut batches);
    // Place 2 is here, 1 is not: that is neither reported nor persisted.
    all.handle(10, &recorded(0, FIRST, 0, &[0, 2]));
    let out = all.take_out();
    let at = |what: fn(&Out) -> bool| out.iter().position(what).unwrap();
    let note = at(|out| matches!(out, Out::Persist(..)));
    assert!(note < at(|out| matches!(out, Out::Rank(_, ToRank::Stable { upto: 1, .. }))));
    persisted(&out, &mut batches);
    assert_eq!(batches.last().map(|batch| batch.upto), Some(1));

    // Killed. Ranks send everything again that was not reported stable to them.
    let mut all = Determinants::new(0);
    all.enable_persistence();
    all.resume([batches.clone()]);
    persisted(&all.take_out(), &mut batches);
    assert_eq!(batches.len(), 1, "in one piece");
    for rank in [0, 1] {
        all.handle(10, &hello(rank, 0, FIRST));
        let message = FromRank::Ready {};
        assert!(!all.handle(10, &FromNode::Rank { rank: PeerId(rank), message }));
        let out = all.take_out();
        assert!(
            matches!(out[..], [Out::Rank(of, ToRank::ResendDeterminants {})] if of == PeerId(rank))
        );
    }
    all.handle(10, &recorded(0, FIRST, 0, &[0, 2]));
    assert_eq!(stable(&all.take_out()), [(0, 1)]);
    all.handle(10, &recorded(1, FIRST, 0, &[1]));
    let out = all.take_out();
    assert_eq!(stable(&out), [(0, 3), (1, 3)]);
    persisted(&out, &mut batches);

    // Killed again, and the set is rolled back.
    let mut all = Determinants::new(0);
    all.resume([batches]);
    let messages = all.replay(SET, Incarnation(1), &[PeerId(0), PeerId(1)]);
    let numbers = |bytes: &[u8]| rank_batch::read_numbered(bytes).unwrap().len();
    let messages = messages.iter().map(|(rank, message)| match message {
        ToRank::Replay { at: 3, bytes, .. } => (rank.0, numbers(bytes)),
        other => panic!("{other:?}"),
    });
    assert_eq!(messages.collect::<Vec<_>>(), [(0, 2), (1, 1)]);
}

#[test]
fn what_a_checkpoint_covers_is_not_persisted_any_more_and_places_stay_the_same() {
    let mut all = Determinants::new(0);
    all.enable_persistence();
    all.handle(10, &hello(0, 0, FIRST));
    all.handle(10, &recorded(0, FIRST, 0, &[0, 1]));
    let message = FromRank::EventClock {
        checkpoint: CheckpointId(1),
        clock: 2,
        incarnation: Incarnation(0),
        recorded: 0,
    };
    all.handle(10, &FromNode::Rank { rank: PeerId(0), message });
    all.handle(10, &recorded(0, FIRST, 2, &[2]));
    assert_eq!(all.clocks().collect::<Vec<_>>(), [(CheckpointId(1), PeerId(0), 2)]);
    all.trim(PeerId(0), CheckpointId(1));
    let mut batches = Vec::new();
    persisted(&all.take_out(), &mut batches);
    let records: Vec<u64> = batches[0].records.iter().map(|record| record.at).collect();
    assert_eq!((batches.len(), batches[0].upto, records), (1, 3, vec![2]));
    let mut all = Determinants::new(0);
    all.resume([batches]);
    all.handle(10, &hello(0, 0, FIRST));
    all.handle(10, &recorded(0, FIRST, 3, &[3]));
    assert_eq!(stable(&all.take_out()), [(0, 4)]);
}

#[test]
fn a_rank_is_sent_what_others_have_recorded_of_direct_accesses_to_it() {
    let mut all = job(&[10, 11]);
    let run =
        |source| AppliedRun { window: ContextId(3), source: CommRank(source), count: 1, tick: 4 };
    let direct = |target, first| DirectRun { target: PeerId(target), first, run: run(0) };
    let mut bytes = Vec::new();
    rank_batch::append(&mut bytes, 0, &Determinant::Applied(run(1)));
    rank_batch::append(&mut bytes, 2, &Determinant::Applied(run(2)));
    let message = FromRank::Determinants { incarnation: FIRST, from: 0, bytes };
    assert!(all.handle(10, &FromNode::Rank { rank: PeerId(1), message }));
    let mut bytes = Vec::new();
    let group = vec![direct(1, 1), direct(0, 0), direct(1, 2)];
    rank_batch::append(&mut bytes, 1, &Determinant::AppliedGroup(group.clone()));
    let message = FromRank::Determinants { incarnation: FIRST, from: 0, bytes };
    assert!(all.handle(10, &FromNode::Rank { rank: PeerId(0), message }));
    all.take_out();
    let messages = all.replay(SET, Incarnation(1), &[PeerId(0), PeerId(1)]);
    let sent = |at: usize| match &messages[at].1 {
        ToRank::Replay { at: 3, bytes, .. } => {
            let all = rank_batch::read_numbered(bytes).unwrap();
            all.into_iter().map(|one| (one.number, one.determinant)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(sent(0), [(0, Determinant::AppliedGroup(group))], "its own, as it is");
    let expected = [
        (0, Determinant::Applied(run(1))),
        (OF_ANOTHER, Determinant::AppliedGroup(vec![direct(1, 1), direct(1, 2)])),
        (1, Determinant::Applied(run(2))),
    ];
    assert_eq!(sent(1), expected, "in the order of the set");
}
