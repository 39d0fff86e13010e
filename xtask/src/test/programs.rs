//! Programs that we did not write, unchanged, verified by their own checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::global_arrays;
use super::job::{Outcome, TestJob};
use super::local_storage;
use super::node_failure::must_be_clean;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::SCALAPACK;
use crate::build::openmpi;
use crate::demo::hpcc::{self, Results};
use crate::error::{Context, Result, fail};
use crate::{paths, report, run};

/// A program with a check of its own.
struct Program {
    name: &'static str,
    /// Nodes, and ranks on each.
    shape: (u32, u32),
    folder: String,
    command: Vec<&'static str>,
    /// What it says when all is well.
    says: &'static str,
    /// What it says when something is wrong.
    never: &'static [&'static str],
    /// Exit code when all is well.
    code: i32,
}

/// NWChem over ARMCI, which is over windows: Debian's package nwchem-openmpi.
const NWCHEM: &str = "/usr/bin/nwchem.openmpi";
/// A water molecule: the geometry of least energy, by SCF.
const WATER: &str = "\
start water
memory total 160 mb
geometry units angstroms noautosym
  O  0.000  0.000  0.100
  H  0.000  0.800 -0.500
  H  0.000 -0.700 -0.500
end
basis
  * library sto-3g
end
scf
  direct
end
task scf optimize
";
/// Sums are made in the order in which ranks come, so the last digits are not always the same.
const SAME_ENERGY: f64 = 1e-6;

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    for program in programs() {
        let (nodes, ppn) = program.shape;
        let title = format!("{}: {nodes} × {ppn}", program.name);
        tier.check(&title, || try_program(&program));
    }
    tier.check("HPCC: 3 × 2, and exactly what leaves a node is logged", run_hpcc);
    if Path::new(NWCHEM).is_file() {
        for (what, fault) in [
            ("a rank is killed", ["--kill-rank-after-checkpoint", "3@1"]),
            ("a node is killed", ["--kill-node-after-checkpoint", "1@1"]),
        ] {
            let title = format!("NWChem: 2 × 2, {what}, only its set is rolled back");
            tier.check(&title, || run_nwchem(&fault));
        }
    } else {
        tier.skip("NWChem: the package nwchem-openmpi is not installed");
    }
    global_arrays::run(tier);
}

fn programs() -> Vec<Program> {
    let mut all = netpipe();
    all.extend(python());
    all.extend(scalapack());
    // Its driver ends with MPI_Abort on purpose.
    all.push(Program {
        name: "BLACS tester",
        shape: (2, 2),
        folder: format!("{SCALAPACK}/BLACS"),
        command: vec!["./xCbtest"],
        says: "    0 FAILED.",
        never: &["TEST NUMBER", " 1 FAILED."],
        code: 255,
    });
    all
}

fn netpipe() -> Vec<Program> {
    let integrity = |name, shape, command: &[&'static str]| Program {
        name,
        shape,
        folder: "/".into(),
        // A fixed number of repetitions: what NetPIPE would choose depends on the load.
        command: [&["NPopenmpi", "-i", "-n", "50", "-u", "1048576", "-o", "/dev/null"], command]
            .concat(),
        says: "Integrity check passed",
        never: &["Integrity check failed", "Integrity Error"],
        code: 0,
    };
    vec![
        integrity("NetPIPE", (1, 2), &[]),
        integrity("NetPIPE", (2, 1), &[]),
        integrity("NetPIPE, preposted, any source", (2, 1), &["-a", "-z"]),
    ]
}

fn python() -> Vec<Program> {
    let bench = |name, arguments: &[&'static str], says| Program {
        name,
        shape: (2, 2),
        folder: "/".into(),
        command: [&["/usr/bin/python3", "-m", "mpi4py.bench"], arguments].concat(),
        says,
        never: &["Traceback"],
        code: 0,
    };
    vec![
        bench("mpi4py, hello", &["helloworld"], "process 3 of 4 on n1"),
        bench("mpi4py, ring", &["ringtest", "-n", "100000", "-l", "20"], "time for 20 loops"),
    ]
}

fn scalapack() -> Vec<Program> {
    let solver = |name, program| Program {
        name,
        shape: (2, 2),
        folder: SCALAPACK.into(),
        command: vec![program],
        says: "    0 tests completed and failed",
        never: &["FAILED"],
        code: 0,
    };
    let blas = |name, program| Program {
        name,
        shape: (3, 2),
        folder: format!("{SCALAPACK}/PBLAS"),
        command: vec![program],
        says: "End of Tests.",
        never: &["FAILED  *****"],
        code: 0,
    };
    vec![
        solver("ScaLAPACK, LU", "./xdlu"),
        solver("ScaLAPACK, QR", "./xdqr"),
        solver("ScaLAPACK, inverse", "./xdinv"),
        solver("ScaLAPACK, complex Cholesky", "./xcllt"),
        blas("PBLAS, level 2", "./dpb2tst"),
        blas("PBLAS, level 3", "./dpb3tst"),
    ]
}

fn try_program(program: &Program) -> Result<()> {
    let (nodes, ppn) = program.shape;
    let mut job = TestJob::new(nodes, ppn, &program.command);
    job.folder = PathBuf::from(&program.folder);
    let outcome = job.run()?;
    let said = outcome.said();
    outcome.must(outcome.code == program.code, &format!("it should be {}", program.code))?;
    outcome.must(said.contains(program.says), &format!("it does not say `{}`", program.says))?;
    for bad in program.never {
        outcome.must(!said.contains(bad), &format!("it says `{bad}`"))?;
    }
    Ok(())
}

/// A library that counts what enters the PML, independently of the component.
fn independent_count(scratch: &Scratch) -> Result<PathBuf> {
    let library = scratch.0.join("pml_count.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O2", "-mcx16", "-o"]).arg(&library);
    for folder in openmpi::include_folders()? {
        gcc.arg("-I").arg(folder);
    }
    run::check(gcc.arg(paths::root().join("tests/mpi/pml_count.c")).arg("-ldl"))?;
    Ok(library)
}

fn run_hpcc() -> Result<()> {
    let scratch = Scratch::new("hpcc")?;
    let preload = format!("LD_PRELOAD={}", independent_count(&scratch)?.display());
    let counted = scratch.0.join("counted").display().to_string();
    let prefix = format!("PML_COUNT={counted}");
    let input = scratch.0.join("hpccinf.txt");
    fs::write(&input, hpcc::input(2, 3)).context(|| input.display().to_string())?;
    let command = ["env", &preload, &prefix, "hpcc"];
    // All that is logged is to be there at the end.
    let keeps = ["--mca", "vprotocol_correlated_trim_received", "0"];
    let mut job = TestJob::new(3, 2, &command).with(&["--report", "report.json"]).with(&keeps);
    job.folder = scratch.0.clone();
    job.seconds = 600;
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "HPCC did not end well")?;
    Results::read(&scratch.0.join("hpccoutf.txt"))?;
    let report = report::read(&scratch.0.join("report.json"))?;
    if report.ranks.len() != 6 || report.sets.len() != 3 {
        fail!("{} ranks in {} sets have reported", report.ranks.len(), report.sets.len());
    }
    for rank in &report.ranks {
        let between = rank.peers.iter().filter(|peer| peer.set != rank.set);
        let outgoing: u64 = between.map(|peer| peer.sent_bytes).sum();
        let logged = rank.counters.get("log_bytes").copied().unwrap_or(0);
        if logged != outgoing {
            fail!("rank {} sent {outgoing} bytes to other sets, logged {logged}", rank.rank);
        }
    }
    // The same numbers, pair by pair, as counted by somebody else.
    let mut compare = Command::new("python3");
    compare.arg(paths::root().join("tests/programs/compare_traffic.py"));
    compare.args(["--counted", &counted, "--kinds", "EI", "--sets", "--report", "report.json"]);
    run::output(compare.current_dir(&scratch.0)).map(drop)
}

/// Energies of all steps on the way, in their order.
fn energies(outcome: &Outcome) -> Result<Vec<f64>> {
    let lines = outcome.stdout.lines().filter(|line| line.contains("Total SCF energy"));
    let last = lines.filter_map(|line| line.split_whitespace().next_back()?.parse().ok());
    let energies: Vec<f64> = last.collect();
    outcome.must(outcome.code == 0 && energies.len() > 2, "NWChem did not end well")?;
    Ok(energies)
}

/// What fails is rolled back, nobody else; all energies are those of an undisturbed run.
fn run_nwchem(fault: &[&str]) -> Result<()> {
    let scratch = Scratch::new("nwchem")?;
    // Each in a folder of its own: NWChem goes on from the Hessian that an earlier run has left.
    let job = |folder: &str| -> Result<TestJob> {
        let folder = scratch.0.join(folder);
        fs::create_dir(&folder).context(|| folder.display().to_string())?;
        let input = folder.join("water.nw");
        fs::write(&input, WATER).context(|| input.display().to_string())?;
        let mut job = TestJob::new(2, 2, &[NWCHEM, "water.nw"]);
        job.folder = folder;
        Ok(job)
    };
    let known = energies(&job("undisturbed")?.run()?)?;
    let outcome = local_storage::plain(job("killed")?, &scratch).with(fault).run()?;
    let found = energies(&outcome)?;
    let same = known.len() == found.len()
        && known.iter().zip(&found).all(|(a, b)| (a - b).abs() < SAME_ENERGY);
    outcome.must(same, &format!("energies are {found:?}, should be {known:?}"))?;
    must_be_clean(&outcome)?;
    let events = local_storage::events(&scratch)?;
    let replayed = local_storage::all_have_replayed(&events, 1);
    outcome.must(replayed, "the set that failed was not rolled back")?;
    let alone = local_storage::rolled_back(&events).len() == 1;
    outcome.must(alone && !events.contains("\"global_rollback\""), "others were rolled back")
}
