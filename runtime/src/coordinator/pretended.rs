//! For tests: a job of three ranks on as many nodes, of which nothing runs.

use super::job::{Effect, Job};
use super::setup::Setup;
use rustbtl_coordination::control::{FromNode, FromRank, LineId, ToNode};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use serde_json::Value;

pub(super) const NODES: [&str; 3] = ["a", "b", "c"];

/// A rank on each of three nodes, each a set; what was to be done since the last look.
pub(super) struct World {
    pub(super) job: Job,
    pub(super) now: u64,
    pub(super) effects: Vec<Effect>,
}

impl World {
    /// Nodes keep their images, and one other node a copy.
    pub(super) fn new() -> Self {
        let mut world = Self::empty();
        for (rank, node) in (0..).zip(NODES) {
            world.comes(rank, node, 0);
        }
        world
    }

    pub(super) fn empty() -> Self {
        let setup = Setup { size: 3, copies: Some(1), ..Setup::default() };
        Self { job: Job::new("j".into(), setup), now: 1, effects: Vec::new() }
    }

    /// The first line is complete: each node has its own image, and the next one a copy.
    pub(super) fn with_line() -> Self {
        let mut world = Self::new();
        world.take_line(1);
        assert_eq!(world.events("complete").len(), 1);
        world.effects.clear();
        world
    }

    pub(super) fn take_line(&mut self, line: u64) {
        let line = LineId(line);
        for (rank, node) in (0..).zip(NODES) {
            self.rank(rank, node, FromRank::Stopped { line });
        }
        for (rank, node) in (0..).zip(NODES) {
            let rank = PeerId(rank);
            self.hear(node, FromNode::Frozen { rank, line, coordination_ns: 1, pause_ns: 1 });
            let (bytes, raw_bytes, ns, checksum) = (1, 1, 1, 1);
            self.hear(node, FromNode::Stored { rank, line, bytes, raw_bytes, ns, checksum });
        }
        for (rank, (node, next)) in (0..).zip(NODES.into_iter().zip(["b", "c", "a"])) {
            let (rank, next) = (PeerId(rank), next.to_owned());
            self.hear(node, FromNode::Copied { rank, line, node: next });
        }
    }

    /// The coordinator is killed, and another one knows what was kept.
    pub(super) fn again(mut self) -> Self {
        let kept = serde_json::to_vec(&self.job.state()).unwrap();
        self = Self::empty();
        self.job.resume(0, serde_json::from_slice(&kept).unwrap()).unwrap();
        self.look();
        self
    }

    pub(super) fn look(&mut self) {
        self.effects.extend(core::iter::from_fn(|| self.job.next_effect()));
    }

    pub(super) fn hear(&mut self, node: &str, message: FromNode) {
        self.now += 1;
        self.job.hear(self.now, node, message);
        self.look();
    }

    pub(super) fn mpirun(&mut self, word: &str) {
        self.now += 1;
        self.job.hear_mpirun(self.now, word);
        self.look();
    }

    pub(super) fn rank(&mut self, rank: u32, node: &str, message: FromRank) {
        self.hear(node, FromNode::Rank { rank: PeerId(rank), message });
    }

    pub(super) fn guardian(&mut self, rank: u32, node: &str, incarnation: u16) {
        let (rank, incarnation) = (PeerId(rank), Incarnation(incarnation));
        self.hear(node, FromNode::Guardian { rank, size: 3, pid: 7, incarnation });
    }

    pub(super) fn hello(&mut self, rank: u32, node: &str, incarnation: u16) {
        let hello = FromRank::Hello {
            rank: PeerId(rank),
            size: 3,
            pid: 8,
            incarnation: Incarnation(incarnation),
            version: String::new(),
            set: SetId(rank),
            card: Vec::new(),
        };
        self.rank(rank, node, hello);
    }

    /// Agent, guardian and rank, as they say it to each coordinator.
    pub(super) fn comes(&mut self, rank: u32, node: &str, incarnation: u16) {
        self.hear(node, FromNode::Shelf { addresses: format!("{node}:1") });
        self.guardian(rank, node, incarnation);
        self.hello(rank, node, incarnation);
        self.rank(rank, node, FromRank::Ready {});
    }

    /// The program of a rank was ended by a signal.
    pub(super) fn falls(&mut self, rank: u32, node: &str, incarnation: u16) {
        let (rank, incarnation) = (PeerId(rank), Incarnation(incarnation));
        self.hear(node, FromNode::Fallen { rank, status: libc::SIGKILL, incarnation });
    }

    pub(super) fn events(&self, name: &str) -> Vec<Value> {
        let of = |effect: &Effect| match effect {
            Effect::Log(event) if event["event"] == name => Some(event.clone()),
            _ => None,
        };
        self.effects.iter().filter_map(of).collect()
    }

    pub(super) fn to_mpirun(&self) -> Vec<&str> {
        let mut words = Vec::new();
        for effect in &self.effects {
            if let Effect::TellMpirun(text) = effect {
                words.push(text.as_str());
            }
        }
        words
    }

    pub(super) fn sent(&self, rank: u32) -> Vec<&ToNode> {
        let to = |effect| match effect {
            &Effect::Send(to, ref message) if to == PeerId(rank) => Some(message),
            _ => None,
        };
        self.effects.iter().filter_map(to).collect()
    }
}
