//! Phase 0 of a checkpoint, where collectives bypass the engine: the process's part
//! (docs/adr/0038). The clock is `engine/counting.rs`, and belongs to whoever has the engine.

use crate::checkpoint::state::{Checkpoint, CollectiveDraining};
use crate::engine::counting;
use crate::engine::shared::ExclusiveGuard;
use crate::os::ticks;
use crate::sync::waiting::WAITING;
use core::sync::atomic::Ordering;
use rustbtl_coordination::collective_clock::Input;
use rustbtl_coordination::control::{CheckpointId, FromRank, ToClock, ToRank};

/// How often a program is looked at that others wait for.
const LOOK_MS: i32 = 5;

impl Checkpoint {
    /// No snapshot may be taken without a drain from now on.
    pub(crate) fn announce_bypassing(&mut self) {
        // [bypass] the communicator is registered.
        if !self.drain.announced && counting::BYPASSES.load(Ordering::Acquire) {
            self.drain.announced = true;
            self.send(&FromRank::CollectivesBypass {});
        }
    }

    /// From the coordinator.
    pub(crate) fn clock_order(&mut self, order: ToClock, taken: &mut Option<ExclusiveGuard>) {
        if let ToClock::Drain { checkpoint } = order {
            self.drain.checkpoint = Some(checkpoint);
            WAITING.watch(true);
            self.drain.waited = (WAITING.ticks(), ticks());
        }
        self.tell_clock(Input::Order(order), taken);
    }

    fn tell_clock(&mut self, input: Input, taken: &mut Option<ExclusiveGuard>) {
        let outcome = self.with(taken, |driver| driver.counting.tell(input));
        if let Err(error) = outcome {
            self.shared.glue.fatal("protocol", &["a collective clock", &error.to_string()]);
        }
    }

    /// Is the checkpoint over with this message?
    pub(crate) fn end_drain(&mut self, message: &ToRank, taken: &mut Option<ExclusiveGuard>) {
        let Some(draining) = self.drain.checkpoint else { return };
        let checkpoint = match message {
            ToRank::Resume { checkpoint } | ToRank::Abort { checkpoint, .. } => *checkpoint,
            ToRank::MayFinish {} => return self.tell_clock(Input::Finish, taken),
            _ => return,
        };
        if checkpoint >= draining {
            self.drain.checkpoint = None;
        }
        self.tell_clock(Input::Release { checkpoint: checkpoint.0 }, taken);
    }

    /// Nobody will ever say that it is over.
    pub(crate) fn abandon_drain(&mut self) {
        if let Some(checkpoint) = self.drain.checkpoint.take() {
            self.tell_clock(Input::Release { checkpoint: checkpoint.0 }, &mut None);
        }
    }

    /// How long the thread may sleep, if a drain says so.
    pub(crate) fn drain_timeout_ms(&self) -> Option<i32> {
        self.drain.checkpoint.map(|_| LOOK_MS)
    }

    /// A program that has waited inside MPI since the last look, and is in no collective that is
    /// counted, waits for messages: those who are stopped may have to send them.
    pub(crate) fn watch_drain(&mut self) {
        if self.drain.checkpoint.is_none() {
            return;
        }
        let now = (WAITING.ticks(), ticks());
        let (waited, passed) =
            (now.0 - self.drain.waited.0, now.1.wrapping_sub(self.drain.waited.1));
        self.drain.waited = now;
        let waits = waited.saturating_mul(2) > passed;
        self.with(&mut None, |driver| {
            let (me, size) = (driver.host.peers.rank(), driver.host.peers.size());
            driver.counting.looked_at(waits, me, size);
        });
    }

    /// Why no snapshot may be taken for this checkpoint.
    pub(crate) fn not_drained(
        &self,
        checkpoint: CheckpointId,
        counting: &counting::Counting,
    ) -> Option<&'static str> {
        if counting.is_uncovered {
            return Some(
                "a collective component that bypasses rustbtl has functions in place of which no \
                 other component has any: what it does is in no image (see docs/limits.md)",
            );
        }
        (counting.is_used && self.drain.checkpoint != Some(checkpoint)).then_some(
            "collectives of a component that bypasses rustbtl may be under way; only checkpoints \
             of the whole job wait for their end",
        )
    }

    /// The process was restored: nothing bypasses rustbtl any more.
    pub(crate) fn restored_drain(&mut self) {
        self.drain = CollectiveDraining::default();
        counting::BYPASSES.store(false, Ordering::Relaxed);
    }
}
