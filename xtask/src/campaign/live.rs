//! Live faults: programs, nodes and cables break at random moments of a job that goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::draw::Chance;
use super::incarnation;
use super::programs::{Entry, Programs};
use crate::error::{Context, Failure, Result, fail};
use crate::test::scratch::Scratch;
use crate::test::workloads::{self, Shape, Undisturbed, What};

/// Where jobs run: at least one node besides mpirun's.
const SHAPES: [Shape; 5] = [(2, 1), (2, 2), (3, 1), (3, 2), (2, 3)];
/// Seconds after the job is ready within which things break.
const MOMENTS: (f64, f64) = (0.5, 4.0);
/// How long a job may last.
const SECONDS: u32 = 300;
/// Iterations of the ring, which waits at each for determinants to be stable.
const RING_ITERATIONS: u64 = 8000;
/// Runs over cables that lose and delay have so many times fewer iterations.
const SHORTER: u64 = 40;

/// Answers of undisturbed runs.
#[derive(Default)]
pub struct KnownAnswers {
    whole: BTreeMap<(usize, Shape), Undisturbed>,
    shorter: BTreeMap<(usize, Shape), Undisturbed>,
    /// Where `whole` is kept for a campaign in parts.
    file: Option<PathBuf>,
}

impl KnownAnswers {
    /// Those that an earlier part of the campaign has written to this file.
    pub fn of_file(file: Option<PathBuf>) -> Result<KnownAnswers> {
        let mut known = KnownAnswers::default();
        if let Some(file) = file.as_ref().filter(|file| file.exists()) {
            let text = fs::read_to_string(file).context(|| file.display().to_string())?;
            for line in text.lines() {
                let entry = serde_json::from_str(line).unwrap_or_default();
                let Some((key, undisturbed)) = of_entry(&entry) else {
                    fail!("{}: not an answer: {line}", file.display());
                };
                known.whole.insert(key, undisturbed);
            }
        }
        known.file = file;
        Ok(known)
    }

    fn write(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let lines = self.whole.iter().map(|(key, known)| format!("{}\n", entry_of(*key, known)));
        fs::write(file, lines.collect::<String>()).context(|| file.display().to_string())
    }

    /// What a program answers, which is number `index`.
    pub fn get(&mut self, index: usize, entry: Entry, shape: Shape) -> Result<Undisturbed> {
        if let Some(known) = self.whole.get(&(index, shape)) {
            return Ok(known.clone());
        }
        let known = match entry.program.what {
            What::Hash { source: "hash_ring.c", .. } => answer_of(entry, shape, RING_ITERATIONS)?,
            _ => {
                let scratch = Scratch::new("undisturbed")?;
                entry.program.undisturbed_with(entry.options, shape, &scratch)?
            }
        };
        self.whole.insert((index, shape), known.clone());
        self.write()?;
        Ok(known)
    }

    /// The same of a run that is so much shorter, for a network that is slower.
    pub fn shorter(&mut self, index: usize, entry: Entry, shape: Shape) -> Result<Undisturbed> {
        if let Some(known) = self.shorter.get(&(index, shape)) {
            return Ok(known.clone());
        }
        let whole = self.get(index, entry, shape)?;
        let known = match entry.program.what {
            What::Hash { .. } => answer_of(entry, shape, (whole.iterations / SHORTER).max(1))?,
            _ => whole,
        };
        self.shorter.insert((index, shape), known.clone());
        Ok(known)
    }
}

fn entry_of((program, (nodes, ppn)): (usize, Shape), known: &Undisturbed) -> Value {
    let Undisturbed { iterations, answer, seconds } = known;
    json!({
        "program": program, "nodes": nodes, "ppn": ppn,
        "iterations": iterations, "answer": answer, "seconds": seconds,
    })
}

fn of_entry(entry: &Value) -> Option<((usize, Shape), Undisturbed)> {
    let number = |name: &str| entry[name].as_u64();
    let shape = (number("nodes")? as u32, number("ppn")? as u32);
    let known = Undisturbed {
        iterations: number("iterations")?,
        answer: entry["answer"].as_str()?.to_owned(),
        seconds: entry["seconds"].as_f64()?,
    };
    Some(((number("program")? as usize, shape), known))
}

/// What an undisturbed run of so many iterations answers.
fn answer_of(entry: Entry, shape: Shape, iterations: u64) -> Result<Undisturbed> {
    let scratch = Scratch::new("undisturbed")?;
    let outcome = entry.program.job(shape, iterations, &scratch)?.with(entry.options).run()?;
    let answer = entry.program.answer(&outcome, &scratch)?;
    Ok(Undisturbed { iterations, answer, seconds: 0.0 })
}

/// Has the last failure come when all ranks were in MPI_Finalize? What is killed after that ends as
/// with stock Open MPI.
pub fn failed_after_finish(events: &str) -> bool {
    let finish = events.find("\"event\":\"job_finished\"");
    let failures = ["\"event\":\"rank_failed\"", "\"event\":\"node_lost\""];
    let last = failures.iter().filter_map(|failure| events.rfind(failure)).max();
    finish.is_some() && finish > last
}

/// What breaks in a run, as options of `cargo xtask cluster`.
pub struct Plan {
    programs: Programs,
    /// Index of the program.
    pub program: usize,
    /// Nodes, and ranks on each.
    pub shape: Shape,
    /// Options, with their values.
    pub faults: Vec<String>,
}

impl Plan {
    /// Number `run` of the campaign with this seed, with at most so many ranks.
    pub fn draw(programs: Programs, seed: u64, run: u64, ranks_max: u32) -> Plan {
        let mut chance = Chance::of(seed, run);
        let program = (run % programs.count() as u64) as usize;
        let fits = |shape: &Shape| {
            let ranks = shape.0 * shape.1;
            ranks <= ranks_max && programs.get(program).ranks.contains(&ranks)
        };
        let fitting: Vec<Shape> = SHAPES.into_iter().filter(fits).collect();
        let shape = chance.pick(&fitting);
        // mpirun's own node has to live.
        let mut nodes: Vec<u32> = (1..shape.0).collect();
        let mut faults = Vec::new();
        for _ in 0..chance.pick(&[1, 1, 2, 3]) {
            let at = chance.between(MOMENTS.0, MOMENTS.1);
            let kind = chance.below(8);
            let (option, who) = if kind < 4 && !nodes.is_empty() {
                let node = nodes.swap_remove(chance.below(nodes.len() as u64) as usize);
                (if kind == 0 { "--cut-node" } else { "--kill-node" }, node)
            } else {
                ("--kill-rank", chance.below(u64::from(shape.0 * shape.1)) as u32)
            };
            faults.extend([option.to_owned(), format!("{who}@{at:.3}")]);
        }
        // Logs that are full all the time, and checkpoints that resume logging.
        if chance.below(3) == 0 {
            let interval = format!("{:.2}", chance.between(0.4, 2.0));
            for (name, value) in [
                ("log_budget", "256k"),
                ("log_segment_max", "64k"),
                ("checkpoint_interval", &interval),
            ] {
                let name = format!("vprotocol_correlated_{name}");
                faults.extend(["--mca".to_owned(), name, value.to_owned()]);
            }
        }
        Plan { programs, program, shape, faults }
    }

    fn entry(&self) -> Entry {
        self.programs.get(self.program)
    }

    /// For people.
    pub fn name(&self) -> &'static str {
        self.entry().program.name
    }
}

/// What came of a run.
#[derive(Default)]
pub struct LiveRun {
    /// Things that broke.
    pub broken: usize,
    /// Sets that were rolled back.
    pub rolled_back: usize,
    /// What is worth a word although nothing is wrong.
    pub note: &'static str,
}

impl LiveRun {
    /// Does what is planned; the answer must be that of an undisturbed run.
    pub fn go(&mut self, plan: &Plan, known: &mut KnownAnswers) -> Result<()> {
        let known = known.get(plan.program, plan.entry(), plan.shape)?;
        let scratch = Scratch::new("live")?;
        let checkpoints = workloads::checkpoint_folder(&scratch)?;
        let done = self.live(plan, &known, &scratch, &checkpoints);
        done.map_err(|Failure(reason)| {
            Failure(format!("{reason}\n{}", incarnation::events(&checkpoints)))
        })
    }

    fn live(
        &mut self,
        plan: &Plan,
        known: &Undisturbed,
        scratch: &Scratch,
        checkpoints: &Path,
    ) -> Result<()> {
        let Entry { program, options, .. } = plan.entry();
        let mut job =
            workloads::protected(program.job(plan.shape, known.iterations, scratch)?, checkpoints);
        job.seconds = SECONDS;
        let words: Vec<&str> = plan.faults.iter().map(String::as_str).collect();
        let outcome = job.with(options).with(&words).run()?;
        self.broken =
            [": killed ", ": cut "].map(|w| outcome.stderr.matches(w).count()).iter().sum();
        let events = workloads::events(checkpoints)?;
        self.rolled_back = events.matches("\"event\":\"set_restarted\"").count();
        if events.contains("there is nothing to roll back to") {
            self.note = ", failed before its first checkpoint";
            return outcome.must(![0, 124].contains(&outcome.code), "it should have failed");
        }
        let after = failed_after_finish(&events) && outcome.code == 137;
        if events.contains("all ranks were past MPI_Finalize") || after {
            self.note = ", failed after MPI_Finalize";
            return outcome.must(outcome.code != 124, "it should have ended");
        }
        if events.contains("\"event\":\"logging_suspended\"") {
            self.note = if events.contains("\"event\":\"global_rollback\"") {
                ", logging was suspended, global rollback"
            } else {
                ", logging was suspended"
            };
        }
        program.must_answer(&outcome, scratch, &known.answer)?;
        outcome.must(!outcome.said().contains("still running"), "something was left behind")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_one_part_are_known_in_the_next() {
        let scratch = Scratch::new("known").unwrap();
        let file = Some(scratch.0.join("known"));
        let mut one = KnownAnswers::of_file(file.clone()).unwrap();
        let undisturbed =
            |n: u64| Undisturbed { iterations: n, answer: format!("HASH \"{n}\""), seconds: 4.5 };
        for n in [3, 4] {
            one.whole.insert((n as usize, (2, n as u32)), undisturbed(n));
        }
        one.write().unwrap();
        let two = KnownAnswers::of_file(file.clone()).unwrap();
        assert_eq!(two.whole.len(), 2);
        for (key, known) in &two.whole {
            let wanted = undisturbed(key.0 as u64);
            assert_eq!((key.1.1 as usize, &known.answer), (key.0, &wanted.answer));
            assert_eq!(known.iterations, wanted.iterations);
        }
        fs::write(scratch.0.join("known"), "{}\n").unwrap();
        assert!(KnownAnswers::of_file(file).is_err());
    }

    #[test]
    fn with_few_ranks_there_is_a_shape_for_each_program() {
        for programs in [Programs::Usual, Programs::OneSided, Programs::Collectives] {
            for run in 0..200 {
                let (nodes, ppn) = Plan::draw(programs, 3, run, 4).shape;
                assert!(nodes * ppn <= 4);
            }
        }
    }
}
