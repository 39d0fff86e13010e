//! The checkpoint thread's share in determinants: it ships what the program's threads record, lets
//! frames go when that is stable, and hands a restored process what it has to do again.

use crate::checkpoint::state::{Checkpoint, Shipping};
use crate::determinants::coordinator_link::{COORDINATOR_LINK, PACE_MS, Sent};
use crate::determinants::outbox;
use crate::determinants::outbox::Parcel;
use crate::determinants::piggyback;
use crate::determinants::recorder;
use crate::determinants::set_order;
use crate::engine::driver_state::Process;
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToRank};
use rustbtl_coordination::determinants::rank_batch;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::os::fd::RawFd;

/// While a frame waits it is looked after so often: what it waits for may be another process' of
/// the set, which is not told to this one.
const HELD_POLL_MS: i32 = 1;

/// Without news of what is stable, frames are tried again only so seldom: that takes the engine
/// from a program that may be waiting for a processor in it, as the coordinator may, too.
const HELD_POLLS: u32 = 16;

/// Whether outcomes are recorded: `line`: from the first line on (mpirun sets it if sets can go
/// back alone); anything else: at once.
const RECORD: &str = "RUSTBTL_RECORD";

impl Checkpoint {
    /// How long the thread may sleep.
    pub(crate) fn patience(&self) -> i32 {
        match (self.ready, set_order::is_held()) {
            (false, _) => crate::checkpoint::thread::INIT_POLL_MS,
            (true, true) => HELD_POLL_MS,
            _ if self.comes_soon() || !COORDINATOR_LINK.watch(false) => PACE_MS,
            (true, false) if self.repairing => crate::checkpoint::thread::REPAIR_POLL_MS,
            (true, false) if self.behind => crate::checkpoint::thread::BEHIND_POLL_MS,
            (true, false) => self.log_pressure.timeout_ms(),
        }
    }

    /// The direct connection, unless the program looks at it anyway, or this thread will before
    /// long and nobody waits for that.
    pub(crate) fn direct_to_poll(&self) -> Option<RawFd> {
        let looks = COORDINATOR_LINK.awaits_answer() && self.shipping.looking;
        COORDINATOR_LINK
            .descriptor()
            .filter(|_| !looks && (set_order::is_held() || !self.shipping.recording))
    }

    /// Does this thread come by before long, without being woken? What is recorded next need not
    /// wake it then.
    fn comes_soon(&self) -> bool {
        let soon =
            COORDINATOR_LINK.awaits_answer() && self.shipping.looking || self.shipping.recording;
        soon && COORDINATOR_LINK.watch(true)
    }

    /// Where the coordinator is.
    pub(crate) fn introduce(&mut self, addresses: String, secret: Vec<u8>) {
        self.shipping.coordinator = Some((addresses, secret));
    }

    /// Has this message to wait until the line gives the engine back?
    pub(crate) fn keep_for_later(&mut self, message: ToRank) -> Option<ToRank> {
        let waits = matches!(
            message,
            ToRank::ResendDeterminants {}
                | ToRank::Stable { .. }
                | ToRank::ReceivedVector { .. }
                | ToRank::Endpoints { .. }
                | ToRank::ReportStatus {}
        );
        if waits && self.shipping.in_line {
            self.shipping.later.push(message);
            return None;
        }
        Some(message)
    }

    /// Is there news of ranks that were started again, which a line keeps from being read?
    pub(crate) fn has_cards_to_read(&self) -> bool {
        self.shipping.later.iter().any(|message| matches!(message, ToRank::Endpoints { .. }))
    }

    /// A message to a process that is being restored.
    pub(crate) fn before_cards(&mut self, message: ToRank) {
        match message {
            // In pieces, if it is long.
            ToRank::Replay { at, bytes, .. } => {
                let (known, all) = self.shipping.replay.get_or_insert_default();
                *known = at;
                all.extend(bytes);
            }
            ToRank::Coordinator { addresses, secret } => self.introduce(addresses, secret),
            // Nothing has come to it yet. It is not to be answered later: whoever waits for that
            // may be who this process waits for.
            ToRank::Fence { set, before } => {
                piggyback::fence(set, before);
                self.fenced(set, before, 0);
            }
            message @ (ToRank::ResendDeterminants {} | ToRank::Stable { .. }) => {
                self.shipping.later.push(message);
            }
            _ => {}
        }
    }

    /// The process was made from a picture, and runs in this life.
    pub(crate) fn begin_life(&mut self, incarnation: Incarnation) {
        self.shipping.incarnation = incarnation;
    }

    /// Everything about determinants that may have to be done.
    pub(crate) fn determinants(&mut self) {
        for message in core::mem::take(&mut self.shipping.later) {
            self.hear(message, &mut None);
        }
        if COORDINATOR_LINK.has_broken() {
            self.ship_again();
        }
        COORDINATOR_LINK.poll();
        let recorded = piggyback::recorded();
        let before = core::mem::replace(&mut self.shipping.recorded, recorded);
        self.shipping.recording = recorded != before;
        let is_long = COORDINATOR_LINK.send(set_order::is_held()) == Sent::NotOpen;
        if is_long
            && self.ship_all()
            && let Some((addresses, secret)) = self.shipping.coordinator.take()
        {
            COORDINATOR_LINK.open(&addresses, &secret);
        }
        // A program that waits in MPI sees by itself what may go; to take the engine from it would
        // only hold both up.
        let looks = recorder::looks();
        self.shipping.looking = core::mem::replace(&mut self.shipping.looks, looks) != looks;
        if self.shipping.looking || !set_order::is_held() {
            return;
        }
        let (stable, before) = (set_order::stable(), self.shipping.stable);
        self.shipping.polls += 1;
        if stable != before || self.shipping.polls >= HELD_POLLS {
            (self.shipping.stable, self.shipping.polls) = (stable, 0);
            self.let_go();
        }
    }

    /// Ship what is recorded the long way. False: there was nothing.
    fn ship_all(&self) -> bool {
        let mut shipped = false;
        while let Some(parcel) = outbox::take_parcel() {
            self.ship(&parcel);
            COORDINATOR_LINK.sent_elsewhere(parcel);
            shipped = true;
        }
        shipped
    }

    fn ship(&self, parcel: &Parcel) {
        self.say(&parcel.message(self.shipping.incarnation));
    }

    fn let_go(&self) {
        let Ok(mut process) = self.shared.take() else { return };
        process.let_go();
        drop(process);
        self.deliver();
    }

    /// The coordinator may not have heard of what is not known to be stable.
    pub(crate) fn ship_again(&self) {
        COORDINATOR_LINK.unstable().iter().for_each(|parcel| self.ship(parcel));
    }

    /// For tests: record although no line was taken yet.
    pub(crate) fn record_early(&self) {
        if std::env::var_os(RECORD).is_some_and(|when| when != "line")
            && let Ok(mut process) = self.shared.take()
        {
            self.switch_on(&mut process);
        }
    }

    fn switch_on(&self, process: &mut Process) {
        match process.host.switch_on() {
            Ok(()) => process.accept_piggyback(),
            Err(reason) => {
                self.say(&FromRank::NotReplayable {
                    reason: reason.into(),
                    blocker: ReplayBlocker::Set,
                });
            }
        }
    }

    /// The coordinator says what is stable.
    pub(crate) fn stable(&mut self, incarnation: Incarnation, upto: u64) {
        if upto == u64::MAX {
            return self.stop_recording();
        }
        // Once the program may leave MPI_Finalize, the memory of the counts may go.
        if self.ending != crate::checkpoint::state::Ending::Over {
            COORDINATOR_LINK.set_stable(incarnation, upto);
        }
    }

    /// Nobody keeps determinants any more, or the job ends: nothing has to wait.
    pub(crate) fn stop_recording(&mut self) {
        let incarnation = self.shipping.incarnation;
        if self.shipping.in_line {
            let stop = ToRank::Stable { incarnation, upto: u64::MAX };
            return self.shipping.later.push(stop);
        }
        let Ok(mut process) = self.shared.take() else { return };
        process.host.record.switch_off();
        process.accept_piggyback();
        process.let_go();
        drop(process);
        self.deliver();
    }

    /// A set has fallen: nothing that its lives before this one carry is taken in from now on. The
    /// program may be in the engine for long, or a line have it: this is done without.
    pub(crate) fn fence(&mut self, set: SetId, before: Incarnation) {
        let recorded = piggyback::fence(set, before);
        self.fenced(set, before, recorded);
        // The coordinator waits for it.
        if COORDINATOR_LINK.send(true) == Sent::NotOpen {
            self.ship_all();
        }
    }

    fn fenced(&self, set: SetId, before: Incarnation, recorded: u64) {
        let incarnation = self.shipping.incarnation;
        self.say(&FromRank::Fenced { set, before, incarnation, recorded });
    }

    /// What the line covers, before its picture is taken. From the first line on everything is
    /// recorded: before it there is nothing to go back to.
    pub(crate) fn tell_clock(&self, line: CheckpointId, process: &mut Process) {
        if !process.host.record.is_on() && std::env::var_os(RECORD).is_some() {
            self.switch_on(process);
        }
        crate::mpi::interpose::look_again();
        process.picture_clock();
        process.picture_date();
        let clock = process.host.record.clock();
        // Nothing is looked for between here and the picture: it depends on nothing behind this.
        let recorded = piggyback::recorded();
        let incarnation = self.shipping.incarnation;
        self.say(&FromRank::EventClock { checkpoint: line, clock, incarnation, recorded });
    }

    /// The process was made from a picture; its channels to other sets are down or new, and no
    /// frame was looked for yet.
    pub(crate) fn restore_record(&mut self, process: &mut Process) {
        let later = core::mem::take(&mut self.shipping.later);
        let replay = self.shipping.replay.take();
        let incarnation = process.host.incarnation;
        COORDINATOR_LINK.begin(
            PeerId(process.host.peers.rank()),
            incarnation,
            !process.host.record.carries,
        );
        let coordinator = self.shipping.coordinator.take();
        let kept = Shipping { incarnation, later, coordinator, ..Shipping::default() };
        self.shipping = Shipping { in_line: true, ..kept };
        let (at, bytes) = replay.unwrap_or_default();
        let kept = match rank_batch::read_numbered(&bytes) {
            Ok(kept) => kept,
            Err(error) => self.fatal(&error.to_string()),
        };
        if let Err(lost) = process.restore_record(&self.members, at, &kept) {
            self.fatal(&format!("determinant {lost} of this process is lost"));
        }
    }
}
