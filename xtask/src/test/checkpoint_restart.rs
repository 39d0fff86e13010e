//! Jobs that are checkpointed while they run, killed altogether, and restarted from their last
//! global checkpoint, on the same and on other nodes: the answer must be that of an undisturbed
//! run.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use super::collectives_component::PARTED;
use super::job::TestJob;
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{
    self, FILES, FORTRAN, HPCC, INTER, OPENMP, PYTHON, Program, QR, RING, SHARED_WINDOW, Shape,
};
use crate::error::{Context, Result, fail, failure};
use crate::paths;

/// What runs, where it starts, and where it is restarted.
const CASES: [(Program, Shape, &[Shape]); 7] = [
    (RING, (2, 2), &[(2, 2), (1, 4), (4, 1)]),
    (OPENMP, (2, 1), &[(2, 1), (1, 2)]),
    (FORTRAN, (1, 3), &[(3, 1)]),
    (PYTHON, (2, 2), &[(2, 2)]),
    (FILES, (2, 2), &[(2, 2)]),
    (SHARED_WINDOW, (2, 2), &[(2, 2)]),
    (INTER, (2, 2), &[(2, 2), (4, 1)]),
];

/// Programs that others have written, and the message of rank 0 before which they wait for their
/// checkpoint: QR sends and receives 3,483 of them, HPCC some 8,800.
const UNCHANGED: [(Program, Shape, u32); 2] = [(QR, (2, 2), 1700), (HPCC, (2, 1), 4000)];

/// Runs them all.
pub fn run(tier: &mut Tier) {
    for (program, (nodes, ppn), restarts) in &CASES {
        let title = format!("{}: {nodes} × {ppn}", program.name);
        tier.check(&title, || survives(program, (*nodes, *ppn), restarts));
    }
    tier.check(
        "ring with a hash: four incarnations, each with a checkpoint of its own",
        several_incarnations,
    );
    tier.check("ring with a hash: images that build on older ones", increments);
    for (long, (nodes, ppn)) in [(false, (1, 2)), (true, (2, 1))] {
        let length = if long { "long and short" } else { "short" };
        let what = "what was sent before, by a rank that computes after the restart";
        let title = format!("{what}: {nodes} × {ppn}, {length}");
        tier.check(&title, || sent_before((nodes, ppn), long));
    }
    tier.check("a collective under way, onto several nodes: 1 × 3", in_a_collective);
    tier.check("programs that read clocks, onto several nodes: 1 × 3", clocks_go_on);
    tier.check("a shared window is not restored onto several nodes: 1 × 2", parted_window);
    let title = "a large shared window: 1 × 2";
    tier.check(title, large_window);
    if let Some(_until_then) = HugePages::on() {
        tier.check(&format!("{title}, memory of huge pages"), large_window);
    } else {
        tier.skip("memory of huge pages: shmem_enabled cannot be set here");
    }
    for (program, shape, call) in &UNCHANGED {
        let title = format!("{}, unchanged: {} × {}", program.name, shape.0, shape.1);
        tier.check(&title, || unchanged(program, *shape, *call));
    }
    for source in [
        "requests_checkpoint.c",
        "requests_checkpoint_fortran.f90",
        "requests_checkpoint_python.py",
    ] {
        let title = format!("a program that asks for its checkpoint: {source}, 2 × 2");
        tier.check(&title, || asks(source));
    }
}

fn survives(program: &Program, shape: Shape, restarts: &[Shape]) -> Result<()> {
    let scratch = Scratch::new("checkpoints")?;
    let known = program.undisturbed(shape, &scratch)?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    // On a machine as quick as before it is killed in the middle of its work; on a quicker one it
    // waits.
    workloads::open_gate(&scratch, known.iterations * 6 / 10)?;
    killed(&program.job(shape, known.iterations, &scratch)?, &checkpoints, 0.4 * known.seconds)?;
    let unfinished = workloads::unfinished(&checkpoints)?;
    workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
    for &shape in restarts {
        let outcome = workloads::restart(shape, &checkpoints, &scratch).run()?;
        program.must_answer(&outcome, &scratch, &known.answer)?;
    }
    workloads::none_unfinished_but(&unfinished, &checkpoints)
}

/// The set waits in a collective of its own, in memory. When it runs again on several nodes, the
/// root puts its data before anybody knows that.
fn in_a_collective() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/late_root.c"))?;
    let scratch = Scratch::new("in-a-collective")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let gate = workloads::gate(&scratch).display().to_string();
    let job = TestJob::new(1, 3, &[program.display().to_string(), gate]).with(&PARTED);
    workloads::open_gate(&scratch, 1)?;
    let answer = workloads::hash(&job.run()?)?;
    workloads::open_gate(&scratch, 0)?;
    killed(&job, &checkpoints, 0.5)?;
    workloads::open_gate(&scratch, 1)?;
    for _ in 0..3 {
        let mut job = workloads::restart((3, 1), &checkpoints, &scratch);
        job.seconds = 60;
        let outcome = job.run()?;
        outcome.must(outcome.code == 0, "the restarted job should end")?;
        outcome.must(workloads::hash(&outcome)? == answer, "its answer is another one")?;
    }
    Ok(())
}

/// Ranks of a set that share no memory any more cannot record what they read together: they read
/// on.
fn clocks_go_on() -> Result<()> {
    let program = mpi::compile(&paths::root().join("tests/workloads/reads_clocks.c"))?;
    let scratch = Scratch::new("clocks-go-on")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let gate = workloads::gate(&scratch).display().to_string();
    workloads::open_gate(&scratch, 0)?;
    let job = TestJob::new(1, 3, &[program.display().to_string(), gate]);
    let job = workloads::protected(job, &checkpoints).with(&[
        "--checkpoint-at",
        "0.5",
        "--kill-all-after",
        "0.3",
    ]);
    let first = job.run()?;
    first.must(first.code == 137, "it should have been killed")?;
    workloads::open_gate(&scratch, 1)?;
    let mut again = workloads::restart((3, 1), &checkpoints, &scratch);
    again.seconds = 60;
    let outcome = again.run()?;
    outcome.must(outcome.code == 0, "the restarted job should end")?;
    outcome.must(workloads::hash(&outcome)? == "HASH clocks go on", "what it printed")?;
    let events = workloads::events(&checkpoints)?;
    outcome.must(events.contains("\"event\":\"not_replayable\""), "its set cannot replay")
}

/// It would be two windows, of which neither sees what is stored in the other one.
fn parted_window() -> Result<()> {
    let (program, go, scratch) = large_window_job()?;
    let checkpoints = scratch.0.join("checkpoints");
    killed(&TestJob::new(1, 2, &program), &checkpoints, 0.5)?;
    fs::write(&go, "").context(|| go.display().to_string())?;
    let outcome = workloads::restart((2, 1), &checkpoints, &scratch).run()?;
    outcome.must(outcome.code != 0, "it must not go on")?;
    outcome.must(outcome.said().contains("MPI_Win_allocate_shared"), "it should say why")
}

/// Longer than a block of an image, and than a huge page.
fn large_window() -> Result<()> {
    let (program, go, scratch) = large_window_job()?;
    let checkpoints = scratch.0.join("checkpoints");
    killed(&TestJob::new(1, 2, &program), &checkpoints, 0.5)?;
    fs::write(&go, "").context(|| go.display().to_string())?;
    let outcome = workloads::restart((1, 2), &checkpoints, &scratch).run()?;
    outcome.must(outcome.code == 0, "the restarted job should end")?;
    outcome.must(workloads::hash(&outcome)? == "HASH 0 words are wrong", "the window")
}

/// The words of the command, the file that lets it end, and its folder.
fn large_window_job() -> Result<(Vec<String>, PathBuf, Scratch)> {
    let program = mpi::compile(&paths::root().join("tests/workloads/shared_large.c"))?;
    let scratch = Scratch::new("large-window")?;
    workloads::checkpoint_folder(&scratch)?;
    let go = scratch.0.join("go");
    let words = [&program, &go].map(|word| word.display().to_string());
    Ok((words.to_vec(), go, scratch))
}

/// The kernel makes shared memory of huge pages, while this is there. Of the whole machine, for
/// which it is a matter of speed only.
struct HugePages(String);

impl HugePages {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

    /// `None`: it cannot, or nobody may say so.
    fn on() -> Option<Self> {
        let all = fs::read_to_string(Self::SETTING).ok()?;
        let before = all.split_once('[')?.1.split_once(']')?.0.to_owned();
        fs::write(Self::SETTING, "always").ok()?;
        Some(Self(before))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::SETTING, &self.0);
    }
}

/// Fails in the middle, wherever it is by then; meanwhile another one runs to its end.
fn unchanged(program: &Program, shape: Shape, call: u32) -> Result<()> {
    let (scratch, other) = (Scratch::new("unchanged")?, Scratch::new("undisturbed")?);
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    thread::scope(|scope| {
        let known = scope.spawn(|| program.undisturbed(shape, &other));
        let job = workloads::gated_at_call(program, shape, call, &scratch)?;
        let job = workloads::with_checkpoints(job, &checkpoints).with(&["--kill-all-after", "0"]);
        let first = job.run()?;
        first.must(first.stdout.contains("is complete"), "the checkpoint is not complete")?;
        first.must(first.code == 137, "it should have been killed")?;
        workloads::open_gate(&scratch, workloads::GATE_OPEN)?;
        let second = workloads::restart(shape, &checkpoints, &scratch).run()?;
        let known = known.join().map_err(|_| failure!("the undisturbed run panicked"))??;
        program.must_answer(&second, &scratch, &known.answer)
    })
}

/// Is killed in the middle of each of its incarnations but the last one. How far each may come is
/// not a question of time.
fn several_incarnations() -> Result<()> {
    const ITERATIONS: u64 = 2000;
    let scratch = Scratch::new("incarnations")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = RING.job((2, 2), ITERATIONS, &scratch)?;
    workloads::open_gate(&scratch, ITERATIONS)?;
    let answer = workloads::hash(&job.run()?)?;
    workloads::open_gate(&scratch, ITERATIONS / 4)?;
    killed(&job, &checkpoints, 0.3)?;
    for (incarnation, shape) in [(2, (4, 1)), (3, (2, 2))] {
        workloads::open_gate(&scratch, incarnation * ITERATIONS / 4)?;
        killed(&workloads::restart(shape, &checkpoints, &scratch), &checkpoints, 0.3)?;
    }
    workloads::open_gate(&scratch, ITERATIONS)?;
    let outcome = workloads::restart((1, 4), &checkpoints, &scratch).run()?;
    RING.must_answer(&outcome, &scratch, &answer)
}

/// Three checkpoints, of which the last is kept: what it needs of the others is kept with it, and
/// is not used if it is not what it was.
fn increments() -> Result<()> {
    const ITERATIONS: u64 = 2000;
    let scratch = Scratch::new("increments")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let job = RING.job((2, 2), ITERATIONS, &scratch)?;
    workloads::open_gate(&scratch, ITERATIONS)?;
    let answer = workloads::hash(&job.run()?)?;
    workloads::open_gate(&scratch, ITERATIONS / 2)?;
    let mut job = workloads::with_checkpoints(job, &checkpoints);
    for (key, value) in [("compression", "zstd"), ("incremental", "8"), ("checkpoints_kept", "1")] {
        job = job.with(&["--mca", &format!("vprotocol_correlated_{key}"), value]);
    }
    let times = ["--checkpoint-at", "0.3", "--checkpoint-at", "0.4"];
    killed(&job.with(&times), &checkpoints, 0.5)?;
    let images = workloads::images(&checkpoints)?;
    // Of a rank that sends to its own node: what others have in their logs depends on how fast they
    // are.
    let (Some(image), 4) = (images.first(), images.len()) else {
        fail!("one checkpoint should be kept: {images:?}");
    };
    let base = PathBuf::from(format!("{}.base-2", image.display()));
    let whole = fs::read(&base).context(|| base.display().to_string())?;
    let size = fs::metadata(image).context(|| image.display().to_string())?.len();
    let full = PathBuf::from(format!("{}.base-1", image.display()));
    let all = fs::metadata(&full).context(|| full.display().to_string())?.len();
    if size >= all * 3 / 4 {
        fail!("{} has {size} bytes, like the full one with {all}", image.display());
    }
    workloads::verify(&checkpoints)?;
    let refused = |what: &str| {
        let outcome = workloads::restart((2, 2), &checkpoints, &scratch).run()?;
        outcome.must(outcome.code != 0, &format!("{what}: it should be refused"))?;
        let named = outcome.said().contains(&base.display().to_string());
        outcome.must(named, &format!("{what}: it should name what is wrong"))
    };
    let write = |bytes: &[u8]| fs::write(&base, bytes).context(|| base.display().to_string());
    let mut bad = whole.clone();
    let end = bad.len() - 9;
    bad[end] ^= 1;
    write(&bad)?;
    refused("damaged")?;
    fs::remove_file(&base).context(|| base.display().to_string())?;
    refused("not there")?;
    write(&whole)?;
    workloads::open_gate(&scratch, ITERATIONS)?;
    let outcome = workloads::restart((1, 4), &checkpoints, &scratch).run()?;
    RING.must_answer(&outcome, &scratch, &answer)
}

/// Messages that no image holds as received, of a sender that is in no call of MPI.
fn sent_before((nodes, ppn): Shape, long: bool) -> Result<()> {
    let scratch = Scratch::new("sent-before")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let program = mpi::compile(&paths::root().join("tests/workloads/sent_before.c"))?;
    let [gate, done] = ["gate", "done"].map(|name| scratch.0.join(name));
    let mut words = [&program, &gate, &done].map(|word| word.display().to_string()).to_vec();
    words.extend(long.then(|| "long".to_owned()));
    let mut job = TestJob::new(nodes, ppn, &words);
    job.folder = scratch.0.clone();
    let job = job.with(&["--mca", "vprotocol_correlated_sets", "core"]);
    killed(&job, &checkpoints, 1.0)?;
    fs::write(&gate, "").context(|| gate.display().to_string())?;
    let mut job = workloads::restart((nodes, ppn), &checkpoints, &scratch);
    job.seconds = 40;
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "the restarted job should end")?;
    let mut said: Vec<_> = outcome.stdout.lines().filter_map(|l| l.strip_prefix("HASH ")).collect();
    said.sort_unstable();
    let same = matches!(said[..], [one, two] if one.get(2..) == two.get(2..) && one != two);
    outcome.must(same, "both should have the same")
}

/// The program requests the checkpoint; the restarted process is the one that has requested it.
fn asks(source: &str) -> Result<()> {
    let scratch = Scratch::new("asks")?;
    let checkpoints = workloads::checkpoint_folder(&scratch)?;
    let here = paths::mca().display().to_string();
    let file = paths::root().join("tests/workloads").join(source);
    let command = if source.ends_with(".py") {
        vec!["/usr/bin/python3".into(), file.display().to_string(), here]
    } else {
        let words = [format!("-I{here}"), format!("-L{here}"), format!("-Wl,-rpath,{here}")];
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push("-Wl,--no-as-needed");
        words.push("-lmpix_correlated");
        vec![mpi::compile_with(&file, &words)?.display().to_string()]
    };
    let mut job = TestJob::new(2, 2, &command);
    job.folder = scratch.0.clone();
    let first = workloads::with_checkpoints(job, &checkpoints).run()?;
    first.must(first.code == 9, "the first incarnation should end with MPI_Abort")?;
    let second = workloads::restart((2, 2), &checkpoints, &scratch).run()?;
    second.must(
        second.code == 0 && workloads::hash(&second)? == "HASH 0 1 1",
        "the second incarnation",
    )
}

/// Runs a job that takes a checkpoint after `checkpoint_at` seconds and is killed a moment later.
fn killed(job: &TestJob, checkpoints: &Path, checkpoint_at: f64) -> Result<()> {
    let checkpoint_at = checkpoint_at.to_string();
    let times = ["--checkpoint-at", &checkpoint_at, "--kill-all-after", "0.3"];
    let outcome = workloads::with_checkpoints(job.clone(), checkpoints).with(&times).run()?;
    outcome.must(outcome.stdout.contains("is complete"), "the checkpoint is not complete")?;
    outcome.must(outcome.code == 137, "the job should have been killed in the middle")
}
