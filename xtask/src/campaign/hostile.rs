//! Hostile runs: signals to every process of ours and of Open MPI, suspended nodes, cuts, cables
//! that lose and delay, full disks and logs, no memory,
//! unauthenticated peers, several at once. A run is good if the answer is that
//! of an undisturbed run, or if the job ends with a reason that cannot be helped. A wrong answer, a
//! hang, an end without a reason, or one that could have been helped is a failure.

use super::draw::Chance;
use super::incarnation;
use super::live::{KnownAnswers, failed_after_finish};
use super::programs::{Entry, Programs};
use crate::error::{Failure, Result};
use crate::test::job::Outcome;
use crate::test::scratch::Scratch;
use crate::test::storage::{Storage, count};
use crate::test::workloads::{Shape, Undisturbed};
use serde_json::Value;

/// Where jobs run: at least one node besides mpirun's.
const SHAPES: [Shape; 6] = [(2, 1), (2, 2), (3, 1), (4, 1), (3, 2), (2, 3)];
/// How long a job may last: with cuts, lossy cables and replays.
const SECONDS: u32 = 300;
/// When something happens; the first thing at one of the first [`ALWAYS`], which come by
/// themselves.
const MOMENTS: [&str; 12] = [
    "ready@1",
    "checkpoint_started@1",
    "checkpoint_completed@1",
    "checkpoint_completed@1",
    "checkpoint_completed@2",
    "checkpoint_started@3",
    "replication_ok@1",
    "set_rollback@1",
    "set_restarted@1",
    "replay_completed@1",
    "rank_failed@1",
    "node_lost@1",
];
const ALWAYS: usize = 7;
const SIGNALS: [&str; 5] = ["TERM", "INT", "HUP", "KILL", "PAUSE"];
/// What has to be read where a job ends early: one of these.
const REASONS: [&str; 7] = [
    "There is nothing to restart the job from",
    "cannot be restarted",
    "ORTE has lost communication with a remote daemon",
    "mpirun noticed that process rank",
    "ORTE was unable to reliably start one or more daemons",
    "a daemon with a signal",
    "The job is ended",
];

/// What happens in a run, as options of `cargo xtask cluster`.
pub struct Plan {
    programs: Programs,
    /// Index of the program.
    pub program: usize,
    /// Nodes, and ranks on each.
    pub shape: Shape,
    storage: Storage,
    /// A disk for checkpoints with so much room.
    disk: Option<&'static str>,
    /// Options, with their values.
    pub faults: Vec<String>,
}

impl Plan {
    /// Number `run` of the campaign with this seed.
    pub fn draw(programs: Programs, seed: u64, run: u64) -> Plan {
        let mut chance = Chance::of(seed, run);
        let index = (run % programs.count() as u64) as usize;
        let fits = |shape: &Shape| programs.get(index).ranks.contains(&(shape.0 * shape.1));
        let fitting: Vec<Shape> = SHAPES.into_iter().filter(fits).collect();
        let shape = chance.pick(&fitting);
        let storage = chance.pick(&[Storage::Shared, Storage::Nodes]);
        let disk = (storage == Storage::Shared && chance.below(5) == 0)
            .then(|| chance.pick(&["1m", "8m", "48m"]));
        let mut plan = Plan { programs, program: index, shape, storage, disk, faults: Vec::new() };
        for _ in 0..chance.pick(&[1, 1, 2, 2, 3]) {
            plan.break_something(&mut chance);
        }
        if chance.below(6) == 0 {
            let (loss, delay) = (chance.pick(&[0.0, 0.5, 2.0]), chance.pick(&[0.0, 0.2, 1.0]));
            plan.add("--link", format!("loss={loss},delay={delay}"));
        }
        // Checkpoints come and go while things break.
        let interval = format!("{:.2}", chance.between(0.5, 3.0));
        plan.parameter("checkpoint_interval", &interval);
        if chance.below(4) == 0 {
            plan.parameter("log_budget", "256k");
            plan.parameter("log_segment_max", "64k");
        }
        plan
    }

    fn break_something(&mut self, chance: &mut Chance) {
        let (nodes, ranks) = (self.shape.0, self.shape.0 * self.shape.1);
        let moments = if self.faults.is_empty() { ALWAYS } else { MOMENTS.len() };
        let moment = chance.pick(&MOMENTS[..moments]);
        let node = 1 + chance.below(u64::from(nodes - 1));
        let rank = chance.below(u64::from(ranks));
        match chance.below(23) {
            0 => {
                let signal = chance.pick(&["TERM", "INT", "KILL"]);
                self.add("--signal-at-event", format!("{moment}={signal}/mpirun"));
            }
            1 => {
                let signal = chance.pick(&SIGNALS);
                self.add("--signal-at-event", format!("{moment}={signal}/coordinator"));
            }
            2..=5 => {
                let direction = chance.pick(&["off", "mute", "to", "from"]);
                let seconds = chance.pick(&[1, 3, 6, 9]);
                let node = chance.below(u64::from(nodes));
                self.add("--partition", format!("{moment}={direction}:{node}+{seconds}"));
            }
            20 => {
                let node = chance.below(u64::from(nodes));
                self.add("--signal-at-event", format!("{moment}=INTRUDER/node:{node}"));
            }
            kind => {
                let mut signal = chance.pick(&SIGNALS);
                // Python makes an exception of it, and the other ranks wait for ever, as in a stock
                // job.
                if signal == "INT" && self.name().starts_with("Python") {
                    signal = "TERM";
                }
                // Who has most is killed first; others only wait for pages to be written.
                if kind > 20 {
                    signal = "OOM";
                }
                let who = match kind {
                    6..=8 => format!("node:{node}"),
                    9..=10 => format!("daemon:{node}"),
                    11..=12 => format!("agent:{}", chance.below(u64::from(nodes))),
                    13..=14 => format!("guardian:{rank}"),
                    15 => format!("daemon:{node}+rank:{rank}"),
                    _ => format!("rank:{rank}"),
                };
                self.add("--signal-at-event", format!("{moment}={signal}/{who}"));
            }
        }
    }

    fn add(&mut self, option: &str, value: String) {
        self.faults.extend([option.to_owned(), value]);
    }

    fn parameter(&mut self, name: &str, value: &str) {
        let name = format!("vprotocol_correlated_{name}");
        self.faults.extend(["--mca".to_owned(), name, value.to_owned()]);
    }

    /// For people.
    pub fn name(&self) -> &'static str {
        self.programs.get(self.program).program.name
    }

    /// What happens, in a line.
    pub fn words(&self) -> String {
        let place = match (self.storage, self.disk) {
            (Storage::Nodes, _) => "no shared folder".to_owned(),
            (Storage::Shared, None) => "shared folder".to_owned(),
            (Storage::Shared, Some(size)) => format!("shared folder of {size}"),
        };
        format!("{place}; {}", self.faults.join(" ").replace("vprotocol_correlated_", ""))
    }
}

/// What came of a run.
#[derive(Default)]
pub struct HostileRun {
    /// Sets that were rolled back.
    pub rolled_back: usize,
    /// Why the job ended without an answer.
    pub ended: Option<String>,
}

impl HostileRun {
    /// Does what is planned.
    pub fn go(&mut self, plan: &Plan, known: &mut KnownAnswers) -> Result<()> {
        let entry = plan.programs.get(plan.program);
        let known = if plan.faults.iter().any(|word| word == "--link") {
            known.shorter(plan.program, entry, plan.shape)?
        } else {
            known.get(plan.program, entry, plan.shape)?
        };
        let scratch = Scratch::new("hostile")?;
        let done = self.hostile(plan, entry, &known, &scratch);
        done.map_err(|Failure(reason)| {
            let events = plan.storage.events(&scratch).unwrap_or_default();
            Failure(format!("{reason}\n{}", incarnation::last_events(&events)))
        })
    }

    fn hostile(
        &mut self,
        plan: &Plan,
        Entry { program, options, .. }: Entry,
        known: &Undisturbed,
        scratch: &Scratch,
    ) -> Result<()> {
        let job = program.job(plan.shape, known.iterations, scratch)?;
        let mut job = plan.storage.with(job, scratch)?;
        job.seconds = SECONDS;
        if let Some(size) = plan.disk {
            let folder = scratch.0.join("checkpoints").display().to_string();
            job = job.with(&["--disk", &folder, size]);
        }
        let words: Vec<&str> = plan.faults.iter().map(String::as_str).collect();
        let outcome = job.with(options).with(&words).run()?;
        let events = plan.storage.events(scratch)?;
        self.rolled_back = count(&events, "set_restarted");
        outcome.must(outcome.code != 124, "it hangs")?;
        outcome.must(!outcome.said().contains("still running"), "something was left behind")?;
        if outcome.code == 0 {
            return program.must_answer(&outcome, scratch, &known.answer);
        }
        self.ended = Some(reason(&outcome, &events)?);
        Ok(())
    }
}

/// Why a job has ended; fails if nobody says so, or if there was no need.
fn reason(outcome: &Outcome, events: &str) -> Result<String> {
    let said = outcome.said();
    if said.contains(" to mpirun (process ") {
        return Ok("mpirun was hit".into());
    }
    let read = REASONS.iter().any(|reason| said.contains(reason));
    outcome.must(read, "it has ended, and nobody says why")?;
    for (what, why) in [
        ("there is nothing to roll back to", "before the first checkpoint"),
        ("all ranks were past MPI_Finalize", "after MPI_Finalize"),
        ("\"event\":\"protection_disabled\"", "the coordinator could not be restarted"),
    ] {
        if events.contains(what) {
            return Ok(why.into());
        }
    }
    let mut events_read =
        events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    if let Some(event) = events_read.find(|event| event["event"] == "not_recovered") {
        // To be looked at: should it have been?
        return Ok(format!("not recovered: {}", event["reason"].as_str().unwrap_or_default()));
    }
    outcome.must(failed_after_finish(events), "it should have survived")?;
    Ok("after MPI_Finalize".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterOptions;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ClusterOptions,
    }

    #[test]
    fn plans_are_repeatable_and_are_options_that_a_cluster_takes() {
        for run in 0..600 {
            let programs = if run < 300 { Programs::All } else { Programs::OneSided };
            let plan = Plan::draw(programs, 3, run % 300);
            assert_eq!(plan.faults, Plan::draw(programs, 3, run % 300).faults);
            let (nodes, ppn) = (plan.shape.0.to_string(), plan.shape.1.to_string());
            let place = ["cluster", "--nodes", &nodes, "--ppn", &ppn];
            let faults = plan.faults.iter().map(String::as_str);
            let words = place.into_iter().chain(faults).chain(["--", "true"]);
            Line::try_parse_from(words).unwrap().options.check().unwrap();
        }
    }

    #[test]
    fn every_kind_of_fault_is_drawn() {
        let of = |programs| (0..300).map(move |run| Plan::draw(programs, 3, run).words());
        let words =
            [Programs::All, Programs::OneSided].map(|of_all| of(of_all).collect::<Vec<_>>());
        for kind in [
            "mpirun",
            "coordinator",
            "=off:",
            "=mute:",
            "=to:",
            "=from:",
            "node:",
            "daemon:",
            "agent:",
            "guardian:",
            "PAUSE",
            "OOM/rank",
            "INTRUDER/node",
            "--link",
            "log_budget",
            "folder of 1m",
            "no shared",
        ] {
            for words in &words {
                assert!(words.iter().any(|words| words.contains(kind)), "{kind}");
            }
        }
    }
}
