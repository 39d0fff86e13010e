//! A rank's part in the drain of verbs that programs use past MPI, before a checkpoint of all
//! ranks: all close their gates, say what they have posted, and drain until nothing is under way
//! anywhere. What the drain itself is, is `rustbtl-shadow`'s; ranks exchange opaque *parts* through
//! the coordinator ([`Exchange`]), each step with everybody.
//!
//! A part is opaque and short enough for a message ([`PART_BYTES_MAX`]); those of all are sent in
//! pieces ([`split`], [`Pieces`]). What the guardian keeps of a restart is [`Kept`].
//!
//! Source: docs/adr/0044. Steps of round `r` (a connection that is only being made postpones the
//! drain to the next round):
//!
//! ```text
//!  Idle ─Begin─> Closing ─Closed─> tallies (2r) ─all, postponed─> Pausing (gate open) ─Later─┐
//!                   ^───────────────────────────── r + 1 ────────────────────────────────────┘
//!                tallies ─all─> Draining ─Over─> drained (2r + 1) ─all─> Drained ─Release─> Idle
//! ```
//!
//! Invariants:
//! * D1 `Close` and `Open` alternate; the gate is open in Idle and Pausing, and nowhere else.
//! * D2 Each step gets one part of this rank, in ascending order; only the tallies of the round
//!   that is being drained are sent again, when they have changed.
//! * D3 `Drained` comes after the parts of all ranks in the step `drained`: nothing is under way
//!   anywhere, and no gate opens before the release.
//! * D4 Parts of other checkpoints and steps change nothing, nor does a second order.
//! * D5 The release of this checkpoint, and no other's, opens the gate if it is closed; nothing of
//!   the checkpoint remains.

mod exchange;
mod kept;
mod names;

pub use exchange::{Exchange, PART_BYTES_MAX, Parts, Pieces, TooLong, bytes_max, split};
pub use kept::Kept;
pub use names::{NAME_BYTES_MAX, NAMES_MAX, NameRefused, Names};
use std::collections::VecDeque;

/// Steps from here on follow a restart: all objects are made again, and their names known.
pub const MADE: u32 = 1 << 31;
/// All are connected again.
pub const CONNECTED: u32 = MADE + 1;
/// In place of what a name stands for: nobody knows names any more, there is no coordinator.
pub const NOBODY: &[u8] = &[0];

/// What happens to a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A checkpoint of all ranks begins.
    Begin {
        /// Its number.
        checkpoint: u64,
    },
    /// The gate is closed.
    Closed {
        /// What was posted here.
        tallies: Vec<u8>,
    },
    /// Parts of all ranks have come.
    All {
        /// Of this checkpoint.
        checkpoint: u64,
        /// Of this step.
        step: u32,
        /// They are tallies, and a connection is only being made.
        postponed: bool,
    },
    /// The pause is over.
    Later,
    /// What was posted here can no longer all arrive: a connection has failed.
    Changed {
        /// What was posted.
        tallies: Vec<u8>,
    },
    /// Nothing is under way here.
    Over,
    /// The checkpoint has been taken, or given up.
    Release {
        /// This one.
        checkpoint: u64,
    },
}

/// What a rank is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Close the gate, as soon as nobody is inside; then `Closed`.
    Close,
    /// Open it.
    Open,
    /// To all, through the coordinator.
    Send {
        /// Of this checkpoint.
        checkpoint: u64,
        /// In this step.
        step: u32,
        /// The part.
        part: Vec<u8>,
    },
    /// Drain by what all have posted, until it is `Over`; also when that has changed.
    Drain,
    /// Nothing is under way anywhere.
    Drained {
        /// For this checkpoint.
        checkpoint: u64,
    },
}

/// Where a rank is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In no drain.
    Idle,
    /// The gate is being closed.
    Closing,
    /// Others' tallies are awaited.
    Tallies,
    /// A connection is being made: the program goes on for a moment.
    Pausing,
    /// Until nothing is under way here.
    Draining,
    /// Until nothing is under way elsewhere.
    AwaitDrained,
    /// Until the checkpoint is over.
    Drained,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct VerbsDrain {
    checkpoint: u64,
    round: u32,
    phase: Phase,
    /// The gate is closed, or was ordered to be.
    closed: bool,
    outputs: VecDeque<Output>,
}

impl Default for VerbsDrain {
    fn default() -> Self {
        let (checkpoint, round, phase) = (0, 0, Phase::Idle);
        Self { checkpoint, round, phase, closed: false, outputs: VecDeque::new() }
    }
}

impl VerbsDrain {
    /// Something has happened.
    pub fn handle(&mut self, input: Input) {
        match (input, self.phase) {
            (Input::Begin { checkpoint }, _) if checkpoint > self.checkpoint => {
                self.end();
                (self.checkpoint, self.round) = (checkpoint, 0);
                self.close();
            }
            (Input::Closed { tallies }, Phase::Closing) => {
                self.phase = Phase::Tallies;
                self.send(2 * self.round, tallies);
            }
            (Input::All { checkpoint, step, postponed }, _) if checkpoint == self.checkpoint => {
                self.all(step, postponed);
            }
            (Input::Later, Phase::Pausing) => {
                self.round += 1;
                self.close();
            }
            (Input::Changed { tallies }, Phase::Draining) => self.send(2 * self.round, tallies),
            (Input::Over, Phase::Draining) => {
                self.phase = Phase::AwaitDrained;
                self.send(2 * self.round + 1, Vec::new());
            }
            (Input::Release { checkpoint }, _) if checkpoint == self.checkpoint => self.end(),
            _ => {}
        }
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The checkpoint of the last drain.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Where this rank is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Nothing is under way in the whole job, for this checkpoint.
    pub fn is_drained_for(&self, checkpoint: u64) -> bool {
        self.phase == Phase::Drained && self.checkpoint == checkpoint
    }

    fn all(&mut self, step: u32, postponed: bool) {
        let tallies = 2 * self.round;
        match self.phase {
            Phase::Tallies if step == tallies && postponed => {
                self.phase = Phase::Pausing;
                self.open();
            }
            Phase::Tallies if step == tallies => {
                self.phase = Phase::Draining;
                self.outputs.push_back(Output::Drain);
            }
            Phase::Draining if step == tallies => self.outputs.push_back(Output::Drain),
            Phase::AwaitDrained if step == tallies + 1 => {
                self.phase = Phase::Drained;
                self.outputs.push_back(Output::Drained { checkpoint: self.checkpoint });
            }
            _ => {}
        }
    }

    fn send(&mut self, step: u32, part: Vec<u8>) {
        let checkpoint = self.checkpoint;
        self.outputs.push_back(Output::Send { checkpoint, step, part });
    }

    fn close(&mut self) {
        self.phase = Phase::Closing;
        self.closed = true;
        self.outputs.push_back(Output::Close);
    }

    fn open(&mut self) {
        if core::mem::take(&mut self.closed) {
            self.outputs.push_back(Output::Open);
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Idle;
        self.open();
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        let open = matches!(self.phase, Phase::Idle | Phase::Pausing);
        assert_eq!(self.closed, !open, "D1: the gate in {:?}", self.phase);
        assert!(self.round < MADE / 2, "D2: steps of rounds are below those of a restart");
    }
}
