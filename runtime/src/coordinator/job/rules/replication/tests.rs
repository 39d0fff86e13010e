//! Which nodes have which image, step by step: orders to agents and mpirun.

pub(crate) mod spares;

use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::rules::replication::*;
use rustbtl_coordination::control::{FromNode, FromRank, ToRank};
use rustbtl_fragments::ids::Incarnation;

/// One rank on each node, by default; all effects that were not looked at yet.
struct World {
    job: Job,
    now: u64,
    effects: Vec<Effect>,
}

impl World {
    /// Ranks on these nodes; their first checkpoint is ordered, and their snapshots are taken.
    fn new(replicas: usize, nodes: &[&str]) -> Self {
        let size = nodes.len() as u32;
        let config = JobConfig { size, replicas: Some(replicas), ..JobConfig::default() };
        let mut world = Self { job: Job::new("j".into(), config), now: 1, effects: Vec::new() };
        for node in nodes {
            world.handle(node, FromNode::ReplicaServer { addresses: format!("{node}:1") });
        }
        for (rank, node) in (0..).zip(nodes) {
            world.guardian(rank, node, 0);
        }
        for (rank, node) in (0..).zip(nodes) {
            let first = nodes.iter().position(|other| other == node).unwrap() as u32;
            world.hello(rank, node, first, 0);
        }
        for (rank, node) in (0..).zip(nodes) {
            world.rank(rank, node, FromRank::Ready {});
        }
        world.freeze(nodes, 1);
        world
    }

    fn handle(&mut self, node: &str, message: FromNode) {
        self.now += 1;
        self.job.handle(self.now, node, message);
        self.poll();
    }

    /// Nobody has received anything of failed sets.
    fn poll(&mut self) {
        while let Some(effect) = self.job.next_effect() {
            if let Effect::Fence { set, before, .. } = effect {
                self.job.fenced(self.now, set, before);
            }
            self.effects.push(effect);
        }
    }

    fn guardian(&mut self, rank: u32, node: &str, incarnation: u16) {
        let (rank, size) = (PeerId(rank), self.job.config.size);
        let incarnation = Incarnation(incarnation);
        self.handle(node, FromNode::Guardian { rank, size, pid: 7, incarnation });
    }

    fn rank(&mut self, rank: u32, node: &str, message: FromRank) {
        self.handle(node, FromNode::Rank { rank: PeerId(rank), message });
    }

    fn hello(&mut self, rank: u32, node: &str, set: u32, incarnation: u16) {
        let hello = FromRank::Hello {
            rank: PeerId(rank),
            size: self.job.config.size,
            pid: 8,
            incarnation: Incarnation(incarnation),
            version: String::new(),
            set: SetId(set),
            endpoint: Vec::new(),
        };
        self.rank(rank, node, hello);
    }

    fn freeze(&mut self, nodes: &[&str], checkpoint: u64) {
        let checkpoint = CheckpointId(checkpoint);
        for (rank, node) in (0..).zip(nodes) {
            self.rank(rank, node, FromRank::OutgoingStopped { checkpoint });
        }
        for (rank, node) in (0..).zip(nodes) {
            let rank = PeerId(rank);
            self.handle(
                node,
                FromNode::Frozen { rank, checkpoint, coordination_ns: 1, pause_ns: 1 },
            );
        }
    }

    fn stored(&mut self, rank: u32, node: &str, checkpoint: u64) {
        let (rank, checkpoint) = (PeerId(rank), CheckpointId(checkpoint));
        let (bytes, raw_bytes, ns, lost_ns, checksum) = (1, 1, 1, 0, 1);
        self.handle(
            node,
            FromNode::Stored { rank, checkpoint, bytes, raw_bytes, ns, lost_ns, checksum },
        );
    }

    fn image_replicated(&mut self, rank: u32, from: &str, to: &str, checkpoint: u64) {
        let (rank, checkpoint, node) = (PeerId(rank), CheckpointId(checkpoint), to.to_owned());
        self.handle(from, FromNode::ImageReplicated { rank, checkpoint, node });
    }

    fn image_not_replicated(
        &mut self,
        rank: u32,
        from: &str,
        to: &str,
        checkpoint: u64,
        reason: &str,
    ) {
        let (rank, checkpoint) = (PeerId(rank), CheckpointId(checkpoint));
        let (node, reason) = (to.to_owned(), reason.to_owned());
        self.handle(from, FromNode::ImageNotReplicated { rank, checkpoint, node, reason });
    }

    fn lose(&mut self, node: &str) {
        self.now += 1;
        self.job.handle_mpirun(self.now, &format!("lost {node}"));
        self.poll();
    }

    /// Orders to agents and mpirun about images since the last call, and events of storage.
    fn actions(&mut self) -> Vec<String> {
        let actions = |effect: Effect| match effect {
            Effect::SendNode(at, ToNode::ReplicateImage { rank, checkpoint, node, addresses }) => {
                assert_eq!(addresses, format!("{node}:1"));
                Some(format!("{at}: replicate {rank} of {checkpoint} to {node}"))
            }
            Effect::SendNode(at, ToNode::DeleteCheckpoint { checkpoint, ranks }) => {
                let ranks: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
                Some(format!("{at}: clear {ranks:?} of {checkpoint}"))
            }
            Effect::Send(_, ToNode::Adopt { host, rank, directory, .. }) => {
                Some(format!("{host} adopts {rank} from {directory}"))
            }
            Effect::Send(_, ToNode::AdoptOnSpare { host, rank, directory, addresses, .. }) => {
                Some(format!("{host} has {rank} started at {addresses} from {directory}"))
            }
            Effect::Send(_, ToNode::Restore { rank, directory, .. }) => {
                Some(format!("restore {rank} from {directory}"))
            }
            Effect::Send(to, ToNode::Rank { message: ToRank::Abort { reason, .. }, .. }) => {
                (to == PeerId(0)).then(|| format!("abort: {reason}"))
            }
            Effect::Mpirun(order) => Some(order.to_string()),
            Effect::Log(event) if event["event"] == "checkpoint_completed" => {
                Some("complete".into())
            }
            Effect::Log(event) if event["event"] == "replication_ok" => Some("replicated".into()),
            _ => None,
        };
        core::mem::take(&mut self.effects).into_iter().filter_map(actions).collect()
    }

    /// The ranks of a restarted set are replaying what was lost.
    fn restarts(&mut self, rank: u32, node: &str, incarnation: u16) {
        self.guardian(rank, node, incarnation);
        self.hello(rank, node, rank, incarnation);
        self.rank(rank, node, FromRank::Ready {});
    }
}

const THREE: [&str; 3] = ["n0", "n1", "n2"];

/// Three nodes in a ring, whose first checkpoint is complete.
fn ring() -> World {
    let mut world = World::new(1, &THREE);
    for (rank, from, to) in [(0, "n0", "n1"), (1, "n1", "n2"), (2, "n2", "n0")] {
        world.actions();
        world.stored(rank, from, 1);
        assert_eq!(world.actions(), [format!("{from}: replicate {rank} of 1 to {to}")]);
        world.image_replicated(rank, from, to, 1);
    }
    assert_eq!(world.actions(), ["complete", "replicated"]);
    world
}

#[test]
fn a_checkpoint_is_complete_when_the_last_replica_is_stored() {
    ring();
}

#[test]
fn without_another_node_and_without_replicas_the_own_image_is_enough() {
    for (replicas, nodes) in [(1, &["n0", "n0"][..]), (0, &THREE[..])] {
        let mut world = World::new(replicas, nodes);
        world.actions();
        for (rank, node) in (0..).zip(nodes) {
            world.stored(rank, node, 1);
        }
        assert_eq!(world.actions(), ["complete", "replicated"], "{nodes:?}");
    }
}

#[test]
fn several_replicas_go_to_several_nodes() {
    let mut world = World::new(2, &THREE);
    world.actions();
    world.stored(1, "n1", 1);
    assert_eq!(world.actions(), ["n1: replicate 1 of 1 to n2", "n1: replicate 1 of 1 to n0"]);
}

#[test]
fn ranks_are_restarted_where_their_replica_is_and_then_there_is_another_replica() {
    let mut world = ring();
    world.lose("n1");
    // Rank 0 has lost its replica, too, and rank 1 is started by the guardian of rank 2.
    let actions = world.actions();
    assert_eq!(actions, ["2 adopts 1 from checkpoint-1", "n0: replicate 0 of 1 to n2"]);
    world.restarts(1, "n2", 1);
    assert_eq!(world.actions(), ["n2: replicate 1 of 1 to n0", "recovered"]);
    world.image_replicated(0, "n0", "n2", 1);
    assert_eq!(world.actions(), [""; 0]);
    world.image_replicated(1, "n2", "n0", 1);
    assert_eq!(world.actions(), ["replicated"]);
    world.rank(1, "n2", FromRank::ReplayComplete {});
    world.lose("n2");
    assert_eq!(world.actions(), ["0 adopts 1 from checkpoint-1", "0 adopts 2 from checkpoint-1"]);
    for (rank, incarnation) in [(1, 2), (2, 3)] {
        world.guardian(rank, "n0", incarnation);
        world.hello(rank, "n0", rank, incarnation);
    }
    world.rank(1, "n0", FromRank::Ready {});
    world.rank(2, "n0", FromRank::Ready {});
    assert_eq!(world.actions(), ["replicated", "recovered"], "one node is left");
}

#[test]
fn a_loss_before_there_is_another_replica_ends_the_job_and_names_what_is_lost() {
    let mut world = ring();
    world.lose("n1");
    world.actions();
    world.lose("n2");
    let actions = world.actions().join("; ");
    assert!(
        actions.contains("fail node n2 was lost, and all images of rank 1 in checkpoint 1"),
        "{actions}"
    );
    assert!(actions.contains("they were on node n1, node n2."), "{actions}");
}

#[test]
fn what_one_node_does_not_take_goes_to_another_all_of_a_node_together() {
    let mut world = World::new(1, &["n0", "n0", "n1", "n2"]);
    world.actions();
    world.stored(0, "n0", 1);
    world.stored(1, "n0", 1);
    assert_eq!(world.actions(), ["n0: replicate 0 of 1 to n1", "n0: replicate 1 of 1 to n1"]);
    world.image_replicated(0, "n0", "n1", 1);
    assert_eq!(world.actions(), [""; 0]);
    world.image_not_replicated(1, "n0", "n1", 1, "no room");
    let actions = world.actions();
    let elsewhere = ["n0: replicate 0 of 1 to n2", "n0: replicate 1 of 1 to n2"];
    assert_eq!(actions, [&["n1: clear [0] of 1"], &elsewhere[..]].concat());
    world.image_not_replicated(1, "n0", "n2", 1, "no room either");
    let actions = world.actions();
    let why = "rank 0: there is no node for a replica of what node n0 has \
               (n1: no room; n2: no room either)";
    assert_eq!(actions[0], format!("abort: {why}"));
    assert_eq!(actions[1..], ["n0: clear [0, 1] of 1"]);
}

#[test]
fn a_partner_that_is_lost_is_replaced() {
    let mut world = World::new(1, &THREE);
    world.stored(0, "n0", 1);
    world.actions();
    world.now += 1;
    world.job.agent_gone(world.now, "n1", &[]);
    world.effects.extend(core::iter::from_fn(|| world.job.next_effect()));
    assert_eq!(world.actions(), ["n0: replicate 0 of 1 to n2"]);
    // It reports that late.
    world.image_not_replicated(0, "n0", "n1", 1, "the connection has ended");
    assert_eq!(world.actions(), [""; 0]);
}

#[test]
fn replicas_are_removed_with_their_checkpoint_and_late_ones_too() {
    let mut world = ring();
    world.job.checkpoint(world.now, 9, true, false, false);
    world.effects.extend(core::iter::from_fn(|| world.job.next_effect()));
    world.freeze(&THREE, 2);
    for (rank, from, to) in [(0, "n0", "n1"), (1, "n1", "n2"), (2, "n2", "n0")] {
        world.stored(rank, from, 2);
        world.actions();
        world.image_replicated(rank, from, to, 2);
    }
    let mut actions = world.actions();
    actions.sort();
    let cleared = ["n0: clear [0, 2] of 1", "n1: clear [0, 1] of 1", "n2: clear [1, 2] of 1"];
    assert_eq!(actions, [&["complete"], &cleared[..]].concat());
    world.image_replicated(0, "n0", "n2", 1);
    assert_eq!(world.actions(), ["n2: clear [0] of 1"]);
}

#[test]
fn of_a_set_with_a_younger_checkpoint_older_images_are_removed_but_those_of_all() {
    let mut world = ring();
    for checkpoint in [2, 3] {
        let set = world.job.ranks[&PeerId(0)].set.unwrap();
        world.job.input(world.now, Input::RequestSetCheckpoint { set });
        world.effects.extend(core::iter::from_fn(|| world.job.next_effect()));
        let (rank, id) = (PeerId(0), CheckpointId(checkpoint));
        let frozen = FromNode::Frozen { rank, checkpoint: id, coordination_ns: 1, pause_ns: 1 };
        world.handle("n0", frozen);
        world.stored(0, "n0", checkpoint);
        assert_eq!(world.actions(), [format!("n0: replicate 0 of {checkpoint} to n1")]);
        world.image_replicated(0, "n0", "n1", checkpoint);
        let mut wanted = vec!["complete".to_owned()];
        if checkpoint == 3 {
            wanted.extend(["n0", "n1"].map(|node| format!("{node}: clear [0] of 2")));
        }
        assert_eq!(world.actions(), wanted);
    }
    // Of both there is another replica where one is lost.
    world.lose("n1");
    let actions = world.actions();
    for image in ["0 of 3", "0 of 1"] {
        let wanted = format!("n0: replicate {image} to n2");
        assert!(actions.contains(&wanted), "{wanted}: {actions:?}");
    }
}

#[test]
fn a_program_that_is_killed_is_restarted_on_its_node() {
    let mut world = ring();
    let failed = FromNode::RankFailed { rank: PeerId(1), status: 9, incarnation: Incarnation(0) };
    world.handle("n1", failed);
    assert_eq!(world.actions(), ["restore 1 from checkpoint-1"]);
}

#[test]
fn a_checkpoint_that_should_outlive_the_job_is_refused() {
    let mut world = ring();
    world.effects.clear();
    world.job.checkpoint(world.now, 9, true, true, true);
    let effects: Vec<Effect> = core::iter::from_fn(|| world.job.next_effect()).collect();
    let refused = format!("{effects:?}");
    assert!(refused.contains("Refused") && refused.contains("vprotocol_correlated_checkpoint_dir"));
}
