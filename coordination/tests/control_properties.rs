//! Control messages: what encodes decodes, and bytes from nowhere are survived.

use proptest::prelude::*;
use rustbtl_coordination::control::{
    CheckpointId, CheckpointKind, FrameBuffer, FromNode, FromRank, HEADER_BYTES, Message,
    RankEndpoint, Reply, Request, SnapshotMemory, ToNode, ToRank, VERSION,
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
        round_trip(ToNode::Rank { rank: who, message: down });
    }

    /// What decodes encodes to the same bytes: nobody can hide anything in a message.
    #[test]
    fn arbitrary_bodies_are_survived(class in 1u8..7, kind in 0u8..14, body in blob()) {
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
