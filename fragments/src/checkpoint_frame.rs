//! Frames of a coordinated checkpoint: the control messages of the processes of a set while they
//! take a set checkpoint.
//!
//! Source: DESIGN §6. They travel like other control frames, in order behind the eager fragments of
//! their pair. A token relies on that order. As [`FrameType::Checkpoint`] frames: `a` is the number
//! of the checkpoint; the bytes of `b`, lowest first, are the step (1–4), an argument, and a round.

use crate::ids::Incarnation;
use crate::wire::{FrameType, HEADER_BYTES, Header};

/// One control message of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointFrame {
    /// Number of the checkpoint.
    pub checkpoint: u64,
    /// Which step of the checkpoint it is.
    pub what: CheckpointStep,
}

/// The step that a checkpoint frame stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckpointStep {
    /// The sender sends no further message until the checkpoint is over.
    Token {
        /// A global checkpoint: the order to resume comes from outside.
        global: bool,
    },
    /// Answer when everything that was sent before this has arrived.
    Flush,
    /// The answer to [`Self::Flush`].
    Flushed,
    /// A frame of a barrier.
    Barrier {
        /// The barrier after the snapshot.
        second: bool,
        /// Round of the barrier, from 0.
        round: u8,
    },
}

/// Rounds of a barrier, at most: a process gets one frame in each.
pub const ROUNDS_MAX: u8 = 64;

impl CheckpointFrame {
    /// Encode it as a header.
    pub fn header(&self, from: Incarnation, to: Incarnation) -> Header {
        let (what, argument, round) = match self.what {
            CheckpointStep::Token { global } => (1, u64::from(global), 0),
            CheckpointStep::Flush => (2, 0, 0),
            CheckpointStep::Flushed => (3, 0, 0),
            CheckpointStep::Barrier { second, round } => (4, u64::from(second), u64::from(round)),
        };
        Header::control(
            FrameType::Checkpoint,
            from,
            to,
            self.checkpoint,
            what | (argument << 8) | (round << 16),
        )
    }

    /// Decode a header; `None`: no process of this version sends it.
    pub fn of(header: &Header) -> Option<Self> {
        let b = header.b();
        let (what, argument, round) = (b as u8, (b >> 8) as u8, (b >> 16) as u8);
        let plain = header.length as usize == HEADER_BYTES && header.flags == 0 && header.tag == 0;
        if header.kind != FrameType::Checkpoint || !plain || b >> 24 != 0 || argument > 1 {
            return None;
        }
        let what = match (what, argument, round) {
            (1, global, 0) => CheckpointStep::Token { global: global == 1 },
            (2, 0, 0) => CheckpointStep::Flush,
            (3, 0, 0) => CheckpointStep::Flushed,
            (4, second, round) if round < ROUNDS_MAX => {
                CheckpointStep::Barrier { second: second == 1, round }
            }
            _ => return None,
        };
        Some(Self { checkpoint: header.a(), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [CheckpointStep; 7] = [
        CheckpointStep::Token { global: false },
        CheckpointStep::Token { global: true },
        CheckpointStep::Flush,
        CheckpointStep::Flushed,
        CheckpointStep::Barrier { second: false, round: 0 },
        CheckpointStep::Barrier { second: false, round: ROUNDS_MAX - 1 },
        CheckpointStep::Barrier { second: true, round: 5 },
    ];

    #[test]
    fn golden_bytes_of_a_barrier_frame() {
        let frame = CheckpointFrame {
            checkpoint: 0x0102_0304_0506_0708,
            what: CheckpointStep::Barrier { second: true, round: 5 },
        };
        let golden = [
            32, 0, 0, 0, 0xB4, 7, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 1, 0, 2, 0, 4, 1, 5, 0,
            0, 0, 0, 0,
        ];
        assert_eq!(frame.header(Incarnation(1), Incarnation(2)).encode(), golden);
        let token = CheckpointFrame { checkpoint: 9, what: CheckpointStep::Token { global: true } };
        let golden = [
            32, 0, 0, 0, 0xB4, 7, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0,
            0, 0, 0, 0,
        ];
        assert_eq!(token.header(Incarnation(0), Incarnation(0)).encode(), golden);
    }

    #[test]
    fn what_is_encoded_decodes() {
        for what in ALL {
            for checkpoint in [0, 1, u64::MAX] {
                let frame = CheckpointFrame { checkpoint, what };
                let header = frame.header(Incarnation(3), Incarnation(4));
                assert_eq!(Header::decode(&header.encode()), Ok(header));
                assert_eq!(CheckpointFrame::of(&header), Some(frame));
            }
        }
    }

    /// Every value of each byte: exactly the frames that can be sent are accepted.
    #[test]
    fn frames_that_nobody_sends_are_refused() {
        let sent: Vec<u64> = ALL
            .iter()
            .map(|&what| CheckpointFrame { checkpoint: 1, what })
            .chain((0..ROUNDS_MAX).flat_map(|round| {
                [false, true].map(|second| CheckpointFrame {
                    checkpoint: 1,
                    what: CheckpointStep::Barrier { second, round },
                })
            }))
            .map(|frame| frame.header(Incarnation(0), Incarnation(0)).b())
            .collect();
        for b in (0..1u64 << 24).chain((0..40).map(|bit| 1 | (1 << (bit + 24)))) {
            let header =
                Header::control(FrameType::Checkpoint, Incarnation(0), Incarnation(0), 1, b);
            assert_eq!(CheckpointFrame::of(&header).is_some(), sent.contains(&b), "{b:#x}");
        }
        let good = CheckpointFrame { checkpoint: 1, what: CheckpointStep::Flush }
            .header(Incarnation(0), Incarnation(0));
        assert_eq!(CheckpointFrame::of(&Header { kind: FrameType::Grant, ..good }), None);
        assert_eq!(CheckpointFrame::of(&Header { flags: 1, ..good }), None);
        assert_eq!(CheckpointFrame::of(&Header { tag: 1, ..good }), None);
        assert_eq!(CheckpointFrame::of(&Header { length: 33, ..good }), None);
    }
}
