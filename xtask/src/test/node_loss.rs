//! A node, or its cable, breaks while a job runs. With recovery the coordinator decides what comes
//! of it, and as long as it cannot bring ranks back the job ends with a reason; without, it ends as
//! with stock Open MPI. In either case nothing is left behind, and nobody waits for ever.

use super::guardians::ENDS;
use super::job::{Job, Outcome};
use super::lives::{self, RING, Shape};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::Result;
use crate::paths;

/// More than any job here has time for.
const ENDLESS: u64 = 100_000_000;
/// What mpirun says of a lost node if nobody stops it, in the order in which it notices.
const STOCK: [&str; 2] = [
    "ORTE has lost communication with a remote daemon",
    "ORTE was unable to reliably start one or more daemons",
];
const NOT_RECOVERED: &str = "what ran there cannot be brought back";

/// Runs the tier.
pub fn run(summary: &mut Summary) {
    summary.tier("loss of a node");
    summary.check("node loss: without recovery as stock: 3 × 1", || {
        as_stock((3, 1), true, &["--mca", "vprotocol_correlated_recover", "0"])
    });
    summary.check("node loss: without a folder for lines as stock: 3 × 1", || {
        as_stock((3, 1), false, &["--mca", "vprotocol_correlated_guard", "1"])
    });
    for shape in [(3, 1), (2, 2)] {
        let title = format!("node loss: the job ends with a reason: {} × {}", shape.0, shape.1);
        summary.check(&title, || ends_with_a_reason(shape, "--kill-node", &[1]));
    }
    summary.check("node loss: two nodes at a time: 3 × 1", || {
        ends_with_a_reason((3, 1), "--kill-node", &[1, 2])
    });
    summary.check("node loss: a cable is pulled: 3 × 1", || {
        ends_with_a_reason((3, 1), "--cut-node", &[2])
    });
    summary.check("node loss: spare nodes are no loss: 2 × 1", spare);
    summary.check("node loss: after a line the job can be started again: 2 × 2", started_again);
    summary.check("node loss: without one, exit codes are those of stock jobs: 3 × 1", other_ends);
    summary.check("node loss: a killed rank ends the job: 2 × 2", killed_rank);
}

/// A job that does not end by itself, with its folder for lines.
fn endless(shape: Shape, scratch: &Scratch, with_lines: bool) -> Result<Job> {
    let mut job = RING.job(shape, ENDLESS, scratch)?;
    job.seconds = 60;
    Ok(if with_lines { lives::with_lines(job, &lives::lines_folder(scratch)?) } else { job })
}

fn must_be_clean(outcome: &Outcome) -> Result<()> {
    outcome.must(!outcome.said().contains("still running"), "something was left behind")
}

fn as_stock(shape: Shape, with_lines: bool, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let job = endless(shape, &scratch, with_lines)?.with(options).with(&["--kill-node", "1@0.3"]);
    let outcome = job.run()?;
    outcome.must(outcome.stderr.contains("killed node n1"), "no node was killed")?;
    outcome.must(![0, 124].contains(&outcome.code), "the job should end with an error")?;
    let said = outcome.said();
    let stock = STOCK.iter().any(|text| said.contains(text)) && !said.contains(NOT_RECOVERED);
    outcome.must(stock, "the message should be Open MPI's")?;
    must_be_clean(&outcome)
}

fn ends_with_a_reason(shape: Shape, how: &str, nodes: &[u32]) -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let mut job = endless(shape, &scratch, true)?;
    for node in nodes {
        job = job.with(&[how, &format!("{node}@0.3")]);
    }
    let outcome = job.run()?;
    outcome.must(outcome.code == 1, "the exit code should be 1")?;
    let said = outcome.said();
    let names = |node: &u32| said.contains(&format!("node n{node} was lost"));
    let good = said.contains(NOT_RECOVERED) && nodes.iter().any(names);
    outcome.must(good, "it should say which node was lost")?;
    let stock = STOCK.iter().any(|text| said.contains(text));
    outcome.must(!stock, "Open MPI's own message is misleading")?;
    must_be_clean(&outcome)
}

/// mpirun lets go of nodes on which nothing of the job runs, and ends well without them.
fn spare() -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let known = RING.undisturbed((2, 1), &scratch)?;
    let job = RING.job((2, 1), known.iterations, &scratch)?;
    let job = lives::with_lines(job, &lives::lines_folder(&scratch)?);
    let broken = ["--spare", "2", "--kill-node", "2@0", "--kill-node", "3@0.2"];
    let outcome = job.with(&broken).run()?;
    for node in ["n2", "n3"] {
        let killed = outcome.stderr.contains(&format!("killed node {node}"));
        outcome.must(killed, "a node was not killed in time")?;
    }
    RING.must_answer(&outcome, &scratch, &known.answer)?;
    must_be_clean(&outcome)
}

/// As the message says.
fn started_again() -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let known = RING.undisturbed((2, 2), &scratch)?;
    let lines = lives::lines_folder(&scratch)?;
    let job = lives::with_lines(RING.job((2, 2), known.iterations, &scratch)?, &lines);
    // Asked for while the job starts: it is taken as soon as all ranks are ready, however long a
    // run takes on this machine.
    let broken = ["--checkpoint-at", "0", "--kill-node-after-line", "1@1"];
    let outcome = job.with(&broken).run()?;
    let ended = outcome.code == 1 && outcome.said().contains(NOT_RECOVERED);
    outcome.must(ended, "the job should end with a reason")?;
    must_be_clean(&outcome)?;
    let outcome = lives::restart((2, 2), &lines, &scratch).run()?;
    RING.must_answer(&outcome, &scratch, &known.answer)
}

/// Daemons go at the end of every job: that is no loss.
fn other_ends() -> Result<()> {
    let program = mpi::compile(&paths::root().join("xtask/programs/ends.c"))?;
    for (how, code) in ENDS.iter().filter(|(how, _)| *how != "exit 0 without finalize") {
        let scratch = Scratch::new("node-loss")?;
        let job = Job::new(3, 1, &[program.as_os_str(), how.as_ref()]);
        let mut job = lives::with_lines(job, &lives::lines_folder(&scratch)?);
        job.seconds = 60;
        let outcome = job.run()?;
        outcome.must(outcome.code == *code, &format!("the exit code should be {code}"))?;
        outcome.must(!outcome.said().contains(NOT_RECOVERED), "no node was lost")?;
        must_be_clean(&outcome)?;
    }
    Ok(())
}

fn killed_rank() -> Result<()> {
    let scratch = Scratch::new("node-loss")?;
    let job = endless((2, 2), &scratch, true)?.with(&["--kill-rank", "3@0.3"]);
    let outcome = job.run()?;
    outcome.must(outcome.stderr.contains("killed rank 3"), "no rank was killed")?;
    outcome.must(outcome.code == 137, "the exit code should be 137")?;
    must_be_clean(&outcome)
}
