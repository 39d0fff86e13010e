//! The checkpoint thread: takes part in the lines of this process' set, whatever the program does.
//!
//! Source: DESIGN §6, docs/adr/0002. It exists only where a guardian looks after the process. All
//! signals are blocked in it. It sleeps until the guardian says something, a frame of a line
//! comes, or the program is in MPI_Finalize. While it takes a line it alone drives the engine: the
//! program is kept out (`Shared::take`), computes on, or waits.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | the thread: what it waits for, what it tells the guardian |
//! | `drive.rs` | one line: the machine of the phases over real transports |
//! | `picture.rs` | what is and is not part of the image |
//! | `asking.rs` | lines that the program asks for |
//! | `counting.rs` | the same where the set shares memory: counts in place of frames |
//! | `determinants.rs` | outcomes of nondeterministic calls on their way |
//! | `log.rs` | lines that the payload log asks for |
//! | `restored.rs` | a new process: new transports, new cards |
//! | `together.rs` | pictures of one moment, where ranks share memory directly |

use crate::checkpoint::guardian_link::{Guardian, GuardianError};
use crate::checkpoint::state::{Checkpoint, Ending, Phases, Sharing, Shipping};
use crate::engine::shared::Taken;
use crate::engine::shared::shared;
use crate::ffi::verbose;
use crate::os::now_ns;
use crate::os::wake::Wake;
use crate::peers::transport_setup::TransportSetup;
use crate::sync::checkpoint_requests::CheckpointRequests;
use crate::sync::checkpoint_signals::{CheckpointSignals, SIGNALS, count};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToRank};
use rustbtl_coordination::quiescence::{CheckpointAnswer, CheckpointRefusal, Input, Quiescence};
use rustbtl_fragments::engine::ReceivedVector;
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::freeze::Freezer;
use std::collections::BTreeMap;

/// How often MPI_Init is asked whether it is over.
pub(crate) const INIT_POLL_MS: i32 = 2;
/// How often a process that was started again alone is asked whether it has caught up.
pub(crate) const BEHIND_POLL_MS: i32 = 20;
/// How often it looks for processes that were started again, and wait for what this one has sent.
pub(crate) const REPAIR_POLL_MS: i32 = 2;

/// What else than MPI's outcomes is recorded, where anything is.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// MPI_Wtime.
    pub clock: bool,
    /// time().
    pub dates: bool,
}

/// Start the thread if a guardian looks after this process. `members`: the own set; `huge_pages`:
/// have the kernel use them before a picture is taken; `card`: the own one.
pub fn start(
    transport_setup: &TransportSetup,
    members: Vec<PeerId>,
    (huge_pages, recorded): (bool, Recorded),
    card: Vec<u8>,
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
    let mut process = shared.enter();
    process.protected = true;
    let me = process.host.peers.me();
    crate::peers::modex::fetch_all(&shared.glue, &process.host.peers);
    drop(process);
    let mut members = members;
    members.sort_unstable();
    members.dedup();
    let mut process = shared.enter();
    process.host.place_counts(&members, 0);
    crate::mpi::interpose::install(&shared.glue);
    crate::sync::engine_lock::note_first();
    if recorded.clock {
        crate::mpi::wtime::install(&shared.glue);
    }
    if recorded.dates {
        crate::mpi::time::install();
    }
    crate::mpi::interpose::look_again();
    let own = PeerId(process.host.peers.rank());
    let hurries = !process.host.record.carries;
    crate::determinants::coordinator_link::COORDINATOR_LINK.begin(
        own,
        process.host.incarnation,
        hurries,
    );
    let mut silence = Quiescence::new(me, &members);
    crate::checkpoint::set_counters::choose(&mut silence, &process, &members);
    drop(process);
    let signals = CheckpointSignals {
        wake,
        requests: CheckpointRequests::default(),
        restarts: AtomicU32::new(0),
        fence: AtomicBool::new(false),
        nearly_full: AtomicBool::new(false),
        // One may have come before this.
        checkpoint_frames: AtomicBool::new(true),
        not_replayable: Default::default(),
        checkpoints: Default::default(),
    };
    if SIGNALS.set(signals).is_err() {
        return Ok(());
    }
    let transport_setup = transport_setup.clone();
    let blocked = crate::os::signals::block_all();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("rustbtl-line".into()).spawn(move || {
        rustbtl_process::scheduling::be_prompt();
        let freezer = match Freezer::new() {
            Ok(freezer) => freezer,
            Err(error) => return drop(tell.send(Err(error.to_string()))),
        };
        let checkpoint = Checkpoint {
            shared,
            guardian,
            transport_setup,
            silence,
            members,
            huge_pages,
            huge_pages_for: CheckpointId(0),
            freezer,
            children: BTreeMap::new(),
            covered: BTreeMap::new(),
            ready: false,
            told_not_replayable: [false; 3],
            behind: false,
            repairing: false,
            card,
            ending: Ending::Not,
            over: false,
            log_pressure: crate::checkpoint::log_pressure::LogPressure::default(),
            phases: Phases::default(),
            shipping: Shipping::default(),
            sharing: Sharing::default(),
        };
        drop(tell.send(Ok(())));
        checkpoint.run();
    });
    crate::os::signals::restore(&blocked);
    thread.map_err(|error| format!("the checkpoint thread cannot be started: {error}"))?;
    told.recv().unwrap_or_else(|_| Err("the checkpoint thread has ended".into()))
}

impl Checkpoint {
    fn run(mut self) {
        let hello = self.hello();
        self.say(&hello);
        while !self.over {
            self.wait();
            self.look();
        }
    }

    /// Who this is.
    fn hello(&self) -> FromRank {
        match self.shared.take() {
            Ok(process) => crate::checkpoint::restart::hello(&process, self.card.clone()),
            Err(error) => self.fatal(&error.to_string()),
        }
    }

    /// Sleep until there may be something to do.
    fn wait(&self) {
        let direct = self.direct_to_poll().unwrap_or(-1);
        Self::signals().wake.wait([self.guardian.fd(), direct], self.patience());
    }

    /// Everything that may have happened.
    fn look(&mut self) {
        // SAFETY: no arguments.
        if !self.ready && unsafe { (self.shared.glue.stage)() } > 0 {
            self.ready = true;
            self.told_not_replayable = [false; 3]; // maybe another coordinator
            self.record_early();
            self.say(&FromRank::Ready {});
        }
        let all = [ReplayBlocker::Set, ReplayBlocker::Others, ReplayBlocker::Everybody];
        for hinders in all.into_iter().filter(|_| self.ready) {
            let told = &mut self.told_not_replayable[hinders as usize];
            if let Some(&reason) = Self::signals().not_replayable[hinders as usize].get()
                && !core::mem::replace(told, true)
            {
                self.say(&FromRank::NotReplayable { reason: reason.into(), blocker: hinders });
            }
        }
        // [fence] the callback's place is filled.
        let fence = Self::signals().fence.load(Ordering::Acquire);
        if fence && self.ending == Ending::Not && self.ready {
            self.ending = Ending::Told;
            self.say(&FromRank::Finishing {});
        }
        if self.ready {
            self.pass_on_requests();
            self.catch_up();
            self.pass_on_log();
        }
        self.listen(&mut None);
        self.repair();
        self.determinants();
        if self.line() {
            self.determinants();
        }
    }

    /// Has this process repeated what was lost with its earlier life?
    fn catch_up(&mut self) {
        if !self.behind {
            return;
        }
        let Ok(mut process) = self.shared.take() else { return };
        // A program that computes does not look, and lines of all sets wait for the channel.
        let repairs = self.ending == Ending::Not && !process.engine.is_repaired();
        if repairs {
            process.poll();
        }
        self.behind = !process.has_caught_up();
        if !self.behind {
            process.caught_up();
        }
        drop(process);
        if repairs {
            self.deliver();
        }
        if !self.behind {
            self.shared.glue.verbose(verbose::INFO, || "replay complete".to_owned());
            self.say(&FromRank::ReplayComplete {});
        }
    }

    /// Processes that were started again need what this one has sent them, however long its program
    /// computes. Once they are reached `answer` sees to it that what is late goes.
    fn repair(&mut self) {
        if !self.repairing || self.ending != Ending::Not {
            return;
        }
        let Ok(mut process) = self.shared.take() else { return };
        process.poll();
        self.repairing = !process.engine.is_repaired();
        drop(process);
        self.deliver();
    }

    /// Take in what the guardian says. `taken`: the process, if it is ours already. Whoever takes
    /// it a second time lets the program in when he gives it back.
    pub(crate) fn listen(&mut self, taken: &mut Option<Taken>) {
        loop {
            match self.guardian.receive() {
                Ok(Some(message)) => self.hear(message, taken),
                Ok(None) => return,
                Err(error) => return self.alone(&error),
            }
        }
    }

    /// Without a guardian there are no lines; the program's end is near or has come.
    fn alone(&mut self, error: &GuardianError) {
        self.over = true;
        if *error != GuardianError::Gone {
            self.shared.glue.tell("notice", &[&error.to_string()]);
        }
        Self::signals().requests.end("the guardian of this process has gone");
        if let Ok(mut process) = self.shared.take() {
            // Nor start anybody again.
            process.protected = false;
            process.unprotected_ns = now_ns();
        }
        // Nobody will ever say MayFinish.
        self.may_finish();
    }

    pub(crate) fn say(&self, message: &FromRank) {
        // That it has gone shows when it is listened to. A message that cannot be one must not be
        // lost in silence.
        if let Err(error @ GuardianError::Control(_)) = self.guardian.send(message) {
            self.fatal(&error.to_string());
        }
    }

    fn may_finish(&mut self) {
        self.ending = Ending::Over;
        self.stop_recording();
        let _ = self.silence.handle(Input::Finish);
        if Self::signals().fence.swap(false, Ordering::AcqRel) {
            // SAFETY: the program waits in MPI_Finalize and holds nothing.
            unsafe { (self.shared.glue.fenced)() };
        }
    }

    pub(crate) fn hear(&mut self, message: ToRank, taken: &mut Option<Taken>) {
        let Some(message) = self.keep_for_later(message) else { return };
        if let ToRank::StopOutgoing { checkpoint: line } | ToRank::Begin { checkpoint: line, .. } =
            message
            && taken.is_none()
        {
            self.make_huge_pages(line);
        }
        match message {
            ToRank::Welcome { .. } | ToRank::Restarted { .. } => {}
            ToRank::CheckpointComplete { .. } => count(1),
            ToRank::CheckpointRequestResult { number, checkpoint: line, problem } => {
                let outcome = if problem.is_empty() { Ok(line) } else { Err(problem) };
                Self::signals().requests.answer(number, outcome);
            }
            ToRank::StopOutgoing { checkpoint: line } => {
                self.input(Input::StopOutgoing { checkpoint: line.0 })
            }
            ToRank::Begin { checkpoint: line, kind, members, .. } => {
                self.begin(line, kind, &members)
            }
            ToRank::Resume { checkpoint: line } => self.input(Input::Resume { checkpoint: line.0 }),
            ToRank::Abort { checkpoint: line, .. } => {
                self.children.remove(&line);
                self.covered.remove(&line);
                self.input(Input::Abort { checkpoint: line.0 });
            }
            ToRank::Trim { checkpoint: line } => self.covered(line),
            ToRank::ReceivedVector { from, bytes, .. } => self.trim(from, &bytes, taken),
            ToRank::Endpoints { endpoints: cards, restarted } => {
                self.meet_again(&cards, &restarted)
            }
            // Taken out while the program stands still.
            ToRank::OutputDrained { .. } => {}
            ToRank::MayFinish {} => self.may_finish(),
            ToRank::Release { checkpoint: line } => drop(self.children.remove(&line)),
            ToRank::ReportStatus {} => self.status(taken),
            ToRank::ResendDeterminants {} => self.ship_again(),
            ToRank::Stable { incarnation, upto } => self.stable(incarnation, upto),
            ToRank::Coordinator { addresses, secret } => self.introduce(addresses, secret),
            ToRank::Fence { set, before } => self.fence(set, before),
            // Only a process that is being restored hears it.
            ToRank::Replay { .. } => {}
        }
    }

    /// Once for each line, and before this process takes part in it: the program is in MPI or not,
    /// as it likes.
    fn make_huge_pages(&mut self, line: CheckpointId) {
        if self.huge_pages && self.huge_pages_for != line {
            self.huge_pages_for = line;
            self.freezer.make_huge_pages();
        }
    }

    /// Ask for a checkpoint if the log wants one.
    fn pass_on_log(&mut self) {
        let mark = Self::signals().nearly_full.swap(false, Ordering::Relaxed);
        let shared = self.shared;
        let wanted = self.log_pressure.handle(mark, now_ns(), || {
            let process = shared.take().ok()?;
            let log = &process.host.log;
            Some(log.largest_set().filter(|_| log.is_nearly_full()))
        });
        if let Some((set, bytes)) = wanted {
            count(0);
            self.say(&FromRank::LogNearlyFull { set, bytes });
        }
    }

    /// Another process, perhaps on another node, whose clock is another one: look afresh.
    pub(crate) fn restored_log(&mut self) {
        self.log_pressure = Default::default();
        Self::signals().nearly_full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn input(&mut self, input: Input) {
        if let Err(error) = self.silence.handle(input) {
            self.shared.glue.fatal("protocol", &["a line", &error.to_string()]);
        }
    }

    fn status(&self, taken: &mut Option<Taken>) {
        let (counters, largest) = self.with(taken, |process| {
            let largest = process.host.log.largest_set();
            (process.host.log.counters(), largest.map_or(process.host.set, |(set, _)| set))
        });
        self.say(&FromRank::Status {
            log_bytes: counters.bytes,
            log_bytes_peak: counters.bytes_peak,
            messages: counters.messages,
            largest,
        });
    }

    /// The own set goes back to no older line: what this one covers of the others' logs may go.
    fn covered(&mut self, line: CheckpointId) {
        for (to, bytes) in self.covered.remove(&line).unwrap_or_default() {
            self.say(&FromRank::ReceivedVector { checkpoint: line, to, bytes });
        }
        self.covered.retain(|&other, _| other > line);
    }

    /// A process of another set has stored a line: drop what it holds.
    fn trim(&self, from: PeerId, bytes: &[u8], taken: &mut Option<Taken>) {
        let held = match ReceivedVector::decode(bytes) {
            Ok(held) => held,
            Err(error) => self.fatal(&format!("account of rank {from}: {error}")),
        };
        self.with(taken, |process| {
            let from = process.host.peers.of_rank(from.0);
            let (engine, host) = (&process.engine, &mut process.host);
            let known = engine.traffic().find(|(peer, ..)| *peer == from);
            let Some((_, set, _)) = known else { return };
            // Records that a send still refers to are open at the receiver, hence not covered.
            debug_assert_ne!(set, host.set);
            host.trim_log(set, |entry| entry.to == from && held.is_complete(entry));
        });
    }

    pub(crate) fn answer(&mut self, answer: CheckpointAnswer) {
        match answer {
            CheckpointAnswer::Stopped { checkpoint: line } => {
                self.say(&FromRank::OutgoingStopped { checkpoint: CheckpointId(line) })
            }
            CheckpointAnswer::Frozen { checkpoint: line } => self.tell_frozen(CheckpointId(line)),
            CheckpointAnswer::Failed {
                checkpoint: line,
                refusal: CheckpointRefusal::ReplayPending,
            } => {
                self.say(&FromRank::ReplayPending { checkpoint: CheckpointId(line) });
            }
            CheckpointAnswer::Failed { checkpoint: line, refusal: why } => {
                let reason = self.phases.failure.take().unwrap_or_else(|| why.to_string());
                self.say(&FromRank::CheckpointFailed { checkpoint: CheckpointId(line), reason });
            }
        }
    }
}
