//! Process 1 of a cluster: makes the nodes, runs mpirun in the first, sees that nothing stays.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::disk::Disk;
use super::failpoint::Failpoint;
use super::faults::{Fault, Faults};
use super::mpirun::MpirunJob;
use super::nodes::Node;
use super::options::ClusterOptions;
use super::partition::Partition;
use super::slurm::{self, Slurm};
use super::stage::Stage;
use super::supervise::ENDING;
use super::timeline::{Event, Timeline};
use super::{KILLED, TIMED_OUT, network, nodes, processes};
use crate::error::{Context, Result, say};
use crate::report;
use crate::sys::{self, Signals};

/// How long mpirun may take to end its job after it was asked to.
const ENDING_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is checked whether mpirun's coordinator is there.
const JOB_PATIENCE: Duration = Duration::from_millis(50);
/// How often it is polled how far the job is.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long daemons may outlive mpirun before they are killed and named.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(6);
/// The same where a node is still cut off then: only when it can be reached again, and TCP has
/// noticed, does what is left of it learn that it may end.
const REACHED_PATIENCE: Duration = Duration::from_secs(20);

/// Runs the whole job; gives the exit code of the cluster.
pub fn main(options: &ClusterOptions, mask: &libc::sigset_t) -> Result<i32> {
    let watched: Vec<_> = ENDING.into_iter().chain([libc::SIGCHLD]).collect();
    let signals = Signals::take(&watched).context(|| "reading signals".into())?;
    let stage = Stage::build(options)?;
    let disk = options.disk.as_ref().map(|d| Disk::mount(d[0].as_ref(), &d[1])).transpose()?;
    let nodes = nodes::make(options, &stage)?;
    stage.write_node_table(&nodes)?;
    let start = Instant::now();
    let node = (!options.slurm).then_some(&nodes[0]);
    let job = MpirunJob { options, stage: &stage, node, mask: *mask };
    let slurm = if options.slurm {
        slurm::furnish_login(options, &stage)?;
        Some(Slurm::start(&job, &nodes)?)
    } else {
        None
    };
    let mpirun = job.start(&job.program())?;
    let Ended { code, asked, cuts } = attend(mpirun, &job, &nodes, &signals)?;
    let seconds = start.elapsed().as_secs_f64();
    match slurm {
        Some(slurm) => end_slurm(&slurm, &nodes, &stage)?,
        None => {
            cuts.iter().try_for_each(|&cut| network::part(&nodes, cut, false))?;
            let patience = if cuts.is_empty() { LEFTOVER_PATIENCE } else { REACHED_PATIENCE };
            end_leftovers(&signals, asked, patience)?;
        }
    }
    if let Some(disk) = disk {
        disk.keep()?;
    }
    if let Some(file) = &options.report {
        report::write(file, &stage.reports(), options, code, seconds)?;
    }
    Ok(code)
}

/// How mpirun has ended.
struct Ended {
    code: i32,
    /// A signal or the time limit made it.
    asked: bool,
    /// Nodes that are still cut off.
    cuts: Vec<Partition>,
}

/// Waits for mpirun; a signal or the time limit asks it to end, and then makes it.
fn attend(
    mpirun: libc::pid_t,
    job: &MpirunJob<'_>,
    nodes: &[Node],
    signals: &Signals,
) -> Result<Ended> {
    let mut limit = job.options.time_limit().map(|t| Instant::now() + t);
    let mut events = Events::new(job, nodes, mpirun);
    let mut verdict = None;
    let mut asked = false;
    loop {
        let next = limit.into_iter().chain(events.timeline.next_at()).min();
        let patience = next.map(|at| at.saturating_duration_since(Instant::now()));
        match signals.next(patience).context(|| "reading signals".into())? {
            Some(signal) if signal.number == libc::SIGCHLD => {
                if let Some(status) = reap_until(mpirun, &mut events)? {
                    let code = verdict.unwrap_or(sys::exit_code(status));
                    let cuts = core::mem::take(&mut events.cuts);
                    events.let_go_on()?;
                    return Ok(Ended { code, asked, cuts });
                }
            }
            Some(_) if asked => kill_all(),
            Some(signal) => {
                asked = true;
                limit = Some(Instant::now() + ENDING_PATIENCE);
                if !signal.from_terminal {
                    // mpirun would not take its ranks along on SIGQUIT.
                    let quit = signal.number == libc::SIGQUIT;
                    sys::kill(mpirun, if quit { libc::SIGTERM } else { signal.number });
                }
            }
            None if events.happen()? => {
                asked = true;
                verdict = Some(KILLED);
                kill_all();
            }
            None if asked => kill_all(),
            None if limit.is_some_and(|at| at <= Instant::now()) => {
                asked = true;
                verdict = Some(TIMED_OUT);
                limit = Some(Instant::now() + ENDING_PATIENCE);
                say!("cluster: the job reached its --timeout and is ended");
                sys::kill(mpirun, libc::SIGTERM);
            }
            None => (),
        }
    }
}

/// What was ordered to happen to the job.
struct Events<'a> {
    job: &'a MpirunJob<'a>,
    nodes: &'a [Node],
    mpirun: libc::pid_t,
    timeline: Timeline,
    faults: Faults,
    failpoint: Option<Failpoint>,
    start: Instant,
    /// Commands that take a checkpoint.
    commands: Vec<libc::pid_t>,
    /// Checkpoints that were requested.
    asked: usize,
    /// Checkpoints that are complete or have failed.
    over: usize,
    /// Checkpoints that are complete.
    checkpoints: usize,
    /// Nodes that are cut off.
    cuts: Vec<Partition>,
}

impl<'a> Events<'a> {
    fn new(job: &'a MpirunJob<'a>, nodes: &'a [Node], mpirun: libc::pid_t) -> Self {
        let mut timeline = job.options.timeline();
        let faults = Faults::new(job.options.faults(), job.options.awaited_spares());
        let failpoint = Failpoint::new(job.options, job.stage);
        if faults.any() || failpoint.is_some() || job.options.kill_all_when.is_some() {
            timeline.add(POLL_EVERY, Event::Poll);
        }
        let (commands, start) = (Vec::new(), Instant::now());
        let (asked, over, checkpoints) = (0, 0, 0);
        Self {
            cuts: Vec::new(),
            job,
            nodes,
            mpirun,
            timeline,
            faults,
            failpoint,
            start,
            commands,
            asked,
            over,
            checkpoints,
        }
    }

    /// Finds out what breaks when; true: everything is to be killed.
    fn poll(&mut self) -> Result<bool> {
        let is_there = |file: &Option<PathBuf>| file.as_ref().is_some_and(|file| file.exists());
        let options = self.job.options;
        if is_there(&options.kill_all_when) {
            return Ok(true);
        }
        let known = self.faults.poll(options.ranks(), || {
            options.break_when.is_none() || is_there(&options.break_when)
        });
        for (after, fault) in known {
            self.timeline.add(after, Event::Break(fault));
        }
        if let Some(failpoint) = &mut self.failpoint
            && let Some(done) = failpoint.poll()?
        {
            say!("cluster: {:.3} s: {done}", self.start.elapsed().as_secs_f64());
            self.failpoint = None;
        }
        if self.faults.any() || self.failpoint.is_some() || options.kill_all_when.is_some() {
            self.timeline.add(POLL_EVERY, Event::Poll);
        }
        Ok(false)
    }

    /// Whoever was suspended for a while goes on now: only then can he notice that the job is over.
    fn let_go_on(&mut self) -> Result<()> {
        let continues = |event: &Event| match event {
            Event::Break(Fault::Signal(sent)) => sent.continues(),
            _ => false,
        };
        let pending: Vec<_> = self.timeline.pending().filter(continues).collect();
        for event in pending {
            if let Event::Break(fault) = event {
                self.strike(fault)?;
            }
        }
        Ok(())
    }

    /// Is there a job, and has it come as far as was wanted?
    fn may_ask(&self) -> bool {
        let awaited = self.job.options.checkpoint_when.as_ref();
        self.job.stage.has_job() && awaited.is_none_or(|file| file.exists())
    }

    fn strike(&mut self, fault: Fault) -> Result<()> {
        let done =
            self.faults.strike(fault, self.nodes, self.job.stage, self.job.options.ranks())?;
        say!("cluster: {:.3} s: {done}", self.start.elapsed().as_secs_f64());
        if let Fault::Heal(partition) = fault {
            self.cuts.retain(|cut| *cut != partition);
        }
        if let Fault::Partition(partition) = fault {
            self.cuts.push(partition);
            self.timeline.add(partition.lasts, Event::Break(Fault::Heal(partition)));
        }
        if let Fault::Signal(sent) = fault
            && let Some((after, next)) = sent.then()
        {
            self.timeline.add(after, Event::Break(Fault::Signal(next)));
        }
        // What is due at the same moment is in the timeline already, and comes at once.
        if let Some(file) = &self.job.options.write_when_failed
            && !self.faults.any()
            && self.cuts.is_empty()
        {
            fs::write(file, "").context(|| format!("--write-when-failed: {}", file.display()))?;
        }
        Ok(())
    }

    /// Does what is due; true: everything is to be killed.
    fn happen(&mut self) -> Result<bool> {
        match self.timeline.due() {
            // Before there is a job there is nobody to ask; and one checkpoint comes after the
            // other.
            Some(Event::Checkpoint) if !self.may_ask() || !self.commands.is_empty() => {
                self.timeline.add(JOB_PATIENCE, Event::Checkpoint);
            }
            Some(event @ Event::Signal(_))
                if !self.job.options.plain && !self.job.stage.has_job() =>
            {
                self.timeline.add(JOB_PATIENCE, event);
            }
            Some(Event::Signal(number)) => sys::kill(self.mpirun, number),
            Some(Event::Checkpoint) => {
                self.asked += 1;
                if let Some(failpoint) =
                    self.failpoint.as_mut().filter(|_| self.asked == self.job.options.checkpoints())
                {
                    failpoint.begin()?;
                }
                self.commands.push(self.job.start(&self.job.checkpoint())?);
                for (after, event) in self.job.options.after_order(self.asked) {
                    self.timeline.add(after, event);
                }
            }
            Some(Event::Kill(who)) if !who.kill() => {
                say!("cluster: --kill: there is no {who:?}");
            }
            Some(Event::Kill(_)) => (),
            Some(Event::Poll) => return self.poll(),
            Some(Event::Break(fault)) => self.strike(fault)?,
            Some(Event::KillAll) => return Ok(true),
            None => (),
        }
        Ok(false)
    }

    /// Some process has ended.
    fn ended(&mut self, pid: libc::pid_t, status: libc::c_int) {
        let Some(at) = self.commands.iter().position(|&command| command == pid) else { return };
        self.commands.swap_remove(at);
        self.checkpoints += usize::from(status == 0);
        self.over += 1;
        if self.over == self.job.options.checkpoints()
            && let Some([file, text]) = self.job.options.write_after.as_deref()
            && let Err(error) = fs::write(file, text)
        {
            say!("cluster: --write-after: {file}: {error}");
        }
        let options = self.job.options;
        if self.checkpoints == options.checkpoints() {
            let all = options.kill_all_after.map(|seconds| (seconds, Event::KillAll));
            for (seconds, event) in all.into_iter().chain(options.kills_after()) {
                self.timeline.add(Duration::from_secs_f64(seconds), event);
            }
        }
    }
}

/// SIGKILL for every process of the cluster but this one.
fn kill_all() {
    sys::kill(-1, libc::SIGKILL);
}

/// Buries all children that have ended; the wait status of `wanted` if it is one of them.
fn reap_until(wanted: libc::pid_t, events: &mut Events<'_>) -> Result<Option<libc::c_int>> {
    while let Some((pid, status)) = sys::reap(-1).context(|| "waiting for mpirun".into())? {
        if pid == wanted {
            return Ok(Some(status));
        }
        events.ended(pid, status);
    }
    Ok(None)
}

/// Gives daemons and ranks a moment to follow mpirun, then kills those that stay. It names them
/// too, unless the end was `asked` for: then mpirun may have gone before it had notified everybody.
fn end_leftovers(signals: &Signals, asked: bool, patience: Duration) -> Result<()> {
    let end = Instant::now() + patience;
    loop {
        match sys::reap(-1) {
            Err(_) => return Ok(()), // no child is left
            Ok(Some(_)) => continue,
            Ok(None) => (),
        }
        let patience = end.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            break;
        }
        signals.next(Some(patience)).context(|| "reading signals".into())?;
    }
    if !asked {
        name(processes::all(), patience);
    }
    kill_all();
    Ok(())
}

/// Names what jobs have left, after a moment; then Slurm's daemons are killed with it.
fn end_slurm(slurm: &Slurm, nodes: &[Node], stage: &Stage) -> Result<()> {
    let end = Instant::now() + LEFTOVER_PATIENCE;
    while !slurm.guests().is_empty() && Instant::now() < end {
        thread::sleep(POLL_EVERY);
    }
    let guests = slurm.guests();
    if !guests.is_empty() {
        name(guests.into_iter(), LEFTOVER_PATIENCE);
    }
    slurm::left_behind(nodes, stage)?;
    kill_all();
    Ok(())
}

fn name(pids: impl Iterator<Item = libc::pid_t>, patience: Duration) {
    let name = |pid: libc::pid_t| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("{} ({pid})", name.trim()))
    };
    say!(
        "cluster: killed what was still running {} s after mpirun had ended: {}",
        patience.as_secs(),
        pids.filter_map(name).collect::<Vec<_>>().join(", ")
    );
}
