//! Jobs that are checkpointed while they run, killed altogether, and started again from their last
//! global line, on the same and on other nodes: the answer must be that of an undisturbed run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::job::{Job, Outcome};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Summary;
use crate::error::{Context, Result, fail};
use crate::{paths, run};

/// An undisturbed run takes at least so long, so that there is a middle to die in.
const SECONDS_MIN: f64 = 4.0;
/// Iterations are not raised further than this many times the first guess.
const SCALE_MAX: u64 = 4096;

/// A program whose last line is `HASH …`.
struct Program {
    name: &'static str,
    /// Source in tests/lines, or a Python program there.
    source: &'static str,
    /// Iterations to begin with.
    iterations: u64,
    /// Arguments behind the iterations.
    arguments: &'static [&'static str],
    /// Nodes and ranks per node: where it starts.
    shape: (u32, u32),
    /// Where it is started again.
    restarts: &'static [(u32, u32)],
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "ring with a hash",
        source: "hash_ring.c",
        iterations: 2000,
        arguments: &["20000"],
        shape: (2, 2),
        restarts: &[(2, 2), (1, 4), (4, 1)],
    },
    Program {
        name: "OpenMP",
        source: "omp_hash.c",
        iterations: 500,
        arguments: &[],
        shape: (2, 1),
        restarts: &[(2, 1), (1, 2)],
    },
    Program {
        name: "Fortran",
        source: "fortran_hash.f90",
        iterations: 4000,
        arguments: &[],
        shape: (1, 3),
        restarts: &[(3, 1)],
    },
    Program {
        name: "Python with numpy and mpi4py",
        source: "numpy_hash.py",
        iterations: 500,
        arguments: &[],
        shape: (2, 2),
        restarts: &[(2, 2)],
    },
    Program {
        name: "files and MPI-IO",
        source: "file_hash.c",
        iterations: 2000,
        arguments: &["FOLDER"],
        shape: (2, 2),
        restarts: &[(2, 2)],
    },
];

/// Runs them all.
pub fn run(summary: &mut Summary) {
    summary.tier("lines: checkpoint, kill -9 of everything, restart");
    for program in &PROGRAMS {
        let (nodes, ppn) = program.shape;
        let title = format!("{}: {nodes} × {ppn}", program.name);
        summary.check(&title, || program.survives());
    }
    summary.check("ring with a hash: four lives, each with a line of its own", several_lives);
    summary.check("a program that asks for its line: 2 × 2", asks);
}

impl Program {
    fn command(&self, iterations: u64, scratch: &Scratch) -> Result<Vec<String>> {
        let source = paths::root().join("tests/lines").join(self.source);
        let mut command = if self.source.ends_with(".py") {
            vec!["/usr/bin/python3".to_string(), source.display().to_string()]
        } else {
            vec![compile(&source)?.display().to_string()]
        };
        command.push(iterations.to_string());
        let folder = scratch.0.display().to_string();
        let place = |word: &&str| if *word == "FOLDER" { folder.clone() } else { word.to_string() };
        command.extend(self.arguments.iter().map(place));
        Ok(command)
    }

    /// Iterations that take long enough, the answer, and how long they took.
    fn undisturbed(&self, scratch: &Scratch) -> Result<(u64, String, f64)> {
        let mut iterations = self.iterations;
        loop {
            let start = Instant::now();
            let outcome = self.job(&self.command(iterations, scratch)?, scratch).run()?;
            let seconds = start.elapsed().as_secs_f64();
            outcome.must(outcome.code == 0, "the undisturbed run failed")?;
            let enough = seconds >= SECONDS_MIN || iterations >= self.iterations * SCALE_MAX;
            if enough {
                return Ok((iterations, hash(&outcome)?, seconds));
            }
            // Starting and ending takes about a second.
            let work = (seconds - 1.0).max(0.2);
            iterations = (iterations as f64 * (SECONDS_MIN / work).clamp(1.3, 16.0)) as u64;
        }
    }

    fn job(&self, command: &[String], scratch: &Scratch) -> Job {
        let (nodes, ppn) = self.shape;
        let mut job = Job::new(nodes, ppn, command);
        job.folder = scratch.0.clone();
        job
    }

    fn survives(&self) -> Result<()> {
        let scratch = Scratch::new("lines")?;
        let (iterations, answer, seconds) = self.undisturbed(&scratch)?;
        let lines = lines_folder(&scratch)?;
        let command = self.command(iterations, &scratch)?;
        killed(&self.job(&command, &scratch), &lines, 0.4 * seconds)?;
        for &(nodes, ppn) in self.restarts {
            let mut job = Job::restart(nodes, ppn, &lines);
            job.folder = scratch.0.clone();
            let outcome = job.run()?;
            outcome.must(outcome.code == 0, "the restarted job failed")?;
            let found = hash(&outcome)?;
            outcome.must(found == answer, &format!("it should say `{answer}`"))?;
        }
        nothing_left(&lines)
    }
}

/// Dies in the middle of each of its lives, the last one excepted.
fn several_lives() -> Result<()> {
    let scratch = Scratch::new("lives")?;
    let program = &PROGRAMS[0];
    let (iterations, answer, seconds) = program.undisturbed(&scratch)?;
    let lines = lines_folder(&scratch)?;
    let command = program.command(4 * iterations, &scratch)?;
    let whole = program.job(&command, &scratch).run()?;
    whole.must(whole.code == 0 && hash(&whole)? != answer, "the longer run")?;
    let answer = hash(&whole)?;
    killed(&program.job(&command, &scratch), &lines, 0.3 * seconds)?;
    for (nodes, ppn) in [(4, 1), (2, 2)] {
        let mut job = Job::restart(nodes, ppn, &lines);
        job.folder = scratch.0.clone();
        killed(&job, &lines, 0.3 * seconds)?;
    }
    let mut job = Job::restart(2, 2, &lines);
    job.folder = scratch.0.clone();
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "the last life failed")?;
    let found = hash(&outcome)?;
    outcome.must(found == answer, &format!("it should say `{answer}`"))
}

/// The program says when; the restarted process is the one that has asked.
fn asks() -> Result<()> {
    let scratch = Scratch::new("asks")?;
    let lines = lines_folder(&scratch)?;
    let here = paths::mca().display().to_string();
    let words = [format!("-I{here}"), format!("-L{here}"), format!("-Wl,-rpath,{here}")];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.push("-Wl,--no-as-needed");
    words.push("-lmpix_correlated");
    let program = mpi::compile_with(&paths::root().join("tests/lines/asks.c"), &words)?;
    let mut job = Job::new(2, 2, &[program]);
    job.folder = scratch.0.clone();
    let folder = lines.display().to_string();
    let first = job.with(&["--mca", "vprotocol_correlated_dir", &folder]).run()?;
    first.must(first.code == 9, "the first life should end with MPI_Abort")?;
    let mut job = Job::restart(2, 2, &lines);
    job.folder = scratch.0.clone();
    let second = job.run()?;
    second.must(second.code == 0 && hash(&second)? == "HASH 0 1 1", "the second life")
}

/// Runs a job that takes a line after `line_at` seconds and is killed a moment later.
fn killed(job: &Job, lines: &Path, line_at: f64) -> Result<()> {
    let folder = lines.display().to_string();
    let words = ["--mca", "vprotocol_correlated_dir", &folder];
    let line_at = line_at.to_string();
    let times = ["--checkpoint-at", &line_at, "--kill-all-after", "0.3"];
    let outcome = job.clone().with(&words).with(&times).run()?;
    outcome.must(outcome.stdout.contains("is complete"), "the line is not complete")?;
    outcome.must(outcome.code == 137, "the job should have been killed in the middle")
}

/// The line with the answer.
fn hash(outcome: &Outcome) -> Result<String> {
    let mut answers = outcome.stdout.lines().filter(|line| line.starts_with("HASH "));
    let (first, second) = (answers.next(), answers.next());
    outcome.must(first.is_some() && second.is_none(), "it should print one line with HASH")?;
    Ok(first.unwrap_or_default().to_string())
}

fn lines_folder(scratch: &Scratch) -> Result<PathBuf> {
    let folder = scratch.0.join("checkpoints");
    fs::create_dir(&folder).context(|| folder.display().to_string())?;
    Ok(folder)
}

/// No file of an unfinished image.
fn nothing_left(lines: &Path) -> Result<()> {
    let listed = run::output(std::process::Command::new("find").arg(lines))?;
    if listed.lines().any(|line| line.ends_with(".tmp")) {
        fail!("unfinished images: {listed}");
    }
    Ok(())
}

fn compile(source: &Path) -> Result<PathBuf> {
    mpi::compile_with(source, &["-fopenmp"])
}
