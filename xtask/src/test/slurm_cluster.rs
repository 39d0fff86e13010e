//! Protected jobs under the real Slurm of Debian (`cargo xtask cluster --slurm`): slurmctld on a
//! login node, a slurmd on each of four nodes. What is lost, ended or drained is so by Slurm's own
//! commands, or it is killed; answers are those of an undisturbed run without Slurm. In the end of
//! each case nothing of a job is left: no process, no shared memory, no file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::job::{Outcome, TestJob};
use super::local_storage::{all_have_replayed, events, plain};
use super::mpi::Over;
use super::node_failure::{ENDLESS, must_be_clean};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads::{self, GATE_OPEN, RING};
use crate::error::{Failure, Result, fail};
use crate::{paths, setup, sys};

const NODES: u32 = 4;
const ITERATIONS: u64 = 400;
/// As far as the program gets before everything has happened.
const GATE: u64 = 200;
/// srun ended all daemons so long after one had ended, and less.
const STEP_PATIENCE: Duration = Duration::from_secs(35);
/// Nothing here may take longer.
const SECONDS: u32 = 240;

/// What users type, but for the program. Slurm says on which nodes, and how many ranks.
const MPIRUN: &str = "mpirun --mca pml v --mca vprotocol correlated";
const SBATCH: &str = "sbatch --parsable --output=out-%j --nodes=4 --ntasks-per-node=1 --no-kill";

/// What the scripts of all cases begin with: to wait for a job to be over, for an event of the
/// coordinator, for a state of a node; and the exit code and state of a job, on standard error.
const PRELUDE: &str = r#"
over() { while squeue --noheader --jobs="$1" 2>&1 | grep -q "^ *$1"; do sleep 0.2; done; }
event() {
    until cat ./*.jsonl ck/*/*.jsonl 2>/dev/null | grep -q "\"event\":\"$1\""; do sleep 0.1; done
}
node() { until sinfo --noheader --nodes="$1" --format=%T | grep -q "$2"; do sleep 0.2; done; }
report() {
    scontrol --oneliner show job "$1" | grep -oE '(JobState|Restarts|ExitCode)=[^ ]*' >&2
    cat "out-$1"
}
fail() { echo "script: $1" >&2; cat "$(dirname "$SLURM_CONF")"/*.log >&2; exit 99; }
"#;

/// What a job is told at its start.
const SLURM_ENDS_IT: &str = "Slurm ends this job when one of its nodes fails";

/// Runs the tier: what is over soon, or everything.
pub fn run(tier: &mut Tier, everything: bool) {
    if let Err(Failure(why)) = prepare() {
        tier.skip(&format!("jobs under real Slurm: {why}"));
        return;
    }
    run_over(tier, &Over::Component, everything);
}

/// The same over another Open MPI; what Slurm needs is there.
pub fn run_over(tier: &mut Tier, over: &Over, everything: bool) {
    let cases: [(&str, Case, bool); 14] = [
        ("sbatch --no-kill: a node is killed", node_killed, true),
        ("scancel leaves nothing behind", cancelled, true),
        ("two jobs of an array at a time", array, true),
        ("a node is drained", drained, true),
        ("srun starts the ranks itself: they are not protected, and told so", srun, true),
        ("a spare node takes over", spare_node, false),
        ("a slurmd is killed", slurmd_killed, false),
        ("mpirun's daemon is killed", |over| daemon_ended(over, "KILL"), false),
        ("mpirun's daemon is told to end", |over| daemon_ended(over, "TERM"), false),
        ("mpirun's daemon cannot be started", daemon_missing, false),
        ("salloc: mpirun on the login node, a node is killed", login_node, false),
        ("time limit", time_limit, false),
        ("slurm.sh: a signal before the time limit, and again", signal_and_requeue, false),
        ("slurm.sh: the first node is killed, and again", first_node_killed, false),
    ];
    for (title, case, soon) in cases {
        if soon || everything {
            tier.check(&format!("Slurm: {title}"), || case(over));
        }
    }
}

type Case = fn(&Over) -> Result<()>;

/// What the program finds out with so many ranks on a node each, in a run without Slurm that
/// nothing happens to.
fn known(nodes: u32) -> Result<String> {
    static ALL: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(&nodes) {
        return Ok(known.clone());
    }
    let scratch = Scratch::new("slurm-known")?;
    let known = RING.answer(&RING.job((nodes, 1), ITERATIONS, &scratch)?.run()?, &scratch)?;
    all.insert(nodes, known.clone());
    Ok(known)
}

/// What is needed, or why it cannot be had.
fn prepare() -> Result<()> {
    if sys::euid() != 0 {
        fail!("they need root");
    }
    setup::run_for_slurm()
}

/// A case: a script on the login node, and what it works with.
struct Login<'o> {
    scratch: Scratch,
    program: String,
    over: &'o Over<'o>,
}

impl<'o> Login<'o> {
    fn new(over: &'o Over<'o>, name: &str, iterations: u64) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        workloads::open_gate(&scratch, GATE)?;
        let program = RING.words(over, (NODES, 1), iterations, &scratch)?.join(" ");
        Ok(Login { scratch, program, over })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    /// In the script, PROGRAM is the program with its arguments.
    fn job(&self, script: &str, faults: &[&str]) -> TestJob {
        let script = format!("{PRELUDE}{}", script.replace("PROGRAM", &self.program));
        let job = TestJob::new(NODES, 1, &["bash", "-c", &script]).with(&["--slurm"]);
        let mut job = plain(self.over.job(job.with(faults)), &self.scratch);
        job.folder = self.scratch.0.clone();
        job.seconds = SECONDS;
        job
    }

    /// The program goes no further than to its gate before `happened`.
    fn run_until(
        &self,
        script: &str,
        faults: &[&str],
        happened: impl Fn(&str) -> bool + Sync,
    ) -> Result<Outcome> {
        let job = self.job(script, faults);
        workloads::run_until(&job, &self.scratch, GATE, || {
            happened(&events(&self.scratch).unwrap_or_default())
        })
    }

    /// The answer is right, the coordinator has logged these events so many times, and nothing is
    /// left.
    fn must(&self, outcome: &Outcome, ranks: u32, wanted: &[(&str, usize)]) -> Result<()> {
        must_leave_nothing(outcome)?;
        self.must_answer(outcome, ranks, wanted)
    }

    fn must_answer(&self, outcome: &Outcome, ranks: u32, wanted: &[(&str, usize)]) -> Result<()> {
        RING.must_answer(outcome, &self.scratch, &known(ranks)?)?;
        let events = events(&self.scratch)?;
        let logged = count(&events);
        for &(event, times) in wanted {
            let found = logged.get(event).copied().unwrap_or_default();
            let what = format!("{found} × the event {event}, and not {times}:\n{events}");
            outcome.must(found == times, &what)?;
        }
        Ok(())
    }
}

/// How often each event was logged.
fn count(events: &str) -> BTreeMap<String, usize> {
    let mut logged = BTreeMap::new();
    for event in events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some(name) = event["event"].as_str() {
            *logged.entry(name.to_string()).or_default() += 1;
        }
    }
    logged
}

fn must_leave_nothing(outcome: &Outcome) -> Result<()> {
    must_be_clean(outcome)?;
    outcome.must(!outcome.stderr.contains("cluster: left on "), "something was left on a node")
}

/// Only the set of the lost node is rolled back; all others still run when Slurm has noticed. The
/// job's secret is encrypted by the munge of this Slurm.
fn node_killed(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-node", ITERATIONS)?;
    let script = format!(
        "munge=\"--mca vprotocol_correlated_secret munge:$(dirname \"$SLURM_CONF\")/munge.socket\"
         id=$({SBATCH} --wrap=\"{MPIRUN} $munge PROGRAM\") || fail sbatch
         node n2 down; sleep 3; touch noticed; over $id; report $id"
    );
    let faults = ["--kill-node-after-replication", "2@1", "--cut-node-after-replication", "2@1"];
    let noticed = login.file("noticed");
    let outcome = login
        .run_until(&script, &faults, |events| all_have_replayed(events, 1) && noticed.exists())?;
    let state = outcome.stderr.contains("JobState=COMPLETED");
    outcome.must(state, "the job should be complete")?;
    let by_munge = events(&login.scratch)?.contains(r#""secret":"munge""#);
    outcome.must(by_munge, "the secret should be encrypted by munge")?;
    // What was said on sbatch's command line nobody can see.
    outcome.must(outcome.said().contains(SLURM_ENDS_IT), "the user should be told")?;
    login.must(&outcome, NODES, &[("node_lost", 1), ("set_rollback", 1)])
}

/// Of a job in the middle of its work.
fn cancelled(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-scancel", ENDLESS)?;
    let script = format!(
        "id=$({SBATCH} --wrap='{MPIRUN} PROGRAM') || fail sbatch
         event replication_ok; scancel $id; over $id; report $id"
    );
    let outcome = login.job(&script, &[]).run()?;
    outcome.must(outcome.stderr.contains("JobState=CANCELLED"), "it should be cancelled")?;
    must_leave_nothing(&outcome)
}

/// Both are in their middle at the same time.
fn array(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-array", ITERATIONS)?;
    let script = format!(
        "sbatch='{SBATCH} --output=out-%a'
         id=$($sbatch --array=0-1 --wrap='{MPIRUN} PROGRAM') || fail sbatch
         over $id; cat out-0; tail -n +1 out-1 >&2"
    );
    let outcome = login.run_until(&script, &[], |events| {
        count(events).get("replication_ok").is_some_and(|times| *times >= 2)
    })?;
    outcome.must(outcome.stderr.contains(&known(NODES)?), "the second one says something else")?;
    login.must(&outcome, NODES, &[("ready", 2), ("set_rollback", 0)])
}

/// The job is not disturbed, and the node takes no other one.
fn drained(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-drain", ITERATIONS)?;
    let script = format!(
        "export SBATCH_NO_KILL=set; id=$({SBATCH} --wrap='{MPIRUN} PROGRAM') || fail sbatch
         event replication_ok; scontrol update nodename=n2 state=drain reason=test
         node n2 draining; touch draining; over $id; node n2 drained; report $id"
    );
    let draining = login.file("draining");
    let outcome = login.run_until(&script, &[], |_| draining.exists())?;
    outcome.must(!outcome.said().contains(SLURM_ENDS_IT), "the user has asked for it")?;
    login.must(&outcome, NODES, &[("set_rollback", 0)])
}

/// Nobody guards ranks that srun starts; they run all the same, also two on a node. Open MPI 4.1
/// numbers such a job by a hash of its name.
fn srun(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-srun", ITERATIONS)?;
    workloads::open_gate(&login.scratch, GATE_OPEN)?;
    let script = "export OMPI_MCA_pml=v OMPI_MCA_vprotocol=correlated
         salloc --quiet --nodes=4 --ntasks-per-node=1 srun --mpi=pmix PROGRAM || fail srun
         export OMPI_MCA_vprotocol_correlated_recover=0; echo silent >&2
         salloc --quiet --nodes=2 --ntasks-per-node=2 srun --mpi=pmix PROGRAM || fail srun";
    let outcome = login.job(script, &[]).run()?;
    let (told, silent) = outcome.stderr.split_once("silent\n").unwrap_or_default();
    let text = "This job is not protected";
    outcome.must(told.matches(text).count() == 1, "it should be told once")?;
    outcome.must(!silent.contains(text), "who wants no protection should not be told")?;
    let answer = known(NODES)?;
    let both = outcome.stdout.matches(&answer).count() == 2;
    outcome.must(both, "another answer than that of an undisturbed job")?;
    must_leave_nothing(&outcome)
}

/// Three ranks on four nodes.
fn spare_node(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-spare", ITERATIONS)?;
    let script = format!(
        "id=$({SBATCH} --wrap='{MPIRUN} -np 3 -N 1 PROGRAM') || fail sbatch
         node n1 down; sleep 3; touch noticed; over $id; report $id"
    );
    let faults = ["--np", "3", "--kill-node-after-replication", "1@1"];
    let noticed = login.file("noticed");
    let outcome = login
        .run_until(&script, &faults, |events| all_have_replayed(events, 1) && noticed.exists())?;
    let spare = events(&login.scratch)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .any(|event| event["event"] == "rank_placed" && event["node"] == "n3");
    outcome.must(spare, "the rank should go to n3")?;
    login.must(&outcome, NODES - 1, &[("node_lost", 1), ("set_rollback", 1)])
}

/// Slurm takes the node for lost; the processes of the job that are there go on.
fn slurmd_killed(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-slurmd", ITERATIONS)?;
    let script = format!(
        "id=$({SBATCH} --wrap='{MPIRUN} PROGRAM') || fail sbatch
         node n2 down; sleep 3; touch noticed; over $id; report $id"
    );
    let faults = ["--signal-at-event", "replication_ok@1=KILL/slurmd:2"];
    let noticed = login.file("noticed");
    let outcome = login.run_until(&script, &faults, |_| noticed.exists())?;
    login.must(&outcome, NODES, &[("set_rollback", 0)])
}

/// mpirun's daemon on a node ends, alone: srun, which has started it, must not end the others.
fn daemon_ended(over: &Over, signal: &str) -> Result<()> {
    let login = Login::new(over, &format!("slurm-daemon-{signal}"), ITERATIONS)?;
    let script =
        format!("id=$({SBATCH} --wrap='{MPIRUN} PROGRAM') || fail sbatch; over $id; report $id");
    let fault = format!("replication_ok@1={signal}/daemon:2");
    let faults = ["--signal-at-event", &fault];
    let outcome = login.run_until(&script, &faults, |events| {
        // Longer than srun waits for the others of a step.
        let replayed = all_have_replayed(events, 1);
        if replayed {
            thread::sleep(STEP_PATIENCE);
        }
        replayed
    })?;
    let state = outcome.stderr.contains("JobState=COMPLETED");
    outcome.must(state, "the job should be complete")?;
    if signal == "KILL" {
        must_be_clean(&outcome)?; // but for its own session directory, which nobody removes for it
    } else {
        must_leave_nothing(&outcome)?;
    }
    login.must_answer(&outcome, NODES, &[("node_lost", 1), ("set_rollback", 1)])
}

/// mpirun ends, and names the node.
fn daemon_missing(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-missing", ITERATIONS)?;
    let (daemon, variable) = match over {
        Over::Debian(_) => ("prted", "PRTE_MCA_prte_launch_agent"),
        _ => ("orted", "OMPI_MCA_orte_launch_agent"),
    };
    let script = format!(
        "printf '#!/bin/sh\n[ \"$SLURMD_NODENAME\" != n2 ] || exit 127\n' > agent
         printf 'exec {daemon} \"$@\"\n' >> agent
         chmod +x agent; export {variable}=$PWD/agent
         id=$({SBATCH} --wrap=\"{MPIRUN} PROGRAM\") || fail sbatch
         over $id; report $id"
    );
    let outcome = login.job(&script, &[]).run()?;
    let state = outcome.stderr.contains("JobState=FAILED");
    outcome.must(state, "the job should have failed")?;
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    outcome.must(text.contains("was not started on all nodes"), "it does not say why")?;
    outcome.must(text.contains("Nodes: n2\n"), "it does not name the node")?;
    must_leave_nothing(&outcome)
}

/// As users do who wait for their job: the allocation has all nodes but that of mpirun.
fn login_node(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-salloc", ITERATIONS)?;
    let script = format!(
        "(node n2 down; sleep 3; touch noticed) &
         salloc --quiet --nodes=4 --ntasks-per-node=1 --no-kill {MPIRUN} PROGRAM || fail salloc"
    );
    let faults = ["--kill-node-after-replication", "2@1", "--cut-node-after-replication", "2@1"];
    let noticed = login.file("noticed");
    let outcome = login
        .run_until(&script, &faults, |events| all_have_replayed(events, 1) && noticed.exists())?;
    login.must(&outcome, NODES, &[("node_lost", 1), ("set_rollback", 1)])
}

/// Slurm ends a job that takes too long, and nothing of it is left.
fn time_limit(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-time", ENDLESS)?;
    let script = format!(
        "id=$({SBATCH} --time=1 --wrap='{MPIRUN} PROGRAM') || fail sbatch
         event replication_ok; over $id; report $id"
    );
    let outcome = login.job(&script, &[]).run()?;
    outcome.must(outcome.stderr.contains("JobState=TIMEOUT"), "its time should be over")?;
    must_leave_nothing(&outcome)
}

/// The script of the user guide: Slurm's signal ends the job at a checkpoint, and Slurm queues it
/// again.
fn signal_and_requeue(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-sh", ITERATIONS)?;
    let script = paths::root().join("docs/slurm.sh");
    let script = format!(
        "export RUSTBTL_CHECKPOINTS=$PWD/ck
         id=$({SBATCH} --time=1 --signal=B:USR1@50 {} PROGRAM) || fail sbatch
         event exit; touch ended; over $id; report $id",
        script.display()
    );
    let ended = login.file("ended");
    let outcome = login.run_until(&script, &[], |_| ended.exists())?;
    let state = outcome.stderr.contains("JobState=COMPLETED");
    let twice = outcome.stderr.contains("Restarts=1");
    outcome.must(state && twice, "it should be complete, in its second allocation")?;
    login.must(&outcome, NODES, &[("set_rollback", 0)])
}

/// mpirun is lost, and the batch shell. Slurm queues the job again, and it is restarted on the
/// nodes that are left.
fn first_node_killed(over: &Over) -> Result<()> {
    let login = Login::new(over, "slurm-first", ITERATIONS)?;
    let script = paths::root().join("docs/slurm.sh");
    let script = format!(
        "export RUSTBTL_CHECKPOINTS=$PWD/ck
         id=$(sbatch --parsable --output=out-%j --nodes=3 --ntasks-per-node=1 --time=5 {} PROGRAM)
         until scontrol --oneliner show job $id | grep -q Restarts=1; do sleep 0.2; done
         touch again; over $id; report $id",
        script.display()
    );
    let again = login.file("again");
    let faults = ["--kill-node-after-checkpoint", "0@1"];
    let outcome = login.run_until(&script, &faults, |_| again.exists())?;
    let state = outcome.stderr.contains("JobState=COMPLETED");
    outcome.must(state, "it should be complete")?;
    login.must(&outcome, NODES - 1, &[])
}
