//! What can be asked of `cargo xtask cluster`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;

use super::failpoint::Point;
use super::faults::{
    AfterCheckpoint, AfterFinishing, AfterOrder, AfterReplication, AtEvent, Fault, Moment, Timed,
};
use super::partition::{Partition, PartitionAtEvent};
use super::signals::SignalAtEvent;
use super::timeline::{Event, Timeline};
use super::user_link::LinkFaults;
use super::victim::Victim;
use crate::error::{Result, fail, failure};

/// Most nodes that one cluster can have (one /24 of addresses).
pub const NODES_MAX: u32 = 250;

/// The command line of `cargo xtask cluster`.
#[derive(Args, Clone, Debug)]
pub struct ClusterOptions {
    /// Number of emulated nodes; their host names are n0, n1, …
    #[arg(long, value_name = "N")]
    pub nodes: u32,
    /// Ranks per node; ranks 0 to P-1 are on n0, the next P on n1, …
    #[arg(long, value_name = "P")]
    pub ppn: u32,
    /// Number of ranks, if it is not N × P
    #[arg(long, value_name = "N")]
    pub np: Option<u32>,
    /// So many further nodes, with slots but without ranks
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub spare: u32,
    /// An MCA parameter for mpirun; it also replaces what xtask would set itself
    #[arg(long, num_args = 2, value_names = ["KEY", "VALUE"], allow_hyphen_values = true)]
    mca: Vec<String>,
    /// An environment variable for every rank
    #[arg(long = "env", value_name = "K=V")]
    environment: Vec<String>,
    /// Stock Open MPI (pml ob1) instead of our component
    #[arg(long)]
    pub plain: bool,
    /// The Open MPI with rustbtl in it that is installed below DIR (`cargo xtask ompi-tree build`)
    #[arg(long, value_name = "DIR")]
    pub openmpi: Option<PathBuf>,
    /// The nodes have DIR as their root: a tree of Debian 13 (`cargo xtask debian-tree build`),
    /// with its Open MPI 5.0 and our components installed for the user. Folders of this machine
    /// that they see: the current one, the checkout, /tmp. What is written elsewhere is gone
    /// afterwards
    #[arg(long, value_name = "DIR", conflicts_with = "openmpi")]
    pub root: Option<PathBuf>,
    /// With --root: run PROGRAM on the first node in place of mpirun, a script that calls it;
    /// nothing is installed before
    #[arg(long, requires = "root", conflicts_with_all = ["plain", "report", "restart"])]
    pub script: bool,
    /// Bring up Slurm on the nodes, and run PROGRAM on a login node in place of mpirun: sbatch,
    /// salloc, a script. MCA parameters are for each mpirun that it starts
    #[arg(long, conflicts_with_all = ["plain", "openmpi", "report", "restart", "checkpoint_at"])]
    pub slurm: bool,
    /// Write what was sent, received and logged as one JSON document
    #[arg(long, value_name = "FILE.json")]
    pub report: Option<PathBuf>,
    /// End the job after this time with exit code 124
    #[arg(long, value_name = "SECS")]
    timeout: Option<f64>,
    /// Size of each node's /dev/shm, as mount(8) takes it (64k, 1g, 50%)
    #[arg(long, value_name = "SIZE")]
    pub shm_size: Option<String>,
    /// Take a global checkpoint at this time: `rustbtl checkpoint --all --wait` (several times if
    /// given several times; one that is due before the last has ended waits for that)
    #[arg(long, value_name = "SECS")]
    checkpoint_at: Vec<f64>,
    /// No checkpoint before FILE is there
    #[arg(long, value_name = "FILE", requires = "checkpoint_at")]
    pub checkpoint_when: Option<PathBuf>,
    /// Kill a process at this time: mpirun, coordinator, agent (of some node), rank:N, guardian:N.
    /// L+SECS: so long after the L-th checkpoint of --checkpoint-at was requested
    #[arg(long, num_args = 2, value_names = ["WHO", "SECS"])]
    kill: Vec<String>,
    /// Kill a process at this point of the last checkpoint of --checkpoint-at, which waits there
    /// for it: quiescence (all but the last rank have begun), images (all but its image are
    /// stored), manifest (all are stored, the coordinator is suspended)
    #[arg(long, num_args = 2, value_names = ["WHO", "POINT"], requires = "checkpoint_at")]
    kill_in_checkpoint: Option<Vec<String>>,
    /// Send mpirun a signal, by its number, at this time
    #[arg(long, num_args = 2, value_names = ["NUMBER", "SECS"])]
    signal: Vec<String>,
    /// Kill every process of every node at this time; exit code 137
    #[arg(long, value_name = "SECS")]
    kill_all_at: Option<f64>,
    /// The same this many seconds after the checkpoints of `--checkpoint-at` are complete
    #[arg(long, value_name = "SECS", requires = "checkpoint_at")]
    pub kill_all_after: Option<f64>,
    /// The same when FILE is there
    #[arg(long, value_name = "FILE")]
    pub kill_all_when: Option<PathBuf>,
    /// Of the following, nothing breaks before FILE is there
    #[arg(long, value_name = "FILE")]
    pub break_when: Option<PathBuf>,
    /// Kill every process of node number I, orted included, SECS after the job is ready: after all
    /// ranks have called MPI_Init (without guardians: after all programs were started). Several
    /// times if given several times, as the following ones
    #[arg(long, value_name = "I@SECS")]
    kill_node: Vec<Timed>,
    /// The same when checkpoint K of the job, or a later one, is complete (with --spare: and the
    /// spare nodes wait for ranks)
    #[arg(long, value_name = "I@K")]
    kill_node_after_checkpoint: Vec<AfterCheckpoint>,
    /// The same when replicas of all images are on other nodes, for the K-th time: for the first
    /// time with the first checkpoint, then after each loss of a node (jobs without a directory for
    /// checkpoints)
    #[arg(long, value_name = "I@K")]
    kill_node_after_replication: Vec<AfterReplication>,
    /// Kill the program of rank R, SECS after the job is ready
    #[arg(long, value_name = "R@SECS")]
    kill_rank: Vec<Timed>,
    /// The same when checkpoint K of the job, or a later one, is complete
    #[arg(long, value_name = "R@K")]
    kill_rank_after_checkpoint: Vec<AfterCheckpoint>,
    /// The same when checkpoint K of the job, or a later one, is ordered: while it is taken
    #[arg(long, value_name = "R@K")]
    kill_rank_after_order: Vec<AfterOrder>,
    /// The same with a node
    #[arg(long, value_name = "I@K")]
    kill_node_after_order: Vec<AfterOrder>,
    /// Kill the program of rank R when N ranks are in MPI_Finalize
    #[arg(long, value_name = "R@N")]
    kill_rank_after_finishing: Vec<AfterFinishing>,
    /// The same with a node
    #[arg(long, value_name = "I@N")]
    kill_node_after_finishing: Vec<AfterFinishing>,
    /// Pull the cable of node number I, SECS after the job is ready: nothing reaches it any more
    /// and nothing comes from it, and nobody is notified
    #[arg(long, value_name = "I@SECS")]
    cut_node: Vec<Timed>,
    /// The same when checkpoint K of the job, or a later one, is complete
    #[arg(long, value_name = "I@K")]
    cut_node_after_checkpoint: Vec<AfterCheckpoint>,
    /// Kill WHO (coordinator, node:I, rank:R, guardian:R) when the job's coordinators have logged
    /// EVENT for the K-th time; with EARLIER@J,EVENT@K those count that come after EARLIER was
    /// logged for the J-th time (also below)
    #[arg(long, value_name = "EVENT@K=WHO")]
    kill_at_event: Vec<AtEvent>,
    /// The same when replicas of all images are on other nodes, for the K-th time
    #[arg(long, value_name = "I@K")]
    cut_node_after_replication: Vec<AfterReplication>,
    /// Cut node I off for SECS when EVENT is logged for the K-th time. DIRECTION: off (its cable is
    /// pulled), mute (nothing arrives either way, but its interface does not see that), to (nothing
    /// reaches it), from (nothing that it sends arrives)
    #[arg(long, value_name = "EVENT@K=DIRECTION:I+SECS")]
    partition: Vec<PartitionAtEvent>,
    /// Send SIGNAL (TERM, INT, HUP, KILL, STOP, CONT; PAUSE: STOP, and CONT 2 s later; OOM: the
    /// kernel has no more memory for it) to WHO (mpirun, coordinator, node:I, daemon:I, agent:I,
    /// slurmd:I, guardian:R, rank:R; or two with a + between) at such an event. INTRUDER/node:I:
    /// somebody connects to all of ours that listen there, says what makes no sense, and takes
    /// names
    #[arg(long, value_name = "EVENT@K=SIGNAL/WHO")]
    signal_at_event: Vec<SignalAtEvent>,
    /// Cables lose so many percent of their frames (of 1,500 bytes) and take so long for each, in
    /// both directions: loss=PERCENT, delay=MS, or both with a comma between
    #[arg(long, value_name = "FAULTS")]
    pub link: Option<LinkFaults>,
    /// Write TEXT to FILE when the checkpoints of `--checkpoint-at` are complete or have failed
    #[arg(long, num_args = 2, value_names = ["FILE", "TEXT"], requires = "checkpoint_at")]
    pub write_after: Option<Vec<String>>,
    /// Mark output with the rank that it is of
    #[arg(long)]
    pub tag_output: bool,
    /// Make FILE when all have been killed or cut off that were to be, and --partition is over
    #[arg(long, value_name = "FILE")]
    pub write_when_failed: Option<PathBuf>,
    /// Kill a process this many seconds after the checkpoints of `--checkpoint-at` are complete
    #[arg(long, num_args = 2, value_names = ["WHO", "SECS"], requires = "checkpoint_at")]
    kill_after: Vec<String>,
    /// Run `rustbtl restart DIR` in place of a program
    #[arg(long, value_name = "DIR", conflicts_with = "plain")]
    pub restart: Option<PathBuf>,
    /// In the cluster the empty folder DIR is a disk of this size, which all nodes share; in the
    /// end its content is copied to DIR
    #[arg(long, num_args = 2, value_names = ["DIR", "SIZE"])]
    pub disk: Option<Vec<String>>,
    /// With --restart: print again what was printed since the checkpoint
    #[arg(long, requires = "restart")]
    pub again: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required_unless_present = "restart", value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

impl ClusterOptions {
    /// Refuses what cannot work, before anything is started.
    pub fn check(&self) -> Result<()> {
        if self.nodes == 0 || !(1..=NODES_MAX).contains(&self.nodes.saturating_add(self.spare)) {
            fail!("--nodes {}, --spare {}: choose 1 to {NODES_MAX}", self.nodes, self.spare);
        }
        if self.ppn == 0 || self.ranks() == 0 {
            fail!("--ppn and --np must be at least 1");
        }
        if let Some(prefix) = &self.openmpi
            && !prefix.join("bin/mpirun").is_file()
        {
            fail!("--openmpi {0}: there is no {0}/bin/mpirun", prefix.display());
        }
        if let Some(bad) = self.environment.iter().find(|e| !e.contains('=')) {
            fail!("--env {bad}: give it as NAME=VALUE");
        }
        let is_time = |t: f64| (0.0..1e9).contains(&t);
        if self.timeout.is_some_and(|t| !is_time(t) || t == 0.0) {
            fail!("--timeout: give a positive number of seconds");
        }
        let times = self.checkpoint_at.iter().chain(&self.kill_all_at).chain(&self.kill_all_after);
        if !times.copied().all(is_time) {
            fail!("--checkpoint-at, --kill-all-at, --kill-all-after: give a number of seconds");
        }
        self.kills()?;
        self.kills_after_all()?;
        self.signals()?;
        self.interruption()?;
        for (_, fault) in self.faults() {
            match fault {
                Fault::KillNode(node)
                | Fault::CutNode(node)
                | Fault::Partition(Partition { node, .. })
                    if node >= self.all_nodes() =>
                {
                    fail!("there is no node {node}: the last one is {}", self.all_nodes() - 1);
                }
                Fault::KillRank(rank) | Fault::KillGuardian(rank) if rank >= self.ranks() => {
                    fail!("there is no rank {rank}: the last one is {}", self.ranks() - 1);
                }
                Fault::Signal(sent) => {
                    if let Some(who) = sent.stranger(self.all_nodes(), self.ranks()) {
                        fail!("--signal-at-event: there is no {who}");
                    }
                }
                _ => (),
            }
        }
        if self.restart.is_some() && !self.command.is_empty() {
            fail!("--restart: the program is part of the checkpoint, name none");
        }
        Ok(())
    }

    /// Ranks of the job.
    pub fn ranks(&self) -> u32 {
        self.np.unwrap_or(self.nodes * self.ppn)
    }

    /// Nodes with and without ranks.
    pub fn all_nodes(&self) -> u32 {
        self.nodes + self.spare
    }

    /// The user's MCA parameters.
    pub fn mca(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.mca.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str()));
        // Of a key that is given twice the last value counts; Open MPI would refuse it.
        let is_last = |at: usize| {
            let later = &self.mca[2 * at + 2..];
            later.chunks_exact(2).all(|pair| pair[0] != self.mca[2 * at])
        };
        pairs.enumerate().filter(move |(at, _)| is_last(*at)).map(|(_, pair)| pair)
    }

    /// Spare nodes that are going to wait for ranks, if the user has not said that he wants none.
    pub fn awaited_spares(&self) -> u32 {
        let none = ["recover", "spare_nodes"].map(|name| format!("vprotocol_correlated_{name}"));
        let is_unwanted =
            self.mca().any(|(key, value)| none.iter().any(|n| n == key) && value == "0");
        if is_unwanted { 0 } else { self.spare }
    }

    /// The user's environment variables.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().filter_map(|e| e.split_once('='))
    }

    /// How long the job may take.
    pub fn time_limit(&self) -> Option<Duration> {
        self.timeout.map(Duration::from_secs_f64)
    }

    /// Checkpoints that are requested.
    pub fn checkpoints(&self) -> usize {
        self.checkpoint_at.len()
    }

    /// Who is killed, after how long, and after which checkpoint was requested (0: after the
    /// start).
    fn kills(&self) -> Result<Vec<(usize, f64, Event)>> {
        let one = |pair: &[String]| {
            let (checkpoint, after) = pair[1].split_once('+').unwrap_or(("0", &pair[1]));
            let checkpoint =
                checkpoint.parse().ok().filter(|number| *number <= self.checkpoint_at.len());
            let Some(checkpoint) = checkpoint else {
                fail!("--kill {} {}: there is no such checkpoint", pair[0], pair[1]);
            };
            kill(&pair[0], after).map(|(after, event)| (checkpoint, after, event))
        };
        self.kill.chunks_exact(2).map(one).collect()
    }

    /// Who is killed at which point of the last checkpoint.
    pub fn kill_in_checkpoint(&self) -> Option<(Victim, Point)> {
        self.interruption().unwrap_or_default()
    }

    fn interruption(&self) -> Result<Option<(Victim, Point)>> {
        let Some([who, point]) = self.kill_in_checkpoint.as_deref() else { return Ok(None) };
        let failed = |why| failure!("--kill-in-checkpoint {who} {point}: {why}");
        let (victim, point) = (who.parse().map_err(failed)?, point.parse().map_err(failed)?);
        if self.checkpoint_folder().is_none() {
            return Err(failed("set vprotocol_correlated_checkpoint_dir to a folder".into()));
        }
        Ok(Some((victim, point)))
    }

    /// Where the job keeps its checkpoints, if that is said.
    pub fn checkpoint_folder(&self) -> Option<&Path> {
        self.mca()
            .find(|(key, _)| *key == "vprotocol_correlated_checkpoint_dir")
            .map(|(_, dir)| dir.as_ref())
    }

    /// Who is killed when all checkpoints are complete, and how long after that.
    pub fn kills_after(&self) -> Vec<(f64, Event)> {
        self.kills_after_all().unwrap_or_default()
    }

    fn kills_after_all(&self) -> Result<Vec<(f64, Event)>> {
        self.kill_after.chunks_exact(2).map(|pair| kill(&pair[0], &pair[1])).collect()
    }

    /// Which signals mpirun gets, and when.
    fn signals(&self) -> Result<Vec<(f64, Event)>> {
        let one = |pair: &[String]| match (pair[0].parse(), pair[1].parse::<f64>()) {
            (Ok(number @ 1..=64), Ok(at)) if (0.0..1e9).contains(&at) => {
                Ok((at, Event::Signal(number)))
            }
            _ => fail!("--signal {} {}: give a number and seconds", pair[0], pair[1]),
        };
        self.signal.chunks_exact(2).map(one).collect()
    }

    /// What breaks, at moments that the job itself decides about.
    pub fn faults(&self) -> Vec<(Moment, Fault)> {
        let kills = self.kill_node.iter().map(|&Timed(node, at)| (at, Fault::KillNode(node)));
        let checkpoints = self.kill_node_after_checkpoint.iter();
        let checkpoints = checkpoints.map(|&AfterCheckpoint(node, at)| (at, Fault::KillNode(node)));
        let copies = self.kill_node_after_replication.iter();
        let copies = copies.map(|&AfterReplication(node, at)| (at, Fault::KillNode(node)));
        let checkpoints = checkpoints.chain(copies);
        let ranks = self.kill_rank.iter().map(|&Timed(rank, at)| (at, Fault::KillRank(rank)));
        let cuts = self.cut_node.iter().map(|&Timed(node, at)| (at, Fault::CutNode(node)));
        let late = self.kill_rank_after_checkpoint.iter();
        let late = late.map(|&AfterCheckpoint(rank, at)| (at, Fault::KillRank(rank)));
        let late_cuts = self.cut_node_after_checkpoint.iter();
        let late_cuts = late_cuts.map(|&AfterCheckpoint(node, at)| (at, Fault::CutNode(node)));
        let later_cuts = self.cut_node_after_replication.iter();
        let later_cuts = later_cuts.map(|&AfterReplication(node, at)| (at, Fault::CutNode(node)));
        let cuts = cuts.chain(late_cuts).chain(later_cuts);
        let events = self.kill_at_event.iter().map(|&AtEvent(at, fault)| (at, fault));
        let signals = self.signal_at_event.iter().map(|&SignalAtEvent(at, fault)| (at, fault));
        let partitions = self.partition.iter().map(PartitionAtEvent::fault);
        let moments = self.in_the_middle().chain(events).chain(signals).chain(partitions);
        kills.chain(checkpoints).chain(ranks).chain(late).chain(cuts).chain(moments).collect()
    }

    /// What breaks while a checkpoint is taken, or in MPI_Finalize.
    fn in_the_middle(&self) -> impl Iterator<Item = (Moment, Fault)> {
        let ranks = self.kill_rank_after_order.iter();
        let ranks = ranks.map(|&AfterOrder(rank, at)| (at, Fault::KillRank(rank)));
        let nodes = self.kill_node_after_order.iter();
        let nodes = nodes.map(|&AfterOrder(node, at)| (at, Fault::KillNode(node)));
        let late = self.kill_rank_after_finishing.iter();
        let late = late.map(|&AfterFinishing(rank, at)| (at, Fault::KillRank(rank)));
        let late_nodes = self.kill_node_after_finishing.iter();
        let late_nodes = late_nodes.map(|&AfterFinishing(node, at)| (at, Fault::KillNode(node)));
        ranks.chain(nodes).chain(late).chain(late_nodes)
    }

    /// What follows the order of a checkpoint, and after how long.
    pub fn after_order(&self, checkpoint: usize) -> impl Iterator<Item = (Duration, Event)> {
        let kills = self.kills().unwrap_or_default().into_iter();
        let of_it = kills.filter(move |(of, ..)| *of == checkpoint);
        of_it.map(|(_, after, event)| (Duration::from_secs_f64(after), event))
    }

    /// What happens to the job, and when.
    pub fn timeline(&self) -> Timeline {
        let events = self.checkpoint_at.iter().map(|&at| (at, Event::Checkpoint));
        let events = events.chain(self.kill_all_at.map(|at| (at, Event::KillAll)));
        let events = events.chain(self.signals().unwrap_or_default());
        let events = events.map(|(at, event)| (Duration::from_secs_f64(at), event));
        Timeline::new(events.chain(self.after_order(0)))
    }

    /// More ranks than this machine has processors.
    pub fn crowded(&self) -> bool {
        let processors = thread::available_parallelism().map_or(1, |p| p.get());
        self.ranks() as usize > processors
    }
}

/// Who is killed, and when.
fn kill(who: &str, after: &str) -> Result<(f64, Event)> {
    let victim = who.parse().map_err(|why| failure!("--kill {who}: {why}"))?;
    match after.parse::<f64>() {
        Ok(at) if (0.0..1e9).contains(&at) => Ok((at, Event::Kill(victim))),
        _ => fail!("--kill {who} {after}: give a number of seconds"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ClusterOptions,
    }

    /// Options as the command line `words` gives them.
    pub fn parse(words: &str) -> ClusterOptions {
        Line::parse_from(["cluster"].into_iter().chain(words.split(' '))).options
    }

    #[test]
    fn mca_takes_two_words_and_can_be_repeated() {
        let options =
            parse("--nodes 2 --ppn 1 --mca a -1 --mca b 2 --report r.json -- prog --mca c 3");
        assert_eq!(options.mca().next(), Some(("a", "-1")));
        assert_eq!(options.report, Some("r.json".into()));
        let options = parse("--nodes 2 --ppn 1 --mca a 1 --mca b 2 -- prog --mca c 3");
        assert_eq!(options.mca().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        let twice = parse("--nodes 2 --ppn 1 --mca a 1 --mca b 2 --mca a 3 -- prog");
        assert_eq!(twice.mca().collect::<Vec<_>>(), [("b", "2"), ("a", "3")]);
        assert_eq!(options.command, ["prog", "--mca", "c", "3"]);
        assert_eq!(options.ranks(), 2);
    }

    #[test]
    fn faults_are_counted_from_when_the_job_is_ready() {
        let options = parse(
            "--nodes 2 --ppn 2 --spare 1 --kill-node 1@0.5 --kill-node 2@1 --kill-rank 3@2 \
             --cut-node 0@3 --kill-node-after-checkpoint 1@2 -- p",
        );
        let ready = |ms| Moment::Ready(Duration::from_millis(ms));
        let wanted = [
            (ready(500), Fault::KillNode(1)),
            (ready(1000), Fault::KillNode(2)),
            (Moment::Checkpoint(2, Duration::ZERO), Fault::KillNode(1)),
            (ready(2000), Fault::KillRank(3)),
            (ready(3000), Fault::CutNode(0)),
        ];
        assert_eq!(options.faults(), wanted);
        assert!(options.check().is_ok());
        assert_eq!((options.all_nodes(), options.ranks()), (3, 4));
    }

    #[test]
    fn what_is_not_there_cannot_break() {
        for bad in ["--kill-node 3@1", "--cut-node 3@1", "--kill-rank 4@1"] {
            let options = parse(&format!("--nodes 2 --ppn 2 --spare 1 {bad} -- p"));
            assert!(options.check().is_err(), "{bad}");
        }
    }

    #[test]
    fn who_is_killed_after_a_checkpoint_is_not_killed_before() {
        let words = "--nodes 1 --ppn 1 --checkpoint-at 5 --kill agent 1+0.5 --kill rank:0 7 -- p";
        let options = parse(words);
        assert!(options.check().is_ok());
        let after: Vec<_> = options.after_order(1).collect();
        assert_eq!(after, [(Duration::from_millis(500), Event::Kill("agent".parse().unwrap()))]);
        let first = options.timeline().next_at().unwrap();
        assert!(first > std::time::Instant::now() + Duration::from_secs(4));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse("--nodes 0 --ppn 1 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 0 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --env X -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --timeout 0 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --env X=1=2 -- p").check().is_ok());
        assert!(parse("--nodes 1 --ppn 1 --kill orted 1 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --kill agent x -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --kill rank:0 1.5 -- p").check().is_ok());
        assert!(parse("--nodes 1 --ppn 1 --kill rank:0 1+1 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --signal 0 1 -- p").check().is_err());
        assert!(parse("--nodes 1 --ppn 1 --signal 10 1 -- p").check().is_ok());
    }
}
