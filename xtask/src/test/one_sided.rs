//! One-sided communication (docs/adr/0021) and MPI-IO (docs/adr/0023) when a node or a program
//! dies: a set that could not repeat what its windows or its files saw does not go back alone, and
//! the user hears why; one that can, or that is the whole job, does.

use super::job::Outcome;
use super::lives::{Program, SHARED_WINDOW, Shape, What};
use super::local_storage;
use super::mpi::Over;
use super::node_loss::must_be_clean;
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::Result;

/// Ranks that write to the next one's memory.
const WINDOW: Program = Program {
    name: "a window",
    what: What::Hash { source: "window_ring.c", iterations: 400, arguments: &["GATE"] },
};
/// Ranks that add to memory that they share in one step, and see what it was before.
const OPERATIONS: Program = Program {
    name: "operations on a shared window",
    what: What::Hash { source: "shared_window.c", iterations: 400, arguments: &["GATE", "ops"] },
};
/// Ranks that ask for the size of a file that they write to.
const SIZE: Program = Program {
    name: "the size of a file",
    what: What::Hash {
        source: "file_places.c",
        iterations: 400,
        arguments: &["FOLDER", "GATE", "size"],
    },
};
/// Ranks that write by a shared file pointer.
const ORDERED: Program = Program {
    name: "a shared file pointer",
    what: What::Hash {
        source: "file_places.c",
        iterations: 400,
        arguments: &["FOLDER", "GATE", "ordered"],
    },
};
const ITERATIONS: u64 = 400;

/// Why a set does not go back, in part.
const OVER_THE_NETWORK: &str = "its one-sided communication goes past rustbtl";
const COMES_ANYTIME: &str = "at what moments others wrote to its windows is not recorded";
const BY_CHANCE: &str = "in an order that nobody has recorded";
const LEAVES_THE_SET: &str = "with ranks of other sets";
const HAS_A_SIZE: &str = "the size of a file that it writes to";
const HAS_A_POINTER: &str = "the shared pointer of a file";

/// A set that does not go back.
struct Refused {
    what: &'static str,
    program: &'static Program,
    shape: Shape,
    options: &'static [&'static str],
    /// So many sets say that they cannot; then who is named is killed.
    sets: u32,
    who: &'static str,
    /// Of the job.
    code: i32,
    reason: &'static str,
}

const BY_CORE: &[&str] = &["--mca", "vprotocol_correlated_sets", "core"];

/// Runs the tier.
pub fn run(summary: &mut Summary) {
    summary.tier("one-sided communication, files, and deaths");
    run_over(summary, &Over::Component);
}

/// The same, in the tier that has begun.
pub fn run_over(summary: &mut Summary, over: &Over) {
    let window = if matches!(over, Over::Component) { COMES_ANYTIME } else { OVER_THE_NETWORK };
    let program = Refused {
        what: "a program with a window: 2 × 2",
        program: &WINDOW,
        shape: (2, 2),
        options: &[],
        sets: 2,
        who: "rank:3",
        code: 137,
        reason: window,
    };
    let refused = [
        Refused {
            what: "a node with a window: 3 × 1",
            shape: (3, 1),
            sets: 3,
            who: "node:1",
            code: 1,
            ..program
        },
        Refused {
            what: "operations on a shared window: 2 × 2",
            program: &OPERATIONS,
            reason: BY_CHANCE,
            ..program
        },
        Refused {
            what: "a window that two sets share: 2 × 2",
            program: &SHARED_WINDOW,
            options: BY_CORE,
            sets: 4,
            reason: LEAVES_THE_SET,
            ..program
        },
        Refused {
            what: "the size of a file: 2 × 2",
            program: &SIZE,
            reason: HAS_A_SIZE,
            ..program
        },
        Refused {
            what: "a shared file pointer: 2 × 2",
            program: &ORDERED,
            reason: HAS_A_POINTER,
            ..program
        },
        program,
    ];
    for case in &refused {
        let title = format!("one-sided: does not go back alone: {}", case.what);
        summary.check(&title, || is_refused(over, case));
    }
    summary.check("one-sided: a shared window goes back with its set: 2 × 2", || {
        goes_back(over, &SHARED_WINDOW, (2, 2), "complete@2=rank:3")
    });
    summary.check("one-sided: the whole job goes back: 1 × 3", || {
        goes_back(over, &WINDOW, (1, 3), "complete@2=rank:1")
    });
    summary.check("one-sided: the whole job goes back with its file: 1 × 3", || {
        goes_back(over, &SIZE, (1, 3), "complete@2=rank:1")
    });
}

/// Held half-way until `known`; then who is named is killed.
fn dies(
    over: &Over,
    (program, shape, options): (&Program, Shape, &[&str]),
    fault: &str,
    scratch: &Scratch,
    known: impl Fn(&str) -> bool + Sync,
) -> Result<Outcome> {
    let job = program.job_over(over, shape, ITERATIONS, scratch)?;
    let job = job.with(options).with(&["--kill-at-event", fault]);
    local_storage::held(job, scratch, known)
}

/// Nobody goes back, the job ends, and its user is told why.
fn is_refused(over: &Over, case: &Refused) -> Result<()> {
    let &Refused { program, shape, options, sets, who, code, reason, .. } = case;
    let scratch = Scratch::new("one-sided")?;
    let fault = format!("not_recording@{sets}={who}");
    let known = |events: &str| events.contains("\"event\":\"not_recovered\"");
    let outcome = dies(over, (program, shape, options), &fault, &scratch, known)?;
    outcome.must(outcome.code == code, &format!("the exit code should be {code}"))?;
    outcome.must(outcome.said().contains(reason), &format!("the user should hear: {reason}"))?;
    let events = local_storage::events(&scratch)?;
    outcome.must(!events.contains("\"event\":\"back_to\""), "nobody should go back")?;
    must_be_clean(&outcome)
}

/// The answer is that of an undisturbed run.
fn goes_back(over: &Over, program: &Program, shape: Shape, fault: &str) -> Result<()> {
    let scratch = Scratch::new("one-sided")?;
    let undisturbed = program.job_over(over, shape, ITERATIONS, &scratch)?.run()?;
    let answer = program.answer(&undisturbed, &scratch)?;
    let known = |events: &str| local_storage::all_are_back(events, 1);
    // When the second line is taken the window is in use.
    let lines = ["--mca", "vprotocol_correlated_interval", "1"];
    let outcome = dies(over, (program, shape, &lines), fault, &scratch, known)?;
    program.must_answer(&outcome, &scratch, &answer)?;
    must_be_clean(&outcome)
}
