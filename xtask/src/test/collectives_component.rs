//! Our collective component (docs/adr/0040): programs of tests/mpi over it, by messages, and
//! without it; who has it; and a program that does nothing but collectives, of which a set fails.

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::{self, Over};
use super::node_failure::must_be_clean;
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, Shape, What};
use crate::error::{Failure, Result};
use crate::paths;

/// Collectives are ours.
pub const OPTIONS: [&str; 3] = ["--mca", "vprotocol_correlated_collectives", "1"];
/// All that there are over several sets.
const ALL_OVER_SETS: [&str; 3] = ["--mca", "vprotocol_correlated_collectives_over_sets_all", "1"];
/// None of those.
const NOT_OVER_SETS: [&str; 3] = ["--mca", "vprotocol_correlated_collectives_over_sets", "0"];
/// They find no memory, and use messages.
pub const MESSAGES: [&str; 3] = ["--mca", "vprotocol_correlated_collectives_memory", "0"];
const ALL_BY_MESSAGES: [&str; 6] = [
    "--mca",
    "vprotocol_correlated_collectives_over_sets_all",
    "1",
    "--mca",
    "vprotocol_correlated_collectives_memory",
    "0",
];
/// They are Open MPI's.
const OFF: [&str; 3] = ["--mca", "vprotocol_correlated_collectives", "0"];
/// Wherever a set is restored, it does as if it lay on several nodes, and learns it late.
pub const PARTED: [&str; 2] = ["--env", "RUSTBTL_PART_COLLECTIVES=1"];

/// Every bit of every result is in the hash.
pub const COLLECTIVES: Program = Program {
    name: "collectives",
    what: What::Hash { source: "collectives.c", iterations: 600, arguments: &["GATE"] },
};

/// Nonblocking ones that overlap, completed by whatever call waits or tests.
pub const OVERLAP: Program = Program {
    name: "nonblocking collectives",
    what: What::Hash { source: "collectives_overlap.c", iterations: 400, arguments: &["GATE"] },
};

const RANK: &[&str] = &["--kill-rank-after-checkpoint", "3@1"];
const RANK_ZERO: &[&str] = &["--kill-rank-after-checkpoint", "0@1"];
const RANK_ONE: &[&str] = &["--kill-rank-after-checkpoint", "1@1"];
const NODE: &[&str] = &["--kill-node-after-checkpoint", "1@1"];

/// What happens, where, and what else is set.
type Case = (&'static str, Shape, &'static [&'static str], &'static [&'static str]);

/// `true`: with all that there are over several sets.
const CASES: [(Case, bool); 11] = [
    (("a rank", (2, 2), RANK, &[]), false),
    (("a rank, all over sets", (2, 2), RANK, &[]), true),
    (("rank 0", (2, 3), RANK_ZERO, &[]), true),
    (("a node", (2, 2), NODE, &[]), true),
    (("a node of three", (3, 2), NODE, &[]), false),
    (("a node of three, all over sets", (3, 2), NODE, &[]), true),
    (("not over sets, a node of three", (3, 2), NODE, &NOT_OVER_SETS), false),
    (("a rank of a set of one", (2, 1), RANK_ONE, &[]), false),
    (("a rank, onto several nodes", (2, 2), RANK, &PARTED), true),
    (("a node, onto several nodes", (2, 3), NODE, &PARTED), true),
    (("a rank, by messages", (2, 2), RANK, &MESSAGES), true),
];

/// The same of nonblocking ones.
const OVERLAP_CASES: [Case; 4] = [
    ("a rank", (2, 2), RANK, &[]),
    ("rank 0", (2, 3), RANK_ZERO, &[]),
    ("a node of three", (3, 2), NODE, &[]),
    ("a rank of a set of one", (2, 1), RANK_ONE, &[]),
];

/// Checkpoints, and how long a job goes on for them: each took as long as 17 iterations.
const MANY: usize = 1000;
const MANY_ITERATIONS: u64 = 30_000;
/// As in `one_sided_component`.
const PACE: &str = "PACE_US=1000";

/// The tiers.
pub fn tasks(tasks: &mut Vec<Task<'_>>, needs: &'static [&'static str], long: bool) {
    tasks.push(Task::new("own collectives: programs", Load::Jobs, needs, move |tier| {
        // In memory they are by default.
        for options in [&MESSAGES, &OFF, &ALL_OVER_SETS] {
            mpi::run_some(tier, &Over::Collectives(options), |name| long || uses_them(name));
        }
        mpi::run_some(tier, &Over::Collectives(&ALL_BY_MESSAGES), |name| {
            name.starts_with("coll_over_sets")
        });
        let over_sets = |name: &str| long || ["coll_over_sets", "coll_churn"].contains(&name);
        mpi::run_some(tier, &Over::Collectives(&NOT_OVER_SETS), over_sets);
    }));
    tasks.push(Task::new("own collectives: choice", Load::Jobs, needs, choice));
    tasks.push(Task::new("own collectives: rollback", Load::Jobs, needs, rollback));
    if long {
        tasks.push(Task::new("own collectives: checkpoints", Load::Jobs, needs, |tier| {
            tier.check("own collectives: one checkpoint after the other: 2 × 2", many_checkpoints);
        }));
    }
}

/// Does this program of tests/mpi use collectives in earnest?
fn uses_them(program: &str) -> bool {
    ["coll_", "comm_", "topo", "threads_", "self"].iter().any(|start| program.starts_with(start))
}

/// Who has collectives of ours, and who has memory for them.
fn choice(tier: &mut Tier) {
    type Check = fn() -> Result<()>;
    let checks: [(&str, Check); 4] = [
        ("a list of components without ours", || nobody_has(&["--mca", "coll", "^correlated"])),
        ("a list of others", || nobody_has(&["--mca", "coll", "tuned,libnbc,basic,inter,self"])),
        ("a communicator's info key", info_key),
        ("memory that is used up is told once", told_once),
    ];
    for (what, check) in checks {
        tier.check(&format!("own collectives: choice: {what}"), check);
    }
}

/// What Open MPI says when a communicator gets ours.
const TAKEN: &str = "selecting  correlated";

fn choose(options: &[&str]) -> Result<Outcome> {
    let program = mpi::compile(&paths::root().join("tests/workloads/collectives_choice.c"))?;
    let job = TestJob::new(1, 2, &[program]).with(&OPTIONS).with(options).run()?;
    job.must(job.code == 0 && job.stdout.contains("OK"), "sums are wrong")?;
    Ok(job)
}

const VERBOSE: [&str; 3] = ["--mca", "coll_base_verbose", "20"];

fn nobody_has(list: &[&str]) -> Result<()> {
    let job = choose(&[&VERBOSE, list].concat())?;
    job.must(!job.said().contains(TAKEN), "some communicator has ours")
}

/// The one with the key has not, those before and after it have.
fn info_key() -> Result<()> {
    let job = choose(&VERBOSE)?;
    let parts: Vec<&str> = job.stderr.split("CHOICE ").collect();
    job.must(parts.len() == 3, "two announcements")?;
    let taken = |at: usize| parts[at].contains(TAKEN);
    job.must(taken(0) && !taken(1) && taken(2), "the key, and nothing else, takes ours away")
}

/// Room for a few communicators of 40; the others use messages.
fn told_once() -> Result<()> {
    let job = choose(&["--mca", "vprotocol_correlated_collectives_memory", "3m"])?;
    // ORTE 4.1.4 loses some messages of any program, and says so.
    let said = job.said();
    let told = said.matches("use messages").count() + said.matches("util/show_help.c").count();
    job.must(told == 1, &format!("told {told} times"))?;
    let job = choose(&[])?;
    job.must(!job.said().contains("use messages"), "there is room for them all")
}

fn rollback(tier: &mut Tier) {
    tier.check("own collectives: the same bits in memory and by messages", same_bits);
    for ((what, shape @ (nodes, ppn), faults, options), all) in CASES {
        let title = format!("own collectives: rollback: {what}: {nodes} × {ppn}");
        let options = if all { [&ALL_OVER_SETS[..], options].concat() } else { options.to_vec() };
        tier.check(&title, || survives(&COLLECTIVES, shape, faults, &options));
    }
    for (what, shape @ (nodes, ppn), faults, options) in OVERLAP_CASES {
        let title = format!("own collectives: rollback: nonblocking, {what}: {nodes} × {ppn}");
        tier.check(&title, || survives(&OVERLAP, shape, faults, options));
    }
}

fn answer(shape: Shape, options: &[&str]) -> Result<String> {
    let scratch = Scratch::new("collectives")?;
    let job = COLLECTIVES.job(shape, 300, &scratch)?.with(&OPTIONS).with(options);
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "the undisturbed run failed")?;
    COLLECTIVES.answer(&outcome, &scratch)
}

/// Folding order is a function of the call.
fn same_bits() -> Result<()> {
    for shape in [(1, 3), (2, 2), (3, 2)] {
        for over in [&[][..], &ALL_OVER_SETS, &NOT_OVER_SETS] {
            let memory = answer(shape, over)?;
            let messages = answer(shape, &[over, &MESSAGES].concat())?;
            if memory != messages {
                crate::error::fail!("{shape:?}: {memory} in memory, {messages} by messages");
            }
        }
    }
    Ok(())
}

/// Of which one begins when the last is complete, in a job that does nothing but collectives; the
/// answer is that of a job without protection.
fn many_checkpoints() -> Result<()> {
    let scratch = Scratch::new("collectives")?;
    let job =
        || Ok::<_, Failure>(COLLECTIVES.job((2, 2), MANY_ITERATIONS, &scratch)?.with(&OPTIONS));
    let wanted = COLLECTIVES.answer(&job()?.run()?, &scratch)?;
    let always = ["--mca", "vprotocol_correlated_checkpoint_interval", "0.001"];
    let outcome = local_storage::plain(job()?, &scratch).with(&always).run()?;
    COLLECTIVES.must_answer(&outcome, &scratch, &wanted)?;
    must_be_clean(&outcome)?;
    let complete = local_storage::events(&scratch)?.matches("checkpoint_completed").count();
    outcome.must(complete >= MANY, &format!("only {complete} checkpoints"))
}

/// Held half-way until the set that failed is there again; then the answer is that of an
/// undisturbed run.
fn survives(program: &Program, shape: Shape, faults: &[&str], options: &[&str]) -> Result<()> {
    let scratch = Scratch::new("collectives")?;
    let iterations = program.iterations();
    let undisturbed = program.job(shape, iterations, &scratch)?.with(&OPTIONS);
    let undisturbed = undisturbed.with(options).run()?;
    let wanted = program.answer(&undisturbed, &scratch)?;
    let job = program.job(shape, iterations, &scratch)?.with(&OPTIONS);
    let job = local_storage::plain(job.with(faults).with(options), &scratch);
    let job = job.with(&["--env", PACE]);
    let replayed = |events: &str| local_storage::all_have_replayed(events, 1);
    let outcome: Outcome = workloads::run_until(&job, &scratch, iterations / 2, || {
        replayed(&local_storage::events(&scratch).unwrap_or_default())
    })?;
    program.must_answer(&outcome, &scratch, &wanted)?;
    must_be_clean(&outcome)?;
    let events = local_storage::events(&scratch)?;
    outcome.must(replayed(&events), "the set that was hit was not rolled back")?;
    let count = |event: &str| events.matches(&format!("\"event\":\"{event}\"")).count();
    outcome.must(count("global_rollback") == 0, "the others should go on")?;
    outcome.must(count("set_rollback") == 1, "only what failed should roll back")?;
    outcome.must(count("not_replayable") == 0, "nothing here makes a set not replayable")
}
