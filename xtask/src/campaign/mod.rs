//! `cargo xtask campaign`: random programs, shapes, moments of checkpoints and of failures; each
//! run must give the answer of an undisturbed one.

mod draw;
mod hostile;
mod incarnation;
mod live;
mod programs;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::autogroup::NoGroups;
use crate::error::{Context, Failure, Result, fail};
use crate::{build, paths};
use draw::{PROGRAMS, Plan};
use incarnation::{IncarnationRun, KnownRuns};
use programs::Programs;

/// Most ranks of a job.
const RANKS_MAX: u32 = 6;

/// The command line of `cargo xtask campaign`.
#[derive(Args)]
pub struct CampaignOptions {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 25)]
    runs: u64,
    /// What is drawn; the same seed gives the same runs
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Number of the first run
    #[arg(long, value_name = "K", default_value_t = 0)]
    first: u64,
    /// Checkpoints that are requested in each incarnation (default: 1 to 5, by chance)
    #[arg(long, alias = "lines", value_name = "L")]
    checkpoints: Option<u32>,
    /// Break programs, nodes and cables of jobs that go on, in place of whole jobs
    #[arg(long, conflicts_with = "checkpoints")]
    live: bool,
    /// Everything that a hostile surrounding does to jobs that go on: signals to every process,
    /// cuts, lossy cables, full disks and logs, several at once
    #[arg(long, conflicts_with_all = ["checkpoints", "live"])]
    hostile: bool,
    /// With --live or --hostile: to programs with windows
    #[arg(long, conflicts_with = "checkpoints")]
    one_sided: bool,
    /// The same to programs that do nothing but collectives
    #[arg(long, conflicts_with_all = ["checkpoints", "one_sided"])]
    collectives: bool,
    /// With --live: at most so many ranks, for machines with few processors
    #[arg(long, value_name = "N", default_value_t = RANKS_MAX, requires = "live",
          value_parser = clap::value_parser!(u32).range(4..))]
    ranks_max: u32,
    /// With --live: what undisturbed runs have answered is kept in FILE, for a campaign in parts
    #[arg(long, value_name = "FILE", requires = "live")]
    known: Option<PathBuf>,
    /// Begin no run after so many minutes
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Where the result goes (default: out/campaign.json)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl CampaignOptions {
    fn programs(&self) -> Programs {
        match (self.one_sided, self.collectives, self.hostile) {
            (true, ..) => Programs::OneSided,
            (_, true, _) => Programs::Collectives,
            (_, _, true) => Programs::All,
            _ => Programs::Usual,
        }
    }

    /// What is said to run such a campaign again.
    fn words(&self) -> String {
        let kind = if self.hostile { "--hostile " } else { "--live " };
        let programs = match self.programs() {
            Programs::Usual | Programs::All => "",
            Programs::OneSided => "--one-sided ",
            Programs::Collectives => "--collectives ",
        };
        let ranks = match self.ranks_max {
            RANKS_MAX => String::new(),
            ranks => format!("--ranks-max {ranks} "),
        };
        format!("{kind}{programs}{ranks}")
    }
}

/// What all runs together have done.
#[derive(Default)]
struct Sum {
    runs: u64,
    checkpoints: usize,
    kills: usize,
    restarts: usize,
    /// Jobs that have ended with a reason, without an answer.
    ended: usize,
    failed: Vec<u64>,
    all: Vec<Value>,
}

impl Sum {
    /// Says what was wrong, and how to run it again with these options.
    fn fail(&mut self, options: &CampaignOptions, number: u64, kind: &str, reason: &str) {
        let seed = options.seed;
        println!(
            "{reason}\n  again: cargo xtask campaign {kind}--seed {seed} --first {number} --runs 1"
        );
        self.failed.push(number);
    }
}

/// Runs the campaign; fails if a run failed.
pub fn run(options: &CampaignOptions) -> Result<()> {
    build::ensure_fresh()?;
    let _no_groups = NoGroups::begin();
    let end = options.minutes.map(|m| Instant::now() + Duration::from_secs_f64(m * 60.0));
    if (options.one_sided || options.collectives) && !(options.live || options.hostile) {
        fail!("--one-sided and --collectives want --live or --hostile");
    }
    let mut known = KnownRuns::default();
    let mut known_live = live::KnownAnswers::of_file(options.known.clone())?;
    let mut sum = Sum::default();
    for number in options.first..options.first + options.runs {
        if end.is_some_and(|end| Instant::now() >= end) {
            println!("time is over: {} of {} runs", sum.runs, options.runs);
            break;
        }
        if options.hostile {
            one_hostile(options, number, &mut known_live, &mut sum);
        } else if options.live {
            one_live(options, number, &mut known_live, &mut sum);
        } else {
            one(options, number, &mut known, &mut sum);
        }
        write(options, &sum)?;
    }
    println!(
        "\n{} runs, seed {}: {} checkpoints, {} kills, {} restarts, {} ended with a reason, \
         {} runs failed",
        sum.runs,
        options.seed,
        sum.checkpoints,
        sum.kills,
        sum.restarts,
        sum.ended,
        sum.failed.len()
    );
    if sum.failed.is_empty() { Ok(()) } else { fail!("runs that failed: {:?}", sum.failed) }
}

fn one_live(options: &CampaignOptions, number: u64, known: &mut live::KnownAnswers, sum: &mut Sum) {
    let plan = live::Plan::draw(options.programs(), options.seed, number, options.ranks_max);
    let name = plan.name();
    let start = Instant::now();
    let mut run = live::LiveRun::default();
    let result = run.go(&plan, known);
    let seconds = start.elapsed().as_secs_f64();
    let word = if result.is_ok() { "ok  " } else { "FAIL" };
    let (nodes, ppn) = plan.shape;
    let faults = plan.faults.join(" ");
    println!(
        "{word} {number:4}  {name}: {nodes} × {ppn}; {faults}; {} broke, {} rolled back \
         ({seconds:.0} s){}",
        run.broken, run.rolled_back, run.note
    );
    if let Err(Failure(reason)) = &result {
        sum.fail(options, number, &options.words(), reason);
    }
    sum.runs += 1;
    sum.kills += run.broken;
    sum.restarts += run.rolled_back;
    sum.all.push(json!({
        "run": number, "program": name, "shape": format!("{nodes} × {ppn}"), "faults": faults,
        "broken": run.broken, "back": run.rolled_back, "seconds": seconds,
        "note": run.note, "failure": result.err().map(|Failure(reason)| reason),
    }));
}

fn one_hostile(
    options: &CampaignOptions,
    number: u64,
    known: &mut live::KnownAnswers,
    sum: &mut Sum,
) {
    let plan = hostile::Plan::draw(options.programs(), options.seed, number);
    let (name, (nodes, ppn)) = (plan.name(), plan.shape);
    let start = Instant::now();
    let mut run = hostile::HostileRun::default();
    let result = run.go(&plan, known);
    let seconds = start.elapsed().as_secs_f64();
    let word = match (&result, &run.ended) {
        (Err(_), _) => "FAIL",
        (Ok(()), Some(_)) => "end ",
        (Ok(()), None) => "ok  ",
    };
    let why = run.ended.as_ref().map_or(String::new(), |why| format!(", ended: {why}"));
    println!(
        "{word} {number:4}  {name}: {nodes} × {ppn}; {}; {} rolled back{why} ({seconds:.0} s)",
        plan.words(),
        run.rolled_back
    );
    if let Err(Failure(reason)) = &result {
        sum.fail(options, number, &options.words(), reason);
    }
    sum.runs += 1;
    sum.restarts += run.rolled_back;
    sum.ended += usize::from(run.ended.is_some());
    sum.all.push(json!({
        "run": number, "program": name, "shape": format!("{nodes} × {ppn}"),
        "faults": plan.words(), "back": run.rolled_back, "seconds": seconds,
        "ended": run.ended, "failure": result.err().map(|Failure(reason)| reason),
    }));
}

fn one(options: &CampaignOptions, number: u64, known: &mut KnownRuns, sum: &mut Sum) {
    let plan = Plan::draw(options.seed, number, options.checkpoints);
    let name = PROGRAMS[plan.program].0.name;
    let start = Instant::now();
    let mut run = IncarnationRun::default();
    let result = run.go(&plan, known);
    let seconds = start.elapsed().as_secs_f64();
    let path = shapes(&plan);
    let word = if result.is_ok() { "ok  " } else { "FAIL" };
    println!(
        "{word} {number:4}  {name}: {path}; {} checkpoints, {} restarts ({seconds:.0} s){}",
        run.checkpoints, run.restarts, run.note
    );
    if let Err(Failure(reason)) = &result {
        let checkpoints = options
            .checkpoints
            .map_or(String::new(), |checkpoints| format!("--checkpoints {checkpoints} "));
        sum.fail(options, number, &checkpoints, reason);
    }
    sum.runs += 1;
    sum.checkpoints += run.checkpoints;
    sum.kills += run.kills;
    sum.restarts += run.restarts;
    sum.all.push(json!({
        "run": number, "program": name, "shapes": path, "lines": run.checkpoints,
        "deaths": run.kills, "restarts": run.restarts, "seconds": seconds,
        "note": run.note.trim(), "failure": result.err().map(|Failure(reason)| reason),
    }));
}

/// The shapes of the job's incarnations.
fn shapes(plan: &Plan) -> String {
    let all = plan.incarnations.iter().map(|incarnation| incarnation.shape).chain([plan.last]);
    let texts: Vec<String> = all.map(|(nodes, ppn)| format!("{nodes} × {ppn}")).collect();
    texts.join(" → ")
}

fn write(options: &CampaignOptions, sum: &Sum) -> Result<()> {
    let file = options.json.clone().unwrap_or_else(|| paths::out().join("campaign.json"));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    }
    let document = json!({
        "seed": options.seed, "lines_a_life": options.checkpoints, "first": options.first,
        "runs": sum.runs, "lines": sum.checkpoints,
        "deaths": sum.kills, "restarts": sum.restarts, "ended": sum.ended,
        "failed": sum.failed, "all": sum.all,
    });
    fs::write(&file, format!("{document:#}\n")).context(|| file.display().to_string())
}
