//! A spare node takes the ranks of a lost one, with images that others have to send.

use crate::coordinator::job::rules::replication::tests::*;

const SPARE: &str = "s";

impl World {
    fn spare(&mut self, there: bool) {
        let addresses = if there { format!("{SPARE}:9") } else { String::new() };
        self.handle(SPARE, FromNode::SpareNode { port: 9, addresses });
    }
}

/// The proxy of rank 1 has failed, as the guardian that waits for it reports.
fn proxy_failed(host: u32, incarnation: u16, reachable: bool) -> FromNode {
    FromNode::ProxyFailed {
        host: PeerId(host),
        rank: PeerId(1),
        incarnation: Incarnation(incarnation),
        reachable,
        reason: "gone".into(),
    }
}

impl World {
    /// Rank 1 of a lost node is restarted there, and its replay is complete.
    fn settle(&mut self, node: &str) {
        self.lose("n1");
        self.image_replicated(0, "n0", "n2", 1);
        self.image_replicated(1, "n2", if node == SPARE { SPARE } else { "n0" }, 1);
        self.restarts(1, node, 1);
        self.rank(1, node, FromRank::ReplayComplete {});
        self.actions();
    }
}

/// A complete checkpoint, and an agent on a node without ranks that has none of the images.
fn with_spare() -> World {
    let mut world = ring();
    world.handle(SPARE, FromNode::ReplicaServer { addresses: format!("{SPARE}:1") });
    world.spare(true);
    assert_eq!(world.actions(), [""; 0]);
    world
}

const BRING: [&str; 2] = ["n2: replicate 1 of 1 to s", "n0: replicate 0 of 1 to n2"];
const START: &str = "0 has 1 started at s:9 from checkpoint-1";

#[test]
fn ranks_are_started_on_the_spare_node_when_it_has_their_images() {
    let mut world = with_spare();
    world.lose("n1");
    assert_eq!(world.actions(), BRING);
    world.image_replicated(1, "n2", SPARE, 1);
    assert_eq!(world.actions(), [START]);
    // It has two replicas now: the one that was lost is not missed.
    world.restarts(1, SPARE, 1);
    assert_eq!(world.actions(), ["recovered"]);
    // A second loss: that of the spare node.
    world.rank(1, SPARE, FromRank::ReplayComplete {});
    world.lose(SPARE);
    assert_eq!(world.actions(), ["2 adopts 1 from checkpoint-1"]);
}

#[test]
fn if_the_spare_node_does_not_take_the_images_the_holder_is_next() {
    let mut world = with_spare();
    world.lose("n1");
    world.actions();
    world.image_not_replicated(1, "n2", SPARE, 1, "no room");
    assert_eq!(world.actions(), ["2 adopts 1 from checkpoint-1"]);
}

#[test]
fn if_the_spare_node_is_lost_or_leaves_on_the_way_the_holder_is_next() {
    for leaves in [false, true] {
        let mut world = with_spare();
        world.lose("n1");
        world.actions();
        if leaves {
            world.spare(false);
        } else {
            world.lose(SPARE);
        }
        let actions = world.actions();
        assert!(actions.contains(&"2 adopts 1 from checkpoint-1".to_owned()), "{actions:?}");
        world.image_replicated(1, "n2", SPARE, 1);
        assert!(!world.actions().contains(&START.to_owned()), "nobody is started twice");
    }
}

#[test]
fn if_the_sender_of_the_images_is_lost_another_one_sends_them() {
    let mut world = World::new(2, &THREE);
    for (rank, from) in (0..).zip(THREE) {
        world.stored(rank, from, 1);
        for to in THREE.iter().filter(|to| **to != from) {
            world.image_replicated(rank, from, to, 1);
        }
    }
    world.handle(SPARE, FromNode::ReplicaServer { addresses: format!("{SPARE}:1") });
    world.spare(true);
    world.actions();
    world.lose("n1");
    assert!(world.actions().contains(&"n0: replicate 1 of 1 to s".to_owned()));
    world.lose("n0");
    let actions = world.actions();
    assert!(actions.contains(&"n2: replicate 1 of 1 to s".to_owned()), "{actions:?}");
}

#[test]
fn a_spare_node_that_cannot_be_reached_is_left_and_nobody_waits_for_it() {
    let mut world = with_spare();
    world.lose("n1");
    world.image_replicated(1, "n2", SPARE, 1);
    world.actions();
    let (host, rank) = (PeerId(0), PeerId(1));
    let proxy_failed = proxy_failed(0, 1, false);
    world.handle("n0", proxy_failed.clone());
    let abandoned = Effect::Send(host, ToNode::Abandon { host, rank });
    assert!(world.effects.contains(&abandoned), "{:?}", world.effects);
    assert_eq!(world.actions(), ["2 adopts 1 from checkpoint-1"]);
    // It is reported again: that is of an earlier incarnation.
    world.handle("n0", proxy_failed);
    assert_eq!(world.actions(), [""; 0]);
}

#[test]
fn a_rank_whose_guardian_is_killed_on_the_spare_node_is_restarted_there() {
    let mut world = with_spare();
    world.settle(SPARE);
    for (host, incarnation) in [(2, 1), (0, 9)] {
        world.handle("n0", proxy_failed(host, incarnation, true));
        assert_eq!(world.actions(), [""; 0], "not the one that it waits for");
    }
    world.handle("n0", proxy_failed(0, 1, true));
    assert_eq!(world.actions(), [START]);
}

#[test]
fn a_rank_whose_second_guardian_is_killed_is_adopted_again() {
    let mut world = ring();
    world.settle("n2");
    world.handle("n2", proxy_failed(2, 1, true));
    assert_eq!(world.actions(), ["2 adopts 1 from checkpoint-1"]);
    // Its host is not touched.
    world.restarts(1, "n2", 2);
    assert_eq!(world.actions(), ["recovered"]);
}

#[test]
fn a_rank_that_is_being_started_on_the_spare_node_stays_there_when_all_are_rolled_back() {
    let mut world = with_spare();
    world.lose("n1");
    world.image_replicated(1, "n2", SPARE, 1);
    assert!(world.actions().contains(&START.to_owned()));
    world.job.roll_back_all(world.now, "orphan", None).unwrap();
    world.poll();
    let (host, rank) = (PeerId(0), PeerId(1));
    let abandoned = Effect::Send(host, ToNode::Abandon { host, rank });
    assert!(world.effects.contains(&abandoned), "nobody is started twice: {:?}", world.effects);
    let actions = world.actions();
    assert!(actions.contains(&START.to_owned()), "it has room for one: {actions:?}");
}

#[test]
fn ranks_that_are_being_started_are_placed_again_with_one_of_their_set_that_fails() {
    const NODES: [&str; 4] = ["n0", "n1", "n1", "n2"];
    let mut world = World::new(1, &NODES);
    world.handle(SPARE, FromNode::ReplicaServer { addresses: format!("{SPARE}:1") });
    world.spare(true);
    for (rank, from, to) in [(0, "n0", "n1"), (1, "n1", "n2"), (2, "n1", "n2"), (3, "n2", SPARE)] {
        world.stored(rank, from, 1);
        world.image_replicated(rank, from, to, 1);
    }
    world.lose("n1");
    for rank in [1, 2] {
        world.image_replicated(rank, "n2", SPARE, 1);
    }
    let started = |world: &mut World| {
        let mut started = world.actions();
        started.retain(|action| action.contains("started at s:9") || action.contains("adopts"));
        started
    };
    let both = [1, 2].map(|rank| format!("0 has {rank} started at s:9 from checkpoint-1"));
    assert_eq!(started(&mut world), both);
    let proxy_failed = FromNode::ProxyFailed {
        host: PeerId(0),
        rank: PeerId(2),
        incarnation: Incarnation(1),
        reachable: true,
        reason: "gone".into(),
    };
    world.handle("n0", proxy_failed);
    assert_eq!(started(&mut world), both, "it has room for two");
}

#[test]
fn with_the_guardian_that_waits_a_rank_on_the_spare_node_is_lost_too() {
    let mut world = with_spare();
    world.settle(SPARE);
    world.lose("n0");
    // Rank 0 ran there; of rank 1 only the guardian that waits did. Rank 1 has its images on the
    // spare node, and then there is no room for rank 0.
    let actions = world.actions();
    let wanted = ["2 has 1 started at s:9 from checkpoint-1", "2 adopts 0 from checkpoint-1"];
    assert_eq!(actions[1..3], wanted, "{actions:?}");
}

#[test]
fn the_spare_node_is_dismissed_when_all_have_ended() {
    let mut world = with_spare();
    for (rank, node) in (0..).zip(THREE) {
        assert!(
            !world
                .effects
                .iter()
                .any(|e| matches!(e, Effect::SendNode(_, ToNode::DismissSpare {})))
        );
        world.handle(node, FromNode::Ended { rank: PeerId(rank), status: 0, ordered: false });
    }
    assert!(world.effects.contains(&Effect::SendNode(SPARE.into(), ToNode::DismissSpare {})));
}
