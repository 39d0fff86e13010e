//! The collective clock of this process, for collectives that bypass the engine (docs/adr/0038).
//! Who has the engine has the clock: so a drain begins between two calls.

use crate::sync::checkpoint_signals::SIGNALS;
use core::sync::atomic::AtomicBool;
use rustbtl_coordination::collective_clock::{
    ClockError, CollectiveClock, CommHandle, Input, Output,
};
use rustbtl_coordination::control::{CheckpointId, FromRank};
use rustbtl_fragments::ids::PeerId;

/// A communicator has collectives that are counted.
pub static BYPASSES: AtomicBool = AtomicBool::new(false);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Counting {
    /// `None`: collectives that bypass the engine are not used (sets are rolled back alone), or
    /// nobody takes checkpoints.
    pub clock: Option<CollectiveClock>,
    /// They are used: until the process is restored, whose other side may be gone.
    pub counts: bool,
    /// One is used that cannot be counted.
    pub is_uncovered: bool,
    /// Calls that the program is in, without threads.
    pub depth: u32,
    /// Stops up to this number go on.
    pub gone: u32,
    /// A communicator has such collectives: no snapshot without a drain.
    pub is_used: bool,
    /// Stops that wait.
    pub stopped: u32,
    /// It was said that the program waits for messages.
    blocked: bool,
}

impl Counting {
    /// The whole job is rolled back together, if at all.
    pub fn begin(&mut self, me: PeerId) {
        self.clock = Some(CollectiveClock::new(me));
        self.counts = true;
    }

    /// A communicator of these processes was made, and has such collectives.
    pub fn register(&mut self, members: &[PeerId], context: u32) -> Option<CommHandle> {
        let handle = self.clock.as_mut()?.register(members, context).ok()?;
        self.flush();
        Some(handle)
    }

    /// Hand in what has happened.
    ///
    /// # Errors
    /// The coordinator broke the protocol.
    pub fn tell(&mut self, input: Input) -> Result<(), ClockError> {
        // Whoever has no clock is asked only by mistake, and waited for in vain.
        let outcome = self.clock.as_mut().map_or(Ok(()), |clock| clock.handle(input));
        self.flush();
        outcome
    }

    /// While there is a drain: does the program wait for something?
    pub fn looked_at(&mut self, waits: bool, me: u32, size: u32) {
        let blocked = waits && self.depth == 0 && self.stopped == 0;
        if blocked == self.blocked {
            return;
        }
        self.blocked = blocked;
        let others = (0..size).filter(|&rank| rank != me && blocked).map(PeerId);
        let _ = self.tell(Input::Blocked { waits_for: others.collect() });
    }

    /// What the clock wants done, in its order.
    pub fn flush(&mut self) {
        let (Some(clock), Some(signals)) = (&mut self.clock, SIGNALS.get()) else { return };
        while let Some(output) = clock.poll_output() {
            // That the guardian has gone shows elsewhere.
            let _ = match output {
                Output::Send(message) => (signals.send)(&FromRank::Clock { message }),
                Output::Refuse { checkpoint, refusal } => {
                    let (checkpoint, reason) = (CheckpointId(checkpoint), refusal.to_string());
                    (signals.send)(&FromRank::CheckpointFailed { checkpoint, reason })
                }
                Output::Go { stop } => {
                    self.gone = self.gone.max(stop);
                    true
                }
            };
        }
    }

    /// From an image: all members of each communicator are, and from the same call on.
    pub fn restored(&mut self, me: PeerId) {
        let depth = self.depth;
        let had = self.clock.is_some();
        *self = Self { depth, ..Self::default() };
        self.clock = had.then(|| CollectiveClock::new(me));
    }
}
