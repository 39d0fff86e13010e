//! Nodes of the allocation without ranks take those of nodes that are lost. The coordinator's log
//! shows where they went; the answer is that of an undisturbed run.

use super::mpi::Over;
use super::summary::Tier;
use super::workloads::{RING, Shape};
use super::{local_storage, node_failure};
use crate::error::{Result, fail};
use serde_json::Value;

/// Who is killed, and where the lost ranks go, one set after the other. The spare nodes come after
/// those with ranks.
type Case = (&'static str, Shape, &'static [&'static str], &'static [&'static str]);

/// With a directory that all nodes share.
const SHARED: [Case; 4] = [
    (
        "a node is killed: 3 × 1",
        (3, 1),
        &["--spare", "1", "--kill-node-after-checkpoint", "1@1"],
        &["n3"],
    ),
    (
        "a node is killed: 2 × 2",
        (2, 2),
        &["--spare", "1", "--kill-node-after-checkpoint", "1@1"],
        &["n2"],
    ),
    (
        "two nodes are killed: 3 × 1",
        (3, 1),
        &[
            "--spare",
            "2",
            "--kill-node-after-checkpoint",
            "1@1",
            "--kill-node-after-checkpoint",
            "2@1",
        ],
        &["n3", "n4"],
    ),
    (
        "there is no spare node if the user wants none: 3 × 1",
        (3, 1),
        &[
            "--spare",
            "1",
            "--mca",
            "vprotocol_correlated_spare_nodes",
            "0",
            "--kill-node-after-checkpoint",
            "1@1",
        ],
        &["n0"],
    ),
];

/// Without one: images have to be brought there. And how often a set is rolled back.
const PLAIN: [(Case, usize); 6] = [
    (
        (
            "a node is killed: 3 × 1",
            (3, 1),
            &["--spare", "1", "--kill-node-after-replication", "1@1"],
            &["n3"],
        ),
        1,
    ),
    (
        (
            "a node is killed: 2 × 2",
            (2, 2),
            &["--spare", "1", "--kill-node-after-replication", "1@1"],
            &["n2"],
        ),
        1,
    ),
    (
        (
            "a node is killed, and then the spare one: 3 × 1",
            (3, 1),
            &[
                "--spare",
                "1",
                "--kill-node-after-replication",
                "1@1",
                "--kill-node-after-replication",
                "3@2",
            ],
            &["n3", "n2"],
        ),
        2,
    ),
    (
        (
            "a node is killed, and the spare one's cable is pulled: 3 × 1",
            (3, 1),
            &[
                "--spare",
                "1",
                "--kill-node-after-replication",
                "1@1",
                "--cut-node-after-replication",
                "3@2",
            ],
            &["n3", "n2"],
        ),
        2,
    ),
    (
        (
            "a node and the spare one are killed at a time: 3 × 1",
            (3, 1),
            &[
                "--spare",
                "1",
                "--kill-node-after-replication",
                "1@1",
                "--kill-node-after-replication",
                "3@1",
            ],
            &["n2"],
        ),
        1,
    ),
    (
        (
            "a node is killed, and the guardian of its rank on the spare one: 3 × 1",
            (3, 1),
            &[
                "--spare",
                "1",
                "--kill-node-after-replication",
                "1@1",
                "--kill-at-event",
                "replay_completed@1=guardian:1",
            ],
            &["n3"],
        ),
        2,
    ),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for (title, shape, faults, places) in SHARED {
        tier.check(&format!("spare nodes: {title}"), || {
            must_go(
                &node_failure::survives(&RING, node_failure::ITERATIONS, shape, faults)?,
                places,
            )
        });
    }
    run_over(tier, &Over::Component, PLAIN.len());
}

/// So many of the cases without a shared directory.
pub fn run_over(tier: &mut Tier, over: &Over, cases: usize) {
    for ((title, shape, faults, places), times) in PLAIN.into_iter().take(cases) {
        tier.check(&format!("spare nodes: plain command: {title}"), || {
            must_go(&local_storage::survives(over, shape, faults, times)?, places)
        });
    }
}

/// Ranks were started on these nodes, in this order, once or several times; before that perhaps
/// on another one that broke on the way.
fn must_go(events: &str, wanted: &[&str]) -> Result<()> {
    let read = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let placed = read.filter(|event| event["event"] == "rank_placed");
    let mut nodes: Vec<String> =
        placed.map(|event| event["node"].as_str().unwrap_or_default().to_owned()).collect();
    nodes.dedup();
    let known: Vec<&str> = nodes.iter().map(String::as_str).collect();
    if !known.ends_with(wanted) {
        let (known, wanted) = (known.join(", "), wanted.join(", "));
        fail!("the ranks went to {known}, and should go to {wanted}; the job:\n{events}");
    }
    Ok(())
}
