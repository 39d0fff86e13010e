//! The end of replays: this process' own, as far as it knows, and then all, which only the
//! coordinator can say (docs/adr/0016, 0037).

use crate::checkpoint::state::{Checkpoint, Ending};
use crate::engine::driver_state::Driver;
use crate::ffi::verbose;
use crate::files::watched;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::{FromRank, ReplayBlocker};
use rustbtl_fragments::ids::Incarnation;

const POLLS: &str = "it polls memory of a window that another rank of its set had written to \
                     directly, and when it has seen that is not recorded";

/// All replays are over, says the coordinator. False: that was said to an earlier incarnation.
pub(crate) fn note(driver: &mut Driver, incarnation: Incarnation) -> bool {
    let is_mine = driver.host.incarnation == incarnation;
    if is_mine {
        driver.end_deferral();
        if !driver.end_window_replay() {
            driver.host.replay_diverged("it has not repeated what it did in windows");
        }
    }
    is_mine
}

impl Checkpoint {
    /// What cannot be repeated by one set alone, once each; races, each time.
    pub(crate) fn report_not_replayable(&mut self) {
        for blocker in [ReplayBlocker::Set, ReplayBlocker::Others, ReplayBlocker::Everybody] {
            let reported = &mut self.reported_not_replayable[blocker as usize];
            if let Some(&reason) = Self::signals().not_replayable[blocker as usize].get()
                && !core::mem::replace(reported, true)
            {
                self.send(&FromRank::NotReplayable { reason: reason.into(), blocker });
            }
        }
        let raced = &Self::signals().has_raced;
        if raced.load(Ordering::Relaxed) && raced.swap(false, Ordering::Relaxed) {
            let blocker = ReplayBlocker::SetUntilCheckpoint;
            self.send(&FromRank::NotReplayable { reason: POLLS.into(), blocker });
        }
    }

    /// Has this process repeated what was lost with its earlier incarnation? As far as it knows:
    /// who has received of it may not have reached it yet.
    pub(crate) fn check_replay(&mut self) {
        if !self.replaying {
            return;
        }
        let Ok(mut driver) = self.shared.take() else { return };
        // A program that computes does not poll, and checkpoints of all sets wait for the channel.
        let repairs = self.ending == Ending::Not && !driver.engine.is_repaired();
        if repairs {
            driver.poll();
        }
        self.replaying = !driver.replay_is_complete();
        drop(driver);
        if repairs {
            self.deliver();
        }
        if !self.replaying {
            self.report_not_replayable();
            self.stop_uncounted();
            self.shared.glue.verbose(verbose::INFO, || "replay complete".to_owned());
            self.send(&FromRank::ReplayComplete {});
        }
    }

    /// Nothing is repeated any more. What others have written to files that were read again may
    /// have been taken for what was there before: then all are rolled back.
    pub(crate) fn end_watch(&self) {
        if let Err(problem) = watched::end() {
            crate::mpi::files::report_changed(&problem);
        }
    }

    /// Processes that were restarted need what this one has sent them, however long its program
    /// computes. Once they are reached `answer` sees to it that what is late goes.
    pub(crate) fn repair(&mut self) {
        if !self.repairing || self.ending != Ending::Not {
            return;
        }
        let Ok(mut driver) = self.shared.take() else { return };
        driver.poll();
        self.repairing = !driver.engine.is_repaired();
        drop(driver);
        self.deliver();
    }

    /// Is there something to do until all replays are over?
    pub(crate) fn awaits_replays_over(&self) -> bool {
        self.replays_open || self.replay_question.is_some()
    }

    /// Whoever has received of an earlier incarnation of this process has to reach it, however long
    /// its program computes, and the coordinator asks whether that is so (docs/adr/0037).
    pub(crate) fn await_replays_over(&mut self) {
        if !self.awaits_replays_over() || self.ending == Ending::Over {
            return;
        }
        let Ok(mut driver) = self.shared.take() else { return };
        if self.ending == Ending::Not {
            driver.poll();
        }
        // Without records nobody may be there to say that all replays are over.
        let unasked = !driver.host.record.is_on() && driver.replay_is_complete();
        if unasked {
            driver.end_deferral();
        }
        let is_answered = self.replay_question.take_if(|(_, replay)| match *replay {
            false => driver.engine.is_repaired(),
            true => driver.replay_is_complete(),
        });
        drop(driver);
        self.deliver();
        if unasked {
            self.end_watch();
        }
        if let Some((number, replay)) = is_answered {
            if replay {
                self.end_watch();
            }
            self.send(&FromRank::ReplayReported { number });
        }
    }
}
