//! The table of what is promised: which numbers are compared, and which ratio is the goal.

use super::experiments::{CROWD, Experiment};
use super::{applications, btl, collectives, nas, one_sided};

/// What a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// For times.
    AtMost(f64),
    /// For bandwidths and rates.
    AtLeast(f64),
    /// Shown for information.
    Shown,
}

/// One series of values: a side and a metric.
pub type Series = (&'static str, &'static str);

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Lines with the same title stand together.
    pub title: &'static str,
    /// What is called `ours` and what it is compared with, in this section.
    pub sides: &'static str,
    /// Where the numbers come from.
    pub experiment: &'static str,
    /// What it is in this line, beside the size.
    pub label: &'static str,
    /// Size of a message, or whatever the program calls its size.
    pub size: u64,
    /// How the values are written.
    pub unit: Unit,
    /// The series that is to be good.
    pub ours: Series,
    /// The series that it is compared with.
    pub base: Series,
    /// What the ratio ours / base has to be.
    pub goal: Goal,
    /// The best that the machine allows: a series with one value for all sizes.
    pub floor: Option<(Series, u64)>,
}

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// Megabytes a second.
    MBs,
    /// Events a second.
    PerSecond,
    /// Context switches a second: the fewer the better.
    Switches,
    /// Of a processor's time.
    Percent,
    /// Seconds.
    Seconds,
    /// Instructions.
    Instructions,
}

/// A section while it is written down.
pub(super) struct Section {
    title: &'static str,
    sides: &'static str,
    experiment: &'static str,
    unit: Unit,
    ours: &'static str,
    base: &'static str,
}

impl Section {
    fn row(&self, metric: &'static str, size: u64, goal: Goal) -> Row {
        Row {
            title: self.title,
            sides: self.sides,
            experiment: self.experiment,
            label: "",
            size,
            unit: self.unit,
            ours: (self.ours, metric),
            base: (self.base, metric),
            goal,
            floor: None,
        }
    }

    fn rows(&self, metric: &'static str, sizes: &[u64], goal: Goal) -> Vec<Row> {
        sizes.iter().map(|&size| self.row(metric, size, goal)).collect()
    }

    pub(super) fn labelled(&self, metric: &'static str, size: u64, goal: Goal) -> Row {
        Row { label: metric, ..self.row(metric, size, goal) }
    }
}

const AGAINST_STOCK: &str = "ours / stock";
const LARGE: [u64; 4] = [1 << 16, 1 << 18, 1 << 20, 1 << 22];

const fn section(title: &'static str, experiment: &'static str, unit: Unit) -> Section {
    Section { title, sides: AGAINST_STOCK, experiment, unit, ours: "ours", base: "stock" }
}

pub(super) const fn against(
    title: &'static str,
    experiment: &'static str,
    unit: Unit,
    sides: (&'static str, &'static str, &'static str),
) -> Section {
    let (sides, ours, base) = sides;
    Section { title, sides, experiment, unit, ours, base }
}

/// All lines of the table.
pub fn all() -> Vec<Row> {
    let mut rows = shared_memory();
    rows.extend(tcp());
    rows.extend(plain_logging());
    rows.extend(parts());
    rows.extend(programs());
    rows.extend(instructions());
    rows.extend(ucx());
    rows.extend(nas::rows());
    rows.extend(applications::rows());
    rows.extend(collectives::rows());
    rows.extend(btl::rows());
    rows.extend(one_sided::rows());
    rows
}

fn shared_memory() -> Vec<Row> {
    let latency = section("shared memory, half round trip", "shm-latency", Unit::Us);
    let mut rows = latency.rows("latency", &[0, 8, 64, 256], Goal::AtMost(0.60));
    rows.extend(latency.rows("latency", &[1024, 4096], Goal::AtMost(0.80)));
    for row in &mut rows {
        row.floor = Some((("bare", "line"), 64));
    }
    let rate = section("shared memory, message rate, window 64", "shm-rate", Unit::PerSecond);
    rows.extend(rate.rows("rate", &[8], Goal::AtLeast(1.25)));
    let window = "shared memory, bandwidth, window 16";
    let stream = "shared memory, bandwidth, ping-pong (NetPIPE)";
    let raw = ("ours / process_vm_readv", "ours", "bare");
    for (title, experiment, metric) in
        [(window, "shm-bandwidth", "bandwidth"), (stream, "shm-stream", "stream")]
    {
        let stock = section(title, experiment, Unit::MBs);
        rows.extend(stock.rows(metric, &LARGE, Goal::AtLeast(1.0)));
        let bare = against(title, experiment, Unit::MBs, raw);
        for mut row in bare.rows(metric, &LARGE, Goal::AtLeast(0.9)) {
            row.base.1 = "readv";
            rows.push(row);
        }
    }
    rows
}

fn tcp() -> Vec<Row> {
    let latency = section("TCP between nodes, half round trip", "tcp-latency", Unit::Us);
    let mut rows = latency.rows("latency", &[0, 8, 256, 1024, 4096], Goal::AtMost(0.90));
    for row in &mut rows {
        row.floor = Some((("bare", "wire"), row.size));
    }
    let rate = section("TCP between nodes, message rate, window 64", "tcp-rate", Unit::PerSecond);
    rows.extend(rate.rows("rate", &[8], Goal::AtLeast(1.25)));
    let window = "TCP between nodes, bandwidth, window 16";
    let window = section(window, "tcp-bandwidth", Unit::MBs);
    for mut row in window.rows("bandwidth", &LARGE, Goal::AtLeast(0.95)) {
        row.floor = Some((("bare", "wire"), row.size));
        rows.push(row);
    }
    let stream = "TCP between nodes, bandwidth, ping-pong (NetPIPE)";
    let stream = section(stream, "tcp-stream", Unit::MBs);
    rows.extend(stream.rows("stream", &LARGE, Goal::AtLeast(0.95)));
    // Fresh pages are the system's affair; a log that checkpoints keep short has none.
    const READY: (&str, &str, &str) = ("ours, pages made before / stock", "ready", "stock");
    const TITLE: &str = "TCP between nodes, memory of the log used before";
    for (experiment, metric) in [("tcp-bandwidth", "bandwidth"), ("tcp-stream", "stream")] {
        for size in LARGE {
            let part = against(TITLE, experiment, Unit::MBs, READY);
            rows.push(part.labelled(metric, size, Goal::Shown));
        }
    }
    rows
}

/// The paper's Figure 4: what logging everything costs within a node.
fn plain_logging() -> Vec<Row> {
    const SIDES: (&str, &str, &str) = ("sets core / sets node", "core", "ours");
    const TITLE: &str = "plain message logging, shared memory";
    let part = |experiment, unit| against(TITLE, experiment, unit, SIDES);
    let mut rows = Vec::new();
    for size in [8, 4096] {
        rows.push(part("shm-latency", Unit::Us).labelled("latency", size, Goal::Shown));
    }
    rows.push(part("shm-rate", Unit::PerSecond).labelled("rate", 8, Goal::Shown));
    for (experiment, metric) in [("shm-bandwidth", "bandwidth"), ("shm-stream", "stream")] {
        for size in [1 << 16, 1 << 20, 1 << 22] {
            rows.push(part(experiment, Unit::MBs).labelled(metric, size, Goal::Shown));
        }
    }
    rows
}

fn parts() -> Vec<Row> {
    const MULTIPLE: &str = "MPI_THREAD_MULTIPLE, half round trip";
    let single = ("ours multiple / ours single", "ours-threads", "ours");
    let stock = ("ours multiple / stock multiple", "ours-threads", "stock-threads");
    let stock_cost = ("stock multiple / stock single", "stock-threads", "stock");
    let mut rows = Vec::new();
    for (sides, goal) in
        [(single, Goal::AtMost(1.25)), (stock, Goal::AtMost(1.0)), (stock_cost, Goal::Shown)]
    {
        rows.extend(against(MULTIPLE, "threads", Unit::Us, sides).rows(
            "latency",
            &[8, 4096],
            goal,
        ));
    }
    for (title, metric) in [
        ("matching, receives posted, per message", "posted"),
        ("matching, messages unexpected, per message", "unexpected"),
    ] {
        let many = section(title, "matching", Unit::Ns);
        rows.extend(many.rows(metric, &[10, 1000, 10000], Goal::Shown));
    }
    let append = ("log append / memcpy", "bare", "bare");
    for (base, ours, goal) in [
        ("memcpy_fresh", "log_fresh", Goal::AtLeast(0.9)),
        ("memcpy_touched", "log_recycled", Goal::Shown),
        ("memcpy_fresh", "log_first_round", Goal::Shown),
        ("memcpy_touched", "log_later_round", Goal::Shown),
        ("memcpy_touched", "log_at_budget", Goal::Shown),
    ] {
        let title = "payload log, append of 1 MiB messages";
        let mut row = against(title, "log-append", Unit::MBs, append).row(ours, 1 << 20, goal);
        row.base.1 = base;
        row.label = ours;
        rows.push(row);
    }
    rows
}

fn programs() -> Vec<Row> {
    let mut rows = Vec::new();
    let crowd = section("oversubscribed: 8 ranks, yield when idle", "oversubscribed", Unit::Us);
    debug_assert_eq!(CROWD, 8);
    for (metric, size) in [("ring", 8), ("allreduce", 8), ("alltoall", 1024), ("neighbours", 65536)]
    {
        rows.push(crowd.labelled(metric, size, Goal::AtMost(1.0)));
    }
    for (title, experiment, most, least) in [
        ("HPCC, 2 ranks on one node, time and rate", "hpcc-1-node", 1.0, 1.0),
        ("HPCC, 2 nodes of one rank, time and rate", "hpcc-2-nodes", 1.03, 0.97),
    ] {
        let hpl = section(title, experiment, Unit::Seconds);
        rows.push(hpl.labelled("HPL", 0, Goal::AtMost(most)));
        let ptrans = section(title, experiment, Unit::MBs);
        rows.push(ptrans.labelled("PTRANS", 0, Goal::AtLeast(least)));
    }
    rows.extend(everything_on());
    rows.extend(helpers());
    rows.extend(services());
    rows.extend(traffic());
    rows.extend(neighbours());
    rows
}

/// Files, clocks and the comparison of repeated sends (tests/bench/services.c, HPCC), with all
/// parameters as they come.
fn services() -> Vec<Row> {
    const TITLE: &str = "files and clocks, 2 nodes of one rank, everything on";
    const HPCC: &str = "HPCC, 2 nodes of one rank, all parameters as they come";
    let mut rows = Vec::new();
    for (sides, goal) in [
        (("everything on / stock", "defaults", "stock"), Some(1.10)),
        (("everything on / without recording these", "defaults", "no-services"), None),
    ] {
        let part = |unit| against(TITLE, "services", unit, sides);
        let at_most = goal.map_or(Goal::Shown, Goal::AtMost);
        let at_least = goal.map_or(Goal::Shown, |most| Goal::AtLeast(1.0 / most));
        rows.push(part(Unit::Ns).labelled("append", 0, at_most));
        rows.push(part(Unit::MBs).labelled("in-place", 1 << 16, at_least));
        rows.push(part(Unit::MBs).labelled("replace", 8 << 20, at_least));
        rows.push(part(Unit::Ns).labelled("clock", 0, at_most));
        rows.push(part(Unit::Us).labelled("step", 0, at_most));
        let whole = against(HPCC, "services-hpcc", Unit::Seconds, sides);
        rows.push(whole.labelled("whole job", 0, Goal::Shown));
    }
    rows
}

/// Two ranks that send much, for long (tests/bench/traffic.c), with all parameters as they come.
fn traffic() -> Vec<Row> {
    const TITLE: &str = "much traffic for long, 2 nodes of one rank";
    const SIDES: (&str, &str, &str) = ("everything on, defaults / stock", "defaults", "stock");
    let part = |experiment, unit| against(TITLE, experiment, unit, SIDES);
    let mut rows = vec![
        part("traffic-alltoall", Unit::Seconds).labelled("alltoall", 1 << 20, Goal::AtMost(1.05)),
        part("traffic-stream", Unit::Seconds).labelled("stream", 1 << 22, Goal::AtMost(1.05)),
    ];
    for (experiment, size) in [("traffic-any-8", 8), ("traffic-any-4k", 4096)] {
        let part = part(experiment, Unit::Us);
        rows.push(part.labelled("any", size, Goal::AtMost(1.20)));
        rows.push(part.labelled("any-mean", size, Goal::Shown));
    }
    rows
}

/// Steps on three nodes, so that messages depend on what a third one has recorded
/// (tests/bench/neighbours.c), with all parameters as they come.
fn neighbours() -> Vec<Row> {
    const TITLE: &str =
        "steps that read clocks, 3 nodes of 2 ranks that sleep in place of computing";
    const SIDES: (&str, &str, &str) = ("everything on, defaults / stock", "defaults", "stock");
    let part = against(TITLE, "neighbours", Unit::Seconds, SIDES);
    ["named", "any"].map(|label| part.labelled(label, 512, Goal::AtMost(1.05))).into()
}

/// Threads and processes of ours beside a program (tests/bench/helpers.c). All but what stock Open
/// MPI has, too, is compared between everything on and the component alone.
fn helpers() -> Vec<Row> {
    const TITLE: &str = "helper threads and daemons, 2 nodes of one rank";
    const SIDES: [(&str, &str, &str); 3] = [
        ("ours / stock", "ours", "stock"),
        ("everything on / stock", "plain", "stock"),
        ("everything on / ours", "plain", "ours"),
    ];
    const HALO: [&str; 3] =
        ["halo-rustbtl-answer-wakes", "halo-rustbtl-ckpt-wakes", "halo-processes-wakes"];
    const COMPUTES: [&str; 3] =
        ["computes-rustbtl-answer-cpu", "computes-rustbtl-ckpt-cpu", "computes-processes-cpu"];
    let part = |at: usize, unit| against(TITLE, "helpers", unit, SIDES[at]);
    let mut rows = Vec::new();
    for at in [0, 1] {
        let goal = Goal::AtMost(1.2);
        rows.push(part(at, Unit::Switches).labelled("halo-preempted", 0, goal));
        rows.push(part(at, Unit::Switches).labelled("computes-preempted", 0, goal));
        rows.push(part(at, Unit::Us).labelled("away", 1 << 20, Goal::Shown));
    }
    rows.extend(HALO.map(|metric| part(2, Unit::Switches).labelled(metric, 0, Goal::Shown)));
    rows.extend(COMPUTES.map(|metric| part(2, Unit::Percent).labelled(metric, 0, Goal::Shown)));
    rows
}

/// The plain command: checkpoints, image replicas, determinants.
fn everything_on() -> Vec<Row> {
    const SIDES: (&str, &str, &str) = ("everything on / stock", "plain", "stock");
    const HPCC: &str = "HPCC, 2 nodes of one rank, everything on, time and rate";
    const ANY: &str = "ANY_SOURCE between nodes, everything on, half round trip";
    let hpcc = against(HPCC, "hpcc-2-nodes", Unit::Seconds, SIDES);
    let rate = against(HPCC, "hpcc-2-nodes", Unit::MBs, SIDES);
    let mut rows = vec![
        hpcc.labelled("HPL", 0, Goal::AtMost(1.03)),
        rate.labelled("PTRANS", 0, Goal::AtLeast(0.97)),
        hpcc.labelled("whole job", 0, Goal::Shown),
    ];
    rows.extend(against(ANY, "any-source", Unit::Us, SIDES).rows(
        "any",
        &[0, 8, 4096],
        Goal::Shown,
    ));
    rows
}

fn instructions() -> Vec<Row> {
    let title = "instructions per message (callgrind)";
    let part = section(title, "instructions", Unit::Instructions);
    ["send", "receive"].map(|metric| part.labelled(metric, 8, Goal::Shown)).to_vec()
}

fn ucx() -> Vec<Row> {
    let sides = ("ours / UCX's own benchmark", "ours", "ucx");
    let mut rows = Vec::new();
    for (title, experiment, metric, unit, sizes) in [
        ("UCX, shared memory", "ucx-shm-latency", "latency", Unit::Us, [8, 4096]),
        ("UCX, shared memory", "ucx-shm-bandwidth", "bandwidth", Unit::MBs, [1 << 16, 1 << 20]),
        ("UCX, TCP between nodes", "ucx-tcp-latency", "latency", Unit::Us, [8, 4096]),
        ("UCX, TCP between nodes", "ucx-tcp-bandwidth", "bandwidth", Unit::MBs, [1 << 16, 1 << 20]),
    ] {
        let part = against(title, experiment, unit, sides);
        rows.extend(sizes.map(|size| part.labelled(metric, size, Goal::Shown)));
    }
    rows
}

/// The lines whose experiment is among these.
pub fn of(experiments: &[Experiment]) -> Vec<Row> {
    all().into_iter().filter(|row| experiments.iter().any(|e| e.name == row.experiment)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::experiments;
    use super::*;

    #[test]
    fn every_row_has_an_experiment_with_its_sides() {
        let experiments = experiments::all();
        for row in all() {
            let experiment = experiments.iter().find(|e| e.name == row.experiment).unwrap();
            for (side, _) in [row.ours, row.base] {
                assert!(experiment.sides.iter().any(|s| s.name == side), "{row:?}");
            }
        }
    }

    #[test]
    fn goals_of_times_are_upper_and_goals_of_speeds_are_lower_limits() {
        for row in all() {
            let speed = matches!(row.unit, Unit::MBs | Unit::PerSecond);
            match row.goal {
                Goal::AtMost(_) => assert!(!speed, "{row:?}"),
                Goal::AtLeast(_) => assert!(speed, "{row:?}"),
                Goal::Shown => (),
            }
        }
    }
}
