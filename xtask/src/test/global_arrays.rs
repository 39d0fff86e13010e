//! Tasks over Debian's Global Arrays, which are windows by way of ARMCI-MPI: `MPI_Get`,
//! `MPI_Accumulate` and `MPI_Fetch_and_op` as programs for chemistry use them. The program compares
//! its answer with that of one process.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::job::TestJob;
use super::local_storage;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::Shape;
use crate::error::Result;
use crate::{paths, run};

const HEADER: &str = "/usr/include/ga.h";
/// The libraries, as Debian's packages name them. Those of the last ones may be without headers.
const LIBRARIES: [&str; 7] = [
    "-lga-openmpi",
    "-larmci-openmpi",
    "-l:libscalapack-openmpi.so.2.2",
    "-l:liblapack.so.3",
    "-l:libblas.so.3",
    "-lgfortran",
    "-lm",
];
const ROUNDS: &str = "300";
const PAUSE_US: &str = "500";

/// Where a rank has asked for messages for the first time while its neighbour wrote to it, its set
/// is not rolled back alone before its next checkpoint.
const CASES: [(&str, Shape, &[&str], usize); 5] = [
    ("undisturbed: 2 × 2", (2, 2), &[], 0),
    ("a rank is killed: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "3@2"], 1),
    ("mpirun's node loses a rank: 2 × 2", (2, 2), &["--kill-rank-after-checkpoint", "0@2"], 1),
    ("a node is killed: 2 × 2", (2, 2), &["--kill-node-after-checkpoint", "1@2"], 1),
    ("a node is killed: 3 × 1", (3, 1), &["--kill-node-after-checkpoint", "1@2"], 1),
];

/// Runs them, if the packages are there.
pub fn run(tier: &mut Tier) {
    if !Path::new(HEADER).is_file() {
        return tier.skip("Global Arrays: the package libglobalarrays-dev is not installed");
    }
    for (title, shape, faults, rollbacks) in CASES {
        let title = format!("Global Arrays: {title}");
        tier.check(&title, || is_right(shape, faults, rollbacks));
    }
}

fn compile(scratch: &Scratch) -> Result<PathBuf> {
    let source = paths::root().join("tests/programs/global_arrays/tasks.c");
    let program = scratch.0.join("tasks");
    let mut command = Command::new("mpicc");
    command.args(["-std=gnu11", "-O2", "-o"]).arg(&program).arg(source).args(LIBRARIES);
    run::output(&mut command)?;
    Ok(program)
}

/// What fails is rolled back, nobody else.
fn is_right(shape: Shape, faults: &[&str], rollbacks: usize) -> Result<()> {
    let scratch = Scratch::new("global-arrays")?;
    let program = compile(&scratch)?.display().to_string();
    let job = TestJob::new(shape.0, shape.1, &[&program, ROUNDS, PAUSE_US]);
    let often = ["--mca", "vprotocol_correlated_checkpoint_interval", "0.5"];
    let outcome = local_storage::plain(job, &scratch).with(&often).with(faults).run()?;
    let right = outcome.code == 0 && outcome.stdout.contains(", right");
    outcome.must(right, "it did not find the answer of one process")?;
    must_be_clean(&outcome)?;
    let events = local_storage::events(&scratch)?;
    let back = local_storage::rolled_back(&events).len();
    let alone = back == rollbacks && !events.contains("\"global_rollback\"");
    outcome.must_by(alone, "who was rolled back?", &events)
}
