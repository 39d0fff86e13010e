//! What is run: programs, their arguments, and the sides that are compared.

use super::applications::{self, Application};
use super::{btl, collectives, nas, one_sided};
use crate::test::one_sided_component::IS_THERE;

/// A side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// In tables and in the JSON document.
    pub name: &'static str,
    /// What runs on it.
    pub kind: Kind,
    /// The program asks for MPI_THREAD_MULTIPLE.
    pub threads: bool,
}

/// What a side runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Open MPI as Debian has it: ob1 with vader and tcp.
    Stock,
    /// The same with these parameters.
    StockWith(&'static [(&'static str, &'static str)]),
    /// The same with our BTL in place of its own.
    Btl,
    /// Our component, sets of this kind.
    Ours(&'static str),
    /// Our component as the plain command has it: with all that it takes to survive the loss of a
    /// node.
    Plain,
    /// As a user has it who sets no parameter, beside these.
    Defaults(&'static [(&'static str, &'static str)]),
    /// The same as `Ours("node")` with so many bytes of the log ready from the start.
    Ready(&'static str),
    /// No MPI in what is measured: the experiment's `bare` command.
    Bare,
    /// UCX's own benchmark.
    Ucx,
}

const fn side(name: &'static str, kind: Kind) -> Side {
    Side { name, kind, threads: false }
}

/// Open MPI without us.
pub const STOCK: Side = side("stock", Kind::Stock);
/// Our component as it comes: a node is a set.
pub const OURS: Side = side("ours", Kind::Ours("node"));
/// Plain message logging: each process is a set of its own.
pub const CORE: Side = side("core", Kind::Ours("core"));
/// Everything on: checkpoints, image replicas, recorded determinants.
pub const PLAIN: Side = side("plain", Kind::Plain);
/// Everything on, and every parameter as it comes: logging may be suspended where it costs much.
pub const DEFAULTS: Side = side("defaults", Kind::Defaults(&[]));
/// Everything on, without a limit to what logging may cost: it is never suspended.
pub const LOGGED: Side = side(
    "logged",
    Kind::Defaults(&[
        ("vprotocol_correlated_overhead_max", "0"),
        ("vprotocol_correlated_log_full", "spill"),
    ]),
);
/// Everything on but what belongs to programs that change files, read clocks, or send something
/// else in a replay.
pub const NO_SERVICES: Side = side(
    "no-services",
    Kind::Defaults(&[
        ("vprotocol_correlated_file_undo_max", "0"),
        ("vprotocol_correlated_record_clock", "0"),
        ("vprotocol_correlated_verify_sends", "0"),
    ]),
);
/// The log's memory has its pages, as after a checkpoint that has trimmed it.
pub const READY: Side = side("ready", Kind::Ready("3g"));
/// What the machine itself allows.
pub const BARE: Side = side("bare", Kind::Bare);
/// UCX without MPI.
pub const UCX: Side = side("ucx", Kind::Ucx);
const STOCK_THREADS: Side = Side { threads: true, ..side("stock-threads", Kind::Stock) };
const OURS_THREADS: Side = Side { threads: true, ..side("ours-threads", Kind::Ours("node")) };

/// One program that is run on several sides in turn.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// For `--only`, and in the JSON document.
    pub name: &'static str,
    /// The sides, in the order in which they take turns.
    pub sides: &'static [Side],
    /// Emulated nodes, and ranks on each.
    pub shape: (u32, u32),
    /// The program.
    pub program: Program,
    /// What side [`BARE`] runs: arguments of `floor`, or of `wire` where there are two nodes,
    /// without the repeats.
    pub bare: &'static [&'static str],
    /// Its numbers hardly differ between runs: one pair is enough.
    pub once: bool,
}

impl Experiment {
    /// Does it need programs that nothing else of ours needs?
    pub fn needs_tools(&self) -> bool {
        self.program == Program::Instructions || self.sides.contains(&UCX)
    }

    /// Does a run of it take ten seconds and more?
    fn is_long(&self) -> bool {
        match self.program {
            Program::Nas(_) | Program::Application(_) => true,
            Program::Own(program, _) => program == "traffic",
            _ => false,
        }
    }
}

/// Which program, and what its output looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Program {
    /// One of tests/bench, with arguments; the number of repeats is added.
    Own(&'static str, &'static [&'static str]),
    /// One of tests/workloads, with arguments, that is told to print times; its answer is checked.
    Workload(&'static str, &'static [&'static str]),
    /// HPCC: HPL and PTRANS.
    Hpcc,
    /// The payload log's own benchmark.
    LogAppend,
    /// Instructions of tests/bench/count.c.
    Instructions,
    /// One of the NAS Parallel Benchmarks with its class: `CG.B`.
    Nas(&'static str),
    /// A program of Debian's.
    Application(Application),
}

const ONE_NODE: (u32, u32) = (1, 2);
/// Two nodes of one rank each.
pub const TWO_NODES: (u32, u32) = (2, 1);

const SMALL: &str = "0,1,4,8,16,64,256,1024,4096,16384";
const LARGE: &str = "65536,262144,1048576,4194304";
const MIB: &str = "1048576";
const MIB_4: &str = "4194304";
/// Ranks of the oversubscribed job, on a machine with fewer processors.
pub const CROWD: u32 = 8;

const fn p2p(
    name: &'static str,
    shape: (u32, u32),
    sides: &'static [Side],
    arguments: &'static [&'static str],
    bare: &'static [&'static str],
) -> Experiment {
    let program = Program::Own("p2p", arguments);
    Experiment { name, sides, shape, program, bare, once: false }
}

const fn simple(
    name: &'static str,
    sides: &'static [Side],
    shape: (u32, u32),
    program: Program,
) -> Experiment {
    Experiment { name, sides, shape, program, bare: &[], once: false }
}

/// All experiments, in the order in which they run.
pub fn all() -> Vec<Experiment> {
    const THREE: &[Side] = &[STOCK, OURS, CORE];
    const FOUR: &[Side] = &[STOCK, OURS, CORE, BARE];
    const TWO: &[Side] = &[STOCK, OURS];
    const WIRE_TOO: &[Side] = &[STOCK, OURS, BARE];
    const READY_TOO: &[Side] = &[STOCK, OURS, READY];
    const BOTH_TOO: &[Side] = &[STOCK, OURS, READY, BARE];
    const UCX_TOO: &[Side] = &[OURS, UCX];
    const THREADS: &[Side] = &[STOCK, OURS, STOCK_THREADS, OURS_THREADS];
    const SERVICES_TOO: &[Side] = &[STOCK, DEFAULTS, NO_SERVICES];
    const PLAIN_TOO: &[Side] = &[STOCK, OURS, PLAIN];
    const DEFAULTS_TOO: &[Side] = &[STOCK, DEFAULTS];
    let own = |name, sides, shape, program, arguments| {
        simple(name, sides, shape, Program::Own(program, arguments))
    };
    let mut all = vec![
        p2p("shm-latency", ONE_NODE, FOUR, &["latency", SMALL], &["line"]),
        p2p("shm-rate", ONE_NODE, THREE, &["rate", "8"], &[]),
        p2p("shm-bandwidth", ONE_NODE, FOUR, &["bandwidth", LARGE], &["readv", LARGE]),
        p2p("shm-stream", ONE_NODE, FOUR, &["stream", LARGE], &["readv", LARGE]),
        p2p("tcp-latency", TWO_NODES, WIRE_TOO, &["latency", SMALL], &["latency", SMALL]),
        p2p("any-source", TWO_NODES, PLAIN_TOO, &["any", "0,8,4096"], &[]),
        p2p("tcp-rate", TWO_NODES, TWO, &["rate", "8"], &[]),
        p2p("tcp-bandwidth", TWO_NODES, BOTH_TOO, &["bandwidth", LARGE], &["bandwidth", LARGE]),
        p2p("tcp-stream", TWO_NODES, READY_TOO, &["stream", LARGE], &[]),
        p2p("threads", ONE_NODE, THREADS, &["latency", "8,4096"], &[]),
        own("matching", TWO, ONE_NODE, "many", &["10,1000,10000"]),
        own("oversubscribed", TWO, (1, CROWD), "crowd", &[]),
        own("helpers", PLAIN_TOO, TWO_NODES, "helpers", &[]),
        own("services", SERVICES_TOO, TWO_NODES, "services", &[]),
        simple("services-hpcc", SERVICES_TOO, TWO_NODES, Program::Hpcc),
        own("traffic-alltoall", DEFAULTS_TOO, TWO_NODES, "traffic", &["alltoall", MIB, "1600"]),
        own("traffic-stream", DEFAULTS_TOO, TWO_NODES, "traffic", &["stream", MIB_4, "2000"]),
        own("traffic-any-8", DEFAULTS_TOO, TWO_NODES, "traffic", &["any", "8", "6000"]),
        own("traffic-any-4k", DEFAULTS_TOO, TWO_NODES, "traffic", &["any", "4096", "6000"]),
        own("neighbours", DEFAULTS_TOO, (3, 2), "neighbours", &["2", "100", "5"]),
        simple("log-append", &[BARE], ONE_NODE, Program::LogAppend),
        simple("hpcc-1-node", TWO, ONE_NODE, Program::Hpcc),
        simple("hpcc-2-nodes", PLAIN_TOO, TWO_NODES, Program::Hpcc),
        Experiment { once: true, ..simple("instructions", TWO, ONE_NODE, Program::Instructions) },
        p2p("ucx-shm-latency", ONE_NODE, UCX_TOO, &["latency", "8,4096"], &[]),
        p2p("ucx-shm-bandwidth", ONE_NODE, UCX_TOO, &["bandwidth", "65536,1048576"], &[]),
        p2p("ucx-tcp-latency", TWO_NODES, UCX_TOO, &["latency", "8,4096"], &[]),
        p2p("ucx-tcp-bandwidth", TWO_NODES, UCX_TOO, &["bandwidth", "65536,1048576"], &[]),
    ];
    all.extend(nas::experiments());
    all.extend(applications::experiments());
    all.extend(collectives::experiments());
    all.extend(btl::experiments());
    if IS_THERE {
        all.extend(one_sided::experiments());
    }
    all
}

/// Those whose name begins with one of the words; all if there are no words.
pub fn chosen(words: &[String]) -> Vec<Experiment> {
    let wanted =
        |e: &Experiment| words.is_empty() || words.iter().any(|w| e.name.starts_with(&**w));
    all().into_iter().filter(wanted).collect()
}

/// A quick bench has no time for long programs that nobody has named.
pub fn leave_out_long(experiments: &mut Vec<Experiment>, words: &[String]) {
    let is_named = |e: &Experiment| words.iter().any(|word| e.name.starts_with(&**word));
    experiments.retain(|e| !e.is_long() || is_named(e));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_can_be_chosen() {
        let mut names: Vec<_> = all().iter().map(|e| e.name).collect();
        assert_eq!(chosen(&["tcp-rate".into(), "hpcc".into()]).len(), 3);
        assert_eq!(chosen(&[]).len(), names.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn long_programs_are_left_out_unless_they_are_named() {
        let mut all = all();
        leave_out_long(&mut all, &["nas-cg".into(), "tcp".into(), "traffic-any".into()]);
        let count = |prefix: &str| all.iter().filter(|e| e.name.starts_with(prefix)).count();
        assert_eq!((count("nas"), count("app"), count("traffic")), (3, 0, 2));
        assert!(count("tcp") > 0 && count("hpcc") > 0);
    }

    #[test]
    fn who_has_a_bare_side_has_a_bare_command() {
        for e in all().iter().filter(|e| e.program != Program::LogAppend) {
            assert_eq!(e.sides.contains(&BARE), !e.bare.is_empty(), "{}", e.name);
        }
    }
}
