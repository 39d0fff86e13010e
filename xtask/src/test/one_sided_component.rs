//! Our one-sided component (docs/adr/0037): programs of tests/mpi that only it passes entirely, and
//! programs with windows of every kind of synchronization, of which a set fails and is rolled back
//! alone.

use super::job::{Outcome, TestJob};
use super::local_storage;
use super::mpi::{self, Over};
use super::node_failure::must_be_clean;
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, Program, Shape, WINDOW, What};
use crate::error::Result;

/// Is the component in what is built? `--only one_sided_` runs the programs alone, `--only "own
/// one-sided"` the failures; `cargo xtask bench` has its experiments.
///
/// In campaigns: `cargo xtask campaign --live --one-sided`, `--hostile --one-sided`.
pub const IS_THERE: bool = true;

/// Fences; [`WINDOW`] over our component.
pub const RING: Program = WINDOW;
/// Neighbours put into each other's windows between post and wait.
pub const HALO: Program = hash("a halo, post and start", "window_halo.c", 400);
/// Compare-and-swap and fetch_and_op under lock_all and locks; contents are checked.
pub const STORE: Program = hash("a store of elements", "window_store.c", 60);
/// Ranks that poll their windows by MPI_Win_sync.
pub const POLL: Program = hash("a ring by polling", "window_poll.c", 400);
/// Windows that come and go, and whose addresses are sent to all.
pub const ADDRESSES: Program = hash("addresses of windows", "window_addresses.c", 200);
/// Memory that is attached and detached.
pub const REGIONS: Program = hash("a dynamic window", "window_regions.c", 400);
/// Shared windows without data races.
pub const SETS: Program = hash("shared windows", "window_sets.c", 400);
/// Records of a hash table named by derived types, under exclusive locks.
pub const TABLE: Program = hash("a table of columns", "window_table.c", 40);
/// A 3-D FFT over puts, by fence, post and flush in turn; 1, 2, 4, 8 or 16 ranks.
pub const TRANSPOSE: Program = hash("a transpose", "window_transpose.c", 120);

/// Threads with windows of their own and one that they share (MPI_THREAD_MULTIPLE).
pub const THREADS: Program = hash("threads with windows", "window_threads.c", 200);

/// A rank sees by loads alone what its neighbour has put.
pub const LOOK: Program = hash("seen by loads alone", "window_look.c", 400);
/// Asks for messages while neighbours write directly.
pub const ASKS: Program = Program {
    name: "asks for messages",
    what: What::Hash { source: "window_look.c", iterations: 400, arguments: &["GATE", "asks"] },
};

/// What messages tell, by all calls that wait for some or ask for some, and windows.
pub const WAITS: Program = hash("waits for messages", "window_waits.c", 400);
/// By those that wait, and neighbours write to windows themselves.
pub const WAITS_ONLY: Program = Program {
    name: "only waits for messages",
    what: What::Hash {
        source: "window_waits.c",
        iterations: 400,
        arguments: &["GATE", "2", "WAITS"],
    },
};

/// What a nonblocking collective tells, and windows (docs/adr/0041).
pub const AFTER_NONBLOCKING: Program = Program {
    name: "after a nonblocking collective",
    what: What::Hash {
        source: "window_after.c",
        iterations: 300,
        arguments: &["GATE", "nonblocking"],
    },
};

const fn hash(name: &'static str, source: &'static str, iterations: u64) -> Program {
    Program { name, what: What::Hash { source, iterations, arguments: &["GATE"] } }
}

/// Do the events say so?
type Happened<'a> = dyn Fn(&str) -> bool + Sync + 'a;

/// What happens to whom.
struct Case {
    what: &'static str,
    program: &'static Program,
    shape: Shape,
    faults: &'static [&'static str],
    /// So many sets fail, each of which completes its replay.
    sets: usize,
}

/// Two of four at a time; each image is on two other nodes, too.
const TWO_NODES: &[&str] = &[
    "--kill-node-after-checkpoint",
    "1@1",
    "--kill-node-after-checkpoint",
    "2@1",
    "--mca",
    "vprotocol_correlated_image_replicas",
    "2",
];
const RANK: &[&str] = &["--kill-rank-after-checkpoint", "3@1"];
/// The same; barriers over several sets are Open MPI's.
const RANK_NOT_OVER_SETS: &[&str] = &[
    "--kill-rank-after-checkpoint",
    "3@1",
    "--mca",
    "vprotocol_correlated_collectives_over_sets",
    "0",
];
const RANK_ZERO: &[&str] = &["--kill-rank-after-checkpoint", "0@1"];
const NODE: &[&str] = &["--kill-node-after-checkpoint", "1@1"];
/// Two sets at a time, whose nodes and images are there still.
const TWO_RANKS: &[&str] =
    &["--kill-rank-after-checkpoint", "1@1", "--kill-rank-after-checkpoint", "2@1"];
/// All that there are, each with a record of its own.
const ALL_SETS: &[&str] = &[
    "--kill-rank-after-checkpoint",
    "0@1",
    "--kill-rank-after-checkpoint",
    "1@1",
    "--kill-rank-after-checkpoint",
    "2@1",
];

const CASES: [Case; 26] = [
    Case { what: "fence", program: &WINDOW, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "fence, six ranks", program: &WINDOW, shape: (2, 3), faults: RANK, sets: 1 },
    Case { what: "fence, a node", program: &WINDOW, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "post and start", program: &HALO, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "post, two sets", program: &HALO, shape: (3, 1), faults: TWO_RANKS, sets: 2 },
    Case { what: "locks and atomics", program: &STORE, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "atomics, a node", program: &STORE, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "atomics, two sets", program: &STORE, shape: (3, 1), faults: TWO_RANKS, sets: 2 },
    Case { what: "atomics, all sets", program: &STORE, shape: (3, 1), faults: ALL_SETS, sets: 3 },
    Case { what: "post, all sets", program: &HALO, shape: (3, 1), faults: ALL_SETS, sets: 3 },
    Case { what: "lock_all, polling", program: &POLL, shape: (2, 2), faults: RANK_ZERO, sets: 1 },
    Case { what: "polling, two sets", program: &POLL, shape: (3, 1), faults: TWO_RANKS, sets: 2 },
    Case { what: "fence, two nodes", program: &WINDOW, shape: (4, 1), faults: TWO_NODES, sets: 2 },
    Case { what: "post, two nodes", program: &HALO, shape: (4, 1), faults: TWO_NODES, sets: 2 },
    Case { what: "atomics, two nodes", program: &STORE, shape: (4, 1), faults: TWO_NODES, sets: 2 },
    Case { what: "polling, two nodes", program: &POLL, shape: (4, 1), faults: TWO_NODES, sets: 2 },
    Case { what: "shared memory", program: &SETS, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "derived types", program: &TABLE, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "derived types, a node", program: &TABLE, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "addresses", program: &ADDRESSES, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "addresses, a node", program: &ADDRESSES, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "transpose", program: &TRANSPOSE, shape: (2, 2), faults: RANK, sets: 1 },
    Case { what: "waits", program: &WAITS, shape: (2, 2), faults: RANK_ZERO, sets: 1 },
    Case { what: "only waits", program: &WAITS_ONLY, shape: (2, 2), faults: RANK_ZERO, sets: 1 },
    Case {
        what: "after nonblocking ones",
        program: &AFTER_NONBLOCKING,
        shape: (2, 2),
        faults: RANK_ZERO,
        sets: 1,
    },
    Case {
        what: "transpose, no collectives over sets",
        program: &TRANSPOSE,
        shape: (2, 2),
        faults: RANK_NOT_OVER_SETS,
        sets: 1,
    },
];

/// The same; these say little beside the others, and are run when time does not matter.
const MORE: [Case; 9] = [
    Case { what: "post and start, a node", program: &HALO, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "polling, a node", program: &POLL, shape: (3, 1), faults: NODE, sets: 1 },
    Case { what: "shared memory, a node", program: &SETS, shape: (2, 2), faults: NODE, sets: 1 },
    Case { what: "transpose, a node", program: &TRANSPOSE, shape: (2, 2), faults: NODE, sets: 1 },
    Case { what: "waits, a node", program: &WAITS, shape: (3, 2), faults: NODE, sets: 1 },
    Case { what: "only waits, a node", program: &WAITS_ONLY, shape: (3, 2), faults: NODE, sets: 1 },
    Case { what: "types, two nodes", program: &TABLE, shape: (4, 1), faults: TWO_NODES, sets: 2 },
    Case {
        what: "transpose, two nodes",
        program: &TRANSPOSE,
        shape: (4, 1),
        faults: TWO_NODES,
        sets: 2,
    },
    Case {
        what: "shared memory, two nodes",
        program: &SETS,
        shape: (4, 2),
        faults: TWO_NODES,
        sets: 2,
    },
];

/// Threads on windows are not repeatable: all are rolled back. Who is killed.
const TOGETHER: [(&str, Shape, &[&str]); 3] = [
    ("threads", (2, 2), &["rank:3"]),
    ("threads, a node", (3, 1), &["node:1"]),
    ("threads, two sets", (3, 1), &["rank:1", "rank:2"]),
];
/// What makes sets not replayable is in use, and in a checkpoint, on a machine of any speed.
const IN_USE: &str = "not_replayable@1,checkpoint_completed@1";
const OFTEN: [&str; 3] = ["--mca", "vprotocol_correlated_checkpoint_interval", "1"];

/// Microseconds of sleep in each iteration of a program that is killed, so that the first
/// checkpoint is complete while it is on its way.
const PACE: &str = "PACE_US=1000";

/// The tiers.
pub fn tasks(
    tasks: &mut Vec<Task<'_>>,
    needs: &'static [&'static str],
    long: bool,
    every_case: bool,
) {
    tasks.push(Task::new("own one-sided component: programs", Load::Jobs, needs, move |tier| {
        programs(tier, &Over::OneSided { all_shapes: long, recorded: false });
        if long {
            programs(tier, &Over::OneSided { all_shapes: false, recorded: true });
        }
    }));
    tasks.push(Task::new("own one-sided component: rollback", Load::Jobs, needs, move |tier| {
        rollback(tier, &Over::Component, every_case);
    }));
}

/// The same over another Open MPI.
pub fn run_over(tier: &mut Tier, over: &Over) {
    programs(tier, over);
    rollback(tier, over, false);
}

/// One rollback.
pub fn run_one(tier: &mut Tier, over: &Over) {
    case_over(tier, over, &CASES[0]);
}

/// Does this program of tests/mpi need the component?
pub fn is_for_it(program: &str) -> bool {
    program.starts_with("one_sided_")
}

/// Of all layouts of a program the largest with at most four ranks on one and on two nodes.
pub fn some_shapes(all: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let largest = |wanted: u32| {
        let fitting = all.iter().copied().filter(move |&(n, ranks)| n == wanted && ranks <= 4);
        fitting.max_by_key(|&(_, ranks)| ranks)
    };
    [1, 2].into_iter().filter_map(largest).collect()
}

fn programs(tier: &mut Tier, over: &Over) {
    mpi::run_some(tier, over, is_for_it);
}

fn rollback(tier: &mut Tier, over: &Over, every_case: bool) {
    let more = MORE.iter().filter(|_| every_case);
    for case in CASES.iter().chain(more) {
        case_over(tier, over, case);
    }
    for (what, shape, killed) in TOGETHER {
        let (nodes, ppn) = shape;
        let title = format!("own one-sided: rollback: {what}: {nodes} × {ppn}");
        tier.check(&title, || threads(over, shape, killed));
    }
    tier.check("own one-sided: rollback: dynamic: 2 × 2", || dynamic(over, (2, 2), RANK));
    if every_case {
        let title = "own one-sided: rollback: dynamic, two nodes: 4 × 1";
        tier.check(title, || dynamic(over, (4, 1), TWO_NODES));
    }
    tier.check("own one-sided: rollback: seen by loads alone: 2 × 2", || seen_by_loads(over));
    tier.check("own one-sided: rollback: has asked before: 2 × 2", || has_asked_before(over));
    tier.check("own one-sided: rollback: shared memory of two sets: 1 × 2", || over_sets(over));
}

fn case_over(tier: &mut Tier, over: &Over, case: &Case) {
    let (nodes, ppn) = case.shape;
    let title = format!("own one-sided: rollback: {}: {nodes} × {ppn}", case.what);
    tier.check(&title, || rolls_back_alone(over, case));
}

/// Held half-way until the sets that failed are there again; then the answer is that of an
/// undisturbed run.
fn survives(
    over: &Over,
    program: &Program,
    shape: Shape,
    options: &[impl AsRef<str>],
    replayed: impl Fn(&str) -> bool + Sync,
) -> Result<(Outcome, String)> {
    let half = program.iterations() / 2;
    survives_in_steps(over, program, shape, options, half, &[(&replayed, GATE_OPEN)])
}

/// The same, where its gate is at `first` to begin with, and opens so far each time that the events
/// say that something has happened. When the last of it has, the sets are there again.
fn survives_in_steps(
    over: &Over,
    program: &Program,
    shape: Shape,
    options: &[impl AsRef<str>],
    first: u64,
    steps: &[(&Happened<'_>, u64)],
) -> Result<(Outcome, String)> {
    let scratch = Scratch::new("one-sided")?;
    let iterations = program.iterations();
    let undisturbed = program.job_over(over, shape, iterations, &scratch)?.run()?;
    let answer = program.answer(&undisturbed, &scratch)?;
    let options: Vec<&str> = options.iter().map(AsRef::as_ref).collect();
    let job: TestJob = program.job_over(over, shape, iterations, &scratch)?.with(&options);
    let job = local_storage::plain(job, &scratch).with(&["--env", PACE]);
    let events = || local_storage::events(&scratch).unwrap_or_default();
    let polled: Vec<_> = steps.iter().map(|&(what, to)| (move || what(&events()), to)).collect();
    workloads::open_gate(&scratch, first)?;
    let outcome = workloads::in_steps(&job, &scratch, &polled)?;
    program.must_answer(&outcome, &scratch, &answer)?;
    must_be_clean(&outcome)?;
    let events = local_storage::events(&scratch)?;
    let replayed = steps.last().is_none_or(|(replayed, _)| replayed(&events));
    outcome.must_by(replayed, "not every set that was hit was rolled back", &events)?;
    Ok((outcome, events))
}

/// Only the sets that failed are rolled back. Of several at once that is promised where messages
/// wait for determinants; else others may depend on what only these had (docs/adr/0047), and the
/// answer is right.
fn rolls_back_alone(over: &Over, case: &Case) -> Result<()> {
    let replayed = |events: &str| local_storage::all_have_replayed(events, case.sets);
    let mut options = case.faults.to_vec();
    if case.sets > 1 {
        survives(over, case.program, case.shape, &options, replayed)?;
        options.extend(["--mca", "vprotocol_correlated_piggyback", "0"]);
    }
    let (outcome, events) = survives(over, case.program, case.shape, &options, replayed)?;
    let count = |event: &str| events.matches(&format!("\"event\":\"{event}\"")).count();
    let why: Vec<&str> = events.lines().filter(|line| line.contains("not_replayable")).collect();
    outcome.must(why.is_empty(), &format!("nothing here makes a set not replayable: {why:?}"))?;
    outcome.must_by(count("global_rollback") == 0, "the others should go on", &events)?;
    // One that was restored on a node that fails next is rolled back again.
    let sets = local_storage::rolled_back(&events);
    outcome.must_by(sets.len() == case.sets, "only what failed should roll back", &events)
}

/// Ranks send addresses of memory that they allocate after their checkpoint. What they get for it
/// is not the same after a rollback (docs/limits.md): that is noticed, and all are rolled back.
fn dynamic(over: &Over, shape: Shape, faults: &[&str]) -> Result<()> {
    let replayed = |events: &str| events.contains("\"set_restarted\"");
    survives(over, &REGIONS, shape, faults, replayed).map(drop)
}

/// What a neighbour has written directly was seen after the last checkpoint and before the first
/// call that asks: it is noted that such a set cannot be rolled back alone, and all are, with the
/// same answer.
fn seen_by_loads(over: &Over) -> Result<()> {
    const SEEN_AT: u64 = LOOK.iterations() / 4;
    let checkpoint = |events: &str| events.contains("\"checkpoint_completed\"");
    let replayed = |events: &str| local_storage::all_have_replayed(events, 2);
    let options = ["--kill-at-event", "not_replayable@1=rank:3"];
    let steps: [(&Happened<'_>, u64); 2] = [(&checkpoint, 2 * SEEN_AT), (&replayed, GATE_OPEN)];
    let (outcome, events) = survives_in_steps(over, &LOOK, (2, 2), &options, SEEN_AT, &steps)?;
    let all = events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(all, "all should roll back", &events)?;
    let why = events.contains("it polls memory of a window");
    outcome.must_by(why, "it should say why", &events)
}

/// The same may have happened, before the checkpoint to which its set is rolled back: alone.
fn has_asked_before(over: &Over) -> Result<()> {
    let replayed = |events: &str| local_storage::all_have_replayed(events, 1);
    let options = [&OFTEN[..], &["--kill-rank-after-checkpoint", "3@2"]].concat();
    let (outcome, events) = survives(over, &ASKS, (2, 2), &options, replayed)?;
    let all = events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(!all, "the others should go on", &events)?;
    let marks = |event: &str| events.matches(&format!("\"event\":\"{event}\"")).count();
    let ended = marks("not_replayable") <= marks("replayable_again");
    outcome.must_by(ended, "what is over should be said to be", &events)
}

/// All are rolled back, with the same answer: a process has one tick, whatever thread it is that
/// acts (docs/adr/0037).
fn threads(over: &Over, shape: Shape, killed: &[&str]) -> Result<()> {
    let sets = shape.0 as usize;
    let replayed = |events: &str| local_storage::all_have_replayed(events, sets);
    let (outcome, events) = survives(over, &THREADS, shape, &when_in_use(killed), replayed)?;
    let all = events.contains("\"event\":\"global_rollback\"");
    outcome.must_by(all, "all should roll back", &events)?;
    let why = events.contains("\"event\":\"not_replayable\"");
    outcome.must_by(why, "it should say why", &events)
}

/// Memory that sets share without messages: both are rolled back (docs/adr/0037), with the same
/// answer.
fn over_sets(over: &Over) -> Result<()> {
    let mut options = when_in_use(&["rank:1"]);
    options.extend(["--mca", "vprotocol_correlated_sets", "core"].map(String::from));
    let replayed = |events: &str| local_storage::all_have_replayed(events, 2);
    survives(over, &SETS, (1, 2), &options, replayed).map(drop)
}

/// Options of a job in which these are killed.
fn when_in_use(killed: &[&str]) -> Vec<String> {
    let faults =
        killed.iter().flat_map(|who| ["--kill-at-event".to_owned(), format!("{IN_USE}={who}")]);
    faults.chain(OFTEN.map(String::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;

    #[test]
    fn two_layouts_of_a_program_are_enough() {
        let all = [(1, 1), (1, 4), (1, 6), (2, 2), (2, 6), (3, 3)];
        assert_eq!(some_shapes(&all), [(1, 4), (2, 2)]);
        assert_eq!(some_shapes(&[(2, 6)]), []);
    }

    #[test]
    fn the_programs_are_there_and_have_a_layout() {
        let folder = paths::root().join("tests/mpi");
        let names = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path());
        let ours: Vec<_> =
            names.filter(|path| is_for_it(&path.file_name().unwrap().to_string_lossy())).collect();
        assert!(ours.len() > 20, "{}", ours.len());
        for source in ours {
            let text = std::fs::read_to_string(&source).unwrap();
            let header = super::super::header::Header::read(&text);
            assert!(!some_shapes(&header.shapes()).is_empty(), "{}", source.display());
        }
    }

    #[test]
    fn the_sources_of_the_cases_are_there() {
        for case in CASES.iter().chain(&MORE) {
            let What::Hash { source, .. } = case.program.what else { panic!("{}", case.what) };
            assert!(paths::root().join("tests/workloads").join(source).is_file(), "{source}");
        }
    }
}
