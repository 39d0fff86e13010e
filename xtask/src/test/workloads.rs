//! Programs with a known answer, for tests that kill them and for the campaign: what the tests
//! share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::job::{Outcome, TestJob};
use super::mpi::{self, Over};
use super::scratch::Scratch;
use crate::demo::hpcc::{self, Results};
use crate::error::{Context, Failure, Result, fail};
use crate::{build, paths, run};

/// An undisturbed run takes at least so long, so that there is a middle to fail in.
const SECONDS_MIN: f64 = 4.0;
/// Iterations are not raised further than this many times the first guess.
const SCALE_MAX: u64 = 4096;
/// Debian's test programs of ScaLAPACK.
pub const SCALAPACK: &str = "/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests";

/// Nodes, and ranks on each.
pub type Shape = (u32, u32);

/// A program whose answer does not depend on what happens to its processes.
pub struct Program {
    /// For people.
    pub name: &'static str,
    /// What is run.
    pub what: What,
}

/// How a program is started and where its answer is.
pub enum What {
    /// A source in tests/workloads, or a Python program there: prints `HASH …`.
    Hash {
        /// The file.
        source: &'static str,
        /// Iterations to begin with.
        iterations: u64,
        /// Arguments behind the iterations; `FOLDER` is one that it may write to (also at the
        /// beginning of a path), `GATE` the file that says how far it may go (see [`open_gate`]).
        arguments: &'static [&'static str],
    },
    /// HPCC, which writes a file.
    Hpcc,
    /// A test program of ScaLAPACK: its last lines say what has passed.
    Scalapack(&'static str),
}

/// What is known of an undisturbed run.
#[derive(Clone)]
pub struct Undisturbed {
    /// Iterations that take long enough.
    pub iterations: u64,
    /// What it printed in the end.
    pub answer: String,
    /// How long it took.
    pub seconds: f64,
}

/// Sends messages of all sizes round a ring.
pub const RING: Program = Program {
    name: "ring with a hash",
    what: What::Hash { source: "hash_ring.c", iterations: 2000, arguments: &["20000", "GATE"] },
};
/// OpenMP and MPI.
pub const OPENMP: Program = Program {
    name: "OpenMP",
    what: What::Hash { source: "omp_hash.c", iterations: 500, arguments: &["GATE"] },
};
/// Fortran.
pub const FORTRAN: Program = Program {
    name: "Fortran",
    what: What::Hash { source: "fortran_hash.f90", iterations: 4000, arguments: &["GATE"] },
};
/// Python with numpy and mpi4py.
pub const PYTHON: Program = Program {
    name: "Python with numpy and mpi4py",
    what: What::Hash { source: "numpy_hash.py", iterations: 500, arguments: &["GATE"] },
};
/// Files of its own and MPI-IO.
pub const FILES: Program = Program {
    name: "files and MPI-IO",
    what: What::Hash { source: "file_hash.c", iterations: 2000, arguments: &["FOLDER", "GATE"] },
};
/// What it sends depends on the time.
pub const CLOCK: Program = Program {
    name: "decisions by the clock",
    what: What::Hash { source: "by_clock.c", iterations: 4000, arguments: &["GATE"] },
};
/// Random updates of a table, by MPI_Testany of receives from MPI_ANY_SOURCE.
pub const UPDATES: Program = Program {
    name: "random updates",
    what: What::Hash { source: "updates.c", iterations: 60, arguments: &["GATE"] },
};
/// Two groups and an intercommunicator, which is made and freed again and again.
pub const INTER: Program = Program {
    name: "intercommunicators",
    what: What::Hash { source: "inter_hash.c", iterations: 5000, arguments: &["GATE"] },
};
/// Ranks that receive the reply in the buffer of the request.
pub const OVERLAP: Program = Program {
    name: "in-place replies",
    what: What::Hash { source: "overlap_hash.c", iterations: 10_000, arguments: &["GATE"] },
};
/// The same with messages whose copies in the log are made after they are sent.
pub const OVERLAP_LONG: Program = Program {
    name: "long in-place replies",
    what: What::Hash { source: "overlap_hash.c", iterations: 600, arguments: &["GATE", "32768"] },
};
/// The same, of which nothing is sent before its gate lets it.
pub const OVERLAP_LATE: Program = Program {
    name: "late in-place replies",
    what: What::Hash {
        source: "overlap_hash.c",
        iterations: 3000,
        arguments: &["GATE", "1", "1", "late"],
    },
};
/// Ranks whose threads send at the same time, each on a communicator of its own.
pub const THREADS: Program = Program {
    name: "threads",
    what: What::Hash { source: "threads_hash.c", iterations: 5000, arguments: &["GATE"] },
};
/// Ranks that send their process id and the time, which they do not read.
pub const BY_PID: Program = Program {
    name: "messages that change",
    what: What::Hash { source: "by_pid.c", iterations: 3000, arguments: &["200", "pid", "GATE"] },
};
/// Ranks that write to each other's memory.
pub const SHARED_WINDOW: Program = Program {
    name: "a shared window",
    what: What::Hash { source: "shared_window.c", iterations: 2000, arguments: &["GATE"] },
};
/// Ranks that write to the next one's memory.
pub const WINDOW: Program = Program {
    name: "a window",
    what: What::Hash { source: "window_ring.c", iterations: 400, arguments: &["GATE"] },
};
/// Ranks that ask for the size of a file that they write to.
pub const SIZE: Program = Program {
    name: "the size of a file",
    what: What::Hash {
        source: "file_positions.c",
        iterations: 400,
        arguments: &["FOLDER", "GATE", "size"],
    },
};
/// HPCC with a small input.
pub const HPCC: Program = Program { name: "HPCC", what: What::Hpcc };
/// A tester of ScaLAPACK.
pub const QR: Program = Program { name: "ScaLAPACK, QR", what: What::Scalapack("xdqr") };

impl Program {
    /// How many it goes through, of a program that has a hash.
    pub const fn iterations(&self) -> u64 {
        match self.what {
            What::Hash { iterations, .. } => iterations,
            _ => panic!("it has none"),
        }
    }

    /// The job of this program with this number of iterations.
    pub fn job(&self, shape: Shape, iterations: u64, scratch: &Scratch) -> Result<TestJob> {
        self.job_over(&Over::Component, shape, iterations, scratch)
    }

    /// The same, over another Open MPI.
    pub fn job_over(
        &self,
        over: &Over,
        shape: Shape,
        iterations: u64,
        scratch: &Scratch,
    ) -> Result<TestJob> {
        let (nodes, ppn) = shape;
        let command = self.words(over, shape, iterations, scratch)?;
        let mut job = over.job(TestJob::new(nodes, ppn, &command));
        job.folder = self.folder(scratch);
        Ok(job)
    }

    /// Where it is started.
    fn folder(&self, scratch: &Scratch) -> PathBuf {
        match self.what {
            What::Scalapack(_) => PathBuf::from(SCALAPACK),
            _ => scratch.0.clone(),
        }
    }

    /// The program and its arguments.
    pub fn words(
        &self,
        over: &Over,
        shape: Shape,
        iterations: u64,
        scratch: &Scratch,
    ) -> Result<Vec<String>> {
        let (source, arguments) = match self.what {
            What::Scalapack(program) => return Ok(vec![format!("./{program}")]),
            What::Hpcc => {
                let (p, q) = grid(shape.0 * shape.1);
                let file = scratch.0.join("hpccinf.txt");
                fs::write(&file, hpcc::input(p, q)).context(|| file.display().to_string())?;
                let _ = fs::remove_file(scratch.0.join("hpccoutf.txt"));
                return Ok(vec!["hpcc".into()]);
            }
            What::Hash { source, arguments, .. } => (source, arguments),
        };
        let source = paths::root().join("tests/workloads").join(source);
        let mut command = if source.extension().is_some_and(|ending| ending == "py") {
            vec!["/usr/bin/python3".to_string(), source.display().to_string()]
        } else {
            vec![mpi::compile_as(&source, over, &["-fopenmp"])?.display().to_string()]
        };
        if !gate(scratch).exists() {
            open_gate(scratch, GATE_OPEN)?;
        }
        command.push(iterations.to_string());
        let folder = scratch.0.display().to_string();
        let place = |word: &&str| match *word {
            "FOLDER" => folder.clone(),
            "GATE" => gate(scratch).display().to_string(),
            _ => word.replace("FOLDER/", &format!("{folder}/")),
        };
        command.extend(arguments.iter().map(place));
        Ok(command)
    }

    /// A run that nothing happens to, with so many iterations that it takes long enough.
    pub fn undisturbed(&self, shape: Shape, scratch: &Scratch) -> Result<Undisturbed> {
        self.undisturbed_with(&[], shape, scratch)
    }

    /// The same with options of `cargo xtask cluster`.
    pub fn undisturbed_with(
        &self,
        options: &[&str],
        shape: Shape,
        scratch: &Scratch,
    ) -> Result<Undisturbed> {
        let first = match self.what {
            What::Hash { iterations, .. } => iterations,
            _ => 0,
        };
        let mut iterations = first;
        loop {
            let start = Instant::now();
            let outcome = self.job(shape, iterations, scratch)?.with(options).run()?;
            let seconds = start.elapsed().as_secs_f64();
            outcome.must(outcome.code == 0, "the undisturbed run failed")?;
            let fixed = first == 0 || iterations >= first * SCALE_MAX;
            if fixed || seconds >= SECONDS_MIN {
                let answer = self.answer(&outcome, scratch)?;
                return Ok(Undisturbed { iterations, answer, seconds });
            }
            // Starting and ending takes about a second.
            let work = (seconds - 1.0).max(0.5);
            iterations = (iterations as f64 * (SECONDS_MIN / work).clamp(1.3, 6.0)) as u64;
        }
    }

    /// What the program found out, in words that are the same in every run.
    pub fn answer(&self, outcome: &Outcome, scratch: &Scratch) -> Result<String> {
        match self.what {
            What::Hash { .. } => hash(outcome),
            What::Hpcc => {
                let results = Results::read(&scratch.0.join("hpccoutf.txt"))?;
                // How many updates RandomAccess loses is left to chance.
                let exact = results.checks.iter().filter(|(name, _)| !name.contains("Random"));
                Ok(exact.map(|(name, value)| format!("{name} {value}; ")).collect())
            }
            What::Scalapack(_) => {
                // Titles may have been printed in an earlier incarnation.
                let lines = outcome.stdout.lines().skip_while(|line| !line.contains("Finished"));
                let last = lines.filter(|line| line.contains(" tests"));
                let text: Vec<&str> = last.map(str::trim).collect();
                let good = text.iter().any(|line| line.contains("passed"))
                    && !outcome.said().contains("FAILED");
                outcome.must(good, "ScaLAPACK does not say what has passed")?;
                Ok(text.join("; "))
            }
        }
    }

    /// The restarted job has ended well and prints what an undisturbed one prints.
    pub fn must_answer(&self, outcome: &Outcome, scratch: &Scratch, answer: &str) -> Result<()> {
        outcome.must(outcome.code == 0, "the job failed")?;
        let found = self.answer(outcome, scratch)?;
        outcome.must(found == answer, &format!("it says `{found}`, it should say `{answer}`"))
    }
}

/// As far as programs go.
pub const GATE_OPEN: u64 = i32::MAX as u64;

/// The file with how far a program may go: all the way, unless [`open_gate`] writes less.
pub fn gate(scratch: &Scratch) -> PathBuf {
    scratch.0.join("gate")
}

/// Lets programs go through so many iterations: a job that must not end before something has
/// happened cannot. Its content and its time of change say how many (see gate.h).
pub fn open_gate(scratch: &Scratch, iterations: u64) -> Result<()> {
    let (file, next) = (gate(scratch), scratch.0.join("gate.next"));
    let write = || {
        fs::write(&next, iterations.to_string())?;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(iterations);
        fs::File::options().write(true).open(&next)?.set_modified(time)?;
        // A program sees the old number or the new one, and never a time at which it was written.
        fs::rename(&next, &file)
    };
    write().context(|| file.display().to_string())
}

/// Runs a job whose program goes so many iterations and no further, until `happened`.
pub fn run_until(
    job: &TestJob,
    scratch: &Scratch,
    iterations: u64,
    happened: impl Fn() -> bool + Sync,
) -> Result<Outcome> {
    open_gate(scratch, iterations)?;
    in_steps(job, scratch, &[(happened, GATE_OPEN)])
}

/// What has not happened after that never will; the case says what is missing.
const IN_VAIN: Duration = Duration::from_secs(300);

/// Runs a job whose gate opens so far each time that something has happened, one after the other;
/// polled.
pub fn in_steps<F: Fn() -> bool + Sync>(
    job: &TestJob,
    scratch: &Scratch,
    steps: &[(F, u64)],
) -> Result<Outcome> {
    run_in_steps(scratch, steps, || job.run())
}

/// The same for a job that is not run like others.
pub fn run_in_steps<F: Fn() -> bool + Sync>(
    scratch: &Scratch,
    steps: &[(F, u64)],
    run: impl FnOnce() -> Result<Outcome>,
) -> Result<Outcome> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for (happened, iterations) in steps {
                let begin = Instant::now();
                let waits = || !over.load(Ordering::Relaxed) && begin.elapsed() < IN_VAIN;
                while waits() && !happened() {
                    thread::sleep(Duration::from_millis(50));
                }
                open_gate(scratch, *iterations)?;
            }
            Ok::<(), Failure>(())
        });
        let outcome = run();
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Runs a job whose faults come when its program has gone from the first to the second of two gates
/// since its first checkpoint: that part of its work is in no image, on a machine of any speed. It
/// goes on when they have `happened`.
pub fn run_with_work(
    job: TestJob,
    scratch: &Scratch,
    (first, second): (u64, u64),
    has_checkpoint: impl Fn() -> bool + Sync,
    happened: impl Fn() -> bool + Sync,
) -> Result<Outcome> {
    open_gate(scratch, first)?;
    let far = scratch.0.join("far");
    let job = job.with(&["--break-when", &far.display().to_string()]);
    let waits_at = |gate: u64| gate == 0 || reached(scratch).is_some_and(|at| at >= gate);
    let has_begun = || waits_at(first) && has_checkpoint();
    let has_worked = || waits_at(second) && fs::write(&far, "").is_ok();
    let steps: [(&(dyn Fn() -> bool + Sync), u64); 3] =
        [(&has_begun, second), (&has_worked, second), (&happened, GATE_OPEN)];
    in_steps(&job, scratch, &steps)
}

/// The iteration before which the program waits at its gate, or has waited (see gate.h).
fn reached(scratch: &Scratch) -> Option<u64> {
    let file = scratch.0.join("gate.reached");
    fs::read_to_string(file).ok()?.parse().ok()
}

/// Processes in rows and columns.
fn grid(ranks: u32) -> (u32, u32) {
    let rows = (1..=ranks).rev().find(|r| r * r <= ranks && ranks.is_multiple_of(*r)).unwrap_or(1);
    (rows, ranks / rows)
}

/// The line with the answer.
pub fn hash(outcome: &Outcome) -> Result<String> {
    // PRRTE 3.0 ends a text of help with a zero byte, which may be on either stream.
    let lines = outcome.stdout.lines().map(|line| line.trim_start_matches('\0'));
    let mut answers = lines.filter(|line| line.starts_with("HASH "));
    let (first, second) = (answers.next(), answers.next());
    outcome.must(first.is_some() && second.is_none(), "it should print one line with HASH")?;
    Ok(first.unwrap_or_default().to_string())
}

/// A library of `tests/workloads` for LD_PRELOAD.
pub fn library(name: &str, scratch: &Scratch) -> Result<PathBuf> {
    let library = scratch.0.join(format!("{name}.so"));
    let source = paths::root().join(format!("tests/workloads/{name}.c"));
    let mut gcc = Command::new("mpicc");
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o"]);
    gcc.arg(&library).arg(source).arg("-ldl");
    run::check(&mut gcc)?;
    Ok(library)
}

/// A job of a program that knows of no gate: before the `call`-th message that rank 0 sends or
/// receives it waits until [`gate`] is there; its first checkpoint is requested meanwhile.
pub fn gated_at_call(
    program: &Program,
    shape: Shape,
    call: u32,
    scratch: &Scratch,
) -> Result<TestJob> {
    let library = library("gate_calls", scratch)?;
    let gate = gate(scratch).display().to_string();
    let mut command = vec![
        "env".to_string(),
        format!("LD_PRELOAD={}", library.display()),
        format!("GATE_CALLS={call}"),
        format!("GATE={gate}"),
    ];
    command.extend(program.words(&Over::Component, shape, 0, scratch)?);
    let mut job = TestJob::new(shape.0, shape.1, &command);
    job.folder = program.folder(scratch);
    Ok(job.with(&["--checkpoint-at", "0", "--checkpoint-when", &format!("{gate}.reached")]))
}

/// The options of a job that keeps its checkpoints in this folder, and is killed as a whole.
pub fn with_checkpoints(job: TestJob, checkpoints: &Path) -> TestJob {
    protected(job, checkpoints).with(&["--mca", "vprotocol_correlated_recover", "0"])
}

/// Without a limit to what protection costs: each set can be rolled back alone at any time, however
/// slow the machine is. What happens with a limit is the tier `suspension`.
pub const UNLIMITED: [&str; 3] = ["--mca", "vprotocol_correlated_overhead_max", "0"];

/// Those of a job that goes on when a part of it fails.
pub fn protected(job: TestJob, checkpoints: &Path) -> TestJob {
    let directory = checkpoints.display().to_string();
    job.with(&["--mca", "vprotocol_correlated_checkpoint_dir", &directory]).with(&UNLIMITED)
}

/// A job that is restarted from checkpoints, in the folder of the test.
pub fn restart((nodes, ppn): Shape, checkpoints: &Path, scratch: &Scratch) -> TestJob {
    let mut job = TestJob::restart(nodes, ppn, checkpoints);
    job.folder = scratch.0.clone();
    job
}

/// What the coordinators of the jobs in a folder of checkpoints have logged.
pub fn events(checkpoints: &Path) -> Result<String> {
    let mut all = String::new();
    for job in fs::read_dir(checkpoints).context(|| checkpoints.display().to_string())?.flatten() {
        all += &fs::read_to_string(job.path().join("events.jsonl")).unwrap_or_default();
    }
    Ok(all)
}

/// A new folder for checkpoints.
pub fn checkpoint_folder(scratch: &Scratch) -> Result<PathBuf> {
    let folder = scratch.0.join("checkpoints");
    fs::create_dir(&folder).context(|| folder.display().to_string())?;
    Ok(folder)
}

/// All images below a folder, in order.
pub fn images(checkpoints: &Path) -> Result<Vec<PathBuf>> {
    let listed = run::output(Command::new("find").arg(checkpoints).args(["-name", "*.img"]))?;
    let mut all: Vec<PathBuf> = listed.lines().map(PathBuf::from).collect();
    all.sort();
    Ok(all)
}

/// Every checkpoint that is there is complete, by the checksums of its images.
pub fn verify(checkpoints: &Path) -> Result<String> {
    let mut command = Command::new(paths::mca().join(build::PROGRAM));
    run::output(command.args(["list", "--verify"]).arg(checkpoints))
}

/// Images that are not finished.
pub fn unfinished(checkpoints: &Path) -> Result<Vec<String>> {
    let listed = run::output(Command::new("find").arg(checkpoints).args(["-name", "*.tmp"]))?;
    Ok(listed.lines().map(String::from).collect())
}

/// There is none but those `before`: an incarnation that ends by itself leaves nothing, one that is
/// killed with all that could clean up after it may.
pub fn none_unfinished_but(before: &[String], checkpoints: &Path) -> Result<()> {
    let mut now = unfinished(checkpoints)?;
    now.retain(|file| !before.contains(file));
    if !now.is_empty() {
        fail!("unfinished images: {}", now.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_put_into_rows_and_columns() {
        let all: Vec<_> = [1, 2, 3, 4, 6, 9, 12].map(grid).to_vec();
        assert_eq!(all, [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3), (3, 4)]);
    }
}
