//! The checkpoint thread's share in determinants: it sends what the program's threads record, lets
//! frames go when that is stable, and hands a restored process what it has to replay.

use crate::checkpoint::state::{Checkpoint, DeterminantFlush, Ending};
use crate::determinants::coordinator_link::{BatchSend, COORDINATOR_LINK, PACE_MS};
use crate::determinants::outbox;
use crate::determinants::outbox::DeterminantBatch;
use crate::determinants::piggyback;
use crate::determinants::recorder;
use crate::determinants::set_order;
use crate::engine::driver_state::Driver;
use crate::engine::recording::NO_COMMON_MEMORY;
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToRank};
use rustbtl_coordination::determinants::rank_batch;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::os::fd::RawFd;

/// While a frame waits it is looked after so often: what it waits for may be another process' of
/// the set, which this one does not get.
const HELD_POLL_MS: i32 = 1;

/// A frame of another process of the set may wait for what this one has recorded while its program
/// computes, and nothing wakes it for that. Where frames have just waited, it is looked for each
/// [`HELD_POLL_MS`].
const SET_POLL_MS: i32 = 24;
/// For so many looks after a frame has waited, answers are taken in as they come: the program may
/// have left MPI while its frame waits.
const LOOKS_FOR_FRAMES: u32 = 10_000;
/// For so many of them they come often.
const LOOKS_OFTEN: u32 = 100;

/// Without news of what is stable, frames are retried only so seldom: that takes the engine
/// from a program that may be waiting for a processor in it, as the coordinator may, too.
const HELD_POLLS: u32 = 16;

/// Whether outcomes are recorded. `line`: from the first checkpoint on (mpirun sets it if sets can
/// be rolled back alone); anything else: at once.
const RECORD: &str = "RUSTBTL_RECORD";

impl Checkpoint {
    /// How long the thread may sleep.
    pub(crate) fn poll_timeout_ms(&self) -> i32 {
        let usual = match (self.ready, set_order::is_held()) {
            (false, _) => crate::checkpoint::thread::INIT_POLL_MS,
            (true, true) => HELD_POLL_MS,
            _ if self.polls_soon() || !COORDINATOR_LINK.set_polled(false) => {
                let often = self.flush_state.frames_wait > LOOKS_FOR_FRAMES - LOOKS_OFTEN;
                match (self.members.len() > 1, often) {
                    (true, true) => HELD_POLL_MS,
                    (true, false) => SET_POLL_MS,
                    (false, _) => PACE_MS,
                }
            }
            (true, false) if self.repairing => crate::checkpoint::thread::REPAIR_POLL_MS,
            (true, false) if self.replaying || self.awaits_replays_over() => {
                crate::checkpoint::thread::BEHIND_POLL_MS
            }
            (true, false) => self.log_pressure.sooner(self.cost_pressure),
        };
        match self.drain_timeout_ms().into_iter().chain(self.verbs_timeout_ms()).min() {
            Some(look) if usual < 0 || usual > look => look,
            _ => usual,
        }
    }

    /// The direct connection, unless the program polls it anyway, or this thread will before
    /// long and nobody waits for that.
    pub(crate) fn direct_to_poll(&self) -> Option<RawFd> {
        let program_polls = COORDINATOR_LINK.awaits_answer() && self.flush_state.polling;
        let may_wait = set_order::is_held() || self.flush_state.frames_wait > 0;
        COORDINATOR_LINK
            .descriptor()
            .filter(|_| !program_polls && (may_wait || !self.flush_state.recording))
    }

    /// Does this thread come by before long, without being woken? What is recorded next need not
    /// wake it then.
    fn polls_soon(&self) -> bool {
        let soon = COORDINATOR_LINK.awaits_answer() && self.flush_state.polling
            || self.flush_state.recording;
        soon && COORDINATOR_LINK.set_polled(true)
    }

    /// Where the coordinator is.
    pub(crate) fn set_coordinator(&mut self, addresses: String, secret: Vec<u8>) {
        self.flush_state.coordinator = Some((addresses, secret));
    }

    /// Has this message to wait until the checkpoint gives the engine back?
    pub(crate) fn hold_until_endpoints(&mut self, message: ToRank) -> Option<ToRank> {
        let waits = matches!(
            message,
            ToRank::ResendDeterminants {}
                | ToRank::Stable { .. }
                | ToRank::ReceivedVector { .. }
                | ToRank::Endpoints { .. }
                | ToRank::ReportStatus {}
                | ToRank::ReportReplay { .. }
                | ToRank::ReplaysOver { .. }
        );
        if waits && self.flush_state.in_checkpoint {
            self.flush_state.later.push(message);
            return None;
        }
        Some(message)
    }

    /// Is there news of ranks that were restarted, which a checkpoint keeps from being read?
    pub(crate) fn has_endpoints_to_read(&self) -> bool {
        self.flush_state.later.iter().any(|message| matches!(message, ToRank::Endpoints { .. }))
    }

    /// A message to a process that is being restored.
    pub(crate) fn before_endpoints(&mut self, message: ToRank) {
        match message {
            // In pieces, if it is long.
            ToRank::Replay { at, bytes, .. } => {
                let (known, all) = self.flush_state.replay.get_or_insert_default();
                *known = at;
                all.extend(bytes);
            }
            ToRank::Coordinator { addresses, secret } => self.set_coordinator(addresses, secret),
            // Nothing has come to it yet. It is not to be answered later: whoever waits for that
            // may be who this process waits for.
            ToRank::Fence { set, before } => {
                piggyback::fence(set, before);
                self.fenced(set, before, 0);
            }
            message @ (ToRank::ResendDeterminants {} | ToRank::Stable { .. }) => {
                self.flush_state.later.push(message);
            }
            _ => {}
        }
    }

    /// The process was restored from an image, and runs in this incarnation.
    pub(crate) fn begin_incarnation(&mut self, incarnation: Incarnation) {
        self.flush_state.incarnation = incarnation;
    }

    /// Everything about determinants that may have to be done.
    pub(crate) fn determinants(&mut self) {
        for message in core::mem::take(&mut self.flush_state.later) {
            self.handle(message, &mut None);
        }
        if COORDINATOR_LINK.has_broken() {
            self.resend_determinants();
        }
        COORDINATOR_LINK.poll();
        COORDINATOR_LINK.send_overdue();
        if recorder::many_wait()
            && let Ok(mut driver) = self.shared.take()
        {
            driver.host.flush_recorded();
        }
        let recorded = piggyback::recorded();
        let before = core::mem::replace(&mut self.flush_state.recorded, recorded);
        self.flush_state.recording = recorded != before;
        let wanted = set_order::wanted();
        let before = core::mem::replace(&mut self.flush_state.wanted, wanted);
        let fewer = self.flush_state.frames_wait.saturating_sub(1);
        self.flush_state.frames_wait = if wanted == before { fewer } else { LOOKS_FOR_FRAMES };
        let is_long = COORDINATOR_LINK.send(set_order::is_held()) == BatchSend::NotOpen;
        if is_long
            && self.flush_all_batches()
            && let Some((addresses, secret)) = self.flush_state.coordinator.take()
        {
            COORDINATOR_LINK.open(&addresses, &secret);
        }
        // A program that waits in MPI sees by itself what may go; to take the engine from it would
        // only hold both up.
        let program_polls = recorder::program_polls();
        self.flush_state.polling =
            core::mem::replace(&mut self.flush_state.program_polls, program_polls) != program_polls;
        if self.flush_state.polling || !set_order::is_held() {
            return;
        }
        let (stable, before) = (set_order::stable(), self.flush_state.stable);
        self.flush_state.polls += 1;
        if stable != before || self.flush_state.polls >= HELD_POLLS {
            (self.flush_state.stable, self.flush_state.polls) = (stable, 0);
            self.send_held_frames();
        }
    }

    /// Ship what is recorded the long way. False: there was nothing.
    fn flush_all_batches(&self) -> bool {
        let mut sent = false;
        while let Some(batch) = outbox::take_batch() {
            self.send_batch(&batch);
            COORDINATOR_LINK.sent_by_guardian(batch);
            sent = true;
        }
        sent
    }

    fn send_batch(&self, batch: &DeterminantBatch) {
        self.send(&batch.message(self.flush_state.incarnation));
    }

    fn send_held_frames(&self) {
        let Ok(mut driver) = self.shared.take() else { return };
        driver.send_held_frames();
        drop(driver);
        self.deliver();
    }

    /// The coordinator may not have received what is not known to be stable.
    pub(crate) fn resend_determinants(&self) {
        COORDINATOR_LINK.unstable().iter().for_each(|batch| self.send_batch(batch));
        self.flush_now();
    }

    /// The coordinator waits for it.
    pub(crate) fn flush_now(&self) {
        if COORDINATOR_LINK.send(true) == BatchSend::NotOpen {
            self.flush_all_batches();
        }
    }

    /// For tests: record although no checkpoint was taken yet.
    pub(crate) fn record_early(&self) {
        if std::env::var_os(RECORD).is_some_and(|when| when != "line")
            && let Ok(mut driver) = self.shared.take()
        {
            self.switch_on(&mut driver);
        }
    }

    /// The process was restored from an image, and is ready. Where its set cannot count together
    /// any more, or never could, it must not be rolled back alone to this checkpoint.
    pub(crate) fn record_restored(&mut self) {
        if !rustbtl_process::freeze::is_restored() || std::env::var_os(RECORD).is_none() {
            return;
        }
        let Ok(driver) = self.shared.take() else { return };
        let (on, counts) = (driver.host.record.is_on(), driver.host.can_record());
        drop(driver);
        if !counts || !on {
            self.send(&FromRank::NotReplayable {
                reason: NO_COMMON_MEMORY.into(),
                blocker: ReplayBlocker::Set,
            });
        }
        self.stop_uncounted();
    }

    /// Nothing is recorded where nobody could number it: it would only grow, and clocks, which wait
    /// for room, would stop. Not before everything that is to be repeated was.
    pub(crate) fn stop_uncounted(&mut self) {
        let Ok(driver) = self.shared.take() else { return };
        let host = &driver.host;
        let stops = host.record.is_on() && !host.can_record() && driver.replay_is_complete();
        drop(driver);
        if stops {
            self.stop_recording();
        }
    }

    fn switch_on(&self, driver: &mut Driver) {
        match driver.host.switch_on() {
            Ok(()) => driver.accept_piggyback(),
            Err(reason) => {
                self.send(&FromRank::NotReplayable {
                    reason: reason.into(),
                    blocker: ReplayBlocker::Set,
                });
            }
        }
    }

    /// The coordinator reports what is stable.
    pub(crate) fn stable(&mut self, incarnation: Incarnation, upto: u64) {
        if upto == u64::MAX {
            return self.stop_recording();
        }
        // Once the program may leave MPI_Finalize, the memory of the counts may go.
        if self.ending != Ending::Over {
            COORDINATOR_LINK.set_stable(incarnation, upto);
        }
    }

    /// Nobody keeps determinants any more, or the job ends: nothing has to wait.
    pub(crate) fn stop_recording(&mut self) {
        let incarnation = self.flush_state.incarnation;
        if self.flush_state.in_checkpoint {
            let stop = ToRank::Stable { incarnation, upto: u64::MAX };
            return self.flush_state.later.push(stop);
        }
        let Ok(mut driver) = self.shared.take() else { return };
        driver.host.record.switch_off();
        driver.accept_piggyback();
        driver.send_held_frames();
        drop(driver);
        self.deliver();
    }

    /// A set has failed: nothing that its earlier incarnations piggyback is accepted from now on.
    /// The program may be in the engine for long, or a checkpoint have it: this is done without.
    pub(crate) fn fence(&mut self, set: SetId, before: Incarnation) {
        let recorded = piggyback::fence(set, before);
        self.fenced(set, before, recorded);
        self.flush_now();
    }

    fn fenced(&self, set: SetId, before: Incarnation, recorded: u64) {
        let incarnation = self.flush_state.incarnation;
        self.send(&FromRank::Fenced { set, before, incarnation, recorded });
    }

    /// What the checkpoint covers, before its snapshot is taken. From the first checkpoint on
    /// everything is recorded: before it there is nothing to roll back to. Not where the job ends:
    /// the program then takes down the memory where the set counts.
    pub(crate) fn send_clock(&self, id: CheckpointId, driver: &mut Driver) {
        let ends = self.ending == Ending::Over;
        if !ends && !driver.host.record.is_on() && std::env::var_os(RECORD).is_some() {
            self.switch_on(driver);
        }
        crate::mpi::interpose::redirect_new_objects();
        if crate::mpi::interpose::has_sources() {
            crate::mpi::processor_sources::note(&self.shared.glue, driver.host.peers.rank());
        }
        driver.snapshot_date();
        driver.snapshot_program_clocks();
        let clock = driver.host.record.clock();
        // Nothing is polled between here and the snapshot: it depends on nothing behind this.
        let recorded = piggyback::recorded();
        let incarnation = self.flush_state.incarnation;
        self.send(&FromRank::EventClock { checkpoint: id, clock, incarnation, recorded });
    }

    /// The process was restored from an image; its channels to other sets are down or new, and no
    /// frame was looked for yet.
    pub(crate) fn restore_record(&mut self, driver: &mut Driver) {
        let later = core::mem::take(&mut self.flush_state.later);
        let replay = self.flush_state.replay.take();
        let incarnation = driver.host.incarnation;
        COORDINATOR_LINK.begin(
            PeerId(driver.host.peers.rank()),
            incarnation,
            !driver.host.record.carries,
        );
        let coordinator = self.flush_state.coordinator.take();
        let kept =
            DeterminantFlush { incarnation, later, coordinator, ..DeterminantFlush::default() };
        self.flush_state = DeterminantFlush { in_checkpoint: true, ..kept };
        let (at, bytes) = replay.unwrap_or_default();
        let kept = match rank_batch::read_numbered(&bytes) {
            Ok(kept) => kept,
            Err(error) => self.fatal(&error.to_string()),
        };
        if let Err(lost) = driver.restore_record(&self.members, at, &kept) {
            self.fatal(&format!("determinant {lost} of this process is lost"));
        }
    }
}
