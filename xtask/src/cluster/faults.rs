//! What breaks while the job runs: nodes, cables, programs of ranks.
//!
//! Moments count from when the job is ready: the coordinator has written that all ranks have called
//! MPI_Init. A job without a coordinator is ready when the programs of all ranks run.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use super::job_events::{JobEvents, Nth};
use super::nodes::{self, Node};
use super::partition::Partition;
use super::signals::Sent;
use super::stage::Stage;
use super::victim::Victim;
use super::{network, processes};
use crate::error::{Result, failure};
use crate::sys;

/// What breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Every process of this node is killed.
    KillNode(u32),
    /// The cable of this node is pulled: nobody is notified.
    CutNode(u32),
    /// The program of this rank is killed.
    KillRank(u32),
    /// The guardian of this rank is killed, and nothing else.
    KillGuardian(u32),
    /// The process of the job's coordinator is killed, and nothing else.
    KillCoordinator,
    /// The network is cut for a while.
    Partition(Partition),
    /// It is whole again.
    Heal(Partition),
    /// Somebody gets a signal.
    Signal(Sent),
}

/// When it breaks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Moment {
    /// So long after the job is ready.
    Ready(Duration),
    /// So long after this checkpoint, or a later one, is complete.
    Checkpoint(u64, Duration),
    /// When this checkpoint, or a later one, is ordered: it is being taken.
    Ordered(u64),
    /// When so many ranks are in MPI_Finalize.
    Finishing(u64),
    /// When replicas of all images are on other nodes, for this time: once when the first
    /// checkpoint is complete, and again after each loss.
    Replicated(u64),
    /// When the coordinators of the job have logged the second event so many times; where there is
    /// a first one, those count that come after it.
    Event(Option<Nth>, Nth),
}

/// Events at which something may break.
const EVENTS: [&str; 24] = [
    "agent_gone",
    "network_cut",
    "network_restored",
    "replay_diverged",
    "checkpoint_aborted",
    "ready",
    "checkpoint_started",
    "checkpoint_completed",
    "replication_ok",
    "rank_failed",
    "ended",
    "node_lost",
    "set_rollback",
    "rank_placed",
    "set_restarted",
    "replay_completed",
    "replays_over",
    "failover_started",
    "failover_completed",
    "not_replayable",
    "replayable_again",
    "logging_suspended",
    "logging_resumed",
    "spare",
];

/// `EVENT@K=WHO`: when an event is logged for the K-th time, somebody is killed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AtEvent(pub Moment, pub Fault);

impl FromStr for AtEvent {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (moment, who) = text.split_once('=').ok_or("give it as EVENT@COUNT=WHO")?;
        let moment = moment_of_event(moment)?;
        let number = |of: &str| of.parse().map_err(|_| format!("`{of}` is no number"));
        let fault = match who.split_once(':') {
            None if who == "coordinator" => Fault::KillCoordinator,
            Some(("node", node)) => Fault::KillNode(number(node)?),
            Some(("rank", rank)) => Fault::KillRank(number(rank)?),
            Some(("guardian", rank)) => Fault::KillGuardian(number(rank)?),
            _ => return Err("choose coordinator, node:I, rank:R or guardian:R".into()),
        };
        Ok(AtEvent(moment, fault))
    }
}

/// `EVENT@K`, or `EARLIER@J,EVENT@K`.
pub fn moment_of_event(text: &str) -> std::result::Result<Moment, String> {
    Ok(match text.split_once(',') {
        None => Moment::Event(None, event(text)?),
        Some((earlier, text)) => Moment::Event(Some(event(earlier)?), event(text)?),
    })
}

fn event(text: &str) -> std::result::Result<Nth, String> {
    let (event, count) = text.split_once('@').ok_or("give it as EVENT@COUNT=WHO")?;
    let known = EVENTS.into_iter().find(|known| *known == event);
    let event = known.ok_or_else(|| format!("choose an event of {}", EVENTS.join(", ")))?;
    let count = count.parse().map_err(|_| format!("`{count}` is no number"))?;
    Ok(Nth(event, count))
}

/// `I@SECS`: which one, and seconds after the job is ready.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timed(pub u32, pub Moment);

impl FromStr for Timed {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (who, when) = split(text, "NUMBER@SECONDS")?;
        Ok(Timed(who, Moment::Ready(seconds(when)?)))
    }
}

/// `I@K` or `I@K+SECS`: which one, the number of a checkpoint, and seconds after it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AfterCheckpoint(pub u32, pub Moment);

impl FromStr for AfterCheckpoint {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (who, when) = split(text, "NUMBER@CHECKPOINT")?;
        let (checkpoint, after) = when.split_once('+').unwrap_or((when, "0"));
        let checkpoint = checkpoint
            .parse()
            .map_err(|_| format!("`{checkpoint}` is no number of a checkpoint"))?;
        Ok(AfterCheckpoint(who, Moment::Checkpoint(checkpoint, seconds(after)?)))
    }
}

/// `I@K`: which one, and how often replicas of all images were on other nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AfterReplication(pub u32, pub Moment);

impl FromStr for AfterReplication {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (who, when) = split(text, "NUMBER@COUNT")?;
        let count = when.parse().map_err(|_| format!("`{when}` is no number"))?;
        Ok(AfterReplication(who, Moment::Replicated(count)))
    }
}

/// `I@K`: which one, and the number of a checkpoint.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AfterOrder(pub u32, pub Moment);

impl FromStr for AfterOrder {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (who, when) = split(text, "NUMBER@CHECKPOINT")?;
        let checkpoint =
            when.parse().map_err(|_| format!("`{when}` is no number of a checkpoint"))?;
        Ok(AfterOrder(who, Moment::Ordered(checkpoint)))
    }
}

/// `I@N`: which one, and a number of ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AfterFinishing(pub u32, pub Moment);

impl FromStr for AfterFinishing {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (who, when) = split(text, "NUMBER@RANKS")?;
        let ranks = when.parse().map_err(|_| format!("`{when}` is no number of ranks"))?;
        Ok(AfterFinishing(who, Moment::Finishing(ranks)))
    }
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.0..1e9).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("`{text}` is no number of seconds"))
}

fn split<'t>(text: &'t str, form: &str) -> std::result::Result<(u32, &'t str), String> {
    let (who, when) = text.split_once('@').ok_or_else(|| format!("give it as {form}"))?;
    Ok((who.parse().map_err(|_| format!("`{who}` is no number"))?, when))
}

/// Everything that is still to break, and what the job has logged.
pub struct Faults {
    waiting: Vec<(Moment, Fault)>,
    /// Spare nodes, which have to be there when a checkpoint is complete or images are replicated:
    /// who fails before that is restarted elsewhere.
    spares: u32,
    job: JobEvents,
}

impl Faults {
    /// All of them.
    pub fn new(all: Vec<(Moment, Fault)>, spares: u32) -> Self {
        Self { waiting: all, spares, job: JobEvents::default() }
    }

    /// Is there anything to wait for?
    pub fn any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Those whose moment is known now, with the time until then; none before they `may_break`.
    pub fn poll(&mut self, ranks: u32, may_break: impl Fn() -> bool) -> Vec<(Duration, Fault)> {
        self.job.read_on(ranks);
        if may_break() { self.known() } else { Vec::new() }
    }

    fn known(&mut self) -> Vec<(Duration, Fault)> {
        let (ready, complete) = (self.job.ready, self.job.checkpoint);
        let replicated = self.job.replicated;
        let job = &self.job;
        let waiting_spares = job.events.get("spare").map_or(0, Vec::len);
        let spares_wait = waiting_spares >= self.spares as usize;
        let (ordered, finishing) = (self.job.ordered, self.job.finishing.len() as u64);
        let is_known = |moment: &Moment| match *moment {
            Moment::Ready(_) => ready,
            Moment::Checkpoint(wanted, _) => {
                complete.is_some_and(|complete| complete >= wanted) && spares_wait
            }
            Moment::Ordered(wanted) => ordered.is_some_and(|ordered| ordered >= wanted),
            Moment::Finishing(wanted) => finishing >= wanted,
            Moment::Replicated(wanted) => replicated >= wanted && spares_wait,
            Moment::Event(None, event) => job.place(event, 0).is_some(),
            Moment::Event(Some(earlier), event) => {
                job.place(earlier, 0).is_some_and(|place| job.place(event, place).is_some())
            }
        };
        let known = self.waiting.extract_if(.., |(moment, _)| is_known(moment));
        let after = |(moment, fault)| match moment {
            Moment::Ready(after) | Moment::Checkpoint(_, after) => (after, fault),
            _ => (Duration::ZERO, fault),
        };
        known.map(after).collect()
    }

    /// Breaks it; returns what was done, in words.
    pub fn strike(
        &mut self,
        fault: Fault,
        nodes: &[Node],
        stage: &Stage,
        ranks: u32,
    ) -> Result<String> {
        match fault {
            Fault::KillNode(node) => {
                let node = get(nodes, node)?;
                let killed = kill_node(node);
                // What was in its memory is gone, too.
                nodes::within(node, || stage.empty_node())??;
                Ok(format!("killed node {} ({killed} processes)", node.name))
            }
            Fault::CutNode(number) => {
                let node = get(nodes, number)?;
                network::cut(number)?;
                Ok(format!("cut node {} off", node.name))
            }
            Fault::Partition(partition) => {
                let node = get(nodes, partition.node)?;
                network::part(nodes, partition, true)?;
                let lasts = partition.lasts.as_secs_f64();
                Ok(format!("cut node {} ({:?}) for {lasts} s", node.name, partition.direction))
            }
            Fault::Heal(partition) => {
                network::part(nodes, partition, false)?;
                Ok(format!("node {} can be reached again", get(nodes, partition.node)?.name))
            }
            Fault::KillRank(rank) => {
                self.job.read_on(ranks);
                let Some(pid) = self.program(rank) else {
                    return Ok(format!("there is no program of rank {rank}"));
                };
                sys::kill(pid, libc::SIGKILL);
                Ok(format!("killed rank {rank} (process {pid})"))
            }
            Fault::KillGuardian(rank) => {
                let killed = Victim::Guardian(rank).kill();
                let what = if killed { "killed the" } else { "there is no" };
                Ok(format!("{what} guardian of rank {rank}"))
            }
            Fault::KillCoordinator => {
                let killed = Victim::Coordinator.kill();
                Ok(if killed { "killed the coordinator" } else { "there is no coordinator" }.into())
            }
            Fault::Signal(sent) => {
                self.job.read_on(ranks);
                sent.send(nodes, |rank| self.program(rank))
            }
        }
    }

    /// The program of a rank: the process id that it has reported, or the first process that names
    /// the rank.
    fn program(&self, rank: u32) -> Option<libc::pid_t> {
        let is_it = |pid: libc::pid_t| processes::program_of(pid) == Some(rank);
        let said = self.job.pids.get(&rank).copied().filter(|&pid| is_it(pid));
        said.or_else(|| processes::find(is_it))
    }
}

fn get(nodes: &[Node], node: u32) -> Result<&Node> {
    nodes.get(node as usize).ok_or_else(|| failure!("there is no node n{node}"))
}

/// Until there is no process that has not been killed; gives their number. One that has been cannot
/// start others any more, but on a busy machine it may take its time to end.
fn kill_node(node: &Node) -> usize {
    let mut killed = BTreeSet::new();
    loop {
        let known = killed.len();
        for pid in processes::in_network(&node.namespaces[0]) {
            if killed.insert(pid) {
                sys::kill(pid, libc::SIGKILL);
            }
        }
        if killed.len() == known {
            return known;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_nonsense_is_not() {
        let ready = |ms| Moment::Ready(Duration::from_millis(ms));
        assert_eq!("2@1.5".parse(), Ok(Timed(2, ready(1500))));
        assert_eq!("0@0".parse(), Ok(Timed(0, ready(0))));
        let at = |number, ms| Moment::Checkpoint(number, Duration::from_millis(ms));
        assert_eq!("3@2".parse(), Ok(AfterCheckpoint(3, at(2, 0))));
        assert_eq!("3@2+1.5".parse(), Ok(AfterCheckpoint(3, at(2, 1500))));
        for bad in ["", "1", "@", "1@", "@1", "n1@1", "1@x", "1@-1", "1@inf", "1@nan", "-1@1"] {
            assert!(bad.parse::<Timed>().is_err(), "{bad}");
        }
        for bad in ["1@1.5", "1@-1", "1", "x@1", "1@1+", "1@1+-1"] {
            assert!(bad.parse::<AfterCheckpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn events_are_known_by_name_and_count() {
        let whole = Moment::Event(None, Nth("failover_completed", 2));
        assert_eq!("failover_completed@2=node:1".parse(), Ok(AtEvent(whole, Fault::KillNode(1))));
        assert_eq!(
            "failover_completed@2=coordinator".parse(),
            Ok(AtEvent(whole, Fault::KillCoordinator))
        );
        for bad in [
            "",
            "failover_completed",
            "failover_completed@1",
            "hole@1=node:1",
            "whole@x=node:1",
            "failover_completed@1=agent",
        ] {
            assert!(bad.parse::<AtEvent>().is_err(), "{bad}");
        }
        let mut faults = Faults::new(vec![(whole, Fault::KillCoordinator)], 0);
        faults.job.events.insert("failover_completed".into(), vec![4]);
        assert_eq!(faults.known(), []);
        faults.job.events.insert("failover_completed".into(), vec![4, 7]);
        assert_eq!(faults.known(), [(Duration::ZERO, Fault::KillCoordinator)]);
    }

    #[test]
    fn events_are_counted_from_another_one_on() {
        let after = "set_restarted@1,rank_failed@2=coordinator".parse::<AtEvent>().unwrap();
        let moment = Moment::Event(Some(Nth("set_restarted", 1)), Nth("rank_failed", 2));
        assert_eq!(after, AtEvent(moment, Fault::KillCoordinator));
        assert!("set_restarted@1,rank_failed=coordinator".parse::<AtEvent>().is_err());
        let mut faults = Faults::new(vec![(after.0, after.1)], 0);
        faults.job.events.insert("rank_failed".into(), vec![1, 2, 9]);
        assert_eq!(faults.known(), []);
        faults.job.events.insert("set_restarted".into(), vec![3, 11]);
        assert_eq!(faults.known(), []);
        faults.job.events.insert("rank_failed".into(), vec![1, 2, 9, 12]);
        assert_eq!(faults.known(), [(Duration::ZERO, Fault::KillCoordinator)]);
    }

    #[test]
    fn nothing_breaks_before_its_moment() {
        let second = Duration::from_secs(1);
        let first = (Moment::Ready(second), Fault::KillNode(1));
        let second_checkpoint = (Moment::Checkpoint(2, Duration::ZERO), Fault::CutNode(2));
        let mut faults = Faults::new(vec![first, second_checkpoint], 0);
        assert_eq!(faults.known(), []);
        faults.job.ready = true;
        assert_eq!(faults.known(), [(second, Fault::KillNode(1))]);
        faults.job.checkpoint = Some(1);
        assert_eq!(faults.known(), []);
        assert!(faults.any());
        faults.job.checkpoint = Some(3);
        assert_eq!(faults.known(), [(Duration::ZERO, Fault::CutNode(2))]);
        assert!(!faults.any());
    }
    #[test]
    fn a_node_is_not_lost_before_the_spare_one_waits() {
        let lost = (Moment::Checkpoint(1, Duration::ZERO), Fault::KillNode(1));
        let mut faults = Faults::new(vec![lost], 1);
        faults.job.checkpoint = Some(1);
        assert_eq!(faults.known(), []);
        faults.job.events.insert("spare".into(), vec![5]);
        assert_eq!(faults.known(), [(Duration::ZERO, Fault::KillNode(1))]);
    }
}
