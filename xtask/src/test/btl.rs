//! The BTL (docs/adr/0043): programs of tests/mpi with Open MPI's own pml ob1 over it, who uses it,
//! and what happens when a process is lost or something is missing.

use std::fs;
use std::path::Path;

use super::job::{Outcome, TestJob};
use super::mpi::{self, InTree, Over, OverBtl};
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Result};
use crate::paths;

/// ob1 over our BTL.
pub const OPTIONS: [&str; 6] = ["--mca", "pml", "ob1", "--mca", "btl", "rustbtl,self"];
/// Windows over osc/rdma, which uses the BTL's operations on memory; those that are shared over sm.
pub const OSC_RDMA: [&str; 6] = ["--mca", "osc", "rdma,sm", "--mca", "btl_rustbtl_one_sided", "1"];
/// ob1 over what Open MPI chooses.
const UNNAMED: [&str; 3] = ["--mca", "pml", "ob1"];

/// Programs of a task.
const PROGRAMS_AT_A_TIME: usize = 20;

/// The tiers.
pub fn tasks(tasks: &mut Vec<Task<'_>>, needs: &'static [&'static str]) {
    // What fails over stock Open MPI fails in ob1, or is about our PML.
    let about_us = |name: &String| name == "quiet" || mpi::stock_fails(name);
    let wanted = |name: &String| !about_us(name) && !mpi::is_large(name);
    let names: Vec<String> = mpi::names().unwrap_or_default().into_iter().filter(wanted).collect();
    for some in names.chunks(PROGRAMS_AT_A_TIME) {
        let some = some.to_vec();
        let title = format!("the BTL: {} to {}", some[0], some[some.len() - 1]);
        tasks.push(Task::new(title, Load::Jobs, needs, move |tier| {
            let over = Over::Btl(OverBtl::default());
            mpi::run_some(tier, &over, |name| some.iter().any(|other| other == name));
        }));
    }
    tasks.push(Task::new("the BTL: osc/rdma", Load::Jobs, needs, |tier| {
        for (program, arguments, shape, options) in OVER_OSC_RDMA {
            let (nodes, ppn) = shape;
            let title = format!("{program} {}", arguments.join(" "));
            let how = options.join(" ");
            tier.check(&format!("btl, osc/rdma: {}: {nodes} × {ppn} {how}", title.trim()), || {
                passes_rma(shape, program, arguments, options)
            });
        }
        tier.check("btl, osc/rdma: has nothing else to use: 2 × 1", osc_rdma_without_it);
    }));
    tasks.push(Task::new("the BTL: choice, ways and losses", Load::Jobs, needs, run));
}

fn run(tier: &mut Tier) {
    type Check = fn() -> Result<()>;
    let checks: [(&str, Check); 9] = [
        ("a job that does not name it does not open it", not_opened),
        ("a job that names it uses nothing else", used_alone),
        ("no memory of neighbours is read: 1 × 3", || passes((1, 3), &NO_SINGLE_COPY)),
        ("a rank whose neighbours' memory it may not read: 1 × 2", refused_to_one),
        ("no shared memory: 1 × 3", || passes((1, 3), &NO_MEMORY)),
        ("long messages in pieces: 2 × 2", || passes((2, 2), &NO_PUT)),
        ("encrypted: 2 × 2", || passes((2, 2), &ENCRYPTED)),
        ("its transports are not there", without_core),
        ("a node is cut off: 2 × 1", cut),
    ];
    for (what, check) in checks {
        tier.check(&format!("btl: {what}"), check);
    }
}

const NO_SINGLE_COPY: [&str; 3] = ["--mca", "btl_rustbtl_single_copy", "0"];
const NO_MEMORY: [&str; 3] = ["--mca", "btl_rustbtl_shm", "0"];
const NO_PUT: [&str; 3] = ["--mca", "btl_rustbtl_tcp_put", "0"];
const ENCRYPTED: [&str; 3] = ["--mca", "btl_rustbtl_tcp_encrypt", "1"];
const VERBOSE: [&str; 3] = ["--mca", "btl_base_verbose", "20"];

/// What Open MPI says of a BTL that has no module for it.
const DECLINED: &str = "select: init of component rustbtl returned failure";
/// And of one that has.
const TAKEN: &str = "select: init of component rustbtl returned success";

/// Messages of all sizes, in both directions.
fn job((nodes, ppn): (u32, u32)) -> Result<TestJob> {
    let program = mpi::compile(&paths::root().join("tests/mpi/sizes.c"))?;
    Ok(TestJob::new(nodes, ppn, &[program]))
}

fn must_pass(outcome: &Outcome) -> Result<()> {
    outcome.must(outcome.code == 0 && outcome.stdout.contains("OK"), "the job should end well")
}

fn passes(shape: (u32, u32), options: &[&str]) -> Result<()> {
    must_pass(&job(shape)?.with(&OPTIONS).with(options).run()?)
}

fn passes_rma(
    (nodes, ppn): (u32, u32),
    program: &str,
    arguments: &[&str],
    options: &[&str],
) -> Result<()> {
    let program = mpi::compile(&paths::root().join(format!("tests/mpi/{program}.c")))?;
    let command = [
        &[program.display().to_string()],
        &arguments.iter().map(|word| word.to_string()).collect::<Vec<_>>()[..],
    ]
    .concat();
    let job = TestJob::new(nodes, ppn, &command);
    must_pass(&job.with(&OPTIONS).with(&OSC_RDMA).with(options).run()?)
}

/// Stock has nothing that osc/rdma of 4.1 could use between nodes, and neither has the BTL then.
fn osc_rdma_without_it() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/mpi/rma_active.c"))?;
    let without = ["--mca", "osc", "rdma"];
    let outcome = TestJob::new(2, 1, &[program]).with(&OPTIONS).with(&without).run()?;
    outcome.must(outcome.code != 0, "there should be no component for the window")
}

/// Over Debian 13's Open MPI 5.0, in a tree of its packages.
pub fn run_over(tier: &mut Tier, tree: InTree<'_>) {
    let over = Over::Btl(OverBtl { tree: Some(tree), one_sided: true });
    mpi::run_some(tier, &over, |name| IN_PACKAGES.contains(&name));
}

/// A program, its arguments, nodes and ranks on each, options.
type RmaCase = (&'static str, &'static [&'static str], (u32, u32), &'static [&'static str]);

/// What osc/rdma of Open MPI 4.1.4 can do. With dynamic windows between nodes it waits for itself;
/// `rma_passive` and allocated windows crash in it on one node with vader, too.
const OVER_OSC_RDMA: [RmaCase; 9] = [
    ("rma_active", &[], (1, 3), &[]),
    ("rma_active", &[], (2, 2), &[]),
    ("rma_active", &[], (2, 2), &ENCRYPTED),
    ("rma_dynamic", &[], (1, 3), &[]),
    ("rma_remote", &["created"], (1, 3), &[]),
    ("rma_remote", &["created"], (1, 3), &NO_SINGLE_COPY),
    ("rma_remote", &["created"], (2, 2), &[]),
    ("rma_remote", &["allocated"], (2, 1), &[]),
    ("rma_remote", &["allocated"], (2, 2), &[]),
];

/// Programs that show the BTL in 5.0: all kinds of messages, threads, windows.
const IN_PACKAGES: [&str; 11] = [
    "ring",
    "sizes",
    "modes",
    "datatypes_layouts",
    "wildcards",
    "coll_all",
    "storm",
    "threads_basic",
    "rma_active",
    "rma_passive",
    "rma_remote",
];

fn not_opened() -> Result<()> {
    let outcome = job((1, 2))?.with(&UNNAMED).with(&VERBOSE).run()?;
    must_pass(&outcome)?;
    let said = outcome.said();
    outcome.must(said.contains(DECLINED) && !said.contains(TAKEN), "it should decline")
}

fn used_alone() -> Result<()> {
    let outcome = job((2, 2))?.with(&OPTIONS).with(&VERBOSE).run()?;
    must_pass(&outcome)?;
    let said = outcome.said();
    outcome.must(said.matches(TAKEN).count() == 4, "all four ranks should use it")
}

/// The others offer their memory, as this rank does. Without capabilities it may not read that of a
/// process which has some, and has the data sent.
fn refused_to_one() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/mpi/sizes.c"))?;
    let script = format!(
        "test $OMPI_COMM_WORLD_RANK = 1 && without='setpriv --bounding-set=-all'; exec $without {}",
        program.display()
    );
    must_pass(&TestJob::new(1, 2, &["sh", "-c", &script]).with(&OPTIONS).run()?)
}

/// Only one of the two files was copied.
fn without_core() -> Result<()> {
    let scratch = Scratch::new("btl")?;
    for file in ["mca_btl_rustbtl.so", "help-mca-btl-rustbtl.txt"] {
        let (from, to) = (paths::mca().join(file), scratch.0.join(file));
        fs::copy(&from, &to).context(|| from.display().to_string())?;
    }
    let path = format!("{}:SYSTEM_DEFAULT", scratch.0.display());
    let outcome =
        job((1, 2))?.with(&OPTIONS).with(&["--mca", "mca_base_component_path", &path]).run()?;
    let named = outcome.said().contains("which must lie beside mca_btl_rustbtl.so");
    outcome.must(outcome.code != 0 && named, "the user should read what is missing")
}

/// Nobody else notices a cable that was pulled: the kernel would repeat for a quarter of an hour.
fn cut() -> Result<()> {
    let scratch = Scratch::new("btl")?;
    let program = mpi::compile(&paths::root().join("tests/workloads/hash_ring.c"))?;
    let command = [program.as_path(), Path::new("1000000000")];
    let mut job = TestJob::new(2, 1, &command).with(&OPTIONS).with(&[
        "--mca",
        "btl_rustbtl_tcp_silence_timeout",
        "4000",
        "--mca",
        "btl_rustbtl_peer_loss_timeout",
        "500",
        "--cut-node",
        "1@1",
    ]);
    job.folder = scratch.0.clone();
    // mpirun 4.1 itself waits for the daemon of that node for ever.
    job.seconds = 30;
    let outcome = job.run()?;
    let told = outcome.said().contains("has lost a process of the job");
    outcome.must(told && outcome.code != 0, "the rank that is left should end, and say why")
}
