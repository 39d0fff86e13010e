//! Control messages: what encodes decodes, and bytes from nowhere are survived.

use proptest::prelude::*;
use rustbtl_coordination::control::{
    CheckpointId, CheckpointKind, ClockCounter, ClockTarget, FrameBuffer, FromClock, FromNode,
    FromRank, HEADER_BYTES, Hindrance, MemberRun, MemberRuns, Message, RankEndpoint, Reply,
    Request, SnapshotMemory, ToClock, ToNode, ToRank, VERSION,
};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

fn blob() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn checkpoint() -> impl Strategy<Value = CheckpointId> {
    any::<u64>().prop_map(CheckpointId)
}

fn rank() -> impl Strategy<Value = PeerId> {
    any::<u32>().prop_map(PeerId)
}

fn snapshot() -> impl Strategy<Value = SnapshotMemory> {
    prop_oneof![Just(SnapshotMemory::InPause), any::<i32>().prop_map(SnapshotMemory::Child)]
}

fn from_rank() -> impl Strategy<Value = FromRank> {
    let hello = (rank(), any::<u32>(), any::<u16>(), ".{0,20}", blob());
    prop_oneof![
        hello.prop_map(|(rank, pid, incarnation, version, card)| FromRank::Hello {
            rank,
            size: pid / 3,
            pid,
            incarnation: Incarnation(incarnation),
            version,
            set: SetId(rank.0),
            endpoint: card,
        }),
        Just(FromRank::Ready {}),
        Just(FromRank::CollectivesBypass {}),
        (checkpoint(), any::<u32>(), blob())
            .prop_map(|(checkpoint, step, part)| FromRank::VerbsPart { checkpoint, step, part }),
        (any::<u64>(), blob(), blob()).prop_map(|(generation, name, value)| FromRank::VerbsName {
            name,
            generation,
            value
        }),
        (any::<u32>(), any::<u64>(), blob()).prop_map(|(number, generation, name)| {
            FromRank::FindVerbsName { number, name, generation }
        }),
        checkpoint().prop_map(|checkpoint| FromRank::OutgoingStopped { checkpoint }),
        (checkpoint(), snapshot(), blob(), any::<u64>()).prop_map(
            |(checkpoint, snapshot, description, ns)| {
                FromRank::Frozen {
                    checkpoint,
                    snapshot,
                    description,
                    coordination_ns: ns,
                    pause_ns: ns / 2,
                }
            }
        ),
        (checkpoint(), ".{0,30}")
            .prop_map(|(checkpoint, reason)| FromRank::CheckpointFailed { checkpoint, reason }),
        (checkpoint(), rank(), blob()).prop_map(|(checkpoint, to, bytes)| {
            FromRank::ReceivedVector { checkpoint, to, bytes }
        }),
        (any::<u32>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(number, all, then_exit, wait)| FromRank::RequestCheckpoint {
                number,
                all,
                then_exit,
                wait
            }
        ),
        (rank(), any::<u64>())
            .prop_map(|(rank, bytes)| FromRank::LogNearlyFull { set: SetId(rank.0), bytes }),
    ]
}

fn to_rank() -> impl Strategy<Value = ToRank> {
    let card = (rank(), any::<u16>(), blob()).prop_map(|(rank, incarnation, card)| RankEndpoint {
        rank,
        incarnation: Incarnation(incarnation),
        endpoint: card,
    });
    let members = prop::collection::vec(rank(), 0..20);
    let kind = prop_oneof![Just(CheckpointKind::Set), Just(CheckpointKind::Global)];
    prop_oneof![
        (".{0,30}", prop::option::of(checkpoint()))
            .prop_map(|(job, restarted_from)| ToRank::Welcome { job, restarted_from }),
        (checkpoint(), kind, members, any::<bool>()).prop_map(
            |(checkpoint, kind, members, then_exit)| {
                ToRank::Begin { checkpoint, kind, members, then_exit }
            }
        ),
        prop::collection::vec(card, 0..8).prop_map(|cards| {
            let restarted = cards.iter().map(|card| card.rank).collect();
            ToRank::Endpoints { endpoints: cards, restarted }
        }),
        (checkpoint(), any::<u32>(), checkpoint()).prop_map(|(checkpoint, set, oldest)| {
            ToRank::CheckpointComplete { oldest, checkpoint, set: SetId(set) }
        }),
        Just(ToRank::MayFinish {}),
    ]
}

fn from_clock() -> impl Strategy<Value = FromClock> {
    let members = prop::collection::btree_set(0u32..500, 1..20);
    let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
    let counter = (numbers, members).prop_map(|((clock, context, group, sequence), members)| {
        let members: Vec<PeerId> = members.into_iter().map(PeerId).collect();
        let runs = MemberRuns::of(&members);
        assert!(runs.is_sound() && members.iter().all(|&member| runs.contains(member)));
        assert_eq!(runs.size(), members.len() as u64);
        ClockCounter { clock, context, group, sequence, members: runs }
    });
    let hindrance = prop_oneof![
        Just(Hindrance::None),
        Just(Hindrance::BelowTarget),
        Just(Hindrance::Incomplete)
    ];
    let waits_for = prop::collection::vec(rank(), 0..8);
    prop_oneof![
        (checkpoint(), prop::collection::vec(counter, 0..8))
            .prop_map(|(checkpoint, counters)| FromClock::Counters { checkpoint, counters }),
        (checkpoint(), any::<u32>(), any::<u64>()).prop_map(|(checkpoint, clock, sequence)| {
            FromClock::Raised { checkpoint, clock, sequence }
        }),
        (checkpoint(), any::<u32>(), hindrance, any::<u32>(), waits_for).prop_map(
            |(checkpoint, orders, hindrance, stop, waits_for)| {
                FromClock::State { checkpoint, orders, hindrance, stop, waits_for }
            }
        ),
    ]
}

fn to_clock() -> impl Strategy<Value = ToClock> {
    let target =
        (any::<u32>(), any::<u64>()).prop_map(|(clock, target)| ClockTarget { clock, target });
    prop_oneof![
        checkpoint().prop_map(|checkpoint| ToClock::Drain { checkpoint }),
        (checkpoint(), prop::collection::vec(target, 0..8))
            .prop_map(|(checkpoint, targets)| ToClock::Raise { checkpoint, targets }),
        (checkpoint(), any::<u32>())
            .prop_map(|(checkpoint, stop)| ToClock::Lift { checkpoint, stop }),
    ]
}

fn round_trip<M: Message + PartialEq + core::fmt::Debug>(message: M) {
    let frame = message.encode().expect("short");
    assert_eq!(M::decode(&frame), Ok(message));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_encodes_decodes(up in from_rank(), down in to_rank(), who in rank()) {
        round_trip(up.clone());
        round_trip(down.clone());
        round_trip(FromNode::Rank { rank: who, message: up });
        round_trip(ToNode::AllRanks { message: down.clone() });
        round_trip(ToNode::Rank { rank: who, message: down });
    }

    #[test]
    fn what_a_collective_clock_says_decodes(up in from_clock(), down in to_clock()) {
        let who = PeerId(3);
        let (rank_up, rank_down) =
            (FromRank::Clock { message: up.clone() }, ToRank::Clock { message: down.clone() });
        round_trip(up);
        round_trip(down);
        round_trip(FromNode::Rank { rank: who, message: rank_up });
        round_trip(ToNode::Rank { rank: who, message: rank_down });
    }

    /// Of members from nowhere only sound ones are used, and these are so many as they say.
    #[test]
    fn arbitrary_members_are_survived(
        runs in prop::collection::vec((0u32..40, 0u32..5, 0u32..5), 0..4), at in 0u32..80
    ) {
        let run = |(first, stride, count)| MemberRun { first, stride, count };
        let runs = MemberRuns(runs.into_iter().map(run).collect());
        if runs.is_sound() {
            let members: Vec<u32> = (0..80).filter(|&at| runs.contains(PeerId(at))).collect();
            prop_assert_eq!(members.len() as u64, runs.size());
            prop_assert_eq!(members.last().map(|&last| u64::from(last)), Some(runs.highest()));
            prop_assert_eq!(members.contains(&at), runs.contains(PeerId(at)));
        }
    }

    /// What decodes encodes to the same bytes: nobody can hide anything in a message.
    #[test]
    fn arbitrary_bodies_are_survived(class in 1u8..13, kind in 0u8..14, body in blob()) {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&[VERSION, class, kind, 0]);
        frame.extend_from_slice(&body);
        fn same<M: Message>(frame: &[u8]) {
            if let Ok(message) = M::decode(frame) {
                assert_eq!(message.encode().as_deref(), Ok(frame));
            }
        }
        same::<FromRank>(&frame);
        same::<ToRank>(&frame);
        same::<FromNode>(&frame);
        same::<ToNode>(&frame);
        same::<Request>(&frame);
        same::<Reply>(&frame);
        same::<FromClock>(&frame);
        same::<ToClock>(&frame);
    }

    #[test]
    fn arbitrary_streams_are_survived(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)
    ) {
        let mut buffer = FrameBuffer::new();
        'stream: for piece in pieces {
            buffer.add(&piece);
            loop {
                match buffer.next_frame() {
                    Ok(Some(frame)) => assert!(frame.len() >= HEADER_BYTES),
                    Ok(None) => break,
                    Err(_) => break 'stream,
                }
            }
        }
    }
}
