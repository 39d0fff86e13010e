//! What this process records of nondeterministic calls, and what it has to replay after it
//! was restored. The machine is coordination's `ReplayDecisions`; here are its places: the counts
//! that the ranks of a set on this node share, and the outbox from which the checkpoint thread
//! sends it.
//!
//! Off until the first checkpoint is taken (of a protected job whose checkpoints have a directory).
//! Then the way of a message pays: one load of [`SLOW_PATH`] for each send and receive, two loads
//! for each frame that leaves the set, and for a determinant a lock that nobody else holds for
//! long. The eventfd of the checkpoint thread is rung when the outbox stops being empty, and when a
//! frame has to wait for the first time.

use crate::determinants::coordinator_link::{BatchSend, COORDINATOR_LINK};
use crate::determinants::journal::Journal;
use crate::determinants::outbox::{outbox, put};
use crate::determinants::recorder::{Place, RecorderState, counts, flush_soon, order};
use crate::determinants::set_order::{
    BASE, COUNTS, DEFERRED, HELD, PATIENT, PATIENT_WAITS, REPLAY, RUN, SLOW_PATH, WINDOWS,
    of_program, rustbtl_epoch, rustbtl_recording,
};
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::transport_set::TransportSet;
use crate::engine::windows::neighbours::Neighbours;
use crate::ffi::table::ANY;
use crate::sync::checkpoint_signals;
use crate::sync::checkpoint_signals::report_divergence;
use crate::transports::set_memory::Entry;
use core::sync::atomic::Ordering;
use rustbtl_coordination::determinants::{
    Divergence, NondetCall, Numbered, Outcome, ReplayDecision, piggyback,
};
use rustbtl_fragments::ids::{MessageName, PeerId, ReceiveName};
use rustbtl_fragments::send_gate::{Marks, Recorded};
use std::time::Duration;

/// So many dates that wait to be sent to the log need no allocation: signal handlers may read them.
/// A program that reads the date without end records some twenty a second.
const DATES_ROOM: usize = 1024;
/// The same for readings of clocks. A program that does nothing but read them records some 2000 a
/// second.
pub(crate) const READINGS_ROOM: usize = 4096;

/// Why a set is not rolled back alone.
pub const NO_COMMON_MEMORY: &str = "the processes of this correlated set share no memory (or did \
    not at their snapshot), so they cannot count together what is to be repeated. Choose sets that \
    lie within a node, with shared memory, or of single processes";

/// No rollback takes longer; if none comes the job ends.
pub(crate) const ROLLBACK_MAX: Duration = Duration::from_secs(600);

/// Count what was recorded and put it into the outbox; what neighbours have done to windows first,
/// as all else may depend on it (`rustbtl_rma::direct`, D2).
pub(crate) fn flush(
    state: &mut RecorderState,
    transports: &TransportSet,
    own: PeerId,
    neighbours: Option<&Neighbours>,
) {
    let group = neighbours.and_then(|neighbours| Some((neighbours, neighbours.group(transports)?)));
    let mut locked = None;
    if let Some((neighbours, group)) = group.filter(|(_, group)| group.is_open()) {
        let taken = locked.insert(group.lock(crate::os::yield_now)).take();
        if state.on {
            state.decisions.applied_directly(neighbours.named(taken));
        }
    }
    let RecorderState { decisions, place, base, journal, carries, entry, .. } = state;
    let Some(order) = order(place, *base, transports) else { return };
    let Some(first) = decisions.take_recorded() else { return };
    let mut outbox = outbox();
    let ring = outbox.is_empty();
    let mut next = Some(first);
    while let Some(numbered) = next {
        let at = order.next();
        if *carries {
            entry.clear();
            piggyback::append(entry, own, &numbered);
            order.write(at, Entry::Own(entry));
        }
        put(&mut outbox, at, &numbered);
        if let Some(journal) = journal {
            journal.add(&numbered);
        }
        next = decisions.take_recorded();
    }
    drop(outbox);
    drop(locked);
    if ring {
        flush_soon();
    }
}

impl EngineHost {
    /// Local index of the first of these ranks, if all of them share the memory of this node.
    pub fn index_of_set(&self, members: &[PeerId]) -> Option<usize> {
        let by = &self.transports;
        let all_here = members.iter().all(|&member| by.node_index(member).is_some());
        let first = members.iter().min().filter(|_| all_here)?;
        by.node_index(*first)
    }

    /// The set counts where all its processes see it, in memory that is new in each incarnation.
    /// `members`: all of them; `base`: the place that is recorded next.
    pub fn place_counts(&mut self, members: &[PeerId], base: u64) {
        self.record.place = match members {
            [_] => Place::Alone(Box::default(), Box::default()),
            _ => self.index_of_set(members).map_or(Place::Nowhere, Place::Shared),
        };
        self.record.base = base;
        self.record.known.clear();
        BASE.store(base, Ordering::Relaxed);
        self.publish_counts();
    }

    /// For those who ask without the engine.
    fn publish_counts(&self) {
        let counts = counts(&self.record.place, &self.transports);
        let counts = counts.map_or(core::ptr::null(), core::ptr::from_ref);
        COUNTS.store(counts.cast_mut(), Ordering::Release);
    }

    /// Is there a place where the set counts?
    pub fn can_record(&self) -> bool {
        counts(&self.record.place, &self.transports).is_some()
    }

    /// Record from now on.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn switch_on(&mut self) -> Result<(), &'static str> {
        if !self.can_record() {
            return Err(NO_COMMON_MEMORY);
        }
        self.publish_counts();
        self.record.on = true;
        self.record.decisions.reserve(DATES_ROOM, READINGS_ROOM);
        if !self.record.random.is_seeded() {
            self.record.seed();
        }
        self.record.journal = Journal::of(self.peers.rank());
        rustbtl_recording.store(1, Ordering::Relaxed);
        rustbtl_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// What `Host::marks` returns while anything is recorded.
    #[inline(never)]
    pub fn marks_now(&self) -> Marks {
        let Some(counts) = counts(&self.record.place, &self.transports) else { return Marks::OPEN };
        // [stable] what is stable was recorded before.
        let stable = counts.stable.load(Ordering::Acquire);
        let recorded = self.record.base + counts.recorded.load(Ordering::Acquire);
        Marks { recorded: Recorded(recorded), stable }
    }

    /// A frame has to wait for what is recorded.
    #[inline(never)]
    pub fn hold(&self) {
        let first = !HELD.swap(true, Ordering::Relaxed);
        if let Some(counts) = counts(&self.record.place, &self.transports) {
            let recorded = self.record.base + counts.recorded.load(Ordering::Acquire);
            counts.wanted.fetch_max(recorded, Ordering::Relaxed);
        }
        PATIENT.store(PATIENT_WAITS, Ordering::Relaxed);
        if COORDINATOR_LINK.send(true) == BatchSend::NotOpen && first {
            checkpoint_signals::wake();
        }
    }

    /// Does nothing have to wait any more?
    fn all_stable(&self) -> bool {
        counts(&self.record.place, &self.transports).is_none_or(|counts| {
            let stable = counts.stable.load(Ordering::Acquire);
            stable >= self.record.base + counts.recorded.load(Ordering::Acquire)
        })
    }

    /// A receive from MPI_ANY_SOURCE took a message.
    #[cold]
    #[inline(never)]
    pub fn record_match(&mut self, receive: ReceiveName, message: MessageName) {
        self.record.decisions.before_library_action();
        self.record.decisions.matched(receive, message);
        self.flush_recorded();
    }

    /// Count what was recorded and put it into the outbox, before anything that depends on it.
    pub(crate) fn flush_recorded(&mut self) {
        let own = PeerId(self.peers.rank());
        flush(&mut self.record, &self.transports, own, self.windows.neighbours.as_ref());
    }

    fn diverged(&self, divergence: &Divergence) -> ! {
        self.replay_diverged(&divergence.to_string())
    }

    /// The replay diverged. This thread goes no further, and keeps the engine: nothing that others
    /// must not see leaves the process. The coordinator has all ranks rolled back, which ends this
    /// process, or ends the job.
    #[cold]
    pub fn replay_diverged(&self, problem: &str) -> ! {
        self.report_divergence(PeerId(self.peers.rank()), problem);
        std::thread::sleep(ROLLBACK_MAX);
        self.glue.fatal("divergence", &[problem])
    }

    /// The coordinator has all ranks rolled back; if it cannot be told the job ends.
    #[cold]
    pub(crate) fn report_divergence(&self, of: PeerId, problem: &str) {
        if !report_divergence(of, problem) {
            self.glue.fatal("divergence", &[problem]);
        }
    }
}

impl Driver {
    /// Before a send or receive while [`SLOW_PATH`] is not 0: what was not found until now is
    /// recorded first. (What the library does by itself is not repeatable in its place.)
    #[cold]
    #[inline(never)]
    pub fn act(&mut self, tag: i32) {
        self.record_before(tag);
        self.count_action(tag);
        self.update_slow_path();
    }

    /// The same before an access to a window.
    #[cold]
    #[inline(never)]
    pub fn act_on_window(&mut self) {
        if let Err(divergence) = self.host.record.decisions.before_action() {
            self.host.diverged(&divergence);
        }
        // What is done to neighbours is gathered.
        if self.host.record.decisions.recorded_pending() > 0 {
            self.host.flush_recorded();
        }
        self.count_access();
        self.update_slow_path();
    }

    /// Is there nothing to do before an access to a window but to count it, and nothing behind it?
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        let decisions = &self.host.record.decisions;
        SLOW_PATH.load(Ordering::Relaxed) == WINDOWS
            && self.deferred.is_empty()
            && !self.replaying
            && !decisions.has_run()
            && decisions.has_nothing_pending()
            && !self.host.windows.has_news()
    }

    fn record_before(&mut self, tag: i32) {
        let decisions = &mut self.host.record.decisions;
        if of_program(tag) {
            if let Err(divergence) = decisions.before_action() {
                self.host.diverged(&divergence);
            }
        } else {
            decisions.before_library_action();
        }
        self.host.flush_recorded();
    }

    /// After each input of the state machine, and after a receive was posted in
    /// replay: have the outcomes run out, and what do sends and receives have to check?
    pub fn update_slow_path(&mut self) {
        let past = self.host.record.decisions.has_outcomes_to_replay();
        let applied = self.host.windows.rma.is_record_applied();
        if self.engine.is_replaying() && !past && applied && !self.engine.awaits_receives() {
            self.engine.end_replay(&mut self.host);
            self.host.push();
        }
        let decisions = &self.host.record.decisions;
        let run = if decisions.has_run() || decisions.recorded_pending() > 0 { RUN } else { 0 };
        let replay = if self.engine.has_replay() { REPLAY } else { 0 };
        let deferred = if self.replaying || !self.deferred.is_empty() { DEFERRED } else { 0 };
        let windows = if self.host.windows.rma.has_windows() { WINDOWS } else { 0 };
        SLOW_PATH.store(run | replay | deferred | windows, Ordering::Relaxed);
    }

    /// The answer to a question; None: it found nothing.
    pub fn record_outcome(&mut self, question: NondetCall, outcome: Option<Outcome>) {
        if outcome.is_none() {
            self.host.polls();
        }
        self.count_action(ANY);
        let decisions = &mut self.host.record.decisions;
        match outcome {
            None => decisions.record_nothing(question),
            Some(outcome) => {
                if let Err(divergence) = decisions.record_outcome(question, outcome) {
                    self.host.diverged(&divergence);
                }
                self.host.flush_recorded();
            }
        }
        self.update_slow_path();
    }

    /// The program calls time(). Nothing else is done than to note that it has to be sent to the
    /// log: it may do so in a signal handler.
    pub fn read_date(&mut self, now: u64) -> u64 {
        let decisions = &mut self.host.record.decisions;
        let date = decisions.program_time(now);
        if decisions.recorded_pending() > 0 {
            // Not one operation: whoever else writes it is in here, too.
            SLOW_PATH.store(SLOW_PATH.load(Ordering::Relaxed) | RUN, Ordering::Relaxed);
        }
        date
    }

    /// What to do with a question. Ends the job if it is another one than before.
    pub fn replay_decision(&mut self, question: NondetCall) -> ReplayDecision {
        match self.host.record.ask(question) {
            Ok(ask) => {
                if ask == ReplayDecision::ReportNothing {
                    self.host.polls();
                    self.count_action(ANY);
                    self.update_slow_path();
                }
                ask
            }
            Err(divergence) => self.host.diverged(&divergence),
        }
    }

    /// More may be stable: frames that waited go. Call without the program inside.
    pub fn send_held_frames(&mut self) {
        self.timed(|engine, host| engine.flush(host));
        self.host.push();
        if self.engine.is_flushed() || self.host.all_stable() {
            HELD.store(false, Ordering::Relaxed);
        }
    }

    /// The process was restored from an image, its channels to other sets were reported down:
    /// these determinants of it were kept, the next one of its set has place `at`.
    ///
    /// # Errors
    /// Number of the first determinant that is lost.
    pub fn restore_record(
        &mut self,
        members: &[PeerId],
        at: u64,
        kept: &[Numbered],
    ) -> Result<(), u64> {
        rustbtl_epoch.fetch_add(1, Ordering::AcqRel);
        outbox().clear();
        HELD.store(false, Ordering::Relaxed);
        self.host.place_counts(members, at);
        let journal = self.host.record.journal.as_ref().filter(|_| kept.is_empty());
        let written = journal.map_or(Vec::new(), Journal::read);
        let kept = if kept.is_empty() { &written } else { kept };
        let forced = self.host.record.decisions.restored(kept)?;
        self.host.record.decisions.reserve(DATES_ROOM, READINGS_ROOM);
        let applied = self.host.record.decisions.take_applied();
        self.replay_windows(applied);
        self.reopen_windows();
        if !kept.is_empty() || self.engine.is_replaying() {
            self.engine.begin_replay(&mut self.host, &forced);
        }
        self.update_slow_path();
        self.accept_piggyback();
        Ok(())
    }

    /// Is the replay complete (`ReplayComplete`)?
    pub fn replay_is_complete(&self) -> bool {
        !self.host.record.decisions.has_outcomes_to_replay()
            && self.host.windows.rma.is_record_applied()
            && self.engine.is_replay_complete()
    }
}
