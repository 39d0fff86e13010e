//! `rustbtl guardian PROGRAM…`: Open MPI's fork agent, one per rank. It starts the program, stays
//! between orted and it without being noticed, writes its images, and passes messages on.
//!
//! 1. It ends as its program ends: same exit code, same signal.
//! 2. Whatever goes wrong with agent or coordinator, the program runs on.
//! 3. It outlives neither its program nor its orted, and its program does not outlive it.

pub(crate) mod adopted;
pub(crate) mod exit_report;
pub(crate) mod failpoints;
pub mod images;
pub(crate) mod output;
pub(crate) mod output_forwarding;
pub(crate) mod output_offsets;
pub mod process_images;
pub(crate) mod program;
pub(crate) mod rank;
pub(crate) mod recovery;

use crate::guardian::adopted::Adopted;
use crate::guardian::exit_report::LastWord;
use crate::guardian::images::{ImageStore, Life, Writers, Written};
use crate::guardian::output::Output;
use crate::guardian::output_offsets::STREAMS;
use crate::guardian::rank::Rank;
use crate::guardian::recovery::Fallen;
use crate::link::Link;
use crate::local;
use crate::local::Local;
use crate::node;
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
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
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
/// How often a lost agent is replaced.
const AGENTS_MAX: u32 = 5;
/// How long a program's end waits for the search for an agent to end. It takes milliseconds.
const SEARCH_MAX: Duration = Duration::from_secs(2);
/// How long the news of the program's end may take.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long the writer of an image may take to see that its program has gone.
const LAST_IMAGE: Duration = Duration::from_secs(2);

/// What threads of the guardian report.
enum News {
    Agent(Result<UnixStream, String>),
    Written(CheckpointId, Result<(Written, u64), String>),
}

/// How threads report it.
#[derive(Clone)]
struct Reporter {
    news: mpsc::Sender<News>,
    wake: Arc<UnixStream>,
}

impl Reporter {
    fn report(&self, news: News) {
        let _ = self.news.send(news);
        // Full means that the guardian is going to look anyway.
        let _ = (&*self.wake).write(&[1]);
    }
}

enum Agent {
    /// A thread looks for it.
    Sought,
    There(Link),
    /// There is none, and there will be none.
    None,
}

/// Everything about one rank.
struct Guardian {
    settings: Settings,
    store: Arc<dyn ImageStore>,
    /// Where the node keeps images, if there is no folder that all nodes share; or why not.
    local: Option<Result<Local, String>>,
    reporter: Reporter,
    agent: Agent,
    agents_left: u32,
    rank: Rank,
    writers: Writers,
    /// The program was ended by a signal; somebody decides whether it is started again.
    fallen: Option<Fallen>,
    /// Orted has started the program, and this guardian has made it anew.
    made_anew: bool,
    /// What goes to orted is this rank's alone, and began where its streams were then.
    own_way: Option<[u64; STREAMS]>,
    /// What was handed on of its output, as it was told last.
    printed: [u64; STREAMS],
    /// Orted has told the program to end.
    ending: bool,
    /// Guardians of ranks whose node is lost: this one stays as long as they do.
    adopted: Vec<Adopted>,
    /// How the program has ended for good.
    ended: Option<i32>,
}

/// Runs the guardian; never comes back.
pub fn run(words: &[OsString], store: Arc<dyn ImageStore>) -> ! {
    rustbtl_process::scheduling::be_prompt();
    let settings = match Settings::read(|name| std::env::var_os(name)) {
        Ok(settings) => settings,
        Err(reason) => {
            if let NoSettings::Bad(variable) = reason {
                say!("the variable {variable} makes no sense: running unprotected");
            }
            cannot_start(words, &crate::guardian::program::become_it(words))
        }
    };
    crate::trace::start();
    let last_word = LastWord::new(crate::guardian::recovery::is_adopted());
    let ended = guard(words, settings, Arc::clone(&store));
    store.tidy();
    match ended {
        Ok(status) => {
            last_word.say();
            os::end_as(status)
        }
        Err(Trouble::Start(error)) => cannot_start(words, &error),
        Err(Trouble::Restore(problem)) => {
            if let Err(problem) = last_word.not_restored(problem) {
                say!("{problem}");
            }
            os::exit_now(1)
        }
    }
}

/// Why nothing runs.
enum Trouble {
    Start(io::Error),
    Restore(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Start(error)
    }
}

fn cannot_start(words: &[OsString], error: &io::Error) -> ! {
    let name = words.first().map_or("nothing".into(), |name| name.to_string_lossy());
    say!("cannot start {name} on node {}: {error}", os::hostname());
    os::exit_now(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Starts the program or restores the image, and stays with it: how it ended.
fn guard(
    words: &[OsString],
    settings: Settings,
    store: Arc<dyn ImageStore>,
) -> Result<i32, Trouble> {
    let signals = Signals::take(&SIGNALS)?;
    let orted = os::pidfd(os::parent())?;
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    // Before the agent, which removes what nobody holds.
    let local = settings.local.as_deref().map(Local::enter);
    let (output, ends) = crate::guardian::output::open(&settings);
    let pid = match &settings.restore {
        None => crate::guardian::program::start(words, theirs, ends, signals.mask_before())?.id()
            as os::Pid,
        Some(line) => crate::guardian::recovery::restore(&*store, &settings, line, theirs, ends)
            .map_err(Trouble::Restore)?,
    };
    // Threads only from here on: the program dies with the thread that has started it.
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let (sender, news) = mpsc::channel();
    let reporter = Reporter { news: sender, wake: Arc::new(waker) };
    let adopted = settings.printed.is_some();
    let own_way = output.as_ref().filter(|_| !adopted).map(Output::began);
    let mut rank = Rank::new(pid, Link::new(ours)?, output);
    if settings.restore.is_some() {
        rank.say(&ToRank::Restarted { incarnation: settings.incarnation });
    }
    let mut guardian = Guardian {
        settings,
        store,
        local,
        reporter,
        agent: Agent::Sought,
        agents_left: AGENTS_MAX,
        rank,
        writers: Writers::default(),
        fallen: None,
        made_anew: false,
        own_way,
        printed: [0; STREAMS],
        ending: false,
        adopted: Vec::new(),
        ended: None,
    };
    guardian.seek_agent();
    guardian.attend(&signals, &orted, &wake, &news).map_err(Trouble::Start)
}

impl Guardian {
    fn attend(
        &mut self,
        signals: &Signals,
        orted: &OwnedFd,
        wake: &UnixStream,
        news: &mpsc::Receiver<News>,
    ) -> io::Result<i32> {
        loop {
            let mut poll = Poll::default();
            let signalled = poll.add(signals.fd(), false);
            let woken = poll.add(wake.as_raw_fd(), false);
            let orphaned = poll.add(orted.as_raw_fd(), false);
            let from_rank = self.rank.link().map(|link| poll.add(link.fd(), link.wants_to_write()));
            let from_agent = match &self.agent {
                Agent::There(link) => Some(poll.add(link.fd(), link.wants_to_write())),
                _ => None,
            };
            let printed = self.rank.output.as_ref().map(|output| output.poll(&mut poll));
            poll.wait(self.fallen.as_ref().map(|fallen| fallen.until))?;
            if poll.is_ready(orphaned) {
                self.end_group();
            }
            if let (Some(output), Some(places)) = (&mut self.rank.output, &printed) {
                output.attend(&poll, places);
                self.tell_printed();
                self.send_output();
            }
            if from_rank.is_some_and(|place| poll.is_ready(place)) {
                self.hear_rank();
            }
            if poll.is_ready(woken) {
                let mut bytes = [0; 64];
                while (&*wake).read(&mut bytes).is_ok_and(|n| n > 0) {}
                while let Ok(news) = news.try_recv() {
                    self.hear_news(news);
                }
            }
            if from_agent.is_some_and(|place| poll.is_ready(place)) {
                self.hear_agent();
            }
            if poll.is_ready(signalled) {
                while let Some(signal) = signals.next() {
                    self.heed(signal);
                }
                if let Some(program) = self.rank.program()
                    && let Some(status) = os::reap(program)?
                {
                    self.hear_rank();
                    self.rank.is_dead(self.settings.rank);
                    if self.may_come_back(status) {
                        self.fall(status);
                    } else {
                        self.end(status, news, orted)?;
                    }
                }
            }
            if let Some(fallen) = self.fallen.take_if(|fallen| fallen.is_over()) {
                self.end(fallen.status, news, orted)?;
            }
            if let Some(status) = self.status_of_all() {
                return Ok(status);
            }
        }
    }

    /// The program has ended for good.
    fn end(&mut self, status: i32, news: &mpsc::Receiver<News>, orted: &OwnedFd) -> io::Result<()> {
        // A thread that is starting an agent must not stop half-way: the agent is what removes the
        // directory.
        if matches!(self.agent, Agent::Sought)
            && let Ok(news) = news.recv_timeout(SEARCH_MAX)
        {
            self.hear_news(news);
        }
        if self.made_anew
            && status == 0
            && self.rank.has_finished()
            && let Err(reason) = crate::pmix::have_left()
        {
            let rank = self.settings.rank;
            say!("rank {rank} could not take its leave of Open MPI's runtime: {reason}");
        }
        self.last_words(status);
        self.writers.wait(LAST_IMAGE);
        self.ended = Some(status);
        self.last_output(news, orted, status == 0)
    }

    /// To the program, if there is one.
    fn signal(&self, number: i32) {
        if let Some(program) = self.rank.program() {
            os::kill(program, number);
        }
    }

    /// Orted has gone: nothing of the job may stay.
    fn end_group(&mut self) -> ! {
        self.rank.give_up(self.settings.rank);
        self.signal(libc::SIGKILL);
        self.writers.wait(LAST_WORDS);
        if let Some(Ok(local)) = &self.local {
            local::remove(local.path());
        }
        if os::leads_group() {
            os::kill(0, libc::SIGKILL);
        }
        os::exit_now(1)
    }

    /// A signal that somebody sent to the guardian alone is meant for the program; orted sends to
    /// the whole group.
    fn heed(&mut self, signal: os::Signal) {
        let orted = self.orted_is(signal.sender);
        self.ending |= orted && signal.number == libc::SIGTERM;
        let program = self.rank.program().unwrap_or(0);
        let known = [0, program, std::process::id() as os::Pid];
        if signal.number != libc::SIGCHLD && !orted && !known.contains(&signal.sender) {
            self.signal(signal.number);
        }
    }

    /// The program has ended: tell, but do not let anybody wait for it.
    fn last_words(&mut self, status: i32) {
        self.rank.give_up(self.settings.rank);
        let rank = self.settings.rank;
        self.tell(&FromNode::Ended { rank, status });
        let until = Instant::now() + LAST_WORDS;
        while let Agent::There(link) = &mut self.agent {
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

    fn seek_agent(&mut self) {
        let (settings, reporter) = (self.settings.clone(), self.reporter.clone());
        self.agent = Agent::Sought;
        thread::spawn(move || reporter.report(News::Agent(node::reach_agent(&settings))));
    }

    fn hear_news(&mut self, news: News) {
        match news {
            News::Agent(Ok(stream)) => match Link::new(stream) {
                Ok(link) => {
                    self.agent = Agent::There(link);
                    self.introduce();
                }
                Err(error) => self.no_agent(&error.to_string()),
            },
            News::Agent(Err(problem)) => {
                let node = os::hostname();
                self.no_agent(&format!(
                    "node {node}: no agent, so no checkpoint can be taken ({problem})"
                ));
            }
            News::Written(line, result) => self.written(line, result),
        }
    }

    /// To a new agent: who we are and what the rank has said so far.
    fn introduce(&mut self) {
        let Settings { rank, size, .. } = self.settings;
        let pid = std::process::id();
        let incarnation = self.incarnation();
        self.tell(&FromNode::Guardian { rank, size, pid, incarnation });
        for message in self.rank.said() {
            self.tell(&FromNode::Rank { rank, message });
        }
        if let Some([out, err]) = self.own_way {
            self.tell(&FromNode::OutputViaDaemon { rank, out, err });
        }
        if self.local.is_some() {
            let [out, err] = self.printed;
            self.tell(&FromNode::OutputOffsets { rank, out, err });
        }
        if let Some(Fallen { status, .. }) = self.fallen {
            self.tell(&FromNode::RankFailed { rank, status, incarnation });
        }
        self.rank.introduce(&self.settings);
        self.send_output_anew();
    }

    /// To the agent, if there is one.
    fn tell(&mut self, message: &FromNode) {
        if let Agent::There(link) = &mut self.agent
            && link.send(message).is_err()
        {
            self.lost_agent();
        }
    }

    fn hear_agent(&mut self) {
        let Agent::There(link) = &mut self.agent else { return };
        let open = link.flush().is_ok() & link.read().is_ok();
        let mut messages = Vec::new();
        let sane = loop {
            match link.next_message::<ToNode>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        for message in messages {
            self.obey(message);
        }
        if (!open || !sane) && matches!(self.agent, Agent::There(_)) {
            self.lost_agent();
        }
    }

    fn obey(&mut self, message: ToNode) {
        let mine = self.settings.rank;
        match message {
            ToNode::Rank { rank, message } if rank == mine => {
                // Cards are sent when every rank of the job is restored and has said so.
                if matches!(message, ToRank::Endpoints { .. }) {
                    self.store.tidy();
                }
                if matches!(message, ToRank::Begin { .. }) {
                    crate::guardian::failpoints::at(crate::guardian::failpoints::BEGIN, mine);
                }
                self.rank.order(message);
            }
            ToNode::Prepare { rank, checkpoint: line, directory } if rank == mine => {
                self.prepare(line, &directory);
            }
            ToNode::Discard { rank, checkpoint: line } if rank == mine => {
                self.rank.discard(line, mine)
            }
            ToNode::Restore { rank, directory, incarnation, alone } if rank == mine => {
                self.start_again(&directory, Life { incarnation, alone });
            }
            ToNode::Adopt { host, rank, directory, incarnation, alone, out, err, exact }
                if host == mine =>
            {
                let printed = Printed { bytes: [out, err], exact };
                self.adopt(rank, &directory, Life { incarnation, alone }, printed);
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
                let life = Life { incarnation, alone };
                let proxy = Proxy::new(rank, life, printed, directory, &addresses);
                self.adopt_at(rank, incarnation, proxy);
            }
            ToNode::Abandon { host, rank } if host == mine => self.abandon(rank),
            ToNode::OutputAccepted { rank, stream, position } if rank == mine => {
                self.taken(stream, position);
            }
            ToNode::NoRestart { rank } if rank == mine => self.give_up(),
            ToNode::End { rank, incarnation, reason }
                if rank == mine && incarnation == self.incarnation() =>
            {
                self.end_here(&reason)
            }
            ToNode::CoordinatorUnreachable { reason } => self.no_agent(&reason),
            ToNode::Reregister {} => {
                self.rank.nobody_coordinates("the job's coordinator has ended");
                self.introduce();
            }
            _ => {}
        }
    }

    /// A folder as the coordinator calls it.
    fn folder(&self, directory: &str) -> Result<PathBuf, String> {
        if Path::new(directory).is_absolute() {
            return Ok(directory.into());
        }
        match &self.local {
            Some(Ok(local)) => local.line(directory),
            Some(Err(problem)) => return Err(problem.clone()),
            None => None,
        }
        .ok_or_else(|| format!("there is no folder {directory:?}"))
    }

    fn prepare(&mut self, line: CheckpointId, directory: &str) {
        let rank = self.settings.rank;
        match self.folder(directory) {
            Ok(folder) => {
                if let Some(message) = self.rank.prepare(line, folder, rank) {
                    self.tell(&message);
                    self.write_images();
                }
            }
            Err(reason) => self.tell(&FromNode::StoreFailed { rank, checkpoint: line, reason }),
        }
    }

    /// The agent has gone: the line that was being taken fails, and there shall be another agent.
    fn lost_agent(&mut self) {
        self.rank.nobody_coordinates("the agent of this node has gone");
        if self.agents_left == 0 {
            self.no_agent("the agent of this node ends again and again: no more checkpoints");
            return;
        }
        self.agents_left -= 1;
        self.seek_agent();
    }

    /// From now on the program is alone.
    fn no_agent(&mut self, reason: &str) {
        self.agent = Agent::None;
        // Nobody will decide about a program that has fallen.
        self.give_up();
        if !reason.is_empty() {
            say!("{reason}");
        }
        self.rank.stay_alone();
        self.print_here();
    }

    fn hear_rank(&mut self) {
        let alone = matches!(self.agent, Agent::None);
        for message in self.rank.hear(&self.settings, alone) {
            self.tell(&message);
        }
        self.write_images();
    }

    fn write_images(&mut self) {
        while let Some(mut job) = self.rank.next_image() {
            job.limited = self.local.is_some();
            let (store, reporter) = (self.store.clone(), self.reporter.clone());
            let told = move |line, result| reporter.report(News::Written(line, result));
            self.writers.write(job, store, told);
        }
    }

    fn written(&mut self, line: CheckpointId, result: Result<(Written, u64), String>) {
        let rank = self.settings.rank;
        self.rank.release(line, rank);
        let message = match result {
            Ok((Written { bytes, raw_bytes, checksum }, ns)) => {
                tracing::info!("rank {rank}: image of checkpoint {line} stored, {bytes} bytes");
                FromNode::Stored { rank, checkpoint: line, bytes, raw_bytes, ns, checksum }
            }
            Err(reason) => {
                tracing::warn!("rank {rank}: image of checkpoint {line} not stored: {reason}");
                FromNode::StoreFailed { rank, checkpoint: line, reason }
            }
        };
        self.tell(&message);
    }
}
