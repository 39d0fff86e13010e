//! Collectives of components that bypass rustbtl (docs/adr/0038): coll/sm, and one whose state is
//! outside of the job's processes (tests/workloads/coll_outside.c). Who is counted and who is taken
//! out; restarts and rollbacks give the right answer, and do not without the clock.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::node_failure::must_be_clean;
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, Program, Shape, What};
use crate::build::openmpi;
use crate::error::{Context, Result};
use crate::{paths, run};

const COUNTED: Program = Program {
    name: "counted collectives",
    what: What::Hash {
        source: "collectives_counted.c",
        iterations: 300,
        arguments: &["GATE", "FOLDER"],
    },
};
/// One that needs a rank to go on that has reached its targets already (docs/adr/0038, lifts).
const CYCLE: Program = Program {
    name: "counted collectives, a cycle",
    what: What::Hash {
        source: "collectives_counted.c",
        iterations: 300,
        arguments: &["GATE", "FOLDER", "cycle"],
    },
};
/// Until this file is in the folder, the second rank is late.
const LATE: &str = "late";

const SETS_ALL: [&str; 3] = ["--mca", "vprotocol_correlated_sets", "all"];
const SM: [&str; 3] = ["--mca", "coll_sm_priority", "90"];
/// As if there were no clock.
const NO_CLOCK: [&str; 2] = ["--env", "RUSTBTL_NO_COLLECTIVE_CLOCK=1"];
/// Counted, but checkpoints do not wait.
const NO_DRAIN: [&str; 2] = ["--env", "RUSTBTL_NO_COLLECTIVE_DRAIN=1"];
const VERBOSE: [&str; 3] = ["--mca", "vprotocol_correlated_verbose", "20"];

const IS_COUNTED: &str = "bypasses rustbtl: it is counted";
const IS_TAKEN_OUT: &str = "bypasses rustbtl: the one below is used";

/// The tiers.
pub fn tasks(tasks: &mut Vec<Task<'_>>, needs: &'static [&'static str]) {
    tasks.push(Task::new("collective clock", Load::Jobs, needs, run));
}

fn run(tier: &mut Tier) {
    type Check = fn() -> Result<()>;
    let checks: [(&str, Check); 13] = [
        ("of one set: they are counted", || chosen((1, 3), &[], true)),
        ("of two sets: the ones below are used", || chosen((2, 2), &[], false)),
        ("of two nodes in one set: they are counted", || chosen((2, 2), &SETS_ALL, true)),
        ("nobody takes checkpoints: nothing is done", unprotected),
        ("coll/sm, and nobody", sm_or_nobody),
        ("restart: outside, half done when it is ordered: 1 × 3", || restarted((1, 3), &[])),
        ("restart: the same over two nodes: 2 × 2", || restarted((2, 2), &SETS_ALL)),
        ("restart: who waits for a stopped rank has it go on: 1 × 4", lifted),
        ("restart: coll/sm: 1 × 3", sm_restarted),
        ("restart without a drain fails", || fails_restarted(&NO_DRAIN)),
        ("restart without the clock fails", || fails_restarted(&NO_CLOCK)),
        ("rollback: a rank is killed: 1 × 3", || rolled_back(&[])),
        ("rollback without the clock fails", || fails_rolled_back(&NO_CLOCK)),
    ];
    for (what, check) in checks {
        tier.check(&format!("collective clock: {what}"), check);
    }
}

/// Where the component keeps its state.
fn outside(scratch: &Scratch) -> PathBuf {
    scratch.0.join("outside")
}

/// The options of a job that has the component.
fn with_outside(job: TestJob, scratch: &Scratch) -> Result<TestJob> {
    let (folder, state) = (scratch.0.join("components"), outside(scratch));
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    fs::create_dir_all(&state).context(|| state.display().to_string())?;
    let library = folder.join("mca_coll_outside.so");
    if !library.exists() {
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-mcx16", "-shared", "-fPIC", "-o"]);
        gcc.arg(&library).arg(paths::root().join("tests/workloads/coll_outside.c"));
        for folder in openmpi::include_folders()? {
            gcc.arg("-isystem").arg(folder);
        }
        gcc.arg("-idirafter").arg(paths::root().join("glue-c/include/shim"));
        run::check(&mut gcc)?;
    }
    let path = format!("{}:{}:SYSTEM_DEFAULT", folder.display(), paths::mca().display());
    let state = format!("OUTSIDE_FILE={}", state.display());
    Ok(job.with(&["--mca", "mca_base_component_path", &path, "--env", &state]))
}

fn job(shape: Shape, iterations: u64, scratch: &Scratch) -> Result<TestJob> {
    COUNTED.job(shape, iterations, scratch)
}

/// The second rank is not late any more.
fn let_go(scratch: &Scratch) -> Result<()> {
    let file = scratch.0.join(LATE);
    fs::write(&file, "").context(|| file.display().to_string())
}

fn must_end_well(outcome: &Outcome) -> Result<()> {
    outcome.must(outcome.code == 0, "the job should end well")?;
    workloads::hash(outcome).map(drop)
}

/// Counted, or taken out; both say so.
fn chosen(shape: Shape, options: &[&str], counted: bool) -> Result<()> {
    let scratch = Scratch::new("clock")?;
    let_go(&scratch)?;
    let job = with_outside(job(shape, 60, &scratch)?, &scratch)?;
    let job = local_storage::plain(job, &scratch);
    let outcome = job.with(&VERBOSE).with(options).run()?;
    must_end_well(&outcome)?;
    let said = outcome.said();
    let is_counted = said.contains(&format!("barrier of component outside {IS_COUNTED}"));
    let is_out = said.contains(&format!("barrier of component outside {IS_TAKEN_OUT}"));
    outcome.must(is_counted == counted, "is it counted?")?;
    outcome.must(is_out != counted, "is it taken out?")
}

fn says_nothing(outcome: &Outcome) -> Result<()> {
    must_end_well(outcome)?;
    let said = outcome.said();
    outcome.must(!said.contains("bypasses rustbtl"), "nothing is counted, nothing taken out")
}

fn unprotected() -> Result<()> {
    let scratch = Scratch::new("clock")?;
    let_go(&scratch)?;
    let outcome = with_outside(job((1, 3), 60, &scratch)?, &scratch)?.with(&VERBOSE).run()?;
    says_nothing(&outcome)?;
    let used = fs::read_dir(outside(&scratch)).context(|| "its files".into())?.count();
    outcome.must(used > 0, "the component should be used")
}

/// The lowest priority, as by default, makes no difference; the highest does.
fn sm_or_nobody() -> Result<()> {
    let scratch = Scratch::new("clock")?;
    let_go(&scratch)?;
    let job = || Ok(local_storage::plain(job((1, 3), 60, &scratch)?, &scratch).with(&VERBOSE));
    says_nothing(&job()?.run()?)?;
    let outcome = job()?.with(&SM).run()?;
    must_end_well(&outcome)?;
    let counted = format!("barrier of component sm {IS_COUNTED}");
    outcome.must(outcome.said().contains(&counted), "coll/sm should be counted")
}

/// What an undisturbed run prints: of integers, so with whoever's collectives.
fn answer(program: &Program, shape: Shape, iterations: u64) -> Result<String> {
    let scratch = Scratch::new("clock")?;
    let_go(&scratch)?;
    let outcome = program.job(shape, iterations, &scratch)?.run()?;
    outcome.must(outcome.code == 0, "the undisturbed run failed")?;
    workloads::hash(&outcome)
}

/// A checkpoint is ordered while the second rank has not come to a collective that the others are
/// in. It comes when the checkpoint has begun, or is complete, as `after` says. Then the job is
/// killed, what the component has outside of it is lost, and it is restarted.
fn restart(program: &Program, shape: Shape, after: &str, options: &[&str]) -> Result<Outcome> {
    let scratch = Scratch::new("clock")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let late = scratch.0.join(LATE).display().to_string();
    let job = with_outside(program.job(shape, LENGTH, &scratch)?, &scratch)?;
    let job = workloads::with_checkpoints(job, &checkpoints).with(options);
    let job = job.with(&["--checkpoint-at", "0", "--checkpoint-when", &format!("{late}.reached")]);
    let job = job.with(&["--kill-all-after", "0"]);
    let begun = || {
        let happened = workloads::events(&checkpoints).is_ok_and(|events| events.contains(after));
        happened && let_go(&scratch).is_ok()
    };
    // It goes no further than that before it is killed.
    workloads::open_gate(&scratch, LENGTH - 1)?;
    let first = workloads::in_steps(&job, &scratch, &[(begun, LENGTH - 1)])?;
    first.must(first.stdout.contains("is complete"), "the checkpoint is not complete")?;
    first.must(first.code == 137, "it should have been killed")?;
    let drained = workloads::events(&checkpoints)?.contains("collectives_drained");
    let drains = ![NO_CLOCK[1], NO_DRAIN[1]].iter().any(|off| options.contains(off));
    first.must(drained == drains, "was there a drain?")?;
    fs::remove_dir_all(outside(&scratch)).context(|| "its state".into())?;
    workloads::open_gate(&scratch, GATE_OPEN)?;
    workloads::restart(shape, &checkpoints, &scratch).run()
}

const BEGUN: &str = "checkpoint_started";
const COMPLETE: &str = "checkpoint_completed";

const LENGTH: u64 = 100;

fn restarted(shape: Shape, options: &[&str]) -> Result<()> {
    goes_on(&COUNTED, shape, options)
}

fn lifted() -> Result<()> {
    goes_on(&CYCLE, (1, 4), &[])
}

fn goes_on(program: &Program, shape: Shape, options: &[&str]) -> Result<()> {
    let wanted = answer(program, shape, LENGTH)?;
    let outcome = restart(program, shape, BEGUN, options)?;
    outcome.must(outcome.code == 0, "the restarted job should end well")?;
    outcome.must(workloads::hash(&outcome)? == wanted, "the answer should be the same")
}

fn fails_restarted(options: &[&str]) -> Result<()> {
    let outcome = restart(&COUNTED, (1, 3), COMPLETE, options)?;
    let said = outcome.said();
    // A rank that was stopped while it read or wrote there cannot be restored without its file.
    let was_open = said.contains("/outside/") && said.contains("the program had it open");
    let why = said.contains("OUTSIDE its file is gone") || was_open;
    outcome.must(outcome.code != 0 && why, "a collective that was half done should be noticed")
}

/// Its memory is in the images; its segment's name is not.
fn sm_restarted() -> Result<()> {
    restarted((1, 3), &[&SM[..], &["--env", "OUTSIDE_FILE="]].concat())
}

/// A checkpoint each second; a rank is killed after the second one.
fn roll_back(options: &[&str]) -> Result<(Outcome, String)> {
    let scratch = Scratch::new("clock")?;
    let_go(&scratch)?;
    let job = with_outside(job((1, 3), ITERATIONS, &scratch)?, &scratch)?;
    let job = local_storage::plain(job, &scratch).with(options);
    let job = job.with(&["--mca", "vprotocol_correlated_checkpoint_interval", "1"]);
    let job = job.with(&["--kill-rank-after-checkpoint", "1@2", "--env", "PACE_US=2000"]);
    let happened = || {
        let events = local_storage::events(&scratch).unwrap_or_default();
        local_storage::all_have_replayed(&events, 1)
    };
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, happened)?;
    Ok((outcome, local_storage::events(&scratch)?))
}

const ITERATIONS: u64 = 4000;

fn rolled_back(options: &[&str]) -> Result<()> {
    let wanted = answer(&COUNTED, (1, 3), ITERATIONS)?;
    let (outcome, events) = roll_back(options)?;
    outcome.must(outcome.code == 0, "the job should end well")?;
    outcome.must(workloads::hash(&outcome)? == wanted, "the answer should be the same")?;
    must_be_clean(&outcome)?;
    outcome.must(events.contains("collectives_drained"), "no checkpoint was drained")?;
    outcome.must(local_storage::all_have_replayed(&events, 1), "nobody was rolled back")
}

fn fails_rolled_back(options: &[&str]) -> Result<()> {
    let (outcome, _) = roll_back(options)?;
    let why = outcome.said().contains("OUTSIDE its records are of another time");
    outcome.must(outcome.code != 0 && why, "records of another time should be noticed")
}
