//! pml ob1 over our BTL (docs/adr/0043) beside ob1 over vader and tcp.

use super::experiments::{Experiment, Kind, Program, STOCK, Side};
use super::rows::{Goal, Row, Unit, against};

/// ob1 over our BTL.
const BTL: Side = Side { name: "btl", kind: Kind::Btl, threads: false };

const LATENCY: &[&str] = &["latency", "0,8,256,1024,4096,16384"];
const RATE: &[&str] = &["rate", "8"];
const BANDWIDTH: &[&str] = &["bandwidth", "65536,1048576,4194304"];

/// All of them; none has a bare side.
pub fn experiments() -> Vec<Experiment> {
    let of = |name, shape, arguments| Experiment {
        name,
        sides: &[STOCK, BTL],
        shape,
        program: Program::Own("p2p", arguments),
        bare: &[],
        once: false,
    };
    vec![
        of("btl-shm-latency", (1, 2), LATENCY),
        of("btl-shm-rate", (1, 2), RATE),
        of("btl-shm-bandwidth", (1, 2), BANDWIDTH),
        of("btl-tcp-latency", (2, 1), LATENCY),
        of("btl-tcp-rate", (2, 1), RATE),
        of("btl-tcp-bandwidth", (2, 1), BANDWIDTH),
    ]
}

/// What is the goal is ob1's own time, too: a BTL cannot make that shorter.
pub fn rows() -> Vec<Row> {
    type Line = (&'static str, &'static str, &'static [u64], Unit, Goal);
    let parts: [(&str, &str, [Line; 3]); 2] = [
        ("ob1 over the BTL, shared memory", "btl / vader", {
            let latency: &[u64] = &[0, 8, 256, 4096, 16384];
            [
                ("btl-shm-latency", "latency", latency, Unit::Us, Goal::AtMost(0.9)),
                ("btl-shm-rate", "rate", &[8], Unit::PerSecond, Goal::AtLeast(1.25)),
                ("btl-shm-bandwidth", "bandwidth", &[1 << 20], Unit::MBs, Goal::AtLeast(1.0)),
            ]
        }),
        ("ob1 over the BTL, TCP between nodes", "btl / tcp", {
            let latency: &[u64] = &[0, 8, 256, 4096];
            [
                ("btl-tcp-latency", "latency", latency, Unit::Us, Goal::AtMost(0.9)),
                ("btl-tcp-rate", "rate", &[8], Unit::PerSecond, Goal::AtLeast(1.25)),
                ("btl-tcp-bandwidth", "bandwidth", &[1 << 20], Unit::MBs, Goal::AtLeast(1.0)),
            ]
        }),
    ];
    let mut rows = Vec::new();
    for (title, sides, lines) in parts {
        for (experiment, metric, sizes, unit, goal) in lines {
            let part = against(title, experiment, unit, (sides, BTL.name, STOCK.name));
            rows.extend(sizes.iter().map(|&size| part.labelled(metric, size, goal)));
        }
    }
    rows
}
