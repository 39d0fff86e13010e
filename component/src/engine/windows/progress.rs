//! One step of the machine of windows: what others have sent is handed in and applied; what was
//! applied is recorded; only then leaves what depends on it (the driver's contract, rule 2).

use crate::determinants::recorder::RecorderState;
use crate::determinants::set_order::{SLOW_PATH, WINDOWS, acts};
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::recording::flush;
use crate::engine::windows::Windows;
use crate::engine::windows::memory::ProcessMemory;
use crate::engine::windows::messages::{MessageRef, Stream, tag_of};
use crate::engine::windows::neighbours::Neighbours;
use crate::engine::windows::{FetchedInto, ResultBuffer};
use crate::ffi::operation::Op;
use crate::os::yield_now;
use core::sync::atomic::Ordering;
use rustbtl_coordination::determinants::{AppliedRun, DirectRun, PastRun};
use rustbtl_fragments::engine::{Mode, SendError, SendOutcome};
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::{CommRank, ContextId, PeerId};
use rustbtl_rma::direct as rma;
use rustbtl_rma::error::RmaError;
use rustbtl_rma::ids::{OperationId, Tick};
use rustbtl_rma::machine::{Fault, Lane, Output};
use rustbtl_rma::record::{Applied, Past, Recorded};

impl Driver {
    /// The program does something of MPI: the machine counts it.
    #[inline]
    pub(crate) fn count_action(&mut self, tag: i32) {
        if SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0 && acts(tag) {
            self.host.windows.rma.action();
            self.host.publish_tick();
            self.hold_completions();
            if self.host.windows.rma.has_output() {
                self.progress_windows();
            }
        }
    }

    /// The same of an access: what was issued before it need not be sent.
    pub(crate) fn count_access(&mut self) {
        self.host.windows.rma.action_on_window();
        self.host.publish_tick();
        self.hold_completions();
    }

    /// It does not, yet: it tries again.
    #[cold]
    #[inline(never)]
    pub(crate) fn undo_action(&mut self, tag: i32) {
        if SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0 && acts(tag) {
            self.host.windows.rma.undo_action();
            self.host.publish_tick();
        }
    }

    /// After each call of the machine, and when messages for it are here.
    #[inline(never)]
    pub fn progress_windows(&mut self) {
        loop {
            while let Some((stream, message)) = self.host.windows.inbox.take() {
                let Stream { window, from, lane } = stream;
                let rma = &mut self.host.windows.rma;
                let taken = match lane {
                    Lane::Operations => rma.on_operation(window, from, message),
                    Lane::Replies => rma.on_reply(window, from, &message),
                };
                if let Err(fault) = taken {
                    self.window_fault(fault);
                }
            }
            self.apply();
            if self.host.windows.rma.has_output() {
                // What neighbours have done before anything leaves the set (D2).
                self.host.flush_recorded();
            }
            while let Some(output) = self.host.windows.rma.poll_output() {
                self.carry_out(output);
            }
            if !self.host.windows.inbox.has_ready() {
                break;
            }
        }
        while let Some(op) = self.host.windows.finished.pop() {
            // SAFETY: the engine has done with it.
            drop(unsafe { MessageRef::of(op).take() });
        }
        self.hold_completions();
        self.host.push_now();
    }

    /// Apply what can be, and count it in the set's order, under the lock of the set's group where
    /// neighbours act on windows as well.
    fn apply(&mut self) {
        if !self.host.windows.rma.has_queued() {
            self.host.windows.lock_waiters = false;
            return;
        }
        let own = PeerId(self.host.peers.rank());
        let EngineHost { windows, transports, record, .. } = &mut self.host;
        if windows.lock_waiters {
            windows.count_time_of_waiters();
        }
        let Windows { rma, neighbours, .. } = windows;
        let area = neighbours.as_ref().and_then(|known| known.own_area(transports));
        let locked = area.map(|(group, area)| (group.lock(yield_now), area));
        let result = match &locked {
            Some((locked, area)) => rma.progress_beside(&mut ProcessMemory, Some((locked, area))),
            None => rma.progress(&mut ProcessMemory),
        };
        if result.is_ok() && rma.has_recorded() {
            let runs = rma.take_recorded();
            if record.is_on() {
                record_runs(record, neighbours.as_ref(), runs);
                // Its lock is held, and it is empty.
                flush(record, transports, own, None);
            }
        }
        drop(locked);
        windows.lock_waiters = rma.has_lock_waiters();
        if let Err(fault) = result {
            self.window_fault(fault);
        }
    }

    /// Does a replay hold the blocking call that has done an action of this tag? All that was
    /// applied at its tick was applied before the next action, and needs none. A call that only
    /// begins something is not held: receives that were put off would be posted, and its program
    /// does not go by anything before it waits.
    #[inline]
    pub(crate) fn holds_call(&self, op: Op, tag: i32) -> bool {
        let windows = &self.host.windows;
        windows.holds && op.on_stack() && !windows.in_collective && acts(tag)
    }

    /// Rule 3 of the replay.
    fn hold_completions(&mut self) {
        let holds = self.host.windows.rma.holds_completions();
        if holds != self.host.windows.holds {
            self.host.windows.holds = holds;
            self.host.set_completes_at_once();
        }
        if !holds && self.replaying {
            self.update_slow_path();
        }
    }

    /// The process was restored from an image. `applied`: what it had applied after that.
    pub(crate) fn replay_windows(&mut self, applied: Vec<PastRun>) {
        let own = PeerId(self.host.peers.rank());
        let rma = &mut self.host.windows.rma;
        let run = |AppliedRun { window, source, count, tick }| {
            let tick = Tick(tick);
            Applied { window, source, count, tick }
        };
        let past = applied.into_iter().filter_map(|past| match past {
            PastRun::Own(own) => Some(Past::Own(run(own))),
            PastRun::Direct(DirectRun { target, first, run: applied }) => {
                let direct = rma::DirectRun { first, applied: run(applied) };
                (target == own).then_some(Past::Direct(direct))
            }
        });
        let begun = if self.replaying {
            rma.resume_replay(past)
        } else {
            // All are rolled back together: nothing of the past is left.
            let begun = rma.begin_replay([]);
            rma.end_replay();
            begun
        };
        if begun.is_err() {
            self.host.replay_diverged("a part of what was done to its windows is not known");
        }
        self.hold_completions();
    }

    /// All sets that had failed are through with their replays (rule 4). False: this process is
    /// not.
    pub fn end_window_replay(&mut self) -> bool {
        let ended = self.host.windows.rma.end_replay();
        self.host.update_accepts();
        self.progress_windows();
        ended
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { window, to, lane, message } => self.send_of(window, to, lane, message),
            Output::Data { operation, first, data } => {
                let Some(&FetchedInto { buffer, first: before }) =
                    self.host.windows.results.get(&operation)
                else {
                    return;
                };
                self.host.fill(buffer, before + first, &data, false);
            }
            Output::Completed { operation, error } => self.fetched(operation, error),
        }
    }

    fn fetched(&mut self, operation: OperationId, error: Option<RmaError>) {
        let Some(FetchedInto { buffer, .. }) = self.host.windows.results.remove(&operation) else {
            return;
        };
        if let ResultBuffer::Operation { mut op, is_last } = buffer {
            if let Some(error) = error {
                op.set_outcome(error.code().into());
            }
            if is_last {
                self.host.done.push_back(op);
            }
        }
    }

    fn send_of(&mut self, window: ContextId, to: CommRank, lane: Lane, bytes: Vec<u8>) {
        let Some(&comm) = self.host.windows.comms.get(&window) else { return };
        let Some(message) = MessageRef::to_send(bytes) else { return };
        let mut op = message.op();
        let (tag, bytes) = (tag_of(lane), op.bytes());
        self.host.allow_copy_later(false);
        let mode = Mode::Standard;
        let sent = self.timed(|engine, host| engine.send(host, comm, to, tag, mode, op, bytes, op));
        match sent {
            // SAFETY: the engine has done with it.
            Ok(SendOutcome::Complete) => drop(unsafe { message.take() }),
            Ok(SendOutcome::Pending(id)) => {
                op.set_id(id.0);
                if self.detach_send(op) {
                    self.host.windows.finished.push(op);
                }
            }
            Err(SendError::Log(full)) => {
                self.host.report_log_full(full.bytes);
                self.host.glue.fatal("window-log-full", &[&full.bytes.to_string()]);
            }
        }
    }

    #[cold]
    fn window_fault(&mut self, fault: Fault) -> ! {
        if fault == Fault::Diverged {
            self.host.replay_diverged(&fault.to_string());
        }
        self.host.glue.fatal("protocol", &["another rank", &fault.to_string()])
    }
}

/// As determinants.
fn record_runs(record: &mut RecorderState, neighbours: Option<&Neighbours>, runs: Vec<Recorded>) {
    record.decisions.before_library_action();
    for recorded in runs {
        match recorded {
            Recorded::Own(Applied { window, source, count, tick: Tick(tick) }) => {
                record.decisions.applied(AppliedRun { window, source, count, tick });
            }
            Recorded::Group(group) => {
                let named = neighbours.map(|neighbours| neighbours.named(group));
                // There is one at most, before the others: nothing is done directly meanwhile.
                record.decisions.applied_directly(named.unwrap_or_default());
            }
        }
    }
}

impl EngineHost {
    /// May C be notified of complete operations where they are complete? Not with threads, nor
    /// where somebody else than the program is inside, nor while a replay holds completions.
    pub(crate) fn set_completes_at_once(&mut self) {
        self.completes_at_once = !self.threads && !self.is_taken && !self.windows.holds;
    }

    /// Packed data, behind `first` bytes, for where it is to go; with its last it is complete.
    pub(crate) fn fill(&mut self, buffer: ResultBuffer, first: u64, data: &[u8], is_last: bool) {
        match buffer {
            ResultBuffer::Memory(start) => {
                let into = start.wrapping_add(first as usize);
                // SAFETY: inside of the program's result buffer, which it does not touch before the
                // next synchronization.
                unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), into, data.len()) };
            }
            ResultBuffer::Operation { mut op, .. } => {
                self.unpack(&mut op, first, data);
                if is_last {
                    self.done.push_back(op);
                }
            }
        }
    }

    /// An operation that gets data is complete, for C, when its data is here.
    pub(crate) fn expect_data(&mut self, operation: OperationId, into: FetchedInto) {
        self.windows.results.insert(operation, into);
    }
}
