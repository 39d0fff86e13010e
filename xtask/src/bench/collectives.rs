//! Collectives inside a node and between nodes: Open MPI's over our messages, and our own
//! (docs/adr/0040, 0041).

use super::experiments::{Experiment, Kind, Program, STOCK, Side};
use super::rows::{Goal, Row, Unit, against};

/// Ours, with the engine alone as in `OURS`.
const OWN: Side = Side {
    name: "own-collectives",
    kind: Kind::Defaults(&[
        ("vprotocol_correlated_collectives", "1"),
        ("vprotocol_correlated_recover", "0"),
    ]),
    threads: false,
};

/// The same over messages, by Open MPI's components.
const OFF: Side = Side {
    name: "messages",
    kind: Kind::Defaults(&[
        ("vprotocol_correlated_collectives", "0"),
        ("vprotocol_correlated_recover", "0"),
    ]),
    threads: false,
};

/// Everything on, as it comes: with collectives over several sets.
const OVER_SETS: Side = Side { name: "over-sets", kind: Kind::Defaults(&[]), threads: false };

/// The same with all of them over several sets that there are.
const ALL_OVER_SETS: Side = Side {
    name: "all-over-sets",
    kind: Kind::Defaults(&[("vprotocol_correlated_collectives_over_sets_all", "1")]),
    threads: false,
};

/// Everything on, but these, which are Open MPI's.
const OFF_PROTECTED: Side = Side {
    name: "protected-messages",
    kind: Kind::Defaults(&[("vprotocol_correlated_collectives_over_sets", "0")]),
    threads: false,
};

/// Names and sizes, over several sets.
const BETWEEN: &[&str] = &["barrier,bcast,allreduce,reduce", "8,1024,4096,16384,65536"];

/// The same of those where members give each other blocks of that size, and of scans.
const BLOCKS: &[&str] =
    &["allgather,gather,scatter,alltoall,reduce_scatter,scan", "8,1024,4096,8192"];

/// All of them; none has a bare side.
pub fn experiments() -> Vec<Experiment> {
    let of = |name, arguments| Experiment {
        name,
        sides: &[STOCK, OFF, OWN],
        shape: (1, 2),
        program: Program::Own("collectives", arguments),
        bare: &[],
        once: false,
    };
    let shared = ["barrier,allreduce", "8,1024,65536"].as_slice();
    let shared = Program::Own("collectives", shared);
    // Several nodes, everything on: more ranks than processors.
    let between = |name, shape| Experiment {
        shape,
        sides: &[STOCK, OFF_PROTECTED, OVER_SETS],
        program: Program::Own("collectives", BETWEEN),
        ..of(name, &[])
    };
    let blocks = |name, shape| Experiment {
        sides: &[STOCK, OFF_PROTECTED, ALL_OVER_SETS],
        program: Program::Own("collectives", BLOCKS),
        ..between(name, shape)
    };
    vec![
        between("collectives-nodes", (2, 2)),
        blocks("collectives-nodes-blocks", (2, 2)),
        between("collectives-three-nodes", (3, 2)),
        blocks("collectives-three-nodes-blocks", (3, 2)),
        // Four ranks on two processors.
        Experiment { shape: (1, 4), program: shared, ..of("collectives-shared", &[]) },
        of("collectives-small", &["barrier,bcast,rate,allreduce,reduce,alltoall,allgather", "8"]),
        of("collectives-medium", &["bcast,allreduce,alltoall,allgather", "1024,16384"]),
        of("collectives-large", &["bcast,allreduce,alltoall,allgather", "65536,1048576"]),
        of("collectives-nonblocking", &["ibarrier,ibcast,iallreduce", "8,1024"]),
    ]
}

/// The goals of ADR 0040.
pub fn rows() -> Vec<Row> {
    type Line = (&'static str, &'static str, u64, f64);
    const OF_OWN: [Line; 20] = [
        ("collectives-small", "barrier", 0, 0.50),
        ("collectives-small", "allgather", 8, 0.50),
        ("collectives-small", "allreduce", 8, 0.55),
        ("collectives-medium", "allreduce", 1024, 0.55),
        ("collectives-medium", "allreduce", 16384, 0.55),
        ("collectives-large", "allreduce", 65536, 0.55),
        ("collectives-large", "allreduce", 1 << 20, 0.85),
        ("collectives-small", "bcast", 8, 0.65),
        ("collectives-medium", "bcast", 1024, 0.65),
        ("collectives-large", "bcast", 65536, 0.65),
        ("collectives-large", "bcast", 1 << 20, 0.75),
        ("collectives-small", "rate", 8, 0.80),
        ("collectives-small", "alltoall", 8, 0.60),
        ("collectives-medium", "alltoall", 1024, 0.60),
        ("collectives-large", "alltoall", 65536, 1.00),
        ("collectives-large", "allgather", 65536, 1.00),
        ("collectives-shared", "barrier", 0, 1.00),
        ("collectives-shared", "allreduce", 8, 0.90),
        ("collectives-shared", "allreduce", 1024, 0.60),
        ("collectives-shared", "allreduce", 65536, 0.60),
    ];
    const NONBLOCKING: [Line; 3] = [
        ("collectives-nonblocking", "ibarrier", 0, 1.00),
        ("collectives-nonblocking", "ibcast", 8, 1.00),
        ("collectives-nonblocking", "iallreduce", 8, 1.00),
    ];
    let mut rows = Vec::new();
    let mut add = |title, lines: &[Line], sides, side: &Side| {
        for &(experiment, metric, size, goal) in lines {
            let part = against(title, experiment, Unit::Us, (sides, side.name, STOCK.name));
            rows.push(part.labelled(metric, size, Goal::AtMost(goal)));
        }
    };
    add("collectives inside a set", &OF_OWN, "own / stock", &OWN);
    add("nonblocking collectives inside a node", &NONBLOCKING, "own / stock", &OWN);
    let two = "collectives between two nodes, everything on";
    let three = "collectives between three nodes, everything on";
    for (title, experiment, side, what) in [
        (two, "collectives-nodes", OVER_SETS, BETWEEN),
        (two, "collectives-nodes-blocks", ALL_OVER_SETS, BLOCKS),
        (three, "collectives-three-nodes", OVER_SETS, BETWEEN),
        (three, "collectives-three-nodes-blocks", ALL_OVER_SETS, BLOCKS),
    ] {
        rows.extend(between(title, experiment, side.name, what));
    }
    rows
}

/// Against stock, and against what they would be without.
fn between(
    title: &'static str,
    experiment: &'static str,
    side: &'static str,
    what: &[&'static str],
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (sides, other, goal) in
        [("on / stock", STOCK.name, 0.80), ("on / off", OFF_PROTECTED.name, 1.00)]
    {
        for metric in what[0].split(',') {
            let sizes = if metric == "barrier" { "0" } else { what[1] };
            for size in sizes.split(',').filter_map(|size| size.parse().ok()) {
                let part = against(title, experiment, Unit::Us, (sides, side, other));
                rows.push(part.labelled(metric, size, Goal::AtMost(goal)));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_experiment() {
        let experiments = experiments();
        for row in rows() {
            let found = experiments.iter().find(|e| e.name == row.experiment);
            let Program::Own(_, [names, sizes]) = found.unwrap().program else { panic!() };
            assert!(names.split(',').any(|name| name == row.ours.1), "{}", row.ours.1);
            let size = row.size.to_string();
            assert!(row.size == 0 || sizes.split(',').any(|word| word == size), "{size}");
        }
    }
}
