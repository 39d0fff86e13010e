//! One-sided communication: our component (docs/adr/0037) beside those of stock Open MPI.

use super::experiments::{Experiment, Kind, LOGGED, Program, Side};
use super::rows::{Goal, Row, Unit, against};

const fn stock(name: &'static str, parameters: &'static [(&'static str, &'static str)]) -> Side {
    Side { name, kind: Kind::StockWith(parameters), threads: false }
}

/// Messages; the only one of 4.1.4 between nodes over TCP.
const PT2PT: Side = stock("stock-pt2pt", &[("osc", "pt2pt")]);
/// What Debian's defaults choose inside a node. (It crashes in MPI_Compare_and_swap.)
const RDMA: Side = stock("stock-rdma", &[("osc", "rdma,sm")]);
/// Shared memory, for windows that MPI allocates.
const SM: Side = stock("stock-sm", &[("osc", "sm")]);
/// Ours, protected, with every other parameter as it comes.
const OURS: Side = Side {
    name: "ours-one-sided",
    kind: Kind::Defaults(&[("vprotocol_correlated_one_sided", "1")]),
    threads: false,
};

/// Everything on, and no log: all ranks are one set.
const UNLOGGED: Side = Side {
    name: "ours-one-set",
    kind: Kind::Defaults(&[("vprotocol_correlated_sets", "all")]),
    threads: false,
};

/// All of them; none has a bare side.
pub fn experiments() -> Vec<Experiment> {
    const INSIDE: &[Side] = &[PT2PT, RDMA, SM, OURS];
    const BETWEEN: &[Side] = &[PT2PT, OURS];
    let of = |name, shape, sides, arguments| Experiment {
        name,
        sides,
        shape,
        program: Program::Own("one_sided", arguments),
        bare: &[],
        once: false,
    };
    let paper = |name, workload, arguments| Experiment {
        program: Program::Workload(workload, arguments),
        ..of(name, (2, 1), &[UNLOGGED, OURS, LOGGED, PT2PT], &[])
    };
    vec![
        // The programs of Besta and Hoefler 2014, section 7.
        paper("one-sided-fft", "window_transpose", &["60", "", "128", "fence"]),
        paper("one-sided-store", "window_store", &["40", "", "1000"]),
        of("one-sided-shm-put", (1, 2), INSIDE, &["put", "8,1024,65536"]),
        of("one-sided-shm-get", (1, 2), INSIDE, &["get", "8,1024,65536"]),
        of("one-sided-shm-fetch", (1, 2), INSIDE, &["fetch", "8"]),
        of("one-sided-shm-swap", (1, 2), &[PT2PT, SM, OURS], &["swap", "8"]),
        of("one-sided-shm-lock", (1, 2), INSIDE, &["lock", "8"]),
        of("one-sided-shm-fence", (1, 2), INSIDE, &["fence", "8,65536"]),
        of("one-sided-shm-putrate", (1, 2), INSIDE, &["putrate", "8,4096"]),
        of("one-sided-shm-fetchrate", (1, 2), INSIDE, &["fetchrate", "8"]),
        of("one-sided-shm-busy", (1, 2), INSIDE, &["busy", "8"]),
        of("one-sided-tcp-put", (2, 1), BETWEEN, &["put", "8,1024,65536"]),
        of("one-sided-tcp-get", (2, 1), BETWEEN, &["get", "8,1024,65536"]),
        of("one-sided-tcp-fetch", (2, 1), BETWEEN, &["fetch", "8"]),
        of("one-sided-tcp-fence", (2, 1), BETWEEN, &["fence", "8,65536"]),
        of("one-sided-tcp-putrate", (2, 1), BETWEEN, &["putrate", "8,4096"]),
        of("one-sided-tcp-busy", (2, 1), BETWEEN, &["busy", "8"]),
    ]
}

/// Against the best of stock's components where there is a choice, and everything on.
pub fn rows() -> Vec<Row> {
    type Line = (&'static str, &'static str, u64, Unit);
    const INSIDE: [Line; 13] = [
        ("one-sided-shm-put", "put", 8, Unit::Us),
        ("one-sided-shm-put", "put", 1024, Unit::Us),
        ("one-sided-shm-put", "put", 65536, Unit::Us),
        ("one-sided-shm-get", "get", 8, Unit::Us),
        ("one-sided-shm-get", "get", 1024, Unit::Us),
        ("one-sided-shm-get", "get", 65536, Unit::Us),
        ("one-sided-shm-fetch", "fetch", 8, Unit::Us),
        ("one-sided-shm-lock", "lock", 8, Unit::Us),
        ("one-sided-shm-fence", "fence", 8, Unit::Us),
        ("one-sided-shm-putrate", "putrate", 8, Unit::PerSecond),
        ("one-sided-shm-putrate", "putrate", 4096, Unit::PerSecond),
        ("one-sided-shm-fetchrate", "fetchrate", 8, Unit::PerSecond),
        ("one-sided-shm-busy", "busy-get", 8, Unit::Us),
    ];
    const BETWEEN: [Line; 11] = [
        ("one-sided-tcp-put", "put", 8, Unit::Us),
        ("one-sided-tcp-put", "put", 1024, Unit::Us),
        ("one-sided-tcp-put", "put", 65536, Unit::Us),
        ("one-sided-tcp-get", "get", 8, Unit::Us),
        ("one-sided-tcp-get", "get", 1024, Unit::Us),
        ("one-sided-tcp-get", "get", 65536, Unit::Us),
        ("one-sided-tcp-fetch", "fetch", 8, Unit::Us),
        ("one-sided-tcp-fence", "fence", 8, Unit::Us),
        ("one-sided-tcp-putrate", "putrate", 8, Unit::PerSecond),
        ("one-sided-tcp-putrate", "putrate", 4096, Unit::PerSecond),
        ("one-sided-tcp-busy", "busy-get", 8, Unit::Us),
    ];
    let mut rows = Vec::new();
    let mut add = |title, lines: &[Line], base: &Side, sides, goal: f64| {
        for &(experiment, metric, size, unit) in lines {
            let part = against(title, experiment, unit, (sides, OURS.name, base.name));
            let goal = match unit {
                Unit::PerSecond => Goal::AtLeast(1.0 / goal),
                _ => Goal::AtMost(goal),
            };
            rows.push(part.labelled(metric, size, goal));
        }
    };
    let title = "one-sided communication inside a node";
    add(title, &INSIDE, &RDMA, "ours, protected / osc/rdma", 1.0);
    add(title, &INSIDE, &SM, "ours, protected / osc/sm", 1.0);
    let swap = [("one-sided-shm-swap", "swap", 8, Unit::Us)];
    add(title, &swap, &SM, "ours, protected / osc/sm", 1.0);
    let title = "one-sided communication between nodes";
    add(title, &BETWEEN, &PT2PT, "ours, protected / osc/pt2pt", 0.9);
    let papers =
        [("one-sided-fft", "iteration", 128, 1.05), ("one-sided-store", "insertion", 1000, 1.12)];
    for (title, what, side) in [
        ("programs with windows, everything on, on two nodes", "ours / ours, one set", OURS),
        ("the same, logging never suspended", "ours, logged / ours, one set", LOGGED),
    ] {
        for (experiment, metric, size, goal) in papers {
            let part = against(title, experiment, Unit::Us, (what, side.name, UNLOGGED.name));
            rows.push(part.labelled(metric, size, Goal::AtMost(goal)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = experiments().iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), experiments().len());
    }
}
