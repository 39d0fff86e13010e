//! For tests: a job of three ranks on as many nodes, of which nothing runs.

use crate::coordinator::determinants::{Determinants, Out};
use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::state::{Effect, Job};
use rustbtl_coordination::checkpoints::Input;
use rustbtl_coordination::control::{CheckpointId, FromNode, FromRank, ToNode, ToRank};
use rustbtl_coordination::determinants::DeterminantBatch;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];

/// A rank on each of three nodes, each a set; effects since the last poll.
pub(crate) struct World {
    pub(crate) job: Job,
    pub(crate) determinants: Determinants,
    /// What a coordinator after a failover would read of the determinants.
    pub(crate) persisted: BTreeMap<SetId, Vec<Vec<u8>>>,
    /// Ranks answer `Fence` at once, of nothing recorded.
    pub(crate) answers: bool,
    /// Of each rank.
    pub(crate) sets: [SetId; 3],
    pub(crate) now: u64,
    pub(crate) effects: Vec<Effect>,
}

impl World {
    /// Nodes store their images, and one other node a replica.
    pub(crate) fn of_sets(sets: [u32; 3]) -> Self {
        let mut world = Self { sets: sets.map(SetId), ..Self::empty() };
        for (rank, node) in (0..).zip(NODES) {
            world.connects(rank, node, 0);
        }
        world
    }

    pub(crate) fn empty() -> Self {
        let config = JobConfig { size: 3, replicas: Some(1), ..JobConfig::default() };
        let mut determinants = Determinants::new(0);
        determinants.enable_persistence();
        let (job, persisted, answers) = (Job::new("j".into(), config), BTreeMap::new(), true);
        let sets = [0, 1, 2].map(SetId);
        Self { job, determinants, persisted, answers, sets, now: 1, effects: Vec::new() }
    }

    /// The first checkpoint is complete: each node has its own image, and the next one a replica.
    pub(crate) fn with_checkpoint() -> Self {
        Self::with_checkpoint_of([0, 1, 2])
    }

    /// The same, where ranks are in these sets.
    pub(crate) fn with_checkpoint_of(sets: [u32; 3]) -> Self {
        let mut world = Self::of_sets(sets);
        world.take_checkpoint(1);
        assert_eq!(world.events("checkpoint_completed").len(), 1);
        world.effects.clear();
        world
    }

    pub(crate) fn take_checkpoint(&mut self, checkpoint: u64) {
        let checkpoint = CheckpointId(checkpoint);
        for (rank, node) in (0..).zip(NODES) {
            self.rank(rank, node, FromRank::OutgoingStopped { checkpoint });
        }
        for (rank, node) in (0..).zip(NODES) {
            let rank = PeerId(rank);
            self.handle(
                node,
                FromNode::Frozen { rank, checkpoint, coordination_ns: 1, pause_ns: 1 },
            );
            let (bytes, raw_bytes, ns, lost_ns, checksum) = (1, 1, 1, 0, 1);
            self.handle(
                node,
                FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum },
            );
        }
        for (rank, (node, next)) in (0..).zip(NODES.into_iter().zip(["b", "c", "a"])) {
            let (rank, next) = (PeerId(rank), next.to_owned());
            self.handle(node, FromNode::ImageReplicated { rank, checkpoint, node: next });
        }
    }

    /// A checkpoint of the set of this rank, which is its only member.
    pub(crate) fn take_set_checkpoint(&mut self, rank: u32, checkpoint: u64) {
        let (node, next) = (NODES[rank as usize], NODES[(rank as usize + 1) % 3].to_owned());
        self.job.input(self.now, Input::RequestSetCheckpoint { set: self.sets[rank as usize] });
        self.poll();
        let (rank, checkpoint) = (PeerId(rank), CheckpointId(checkpoint));
        self.handle(node, FromNode::Frozen { rank, checkpoint, coordination_ns: 1, pause_ns: 1 });
        let (bytes, raw_bytes, ns, lost_ns, checksum) = (1, 1, 1, 0, 1);
        self.handle(
            node,
            FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum },
        );
        self.handle(node, FromNode::ImageReplicated { rank, checkpoint, node: next });
    }

    /// The coordinator is killed, and another one reads what was persisted.
    pub(crate) fn failover(mut self) -> Self {
        let kept = serde_json::to_vec(&self.job.state()).unwrap();
        let (answers, persisted) = (self.answers, core::mem::take(&mut self.persisted));
        self = Self { answers, ..Self::empty() };
        let decode = |batch: &Vec<u8>| DeterminantBatch::decode(batch).unwrap();
        let sets = persisted.into_values().map(|batches| batches.iter().map(decode).collect());
        self.determinants.resume(sets);
        self.job.resume(0, serde_json::from_slice(&kept).unwrap()).unwrap();
        self.poll();
        self
    }

    /// Carries out what is between job and determinants, and collects the rest.
    pub(crate) fn poll(&mut self) {
        let mut asked = Vec::new();
        loop {
            for out in self.determinants.take_out() {
                match out {
                    Out::Rank(rank, message) => {
                        if let ToRank::Fence { set, before } = message {
                            asked.push((rank, set, before));
                        }
                        self.effects.push(Effect::Send(rank, ToNode::Rank { rank, message }));
                    }
                    Out::Log(event) => self.effects.push(Effect::Log(event)),
                    Out::Persist(batches) => {
                        for (set, batch) in batches {
                            self.persisted.entry(set).or_default().push(batch);
                        }
                    }
                    Out::PersistAll(set, batch) => drop(self.persisted.insert(set, vec![batch])),
                    Out::Fenced(set, incarnation) => self.job.fenced(self.now, set, incarnation),
                    Out::Orphan(set, lost) => self.job.set_orphaned(self.now, set, lost),
                    Out::Deliver(agent, message) => {
                        self.job.handle(self.now, NODES[agent as usize], message);
                    }
                    Out::Agent(..) => {}
                }
            }
            let Some(effect) = self.job.next_effect() else { break };
            match &effect {
                Effect::Fence { set, ran_in, before, asked } => {
                    self.determinants.fence(*set, *ran_in, *before, asked.clone());
                }
                Effect::Replay { set, incarnation, members, freely } => {
                    let messages = if *freely {
                        self.determinants.begin_without_replay(*set, *incarnation, members)
                    } else {
                        self.determinants.replay(*set, *incarnation, members)
                    };
                    for (rank, message) in messages {
                        self.effects.push(Effect::Send(rank, ToNode::Rank { rank, message }));
                    }
                    self.determinants.replayed(*set);
                }
                Effect::Send(_, ToNode::Rank { message: ToRank::Abort { checkpoint, .. }, .. }) => {
                    self.determinants.aborted(*checkpoint);
                }
                _ => {}
            }
            self.effects.push(effect);
        }
        if self.answers {
            for (rank, set, before) in asked {
                self.fenced(rank.0, set.0, before.0, 0);
            }
        }
    }

    /// The answer of a rank that runs in the incarnation that the job knows.
    pub(crate) fn fenced(&mut self, rank: u32, set: u32, before: u16, recorded: u64) {
        let known = &self.job.ranks[&PeerId(rank)];
        let (node, incarnation) = (known.node.clone(), known.incarnation);
        let (set, before) = (SetId(set), Incarnation(before));
        self.rank(rank, &node, FromRank::Fenced { set, before, incarnation, recorded });
    }

    pub(crate) fn handle(&mut self, node: &str, message: FromNode) {
        self.now += 1;
        let agent = NODES.iter().position(|of| *of == node).unwrap_or_default();
        if !self.determinants.handle(agent as u64, &message) {
            self.job.handle(self.now, node, message);
        }
        self.poll();
    }

    pub(crate) fn mpirun(&mut self, text: &str) {
        self.now += 1;
        self.job.handle_mpirun(self.now, text);
        self.poll();
    }

    pub(crate) fn rank(&mut self, rank: u32, node: &str, message: FromRank) {
        self.handle(node, FromNode::Rank { rank: PeerId(rank), message });
    }

    pub(crate) fn guardian(&mut self, rank: u32, node: &str, incarnation: u16) {
        let (rank, incarnation) = (PeerId(rank), Incarnation(incarnation));
        self.handle(node, FromNode::Guardian { rank, size: 3, pid: 7, incarnation });
    }

    pub(crate) fn hello(&mut self, rank: u32, node: &str, incarnation: u16) {
        let hello = FromRank::Hello {
            rank: PeerId(rank),
            size: 3,
            pid: 8,
            incarnation: Incarnation(incarnation),
            version: String::new(),
            set: self.sets[rank as usize],
            endpoint: Vec::new(),
        };
        self.rank(rank, node, hello);
    }

    /// Agent, guardian and rank connect, as they do to each coordinator.
    pub(crate) fn connects(&mut self, rank: u32, node: &str, incarnation: u16) {
        self.handle(node, FromNode::ReplicaServer { addresses: format!("{node}:1") });
        self.guardian(rank, node, incarnation);
        self.hello(rank, node, incarnation);
        self.rank(rank, node, FromRank::Ready {});
    }

    /// The program of a rank was ended by a signal.
    pub(crate) fn fails(&mut self, rank: u32, node: &str, incarnation: u16) {
        let (rank, incarnation) = (PeerId(rank), Incarnation(incarnation));
        self.handle(node, FromNode::RankFailed { rank, status: libc::SIGKILL, incarnation });
    }

    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let of = |effect: &Effect| match effect {
            Effect::Log(event) if event["event"] == name => Some(event.clone()),
            _ => None,
        };
        self.effects.iter().filter_map(of).collect()
    }

    pub(crate) fn notices(&self) -> Vec<&str> {
        fn notice(effect: &Effect) -> Option<&str> {
            match effect {
                Effect::NotifyUser(text) => Some(text),
                _ => None,
            }
        }
        self.effects.iter().filter_map(notice).collect()
    }

    pub(crate) fn to_mpirun(&self) -> Vec<String> {
        let mut orders = Vec::new();
        for effect in &self.effects {
            if let Effect::Mpirun(order) = effect {
                orders.push(order.to_string());
            }
        }
        orders
    }

    pub(crate) fn sent(&self, rank: u32) -> Vec<&ToNode> {
        let to = |effect| match effect {
            &Effect::Send(to, ref message) if to == PeerId(rank) => Some(message),
            _ => None,
        };
        self.effects.iter().filter_map(to).collect()
    }
}
