//! The BTL (docs/adr/0043): programs of tests/mpi with Open MPI's own pml ob1 over it, who uses it,
//! and what happens when a process is lost or something is missing.

use std::fs;
use std::path::{Path, PathBuf};

use super::job::{Outcome, TestJob};
use super::mpi::{self, InTree, Over, OverBtl};
use super::one_sided_component;
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Result};
use crate::{debian, paths};

/// ob1 over our BTL.
pub const OPTIONS: [&str; 6] = ["--mca", "pml", "ob1", "--mca", "btl", "rustbtl,self"];
/// Windows over osc/rdma, which uses the BTL's operations on memory; those that are shared over sm.
pub const OSC_RDMA: [&str; 6] = ["--mca", "osc", "rdma,sm", "--mca", "btl_rustbtl_one_sided", "1"];
/// Without Open MPI's collectives by node and network.
pub const WITHOUT_HAN: [&str; 3] = ["--mca", "coll", "^han"];
/// They hang in coll/han of 5.0.7 between nodes over sm and tcp as well: it cuts a broadcast into
/// pieces by the datatype of each rank, and the root's may be another one.
const HANG_IN_HAN: [&str; 1] = ["coll_rooted"];
/// Windows by messages, in 5.0.
pub const WITHOUT_OPERATIONS: [&str; 3] = ["--mca", "btl_rustbtl_one_sided", "0"];
/// What 5.0.7 can do that way; in `rma_remote` its bits change wrongly, over sm and tcp as well.
const BY_MESSAGES: [&str; 4] = ["rma_active", "rma_dynamic", "rma_passive", "rma_threads"];
/// ob1 over what Open MPI chooses.
const UNNAMED: [&str; 3] = ["--mca", "pml", "ob1"];

/// Programs of a task.
const PROGRAMS_AT_A_TIME: usize = 20;

/// The tiers.
pub fn tasks(tasks: &mut Vec<Task<'_>>, needs: &'static [&'static str]) {
    let names = mpi::names().unwrap_or_default();
    let names: Vec<String> = names.into_iter().filter(|name| is_wanted(name)).collect();
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
    tasks.push(Task::new("the BTL: choice, ways and losses", Load::Jobs, needs, |tier| {
        choice_ways_and_losses(tier, &OverBtl::default());
    }));
}

/// What fails over stock Open MPI fails in ob1, or is about our PML.
fn is_wanted(program: &str) -> bool {
    let about_us = program == "quiet" || mpi::stock_fails(program);
    !about_us && !mpi::is_large(program) && !one_sided_component::is_for_it(program)
}

fn choice_ways_and_losses(tier: &mut Tier, over: &OverBtl) {
    type Check = fn(&OverBtl) -> Result<()>;
    let checks: [(&str, Check); 9] = [
        ("a job that does not name it does not open it", not_opened),
        ("a job that names it uses nothing else", used_alone),
        ("no memory of neighbours is read: 1 × 3", |over| passes(over, (1, 3), &NO_SINGLE_COPY)),
        ("a rank whose neighbours' memory it may not read: 1 × 2", refused_to_one),
        ("no shared memory: 1 × 3", |over| passes(over, (1, 3), &NO_MEMORY)),
        ("long messages in pieces: 2 × 2", |over| passes(over, (2, 2), &NO_PUT)),
        ("encrypted: 2 × 2", |over| passes(over, (2, 2), &ENCRYPTED)),
        ("its transports are not there", without_core),
        ("a node is cut off: 2 × 1", cut),
    ];
    for (what, check) in checks {
        tier.check(&format!("btl: {what}"), || check(over));
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

/// A program, compiled for that Open MPI.
fn program(source: &str, over: &OverBtl) -> Result<PathBuf> {
    mpi::compile_over(&paths::root().join(source), &Over::Btl(*over))
}

/// Messages of all sizes, in both directions, over what Open MPI chooses.
fn sizes((nodes, ppn): (u32, u32), over: &OverBtl) -> Result<TestJob> {
    Ok(over.in_its_tree(TestJob::new(nodes, ppn, &[program("tests/mpi/sizes.c", over)?])))
}

fn must_pass(outcome: &Outcome) -> Result<()> {
    outcome.must(outcome.code == 0 && outcome.stdout.contains("OK"), "the job should end well")
}

fn passes(over: &OverBtl, shape: (u32, u32), options: &[&str]) -> Result<()> {
    must_pass(&sizes(shape, over)?.with(&OPTIONS).with(options).run()?)
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

/// Over Debian 13's Open MPI 5.0, in a tree of its packages. Windows are osc/rdma's there, which
/// uses the BTL's operations on memory, or makes its own of messages where they are not offered.
pub fn run_over(tier: &mut Tier, tree: InTree<'_>) {
    let over = OverBtl { tree: Some(tree), one_sided: true, without_han: false };
    let hangs_in_han = |name: &str| HANG_IN_HAN.contains(&name);
    mpi::run_some(tier, &Over::Btl(over), |name| is_wanted(name) && !hangs_in_han(name));
    mpi::run_some(tier, &Over::Btl(OverBtl { without_han: true, ..over }), hangs_in_han);
    let by_messages = OverBtl { one_sided: false, ..over };
    mpi::run_some(tier, &Over::Btl(by_messages), |name| BY_MESSAGES.contains(&name));
    tier.check("btl: windows by messages of ranks that have not met: 2 × 2", || {
        knows_who_sends(&by_messages)
    });
    choice_ways_and_losses(tier, &over);
    tier.check("btl, osc/rdma: uses the module for it: 2 × 2", || takes_third_module(&over));
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

fn not_opened(over: &OverBtl) -> Result<()> {
    let outcome = sizes((1, 2), over)?.with(&UNNAMED).with(&VERBOSE).run()?;
    must_pass(&outcome)?;
    let said = outcome.said();
    outcome.must(said.contains(DECLINED) && !said.contains(TAKEN), "it should decline")
}

fn used_alone(over: &OverBtl) -> Result<()> {
    let outcome = sizes((2, 2), over)?.with(&OPTIONS).with(&VERBOSE).run()?;
    must_pass(&outcome)?;
    let said = outcome.said();
    outcome.must(said.matches(TAKEN).count() == 4, "all four ranks should use it")
}

/// The others offer their memory, as this rank does. Without capabilities it may not read that of a
/// process which has some, and has the data sent.
fn refused_to_one(over: &OverBtl) -> Result<()> {
    let program = program("tests/mpi/sizes.c", over)?;
    let script = format!(
        "test $OMPI_COMM_WORLD_RANK = 1 && without='setpriv --bounding-set=-all'; exec $without {}",
        program.display()
    );
    let job = over.in_its_tree(TestJob::new(1, 2, &["sh", "-c", &script]));
    must_pass(&job.with(&OPTIONS).run()?)
}

/// Only one of the two files was copied.
fn without_core(over: &OverBtl) -> Result<()> {
    let scratch = Scratch::new("btl")?;
    let built = over.tree.map_or_else(paths::mca, |_| debian::target().join("mca"));
    for file in ["mca_btl_rustbtl.so", "help-mca-btl-rustbtl.txt"] {
        let (from, to) = (built.join(file), scratch.0.join(file));
        fs::copy(&from, &to).context(|| from.display().to_string())?;
    }
    // PMIx of 5.0 takes no SYSTEM_DEFAULT; its Open MPI has its own BTLs in its libraries.
    let others = if over.tree.is_some() { "" } else { ":SYSTEM_DEFAULT" };
    let path = format!("{}{others}", scratch.0.display());
    let job = sizes((1, 2), over)?.with(&OPTIONS);
    let outcome = job.with(&["--mca", "mca_base_component_path", &path]).run()?;
    let named = outcome.said().contains("which must lie beside mca_btl_rustbtl.so");
    outcome.must(outcome.code != 0 && named, "the user should read what is missing")
}

/// Nobody else notices a cable that was pulled: the kernel would repeat for a quarter of an hour.
fn cut(over: &OverBtl) -> Result<()> {
    let scratch = Scratch::new("btl")?;
    let program = program("tests/workloads/hash_ring.c", over)?;
    let command = [program.as_path(), Path::new("1000000000")];
    let job = over.in_its_tree(TestJob::new(2, 1, &command));
    let mut job = job.with(&OPTIONS).with(&[
        "--mca",
        "btl_rustbtl_tcp_silence_timeout",
        "4000",
        "--mca",
        "btl_rustbtl_peer_loss_timeout",
        "500",
        "--cut-node",
        "1@4",
    ]);
    job.folder = scratch.0.clone();
    // mpirun 4.1 itself waits for the daemon of that node for ever.
    job.seconds = 30;
    let outcome = job.run()?;
    let told = outcome.said().contains("has lost a process of the job");
    outcome.must(told && outcome.code != 0, "the rank that is left should end, and say why")
}

/// osc/rdma of 5.0 could also make puts and atomics of messages by itself.
fn takes_third_module(over: &OverBtl) -> Result<()> {
    let program = program("tests/mpi/rma_active.c", over)?;
    let job = over.in_its_tree(TestJob::new(2, 2, &[program]));
    let verbose = ["--mca", "osc_base_verbose", "40"];
    let outcome = job.with(&OPTIONS).with(&OSC_RDMA).with(&verbose).run()?;
    must_pass(&outcome)?;
    let said = outcome.said();
    let taken = said.matches("accelerated_query: selected btl: rustbtl").count();
    outcome.must(taken >= 4 && !said.contains("found alternate btl"), "all ranks should use it")
}

/// What Open MPI 5.0 makes of messages has to answer to somebody whom this process has never sent
/// anything. (The bits that the program finds may be wrong, see [`BY_MESSAGES`].)
fn knows_who_sends(over: &OverBtl) -> Result<()> {
    let program = program("tests/mpi/rma_remote.c", over)?.display().to_string();
    let job = over.in_its_tree(TestJob::new(2, 2, &[program, "created".into()]));
    let outcome = job.with(&OPTIONS).with(&WITHOUT_OPERATIONS).run()?;
    let said = outcome.said();
    let ended = said.contains("OK") || said.contains("my bit before");
    outcome.must(ended, "it should come as far as over Open MPI's own BTLs")
}
