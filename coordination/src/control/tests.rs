//! Golden bytes; what goes wrong with frames.

use super::*;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

/// The frame as hexadecimal digits, header and body apart.
fn hex(frame: &[u8]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (header, body) = frame.split_at(HEADER_BYTES);
    format!("{} {}", digits(header), digits(body))
}

fn hello() -> FromRank {
    FromRank::Hello {
        rank: PeerId(3),
        size: 8,
        pid: 4711,
        incarnation: Incarnation(2),
        version: "0.1.0".into(),
        set: SetId(2),
        endpoint: vec![0xCA, 0xFE],
    }
}

#[test]
fn invariant_1_the_format_does_not_change_by_accident() {
    let table = [
        (
            hello().encode(),
            "210000000c010100 030000000800000067120000020005000000302e312e30\
             0200000002000000cafe",
        ),
        (FromRank::Ready {}.encode(), "000000000c010200 "),
        (
            FromRank::Frozen {
                checkpoint: CheckpointId(7),
                snapshot: SnapshotMemory::Child(258),
                description: vec![9],
                coordination_ns: 5,
                pause_ns: 6,
            }
            .encode(),
            "220000000c010400 0700000000000000010201000001000000090500000000000000\
             0600000000000000",
        ),
        (
            FromRank::ReplayPending { checkpoint: CheckpointId(7) }.encode(),
            "080000000c011f00 0700000000000000",
        ),
        (
            FromRank::LogNearlyFull { set: SetId(2), bytes: 258 }.encode(),
            "0c0000000c010b00 020000000201000000000000",
        ),
        (
            FromRank::Waited { sample: 3, waited_ns: 258, messages: 259 }.encode(),
            "140000000c012f00 0300000002010000000000000301000000000000",
        ),
        (ToRank::ReportWaiting { sample: 3 }.encode(), "040000000c022e00 03000000"),
        (FromRank::ReplayReported { number: 258 }.encode(), "080000000c013000 0201000000000000"),
        (
            ToRank::ReportReplay { number: 258, replay: true }.encode(),
            "090000000c023000 020100000000000001",
        ),
        (
            ToRank::Begin {
                checkpoint: CheckpointId(7),
                kind: CheckpointKind::Global,
                members: vec![PeerId(2), PeerId(3)],
                then_exit: true,
            }
            .encode(),
            "160000000c020300 07000000000000000202000000020000000300000001",
        ),
        (
            ToRank::Welcome { job: "j".into(), restarted_from: Some(CheckpointId(1)) }.encode(),
            "0e0000000c020100 010000006a010100000000000000",
        ),
        (
            FromNode::Rank {
                rank: PeerId(1),
                message: FromRank::OutgoingStopped { checkpoint: CheckpointId(2) },
            }
            .encode(),
            "0d0000000c030300 01000000030200000000000000",
        ),
        (
            ToNode::Rank { rank: PeerId(1), message: ToRank::MayFinish {} }.encode(),
            "050000000c040100 0100000009",
        ),
        (
            Request::Checkpoint { all: true, wait: false, then_exit: true }.encode(),
            "030000000c050200 010001",
        ),
        (Reply::Refused { reason: "no".into() }.encode(), "060000000c060400 020000006e6f"),
    ];
    for (frame, expected) in table {
        assert_eq!(hex(&frame.unwrap()), expected);
    }
}

#[test]
fn invariant_1_the_format_of_the_collective_clock_does_not_change_by_accident() {
    let checkpoint = CheckpointId(7);
    let counter = ClockCounter {
        clock: 2,
        context: 5,
        group: 0xAABB_CCDD,
        sequence: 259,
        members: MemberRuns::of(&[PeerId(0), PeerId(3)]),
    };
    let targets = vec![ClockTarget { clock: 2, target: 258 }];
    let table = [
        (
            FromClock::Counters { checkpoint, counters: vec![counter] }.encode(),
            "340000000c0b0100 0700000000000000010000000200000005000000ddccbbaa00000000\
             030100000000000001000000000000000300000002000000",
        ),
        (
            FromClock::Raised { checkpoint, clock: 2, sequence: 258 }.encode(),
            "140000000c0b0200 0700000000000000020000000201000000000000",
        ),
        (
            FromClock::State {
                checkpoint,
                orders: 3,
                hindrance: Hindrance::BelowTarget,
                stop: 4,
                waits_for: vec![PeerId(1), PeerId(258)],
            }
            .encode(),
            "1d0000000c0b0300 0700000000000000030000000104000000020000000100000002010000",
        ),
        (ToClock::Drain { checkpoint }.encode(), "080000000c0c0100 0700000000000000"),
        (
            ToClock::Raise { checkpoint, targets }.encode(),
            "180000000c0c0200 070000000000000001000000020000000201000000000000",
        ),
        (
            ToClock::Lift { checkpoint, stop: 4 }.encode(),
            "0c0000000c0c0300 070000000000000004000000",
        ),
    ];
    for (frame, expected) in table {
        assert_eq!(hex(&frame.unwrap()), expected);
    }
}

#[test]
fn invariant_1_the_format_of_the_drain_of_verbs_does_not_change_by_accident() {
    let (checkpoint, step, name) = (CheckpointId(7), 0x8000_0001, vec![5, 6]);
    let part = |rank, part: &[u8]| RankPart { rank: PeerId(rank), part: part.to_vec() };
    let parts = vec![part(1, &[9]), part(258, &[])];
    let table = [
        (
            FromRank::VerbsPart { checkpoint, step, part: vec![0xAA, 0xBB] }.encode(),
            "120000000c013400 07000000000000000100008002000000aabb",
        ),
        (
            FromRank::VerbsName { name: name.clone(), generation: 258, value: vec![8] }.encode(),
            "130000000c013500 020000000506020100000000000001\
             00000008",
        ),
        (
            FromRank::FindVerbsName { number: 3, name, generation: 258 }.encode(),
            "120000000c013600 030000000200000005060201000000000000",
        ),
        (
            ToRank::VerbsParts { checkpoint, step, parts, is_last: true }.encode(),
            "220000000c023400 0700000000000000010000800200000001000000010000000902010000\
             0000000001",
        ),
        (
            ToNode::AllRanks {
                message: ToRank::VerbsParts { checkpoint, step, parts: vec![], is_last: false },
            }
            .encode(),
            "120000000c043400 340700000000000000010000800000000000",
        ),
        (
            ToRank::VerbsNameFound { number: 3, value: vec![8, 9] }.encode(),
            "0a0000000c023500 03000000020000000809",
        ),
    ];
    for (frame, expected) in table {
        assert_eq!(hex(&frame.unwrap()), expected);
    }
}

#[test]
fn invariant_2_every_cut_and_every_addition_is_refused() {
    let good = hello().encode().unwrap();
    for length in 0..good.len() {
        assert!(FromRank::decode(&good[..length]).is_err(), "{length}");
    }
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(FromRank::decode(&longer), Err(ControlError::Damaged));
    longer[0] += 1;
    assert_eq!(FromRank::decode(&longer), Err(ControlError::Damaged), "bytes after the fields");
}

#[test]
fn invariant_2_a_long_list_of_nothing_is_refused_before_it_takes_memory() {
    let mut frame = ToRank::Endpoints { endpoints: vec![], restarted: vec![] }.encode().unwrap();
    frame[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(ToRank::decode(&frame), Err(ControlError::Damaged));
}

#[test]
fn invariant_3_another_version_class_or_kind_is_named() {
    let good = hello().encode().unwrap();
    let with = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        FromRank::decode(&frame)
    };
    assert_eq!(with(4, VERSION + 1), Err(ControlError::Version(VERSION + 1)));
    assert_eq!(with(5, 2), Err(ControlError::Class(2)));
    assert_eq!(with(6, 200), Err(ControlError::Kind(200)));
    assert_eq!(with(7, 1), Err(ControlError::Damaged));
    let mut buffer = FrameBuffer::new();
    buffer.add(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
    buffer.add(&[VERSION, 1, 1, 0]);
    let too_long = ControlError::TooLong(BODY_BYTES_MAX as u32 + 1);
    assert_eq!(buffer.next_message::<FromRank>(), Err(too_long));
}

#[test]
fn what_is_too_long_is_not_sent() {
    let huge = FromRank::ReceivedVector {
        checkpoint: CheckpointId(1),
        to: PeerId(0),
        bytes: vec![0; BODY_BYTES_MAX],
    };
    assert!(matches!(huge.encode(), Err(ControlError::TooLong(_))));
}

#[test]
fn frames_come_out_of_a_stream_however_it_is_cut() {
    let messages = [
        hello(),
        FromRank::Ready {},
        FromRank::OutgoingStopped { checkpoint: CheckpointId(9) },
        hello(),
    ];
    let stream: Vec<u8> = messages.iter().flat_map(|m| m.encode().unwrap()).collect();
    for piece in 1..=stream.len() {
        let mut buffer = FrameBuffer::new();
        let mut got = Vec::new();
        for bytes in stream.chunks(piece) {
            buffer.add(bytes);
            while let Some(message) = buffer.next_message::<FromRank>().unwrap() {
                got.push(message);
            }
        }
        assert_eq!(got, messages, "pieces of {piece}");
        assert_eq!(buffer.pending(), 0);
    }
}

#[test]
fn a_snapshot_in_the_pause_is_encoded_without_allocating() {
    let description = vec![7u8; 1000];
    let message = FromRank::Frozen {
        checkpoint: CheckpointId(9),
        snapshot: SnapshotMemory::InPause,
        description: description.clone(),
        coordination_ns: 77,
        pause_ns: 0,
    };
    let mut out = Vec::with_capacity(1100);
    let place = out.as_ptr();
    assert!(frozen_in_pause(CheckpointId(9), &description, 77, &mut out));
    assert_eq!((out.as_ptr(), out.clone()), (place, message.encode().unwrap()));
    assert!(!frozen_in_pause(CheckpointId(9), &description, 77, &mut Vec::with_capacity(900)));
}
