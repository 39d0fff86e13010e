//! What agents accept from each other: any messages in any order, against a plain model.

use proptest::prelude::*;
use rustbtl_coordination::control::{CheckpointId, FrameBuffer, Message, ToReplicaServer};
use rustbtl_coordination::image_transfer::{
    ImagePart, TransferError, TransferReceiver, TransferStep,
};
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeSet;

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

fn message() -> impl Strategy<Value = ToReplicaServer> {
    let begin = (any::<u32>(), any::<u64>());
    let begin = begin.prop_map(|(rank, checkpoint)| (PeerId(rank), CheckpointId(checkpoint)));
    prop_oneof![
        1 => begin.prop_map(|(rank, checkpoint)| ToReplicaServer::Begin { rank, checkpoint }),
        3 => (0u16..4, 0u64..4).prop_map(|(part, bytes)| ToReplicaServer::File { part, bytes }),
        1 => any::<(u16, u64)>().prop_map(|(part, bytes)| ToReplicaServer::File { part, bytes }),
        4 => bytes(4).prop_map(|bytes| ToReplicaServer::Piece { bytes }),
        5 => any::<u32>().prop_map(|crc32| ToReplicaServer::Checksum { crc32 }),
        2 => Just(ToReplicaServer::Commit {}),
    ]
}

/// The rules, as a list of messages: is this the beginning of a valid conversation?
fn is_good(messages: &[ToReplicaServer]) -> bool {
    let Some((ToReplicaServer::Begin { .. }, mut rest)) = messages.split_first() else {
        return messages.is_empty();
    };
    let mut parts = BTreeSet::new();
    while let Some((first, more)) = rest.split_first() {
        rest = match first {
            ToReplicaServer::Commit {} => return more.is_empty() && parts.contains(&0),
            ToReplicaServer::File { part, bytes } if *part <= 256 && parts.insert(*part) => {
                let pieces =
                    more.iter().take_while(|m| matches!(m, ToReplicaServer::Piece { .. })).count();
                let length = |m: &ToReplicaServer| match m {
                    ToReplicaServer::Piece { bytes } => bytes.len() as u64,
                    _ => 0,
                };
                let sum: u64 = more[..pieces].iter().map(length).sum();
                let empty = more[..pieces].iter().any(|m| length(m) == 0);
                if empty || sum > *bytes {
                    return false;
                }
                match more.get(pieces) {
                    None => return true,
                    Some(ToReplicaServer::Checksum { .. }) if sum == *bytes => {}
                    Some(_) => return false,
                }
                &more[pieces + 1..]
            }
            _ => return false,
        };
    }
    true
}

proptest! {
    #[test]
    fn what_is_taken_is_what_the_rules_allow(messages in prop::collection::vec(message(), 0..12)) {
        let mut receiver = TransferReceiver::default();
        for (at, message) in messages.iter().enumerate() {
            let step = receiver.handle(message.clone());
            prop_assert_eq!(step.is_ok(), is_good(&messages[..=at]), "{:?}", &messages[..=at]);
            if step.is_err() {
                let more = receiver.handle(ToReplicaServer::Commit {});
                prop_assert_eq!(more, Err(TransferError::Order), "nothing follows an error");
                return Ok(());
            }
        }
    }

    #[test]
    fn what_is_written_is_what_was_sent(
        files in prop::collection::btree_map(1u16..=256, bytes(50), 0..4),
        image in bytes(50),
        piece in 1usize..9,
    ) {
        let all: Vec<(u16, Vec<u8>)> = files.into_iter().chain([(0, image)]).collect();
        let begin = ToReplicaServer::Begin { rank: PeerId(1), checkpoint: CheckpointId(2) };
        let mut messages = vec![begin];
        for (part, bytes) in &all {
            messages.push(ToReplicaServer::File { part: *part, bytes: bytes.len() as u64 });
            let pieces = bytes.chunks(piece);
            messages.extend(pieces.map(|b| ToReplicaServer::Piece { bytes: b.to_vec() }));
            messages.push(ToReplicaServer::Checksum { crc32: 9 });
        }
        messages.push(ToReplicaServer::Commit {});
        let mut receiver = TransferReceiver::default();
        let mut written: Vec<(u16, Vec<u8>)> = Vec::new();
        for message in messages {
            match receiver.handle(message) {
                Ok(TransferStep::Open { part, .. }) => written.push((part.number(), Vec::new())),
                Ok(TransferStep::Write(bytes)) => written.last_mut().unwrap().1.extend(bytes),
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
        prop_assert_eq!(written, all);
    }

    #[test]
    fn bytes_from_nowhere_are_survived(bytes in bytes(200)) {
        let mut buffer = FrameBuffer::new();
        buffer.add(&bytes);
        let mut receiver = TransferReceiver::default();
        while let Ok(Some(message)) = buffer.next_message::<ToReplicaServer>() {
            let _ = receiver.handle(message);
        }
    }

    #[test]
    fn a_flipped_bit_gives_other_messages_or_an_error(at in 0usize..400, bit in 0u8..8) {
        let messages = [
            ToReplicaServer::Begin { rank: PeerId(1), checkpoint: CheckpointId(2) },
            ToReplicaServer::File { part: ImagePart::Image.number(), bytes: 3 },
            ToReplicaServer::Piece { bytes: vec![1, 2, 3] },
            ToReplicaServer::Checksum { crc32: 4 },
            ToReplicaServer::Commit {},
        ];
        let mut bytes: Vec<u8> = messages.iter().flat_map(|m| m.encode().unwrap()).collect();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let mut buffer = FrameBuffer::new();
        buffer.add(&bytes);
        let mut received = Vec::new();
        while let Ok(Some(message)) = buffer.next_message::<ToReplicaServer>() {
            received.push(message);
        }
        prop_assert_ne!(&received[..], &messages[..]);
    }
}
