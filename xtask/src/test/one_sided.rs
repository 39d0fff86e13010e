//! One-sided communication (docs/adr/0021) and MPI-IO (docs/adr/0023) when a node or a program
//! fails: if a set cannot replay what its windows or its files saw, there is a global rollback
//! (docs/adr/0013), and the user reads why; a set that can is rolled back alone. And images that
//! cannot be used, for which there is an earlier checkpoint.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use serde_json::Value;

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::{self, Over};
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, Program, SHARED_WINDOW, SIZE, Shape, WINDOW, What};
use crate::error::Result;
use crate::paths;

/// Ranks that add to memory that they share in one step, and see what it was before.
const OPERATIONS: Program = Program {
    name: "operations on a shared window",
    what: What::Hash { source: "shared_window.c", iterations: 400, arguments: &["GATE", "ops"] },
};
/// Ranks that write by a shared file pointer.
const ORDERED: Program = Program {
    name: "a shared file pointer",
    what: What::Hash {
        source: "file_positions.c",
        iterations: 400,
        arguments: &["FOLDER", "GATE", "ordered"],
    },
};
/// Ranks that open memory of others by its name, after a checkpoint.
const NAMED: Program = Program {
    name: "memory with a name",
    what: What::Hash {
        source: "shared_by_name.c",
        iterations: 400,
        arguments: &["GATE", "/dev/shm"],
    },
};
/// The same, where Open MPI's components have such memory.
const IN_SESSION: Program = Program {
    name: "memory with a name in a folder of Open MPI's",
    what: What::Hash {
        source: "shared_by_name.c",
        iterations: 400,
        arguments: &["GATE", "FOLDER/ompi.n0.0"],
    },
};
const ITERATIONS: u64 = 400;

/// The last rank ends itself when there is a file.
const BY_FILE: Program = Program {
    name: "ends when there is a file",
    what: What::Hash {
        source: "fails_on_demand.c",
        iterations: 400,
        arguments: &["FOLDER", "GATE"],
    },
};

/// Why a set is not rolled back alone, in part.
const OVER_THE_NETWORK: &str = "its one-sided communication bypasses rustbtl";
const COMES_ANYTIME: &str = "at what moments others wrote to its windows is not recorded";
const BY_CHANCE: &str = "in an order that nobody has recorded";
const LEAVES_THE_SET: &str = "with ranks of other sets";
const HAS_A_SIZE: &str = "the size of a file that it writes to";
const HAS_A_POINTER: &str = "the shared pointer of a file";

/// A set that is not rolled back alone.
#[derive(Clone, Copy)]
struct Together {
    what: &'static str,
    program: &'static Program,
    shape: Shape,
    options: &'static [&'static str],
    /// Who is killed when the second checkpoint is complete, with the window in use.
    who: &'static str,
    /// All sets.
    sets: usize,
    reason: &'static str,
}

const BY_CORE: &[&str] =
    &["--mca", "vprotocol_correlated_sets", "core", "--mca", "vprotocol_correlated_one_sided", "0"];
/// What is done to files is not recorded (`mpi_io` has them where it is).
const NOT_RECORDED: &[&str] = &["--mca", "vprotocol_correlated_file_undo_max", "0"];
/// Windows over components of Open MPI.
const THEIRS: &[&str] = &["--mca", "vprotocol_correlated_one_sided", "0"];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    run_over(tier, &Over::Component);
    for (program, shape) in [("rma_active", (2, 2)), ("rma_passive", (1, 3))] {
        let (nodes, ppn) = shape;
        let title =
            format!("one-sided: {program} by Open MPI's components over ours: {nodes} × {ppn}");
        tier.check(&title, || by_pt2pt(program, shape));
    }
    tier.check(
        "an image that cannot be used: all roll back to an earlier checkpoint: 2 × 2",
        damaged,
    );
}

/// The same, in the tier that has begun.
pub fn run_over(tier: &mut Tier, over: &Over) {
    let program = Together {
        what: "a program with a window: 2 × 2",
        program: &WINDOW,
        shape: (2, 2),
        options: THEIRS,
        who: "rank:3",
        sets: 2,
        reason: COMES_ANYTIME,
    };
    let node = Together {
        what: "a node with a window: 3 × 1",
        shape: (3, 1),
        who: "node:1",
        sets: 3,
        ..program
    };
    let together = [
        Together {
            what: "operations on a shared window: 2 × 2",
            program: &OPERATIONS,
            reason: BY_CHANCE,
            ..program
        },
        Together {
            what: "a window that two sets share: 2 × 2",
            program: &SHARED_WINDOW,
            options: BY_CORE,
            sets: 4,
            reason: LEAVES_THE_SET,
            ..program
        },
        Together {
            what: "memory with a name that sets share: 2 × 2",
            program: &NAMED,
            options: BY_CORE,
            sets: 4,
            reason: LEAVES_THE_SET,
            ..program
        },
        Together {
            what: "the size of a file: 2 × 2",
            program: &SIZE,
            options: NOT_RECORDED,
            reason: HAS_A_SIZE,
            ..program
        },
        Together {
            what: "a shared file pointer: 2 × 2",
            program: &ORDERED,
            options: NOT_RECORDED,
            reason: HAS_A_POINTER,
            ..program
        },
    ];
    let title = |end: &str, case: &Together| format!("one-sided: {end}: {}", case.what);
    for case in &together {
        let title = title("global rollback", case);
        tier.check(&title, || roll_back_together(over, case));
    }
    for (case, code) in [(node, 1), (program, 137)] {
        if matches!(over, Over::Component) {
            let title = title("global rollback", &case);
            tier.check(&title, || roll_back_together(over, &case));
        } else {
            let title = title("the job ends", &case);
            tier.check(&title, || ends(over, &case, code));
        }
    }
    tier.check("one-sided: memory that sets of a lost node share: 3 × 2", || sharers(over));
    tier.check("one-sided: a shared window rolls back with its set: 2 × 2", || {
        rolls_back(over, &SHARED_WINDOW, (2, 2), "checkpoint_completed@2=rank:3")
    });
    for (program, shape, who) in [
        (&NAMED, (2, 2), "rank:3"),
        (&NAMED, (3, 2), "node:1"),
        (&NAMED, (1, 3), "rank:1"),
        (&IN_SESSION, (2, 2), "rank:3"),
    ] {
        let (nodes, ppn) = shape;
        let what = format!("{}: {who}: {nodes} × {ppn}", program.name);
        tier.check(&format!("one-sided: opened after it was restored: {what}"), || {
            rolls_back(over, program, shape, &format!("checkpoint_completed@2={who}"))
        });
    }
    tier.check("one-sided: opened after it was restored twice from one image: 2 × 2", || {
        let again = ["--kill-at-event", "set_restarted@1=rank:3"];
        let fault = "checkpoint_completed@2=rank:3";
        survives(over, (&NAMED, (2, 2), &again), fault, 2).map(drop)
    });
    tier.check("one-sided: the whole job rolls back: 1 × 3", || {
        rolls_back(over, &WINDOW, (1, 3), "checkpoint_completed@2=rank:1")
    });
    tier.check("one-sided: the whole job rolls back with its file: 1 × 3", || {
        rolls_back(over, &SIZE, (1, 3), "checkpoint_completed@2=rank:1")
    });
}

/// Where connections are not ours each checkpoint but the first one is given up.
const CHECKPOINTS: &[&str] = &["--mca", "vprotocol_correlated_checkpoint_interval", "1"];

/// The gate holds it half-way until so many sets are restarted; then the answer is that of an
/// undisturbed run. The second checkpoint is taken while it is held, so that what it uses is in use
/// on a machine of any speed.
fn survives(
    over: &Over,
    (program, shape, options): (&Program, Shape, &[&str]),
    fault: &str,
    sets: usize,
) -> Result<(Outcome, String)> {
    let scratch = Scratch::new("one-sided")?;
    let undisturbed = program.job_over(over, shape, ITERATIONS, &scratch)?.run()?;
    let answer = program.answer(&undisturbed, &scratch)?;
    let known = |events: &str| local_storage::all_have_replayed(events, sets);
    let job = program.job_over(over, shape, ITERATIONS, &scratch)?;
    let held = format!("{}.reached", workloads::gate(&scratch).display());
    let job = job.with(options).with(&["--checkpoint-at", "0", "--checkpoint-when", &held]);
    let job = job.with(&["--kill-at-event", fault]);
    let outcome = local_storage::run_until(job, &scratch, known)?;
    program.must_answer(&outcome, &scratch, &answer)?;
    must_be_clean(&outcome)?;
    Ok((outcome, local_storage::events(&scratch)?))
}

/// The answer is right, all were rolled back, and the reason is reported.
fn roll_back_together(over: &Over, case: &Together) -> Result<()> {
    let &Together { program, shape, options, sets, who, reason, .. } = case;
    let fault = format!("checkpoint_completed@2={who}");
    let (outcome, events) = survives(over, (program, shape, options), &fault, sets)?;
    outcome.must(outcome.said().contains(reason), &format!("it should report: {reason}"))?;
    let together = events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(together, "all should roll back together", &events)
}

/// Ranks of a lost node, each a set of its own, share memory: they are placed on one node again,
/// although each node has the images and the next rank would go to the node with fewer.
fn sharers(over: &Over) -> Result<()> {
    let (program, shape) = (&SHARED_WINDOW, (3, 2));
    let scratch = Scratch::new("sharers")?;
    let undisturbed = program.job_over(over, shape, ITERATIONS, &scratch)?.run()?;
    let answer = program.answer(&undisturbed, &scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = program.job_over(over, shape, ITERATIONS, &scratch)?.with(BY_CORE);
    let held = format!("{}.reached", workloads::gate(&scratch).display());
    let job = workloads::protected(job, &checkpoints)
        .with(&["--checkpoint-at", "0", "--checkpoint-when", &held])
        .with(&["--kill-at-event", "checkpoint_completed@2=node:1"]);
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let known = || local_storage::all_have_replayed(&events(), 6);
    let outcome = workloads::run_until(&job, &scratch, ITERATIONS / 2, known)?;
    program.must_answer(&outcome, &scratch, &answer)?;
    must_be_clean(&outcome)?;
    let events = events();
    let placed = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let placed = placed.filter(|event| event["event"] == "rank_placed");
    let nodes: Vec<Value> = placed.map(|event| event["node"].clone()).collect();
    let together = nodes.len() == 2 && nodes[0] == nodes[1];
    outcome.must_by(together, "both should be placed on one node", &events)
}

/// What bypasses rustbtl is in no image: nobody is rolled back, the job ends with this exit code,
/// and its reason is reported.
fn ends(over: &Over, case: &Together, code: i32) -> Result<()> {
    let &Together { program, shape, who, .. } = case;
    let scratch = Scratch::new("one-sided")?;
    // The second checkpoint is given up: there are connections that are not ours.
    let fault = format!("checkpoint_aborted@1={who}");
    let known = |events: &str| events.contains("\"event\":\"not_recovered\"");
    let job = program.job_over(over, shape, ITERATIONS, &scratch)?;
    let job = job.with(CHECKPOINTS).with(THEIRS).with(&["--kill-at-event", &fault]);
    let outcome = local_storage::run_until(job, &scratch, known)?;
    outcome.must(outcome.code == code, &format!("the exit code should be {code}"))?;
    let said = outcome.said().contains(OVER_THE_NETWORK);
    outcome.must(said, &format!("it should report: {OVER_THE_NETWORK}"))?;
    let events = local_storage::events(&scratch)?;
    let nobody = !events.contains("\"event\":\"set_rollback\"");
    outcome.must_by(nobody, "nobody should roll back", &events)?;
    must_be_clean(&outcome)
}

/// Operations that fetch stood for ever in osc/pt2pt's fence over our engine, once.
fn by_pt2pt(program: &str, (nodes, ppn): Shape) -> Result<()> {
    let source = paths::root().join("tests/mpi").join(program).with_extension("c");
    let program = mpi::compile_over(&source, &Over::Component)?;
    let mut job = TestJob::new(nodes, ppn, &[program]).with(THEIRS);
    job = job.with(&["--mca", "osc", "pt2pt,sm"]);
    job.seconds = 120;
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "it should pass")?;
    must_be_clean(&outcome)
}

/// The answer is right, and nobody else was rolled back.
fn rolls_back(over: &Over, program: &Program, shape: Shape, fault: &str) -> Result<()> {
    let (outcome, events) = survives(over, (program, shape, &[]), fault, 1)?;
    let alone = !events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(alone, "one set should roll back", &events)
}

/// The image of rank 3 in checkpoint 2 is cut off, then the rank fails: a global rollback to
/// checkpoint 1.
fn damaged() -> Result<()> {
    let scratch = Scratch::new("damaged")?;
    let shape = (2, 2);
    let undisturbed = BY_FILE.job(shape, ITERATIONS, &scratch)?.run()?;
    let answer = BY_FILE.answer(&undisturbed, &scratch)?;
    let checkpoints = scratch.0.join("checkpoints");
    let job = BY_FILE.job(shape, ITERATIONS, &scratch)?;
    let job = workloads::protected(job, &checkpoints).with(&[
        "--mca",
        "vprotocol_correlated_checkpoint_interval",
        "0",
        "--checkpoint-at",
        "0.5",
    ]);
    let events = || workloads::events(&checkpoints).unwrap_or_default();
    let half = ITERATIONS / 2;
    let cut = || {
        let both = events().matches("\"event\":\"checkpoint_completed\"").count() == 2;
        both && cut_off(&checkpoints, "checkpoint-2/rank-3.img")
            && fs::write(scratch.0.join("fail"), "").is_ok()
    };
    let rolled_back = || local_storage::all_have_replayed(&events(), 3);
    workloads::open_gate(&scratch, half)?;
    let steps: [(&(dyn Fn() -> bool + Sync), u64); 2] =
        [(&cut, half + 1), (&rolled_back, workloads::GATE_OPEN)];
    let outcome = workloads::in_steps(&job, &scratch, &steps)?;
    BY_FILE.must_answer(&outcome, &scratch, &answer)?;
    let events = events();
    let to_first = events.contains("\"checkpoint\":1,\"event\":\"global_rollback\"");
    outcome.must_by(to_first, "all should roll back to checkpoint 1", &events)?;
    must_be_clean(&outcome)
}

fn cut_off(checkpoints: &Path, image: &str) -> bool {
    let all = workloads::images(checkpoints).unwrap_or_default();
    let Some(image) = all.into_iter().find(|path| path.ends_with(image)) else { return false };
    let file = OpenOptions::new().write(true).open(&image);
    let half = |file: File| file.set_len(file.metadata()?.len() / 2);
    file.and_then(half).is_ok()
}
