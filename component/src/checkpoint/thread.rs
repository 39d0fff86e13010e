//! The checkpoint thread: takes part in the checkpoints of this process' set, whatever the program
//! does.
//!
//! Source: DESIGN §6, docs/adr/0002. It exists only where a guardian protects the process. All
//! signals are blocked in it. It sleeps until the guardian sends something, a frame of a checkpoint
//! comes, or the program is in MPI_Finalize. While it takes a checkpoint it alone drives the
//! engine: the program is kept out (`Shared::take`), computes on, or waits.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | the thread: what it waits for, what it sends the guardian |
//! | `phases.rs` | one checkpoint: the machine of the phases over real transports |
//! | `freeze.rs` | what is and is not part of the image |
//! | `requests.rs` | checkpoints that the program asks for |
//! | `counting.rs` | the same where the set shares memory: counts in place of frames |
//! | `determinants.rs` | outcomes of nondeterministic calls on their way |
//! | `log_pressure.rs` | checkpoints that the payload log asks for |
//! | `restart.rs` | a new process: new transports, new endpoints |
//! | `replays_over.rs` | the end of replays: this process' own, and all |
//! | `shared_memory_barrier.rs` | snapshots of one moment, where ranks share memory directly |

use crate::checkpoint::guardian_link::{Guardian, GuardianError};
use crate::checkpoint::log_pressure::LogPressure;
use crate::checkpoint::state::{
    Checkpoint, CollectiveDraining, DeterminantFlush, Ending, LogFullReaction, Phases, Sharing,
};
use crate::checkpoint::{replays_over, shadow_verbs::ShadowVerbs, verbs_names};
use crate::engine::acknowledging::ACKNOWLEDGE_AFTER;
use crate::engine::shared::ExclusiveGuard;
use crate::engine::shared::shared;
use crate::ffi::verbose;
use crate::os::now_ns;
use crate::os::wake::Wake;
use crate::peers::transport_setup::TransportSetup;
use crate::sync::checkpoint_requests::CheckpointRequests;
use crate::sync::checkpoint_signals::{CheckpointSignals, SIGNALS, count};
use crate::sync::waiting::{TickRate, WAITING};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustbtl_coordination::control::{CheckpointId, FromRank, ToRank};
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal, Input, Quiescence};
use rustbtl_fragments::engine::ReceivedVector;
use rustbtl_fragments::ids::{PeerId, SetId};
use rustbtl_process::freeze::Freezer;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// How often MPI_Init is asked whether it is over.
pub(crate) const INIT_POLL_MS: i32 = 2;
/// How often a process that was restarted alone is asked whether its replay is complete.
pub(crate) const BEHIND_POLL_MS: i32 = 20;
/// How often it polls for processes that were restarted, and wait for what this one has sent.
pub(crate) const REPAIR_POLL_MS: i32 = 2;

/// What else than MPI's outcomes is recorded, where anything is.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// MPI_Wtime.
    pub clock: bool,
    /// time(), other clocks, and random numbers.
    pub sources: bool,
}

/// The guardian sets it where it writes incremental images.
const TRACK_CHANGES: &str = "RUSTBTL_TRACK_CHANGES";

/// Start the thread if a guardian protects this process. `members`: the own set; `huge_pages`:
/// have the kernel use them before a snapshot is taken; `endpoint`: the own one.
pub fn start(
    transport_setup: &TransportSetup,
    members: Vec<PeerId>,
    (huge_pages, recorded, log_full): (bool, Recorded, LogFullReaction),
    files: (u64, Option<PathBuf>),
    endpoint: Vec<u8>,
) -> Result<(), String> {
    let Some(guardian) = Guardian::from_environment().map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let shared = shared();
    // SAFETY: the PMIx client is initialised: MPI_Init is past its modex.
    if unsafe { (shared.glue.protect)() } != crate::ffi::table::DONE {
        return Err("PMIx does not accept a handler for the loss of its server".into());
    }
    let wake = Wake::new().map_err(|error| error.to_string())?;
    // The program is here: nobody else.
    let mut driver = shared.enter();
    driver.protected = true;
    let me = driver.host.peers.me();
    crate::peers::modex::fetch_all(&shared.glue, &driver.host.peers);
    drop(driver);
    let mut members = members;
    members.sort_unstable();
    members.dedup();
    let mut driver = shared.enter();
    driver.host.place_counts(&members, 0);
    crate::mpi::interpose::install(&shared.glue);
    crate::mpi::node_identity::install();
    crate::mpi::system_v::install();
    // By set: what ranks of several write to is not put back.
    let name = format!("set-{}.rank-{}", driver.host.set, driver.host.peers.rank());
    crate::mpi::files::install(&driver);
    if let Err(problem) = crate::files::epoch::install(files.0, files.1, &name) {
        shared.glue.show("notice", &[&problem]);
    }
    crate::sync::engine_lock::note_first();
    if recorded.clock {
        crate::mpi::program_clocks::install();
        crate::mpi::wtime::install(&shared.glue);
    }
    if recorded.sources {
        crate::mpi::time::install();
        let sources = crate::mpi::program_clocks::sources();
        let random = crate::mpi::random_numbers::sources();
        let deadlines = crate::mpi::deadlines::sources();
        crate::mpi::interpose::put_sources(sources.into_iter().chain(random).chain(deadlines));
        crate::mpi::random_numbers::note_open_descriptors();
    }
    crate::mpi::interpose::redirect_new_objects();
    if recorded.sources {
        crate::mpi::processor_sources::note(&shared.glue, driver.host.peers.rank());
    }
    let own = PeerId(driver.host.peers.rank());
    let hurries = !driver.host.record.carries;
    crate::determinants::coordinator_link::COORDINATOR_LINK.begin(
        own,
        driver.host.incarnation,
        hurries,
    );
    if members.len() == driver.host.peers.size() as usize {
        driver.counting.begin(me);
    }
    let several_sets = driver.neighbours.iter().any(|peer| !members.contains(peer));
    let mut quiescence = Quiescence::new(me, &members);
    crate::checkpoint::set_counters::choose(&mut quiescence, &driver, &members);
    drop(driver);
    let guardian = Arc::new(guardian);
    let for_program = Arc::clone(&guardian);
    let signals = CheckpointSignals {
        wake,
        requests: CheckpointRequests::default(),
        send: Box::new(move |message| for_program.send(message).is_ok()),
        restarts: AtomicU32::new(0),
        fence: AtomicBool::new(false),
        nearly_full: AtomicBool::new(false),
        over_budget: AtomicBool::new(false),
        // One may have come before this.
        checkpoint_frames: AtomicBool::new(true),
        not_replayable: Default::default(),
        has_raced: AtomicBool::new(false),
        checkpoints: Default::default(),
    };
    if SIGNALS.set(signals).is_err() {
        return Ok(());
    }
    let verbs = ShadowVerbs::attach()?;
    let transport_setup = transport_setup.clone();
    let blocked = crate::os::signals::block_all();
    let (report, reported) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("rustbtl-ckpt".into()).spawn(move || {
        rustbtl_process::scheduling::be_prompt();
        let freezer = match Freezer::new() {
            Ok(freezer) => freezer,
            Err(error) => return drop(report.send(Err(error.to_string()))),
        };
        let checkpoint = Checkpoint {
            shared,
            guardian,
            transport_setup,
            quiescence,
            members,
            huge_pages,
            // Memory that the kernel notes cannot be made huge pages of again.
            tracks_changes: !huge_pages && std::env::var_os(TRACK_CHANGES).is_some(),
            said_changes: None,
            huge_pages_for: CheckpointId(0),
            freezer,
            children: BTreeMap::new(),
            covered: BTreeMap::new(),
            ready: false,
            reported_not_replayable: [false; 3],
            file_named: false,
            replaying: false,
            repairing: false,
            replays_open: false,
            replay_question: None,
            endpoint,
            ending: Ending::Not,
            over: false,
            log_pressure: LogPressure::default(),
            tick_rate: TickRate::new(),
            cost_pressure: LogPressure::default(),
            log_full,
            phases: Phases::default(),
            flush_state: DeterminantFlush::default(),
            sharing: Sharing::default(),
            shared_memory: Vec::new(),
            several_sets,
            drain: CollectiveDraining::default(),
            verbs,
        };
        drop(report.send(Ok(())));
        checkpoint.run();
    });
    crate::os::signals::restore(&blocked);
    thread.map_err(|error| format!("the checkpoint thread cannot be started: {error}"))?;
    reported.recv().unwrap_or_else(|_| Err("the checkpoint thread has ended".into()))
}

impl Checkpoint {
    fn run(mut self) {
        let hello = self.hello();
        self.send(&hello);
        while !self.over {
            self.wait();
            self.poll_replay();
        }
    }

    /// Who this is.
    fn hello(&self) -> FromRank {
        match self.shared.take() {
            Ok(driver) => crate::checkpoint::restart::hello(&driver, self.endpoint.clone()),
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    /// Sleep until there may be something to do.
    fn wait(&self) {
        let direct = self.direct_to_poll().unwrap_or(-1);
        Self::signals().wake.wait([self.guardian.fd(), direct], self.poll_timeout_ms());
    }

    /// Everything that may have happened.
    fn poll_replay(&mut self) {
        // SAFETY: no arguments.
        if !self.ready && unsafe { (self.shared.glue.stage)() } > 0 {
            self.ready = true;
            self.reported_not_replayable = [false; 3]; // maybe another coordinator
            self.record_early();
            self.record_restored();
            self.announce_bypassing();
            self.send(&FromRank::Ready {});
        }
        if self.ready {
            self.report_not_replayable();
        }
        self.name_file();
        self.announce_bypassing();
        self.watch_drain();
        // [fence] the callback's place is filled.
        let fence = Self::signals().fence.load(Ordering::Acquire);
        if fence && self.ending == Ending::Not && self.ready {
            self.ending = Ending::Told;
            self.end_watch();
            self.send(&FromRank::Finishing {});
        }
        if self.ready {
            self.pass_on_requests();
            self.check_replay();
            self.pass_on_log();
        }
        self.listen(&mut None);
        self.repair();
        self.determinants();
        self.await_replays_over();
        self.step_verbs();
        if self.step_checkpoint() {
            self.determinants();
        }
        self.let_go();
    }

    /// Handle the messages of the guardian. `taken`: the process, if it is ours already. Whoever
    /// takes it a second time lets the program in when he gives it back.
    pub(crate) fn listen(&mut self, taken: &mut Option<ExclusiveGuard>) {
        loop {
            match self.guardian.receive() {
                Ok(Some(message)) => self.handle(message, taken),
                Ok(None) => return,
                Err(error) => return self.alone(&error),
            }
        }
    }

    /// Without a guardian there are no checkpoints; the program's end is near or has come.
    fn alone(&mut self, error: &GuardianError) {
        self.over = true;
        if *error != GuardianError::Gone {
            self.shared.glue.show("notice", &[&error.to_string()]);
        }
        Self::signals().requests.end("the guardian of this process has gone");
        if let Ok(mut driver) = self.shared.take() {
            // Nor restart anybody.
            driver.protected = false;
            driver.unprotected_ns = now_ns();
            driver.end_deferral();
        }
        self.abandon_drain();
        self.abandon_verbs();
        // Nobody will ever send MayFinish.
        self.may_finish();
    }

    pub(crate) fn send(&self, message: &FromRank) {
        // That it has gone shows when it is listened to. A message that cannot be one must not be
        // lost silently.
        if let Err(error @ GuardianError::Control(_)) = self.guardian.send(message) {
            self.fatal(&error.to_string());
        }
    }

    fn may_finish(&mut self) {
        self.ending = Ending::Over;
        self.stop_recording();
        let _ = self.quiescence.handle(Input::Finish);
    }

    /// The program may leave MPI_Finalize, and take down what a checkpoint needs: the transports,
    /// and the memory where the set counts. So not while this process is in one, which it takes to
    /// its end, or gives up where the guardian has gone.
    fn let_go(&self) {
        let is_in_none = self.quiescence.has_finished() || self.over;
        if self.ending == Ending::Over
            && is_in_none
            && Self::signals().fence.swap(false, Ordering::AcqRel)
        {
            // SAFETY: the program waits in MPI_Finalize and holds nothing.
            unsafe { (self.shared.glue.fenced)() };
        }
    }

    pub(crate) fn handle(&mut self, message: ToRank, taken: &mut Option<ExclusiveGuard>) {
        let Some(message) = self.hold_until_endpoints(message) else { return };
        if let ToRank::StopOutgoing { checkpoint: id } | ToRank::Begin { checkpoint: id, .. } =
            message
            && taken.is_none()
        {
            self.make_huge_pages(id);
        }
        self.end_drain(&message, taken);
        self.end_verbs_drain(&message);
        match message {
            ToRank::Clock { message } => self.clock_order(message, taken),
            ToRank::Welcome { .. } | ToRank::Restarted { .. } => {}
            ToRank::CheckpointComplete { oldest, .. } => {
                count(1);
                crate::files::epoch::keep_from(oldest.0);
            }
            ToRank::CheckpointRequestResult { number, checkpoint: id, problem } => {
                let outcome = if problem.is_empty() { Ok(id) } else { Err(problem) };
                Self::signals().requests.answer(number, outcome);
            }
            ToRank::StopOutgoing { checkpoint: id } => self.drain_verbs_or_stop(id),
            answer @ ToRank::VerbsParts { .. } => self.verbs_parts(answer),
            ToRank::VerbsNameFound { number, value } => verbs_names::found(number, value),
            ToRank::Begin { checkpoint: id, kind, members, .. } => self.begin(id, kind, &members),
            ToRank::Resume { checkpoint: id } => self.input(Input::Resume { checkpoint: id.0 }),
            ToRank::Abort { checkpoint: id, .. } => {
                self.children.remove(&id);
                self.covered.remove(&id);
                crate::files::epoch::aborted(id.0);
                self.input(Input::Abort { checkpoint: id.0 });
            }
            ToRank::Trim { checkpoint: id } => self.send_received_vectors(id),
            ToRank::ReceivedVector { from, bytes, .. } => self.trim(from, &bytes, taken),
            ToRank::Endpoints { endpoints, restarted } => {
                self.reconnect_restarted(&endpoints, &restarted)
            }
            // Taken out while the program is suspended, or only of use to one that is restored.
            ToRank::OutputDrained { .. } | ToRank::AllRestored {} | ToRank::Replay { .. } => {}
            ToRank::MayFinish {} => self.may_finish(),
            ToRank::Release { checkpoint: id } => drop(self.children.remove(&id)),
            ToRank::ReportStatus {} => self.status(taken),
            ToRank::ReportWaiting { sample } => self.report_waiting(sample, taken),
            ToRank::ResendDeterminants {} => self.resend_determinants(),
            ToRank::FlushDeterminants {} => self.flush_now(),
            ToRank::Stable { incarnation, upto } => self.stable(incarnation, upto),
            ToRank::Coordinator { addresses, secret } => self.set_coordinator(addresses, secret),
            ToRank::Fence { set, before } => self.fence(set, before),
            ToRank::SuspendLogging { before } => self.suspend_logging(before, taken),
            ToRank::ReportReplay { number, replay } => {
                self.replay_question = Some((number, replay));
            }
            ToRank::ReplaysOver { incarnation } => {
                let mine = self.with(taken, |driver| replays_over::note(driver, incarnation));
                self.replays_open &= !mine;
            }
        }
    }

    /// Once for each checkpoint, and before this process takes part in it: the program is in MPI or
    /// not, as it likes.
    fn make_huge_pages(&mut self, id: CheckpointId) {
        if self.huge_pages && self.huge_pages_for != id {
            self.huge_pages_for = id;
            self.freezer.make_huge_pages();
        }
    }

    /// Behind the first snapshot, and when it is another way.
    pub(crate) fn say_how_changes_are_found(&mut self) {
        let noted = self.freezer.tracks_changes();
        if !self.tracks_changes || self.said_changes.replace(noted) == Some(noted) {
            return;
        }
        self.shared.glue.verbose(verbose::INFO, || {
            let how = if noted { "pages that the kernel notes (PAGEMAP_SCAN)" } else { "hashes" };
            format!("incremental images: what has changed is found by {how}")
        });
    }

    /// Ask for what the log wants: a checkpoint, or to be suspended.
    fn pass_on_log(&mut self) {
        let mark = Self::signals().nearly_full.swap(false, Ordering::Relaxed);
        let shared = self.shared;
        let wanted = self.log_pressure.handle(mark, now_ns(), || {
            let driver = shared.take().ok()?;
            let log = &driver.host.log;
            Some(log.largest_set().filter(|_| log.is_nearly_full()))
        });
        if let Some((set, bytes)) = wanted {
            match self.log_full {
                LogFullReaction::Checkpoint => {
                    count(0);
                    self.send(&FromRank::LogNearlyFull { set, bytes });
                }
                LogFullReaction::Suspend => self.request_suspension(set),
                LogFullReaction::Spill => {}
            }
        }
        let over = Self::signals().over_budget.swap(false, Ordering::Relaxed);
        let wanted = self.cost_pressure.handle(over, now_ns(), || {
            let driver = shared.take().ok()?;
            let host = &driver.host;
            Some(host.log.largest_set().filter(|_| host.log_cost.is_over()))
        });
        if let Some((set, _)) = wanted {
            self.request_suspension(set);
        }
    }

    fn request_suspension(&self, set: SetId) {
        let [spent_ns, elapsed_ns] = self.with(&mut None, |driver| driver.host.log_cost.spent_ns());
        self.send(&FromRank::LoggingOverBudget { set, spent_ns, elapsed_ns });
    }

    /// Acknowledge what comes from other sets; not if the others of the set have brought this
    /// process into that checkpoint already (docs/adr/0026).
    fn suspend_logging(&self, before: CheckpointId, taken: &mut Option<ExclusiveGuard>) {
        if self.phases.entered < before {
            self.with(taken, |driver| {
                driver.engine.set_acknowledging(Some(ACKNOWLEDGE_AFTER));
                driver.engine.acknowledge_all(&mut driver.host);
                driver.host.push();
            });
        }
    }

    /// Another process, perhaps on another node, whose clock is another one: read it afresh.
    pub(crate) fn restored_log(&mut self) {
        (self.log_pressure, self.cost_pressure) = Default::default();
        self.tick_rate = TickRate::new();
        WAITING.watch(false);
        Self::signals().nearly_full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn input(&mut self, input: Input) {
        if let Err(error) = self.quiescence.handle(input) {
            self.shared.glue.fatal("protocol", &["a checkpoint", &error.to_string()]);
        }
    }

    fn status(&self, taken: &mut Option<ExclusiveGuard>) {
        let (counters, largest, log_budget) = self.with(taken, |driver| {
            let (log, own) = (&driver.host.log, driver.host.set);
            (log.counters(), log.largest_set().map_or(own, |(set, _)| set), log.budget_bytes())
        });
        self.send(&FromRank::Status {
            log_bytes: counters.bytes,
            log_bytes_peak: counters.bytes_peak,
            messages: counters.messages,
            largest,
            log_budget,
        });
    }

    /// The own set is rolled back to no older checkpoint: what this one covers of the others' logs
    /// may go.
    fn send_received_vectors(&mut self, id: CheckpointId) {
        for (to, bytes) in self.covered.remove(&id).unwrap_or_default() {
            self.send(&FromRank::ReceivedVector { checkpoint: id, to, bytes });
        }
        self.covered.retain(|&other, _| other > id);
    }

    /// A process of another set has stored a checkpoint: drop what it holds.
    fn trim(&self, from: PeerId, bytes: &[u8], taken: &mut Option<ExclusiveGuard>) {
        let held = match ReceivedVector::decode(bytes) {
            Ok(held) => held,
            Err(error) => self.fatal(&format!("account of rank {from}: {error}")),
        };
        self.with(taken, |driver| {
            let from = driver.host.peers.of_rank(from.0);
            let (engine, host) = (&driver.engine, &mut driver.host);
            let known = engine.traffic().find(|(peer, ..)| *peer == from);
            let Some((_, set, _)) = known else { return };
            // Records that a send still refers to are open at the receiver, hence not in the
            // received vector.
            debug_assert_ne!(set, host.set);
            host.trim_log(set, |entry| entry.to == from && held.is_complete(entry));
        });
    }

    pub(crate) fn act(&mut self, answer: CheckpointAnswer) {
        match answer {
            CheckpointAnswer::Stopped { checkpoint: id } => {
                self.send(&FromRank::OutgoingStopped { checkpoint: CheckpointId(id) })
            }
            CheckpointAnswer::Frozen { checkpoint: id } => self.send_frozen(CheckpointId(id)),
            CheckpointAnswer::Failed {
                checkpoint: id,
                refusal: CheckpointRefusal::ReplayPending,
            } => {
                self.send(&FromRank::ReplayPending { checkpoint: CheckpointId(id) });
            }
            CheckpointAnswer::Failed { checkpoint: id, refusal: why } => {
                let reason = self.phases.failure.take().unwrap_or_else(|| why.to_string());
                self.send(&FromRank::CheckpointFailed { checkpoint: CheckpointId(id), reason });
            }
        }
    }
}
