//! `rustbtl guardian PROGRAM…`: Open MPI's fork agent, one per rank. It starts the program,
//! stays between orted and it without being noticed, writes its images, and forwards messages.
//!
//! 1. It ends as its program ends: same exit code, same signal.
//! 2. Whatever goes wrong with agent or coordinator, the program keeps running.
//! 3. It outlives neither its program nor its orted, and its program does not outlive it.

pub(crate) mod adopted;
mod agent_link;
pub(crate) mod checkpoints;
mod decision;
pub(crate) mod exit_report;
pub(crate) mod failpoints;
pub mod images;
pub(crate) mod input;
mod lost_time;
pub(crate) mod output;
pub(crate) mod output_forwarding;
pub(crate) mod output_offsets;
pub mod process_images;
pub(crate) mod program;
pub(crate) mod rank;
pub(crate) mod recovery;

use crate::guardian::adopted::Adopted;
use crate::guardian::agent_link::{AGENTS_MAX, AgentLink, AgentWatch};
use crate::guardian::checkpoints::Beside;
use crate::guardian::exit_report::ExitReporter;
use crate::guardian::images::{ImageStore, RestartInfo, StoredImage, Writers};
use crate::guardian::lost_time::ThreadTimes;
use crate::guardian::output::Output;
use crate::guardian::output_offsets::STREAMS;
use crate::guardian::rank::GuardedRank;
use crate::guardian::recovery::Failure;
use crate::link::Link;
use crate::local;
use crate::local::Local;
use crate::os;
use crate::os::{Poll, Signals};
use crate::settings::{NoSettings, Printed, Settings};
use crate::spare::Proxy;
use rustbtl_coordination::control::{CheckpointId, FromNode, ToNode, ToRank};
use std::ffi::OsString;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Signals that a guardian must not follow: orted sends them to the whole process group, so the
/// program has them already.
pub(crate) const SIGNALS: [i32; 16] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCHLD,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGPROF,
    libc::SIGPWR,
];
/// How long a program's end waits for a thread that connects to the agent. It takes milliseconds.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long the report of the program's end may take.
const END_REPORT_MAX: Duration = Duration::from_millis(200);
/// How long the writer of an image may take to see that its program has ended.
const LAST_IMAGE_MAX: Duration = Duration::from_secs(2);

/// What threads of the guardian report.
enum ThreadReport {
    Agent(Result<UnixStream, String>),
    Written(CheckpointId, Result<StoredImage, String>),
}

/// Sends reports of threads, and wakes the guardian.
#[derive(Clone)]
struct Reporter {
    reports: mpsc::Sender<ThreadReport>,
    wake: Arc<UnixStream>,
}

impl Reporter {
    fn report(&self, report: ThreadReport) {
        let _ = self.reports.send(report);
        // If it is full the guardian wakes up anyway.
        let _ = (&*self.wake).write(&[1]);
    }
}

/// Everything about one rank.
struct Guardian {
    settings: Settings,
    store: Arc<dyn ImageStore>,
    /// Where the node keeps images, if there is no folder that all nodes share; or why not.
    local: Option<Result<Local, String>>,
    reporter: Reporter,
    agent: AgentLink,
    agents_left: u32,
    watch: AgentWatch,
    rank: GuardedRank,
    writers: Writers,
    /// Times of the program's threads when its last image was stored.
    times: Option<ThreadTimes>,
    /// Its checkpoint is not complete.
    beside: Option<Beside>,
    /// The program has failed; the coordinator decides whether it is restarted.
    failure: Option<Failure>,
    /// The program that orted had started was restarted from an image.
    restarted: bool,
    /// Only this rank's output goes to its orted, from these positions of its streams on.
    via_daemon: Option<[u64; STREAMS]>,
    /// Positions of its output that were forwarded, as they were reported last.
    reported_output: [u64; STREAMS],
    /// The program is suspended: its node may be cut off.
    suspended: bool,
    /// Orted has ordered the program to end: because the job ends, or because orted itself does.
    ending: bool,
    /// Guardians of ranks whose node is lost: this one stays as long as they do.
    adopted: Vec<Adopted>,
    /// How the program has ended, if it will not be restarted.
    ended: Option<i32>,
}

/// Runs the guardian; never returns.
pub fn run(words: &[OsString], store: Arc<dyn ImageStore>) -> ! {
    rustbtl_process::scheduling::be_prompt();
    let settings = match Settings::read(|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(reason) => {
            match reason {
                NoSettings::NotRequested => {}
                NoSettings::Invalid(variable) => {
                    report!("the variable {variable} makes no sense: running unprotected");
                }
                NoSettings::Secret(reason) => report!("{reason}: running unprotected"),
            }
            cannot_start(words, &crate::guardian::program::become_it(words))
        }
    };
    crate::trace::start();
    let exit_reporter = ExitReporter::new(crate::guardian::recovery::is_adopted());
    let ended = guard(words, settings, Arc::clone(&store));
    store.tidy();
    match ended {
        Ok(status) => {
            exit_reporter.report_end();
            os::end_as(status)
        }
        Err(StartError::Start(error)) => cannot_start(words, &error),
        Err(StartError::Restore(problem)) => {
            if let Err(problem) = exit_reporter.report_not_restored(problem) {
                report!("{problem}");
            }
            os::exit_now(1)
        }
    }
}

/// Why nothing runs.
enum StartError {
    Start(io::Error),
    Restore(String),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

fn cannot_start(words: &[OsString], error: &io::Error) -> ! {
    let name = words.first().map_or("nothing".into(), |name| name.to_string_lossy());
    report!("cannot start {name} on node {}: {error}", os::hostname());
    os::exit_now(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Starts the program or restores the image, and stays with it; returns how it ended.
fn guard(
    words: &[OsString],
    settings: Settings,
    store: Arc<dyn ImageStore>,
) -> Result<i32, StartError> {
    let signals = Signals::take(&SIGNALS)?;
    let orted = os::pidfd(os::parent())?;
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    // Before the agent is started: it removes what nobody holds.
    let local = settings.local.as_deref().map(Local::enter);
    let (output, mut ends) = crate::guardian::output::open(&settings);
    let mut input = None;
    if output.is_some() {
        let opened = crate::guardian::input::of(&settings).map_err(StartError::Restore)?;
        (input, ends.1) = opened.unzip();
    }
    let pid = match &settings.restore {
        None => {
            let given = (theirs, settings.undo());
            let (mask, rank) = (signals.mask_before(), (settings.rank.0, settings.size));
            crate::guardian::program::start(words, given, ends, mask, rank)?.id() as os::Pid
        }
        Some(checkpoint) => {
            crate::guardian::recovery::restore(&*store, &settings, checkpoint, theirs, ends)
                .map_err(StartError::Restore)?
        }
    };
    // Threads only from here on: the program dies with the thread that has started it.
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let (sender, reports) = mpsc::channel();
    let reporter = Reporter { reports: sender, wake: Arc::new(waker) };
    let adopted = settings.printed.is_some();
    let via_daemon = output.as_ref().filter(|_| !adopted).map(Output::start_positions);
    let mut rank = GuardedRank::new(pid, Link::new(ours)?, output, input);
    if settings.restore.is_some() {
        rank.begin_restored(crate::guardian::recovery::restart_info(&settings));
    }
    let mut guardian = Guardian {
        settings,
        store,
        local,
        reporter,
        agent: AgentLink::Connecting,
        agents_left: AGENTS_MAX,
        watch: AgentWatch::new(),
        rank,
        writers: Writers::default(),
        times: None,
        beside: None,
        failure: None,
        restarted: false,
        via_daemon,
        reported_output: [0; STREAMS],
        suspended: false,
        ending: false,
        adopted: Vec::new(),
        ended: None,
    };
    guardian.connect_agent();
    guardian.poll_loop(&signals, &orted, &wake, &reports).map_err(StartError::Start)
}

impl Guardian {
    fn poll_loop(
        &mut self,
        signals: &Signals,
        orted: &OwnedFd,
        wake: &UnixStream,
        reports: &mpsc::Receiver<ThreadReport>,
    ) -> io::Result<i32> {
        loop {
            let mut poll = Poll::default();
            let signalled = poll.add(signals.fd(), false);
            let woken = poll.add(wake.as_raw_fd(), false);
            let orphaned = poll.add(orted.as_raw_fd(), false);
            let from_rank = self.rank.link().map(|link| poll.add(link.fd(), link.wants_to_write()));
            let from_agent = match &self.agent {
                AgentLink::Connected(link) => Some(poll.add(link.fd(), link.wants_to_write())),
                _ => None,
            };
            let printed = self.rank.output.as_ref().map(|output| output.poll(&mut poll));
            let given = self.rank.input.as_ref().map(|input| input.poll(&mut poll));
            poll.wait(self.next_look())?;
            self.look_at_agent();
            if poll.is_ready(orphaned) {
                self.end_group();
            }
            if let (Some(output), Some(slots)) = (&mut self.rank.output, &printed) {
                output.handle_ready(&poll, slots);
                self.report_output_offsets();
                self.send_output();
            }
            if let (Some(input), Some(slots)) = (&mut self.rank.input, given)
                && let Err(problem) = input.handle_ready(&poll, slots)
            {
                self.end_without_input(&problem);
            }
            if from_rank.is_some_and(|slot| poll.is_ready(slot)) {
                self.handle_rank();
            }
            if poll.is_ready(woken) {
                let mut bytes = [0; 64];
                while (&*wake).read(&mut bytes).is_ok_and(|n| n > 0) {}
                while let Ok(report) = reports.try_recv() {
                    self.handle_report(report);
                }
            }
            if from_agent.is_some_and(|slot| poll.is_ready(slot)) {
                self.handle_agent();
            }
            if poll.is_ready(signalled) {
                while let Some(signal) = signals.next() {
                    self.handle_signal(signal);
                }
                if let Some(program) = self.rank.program()
                    && let Some(status) = os::reap(program)?
                {
                    self.handle_rank();
                    self.rank.program_ended(self.settings.rank);
                    if self.may_be_restarted(status) {
                        self.report_failure(status);
                    } else {
                        self.end(status, reports, orted)?;
                    }
                }
            }
            if let Some(failure) = self.failure.take_if(|failure| failure.is_expired()) {
                self.report_undecided(&failure);
                self.end(failure.status, reports, orted)?;
            }
            if let Some(status) = self.status_of_all() {
                return Ok(status);
            }
        }
    }

    /// The program has ended and will not be restarted.
    fn end(
        &mut self,
        status: i32,
        reports: &mpsc::Receiver<ThreadReport>,
        orted: &OwnedFd,
    ) -> io::Result<()> {
        // A thread that is starting an agent must not stop half-way: the agent removes the
        // directory.
        if matches!(self.agent, AgentLink::Connecting)
            && let Ok(report) = reports.recv_timeout(CONNECT_MAX)
        {
            self.handle_report(report);
        }
        if self.restarted
            && status == 0
            && self.rank.has_finished()
            && let Err(reason) = crate::pmix::leave_in_child()
        {
            let rank = self.settings.rank;
            report!("rank {rank} could not disconnect from Open MPI's runtime: {reason}");
        }
        self.report_end(status);
        self.writers.wait(LAST_IMAGE_MAX);
        self.ended = Some(status);
        self.last_output(reports, orted, status == 0)
    }

    /// The program cannot go on as before: it would read less than it had.
    fn end_without_input(&mut self, problem: &str) {
        self.rank.input = None;
        report!("rank {} on node {}: {problem}", self.settings.rank, os::hostname());
        self.ending = true;
        self.signal(libc::SIGKILL);
    }

    /// Sends a signal to the program, if it runs.
    fn signal(&self, number: i32) {
        if let Some(program) = self.rank.program() {
            os::kill(program, number);
        }
    }

    /// Orted has ended: nothing of the job may stay.
    fn end_group(&mut self) -> ! {
        self.rank.drop_snapshots(self.settings.rank);
        self.signal(libc::SIGKILL);
        self.writers.wait(END_REPORT_MAX);
        if let Some(Ok(local)) = &self.local {
            local::remove(local.path());
        }
        if os::leads_group() {
            os::kill(0, libc::SIGKILL);
        }
        os::exit_now(1)
    }

    /// Passes on a signal that somebody sent to the guardian alone: it is meant for the program.
    /// Orted sends to the whole group.
    fn handle_signal(&mut self, signal: os::Signal) {
        let orted = self.is_orted(signal.sender);
        self.ending |= orted && signal.number == libc::SIGTERM;
        let program = self.rank.program().unwrap_or(0);
        let known = [0, program, std::process::id() as os::Pid];
        if signal.number != libc::SIGCHLD && !orted && !known.contains(&signal.sender) {
            self.signal(signal.number);
        }
    }

    /// Reports that the program has ended, but does not wait long for it.
    fn report_end(&mut self, status: i32) {
        self.rank.drop_snapshots(self.settings.rank);
        let rank = self.settings.rank;
        self.send(&FromNode::Ended { rank, status, ordered: self.ending });
        let until = Instant::now() + END_REPORT_MAX;
        while let AgentLink::Connected(link) = &mut self.agent {
            if !link.wants_to_write() || Instant::now() >= until {
                break;
            }
            let mut poll = Poll::default();
            poll.add(link.fd(), true);
            if poll.wait(Some(until)).is_err() || link.flush().is_err() {
                break;
            }
        }
    }

    fn handle_report(&mut self, report: ThreadReport) {
        match report {
            ThreadReport::Agent(Ok(stream)) => match Link::new(stream) {
                Ok(link) => {
                    self.watch(&link);
                    self.agent = AgentLink::Connected(link);
                    self.register();
                }
                Err(error) => self.disable_protection(&error.to_string()),
            },
            ThreadReport::Agent(Err(problem)) => {
                let node = os::hostname();
                self.disable_protection(&format!(
                    "node {node}: no agent, so no checkpoint can be taken ({problem})"
                ));
            }
            ThreadReport::Written(checkpoint, result) => self.written(checkpoint, result),
        }
    }

    fn handle_order(&mut self, message: ToNode) {
        let mine = self.settings.rank;
        match message {
            ToNode::Rank { rank, message } if rank == mine => {
                // Endpoints are sent when every rank of the job is restored and has reported that.
                if matches!(message, ToRank::Endpoints { .. }) {
                    self.store.tidy();
                    failpoints::at(failpoints::ENDPOINTS, mine);
                }
                if matches!(message, ToRank::Begin { .. }) {
                    failpoints::at(failpoints::BEGIN, mine);
                }
                let complete = match message {
                    ToRank::CheckpointComplete { checkpoint, .. } => Some(checkpoint),
                    _ => None,
                };
                self.rank.handle_order(message);
                if let Some(checkpoint) = complete {
                    self.report_lost(checkpoint);
                }
            }
            ToNode::AllRanks { message } => self.rank.handle_order(message),
            ToNode::Prepare { rank, checkpoint, directory } if rank == mine => {
                self.prepare(checkpoint, &directory);
            }
            ToNode::Discard { rank, checkpoint } if rank == mine => {
                self.rank.discard(checkpoint, mine)
            }
            ToNode::Restore { rank, directory, incarnation, alone } if rank == mine => {
                self.roll_back(&directory, RestartInfo { incarnation, alone });
            }
            ToNode::Adopt { host, rank, directory, incarnation, alone, out, err, exact }
                if host == mine =>
            {
                let printed = Printed { bytes: [out, err], exact };
                self.adopt(rank, &directory, RestartInfo { incarnation, alone }, printed);
            }
            ToNode::AdoptOnSpare {
                host,
                rank,
                directory,
                incarnation,
                alone,
                out,
                err,
                exact,
                addresses,
            } if host == mine => {
                let printed = Printed { bytes: [out, err], exact };
                let restart = RestartInfo { incarnation, alone };
                let proxy = Proxy::new(rank, restart, printed, directory, &addresses);
                self.adopt_on_spare(rank, incarnation, proxy);
            }
            ToNode::Abandon { host, rank } if host == mine => self.abandon(rank),
            ToNode::OutputAccepted { rank, stream, position } if rank == mine => {
                self.output_accepted(stream, position);
            }
            ToNode::AllRestored { rank, incarnation }
                if rank == mine && incarnation == self.settings.incarnation =>
            {
                self.rank.send(&ToRank::AllRestored {});
            }
            ToNode::NoRestart { rank } if rank == mine => self.refuse_restart(),
            ToNode::End { rank, incarnation, reason }
                if rank == mine && incarnation == self.incarnation() =>
            {
                self.end_superseded(&reason)
            }
            ToNode::Suspend { suspended } => self.suspend(suspended),
            ToNode::CoordinatorUnreachable { reason } => self.disable_protection(&reason),
            ToNode::Reregister {} => {
                self.rank.abort_checkpoint("the job's coordinator has ended");
                self.register();
            }
            _ => {}
        }
    }

    /// Suspends the program, or has it go on.
    fn suspend(&mut self, suspended: bool) {
        if core::mem::replace(&mut self.suspended, suspended) != suspended {
            self.signal(if suspended { libc::SIGSTOP } else { libc::SIGCONT });
        }
    }

    /// From now on the program runs unprotected.
    fn disable_protection(&mut self, reason: &str) {
        self.agent = AgentLink::None;
        self.suspend(false);
        // Nobody will decide about a program that has failed.
        self.refuse_restart();
        if !reason.is_empty() {
            report!("{reason}");
        }
        if self.rank.awaits_endpoints() {
            if !reason.is_empty() {
                report!(
                    "rank {} on node {}: it was restored from an image, and without the job's \
                     coordinator it does not learn where the others are: it is ended",
                    self.settings.rank,
                    os::hostname()
                );
            }
            self.ending = true;
            self.signal(libc::SIGKILL);
        }
        self.rank.disable_protection();
        self.stop_output_relay();
    }

    fn handle_rank(&mut self) {
        let unprotected = matches!(self.agent, AgentLink::None);
        for message in self.rank.receive(&self.settings, unprotected) {
            self.send(&message);
        }
        self.write_images();
    }
}
