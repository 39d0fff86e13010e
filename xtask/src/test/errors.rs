//! What the user sees when something is wrong: a message that names it, an exit code, no hang.

use std::fs;
use std::path::Path;

use super::job::TestJob;
use super::mpi::{self, Over};
use super::scratch::Scratch;
use super::summary::Tier;
use super::workloads;
use crate::error::{Context, Result};
use crate::paths;

/// A job that cannot work. It runs on two nodes with two ranks each.
struct Case {
    name: &'static str,
    options: Vec<String>,
    arguments: &'static [&'static str],
    /// One word of each group must be reported.
    says: Vec<Vec<String>>,
}

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    let source = paths::root().join("xtask/programs/exchange.c");
    let program = match mpi::compile(&source) {
        Ok(program) => program,
        Err(failure) => {
            tier.check("compile exchange.c", || Err(failure));
            return;
        }
    };
    let Ok(scratch) = Scratch::new("errors") else { return };
    match cases(&scratch) {
        Ok(cases) => {
            for case in cases {
                tier.check(case.name, || try_case(&case, &program));
            }
        }
        Err(failure) => {
            tier.check("files for the cases", || Err(failure));
        }
    }
    tier.check("a rank without the component", || without_component(&program));
    tier.check("what two ranks say at the same time, ten times", || at_the_same_time(&program));
    tier.check("another PML is selected", || other_pml(&program, &Over::Component));
    tier.check("another release of Open MPI", || other_release(&program, &Over::Component));
}

fn set_file(scratch: &Scratch, name: &str, text: &str) -> Result<String> {
    let file = scratch.0.join(name);
    fs::write(&file, text).context(|| file.display().to_string())?;
    Ok(format!("file:{}", file.display()))
}

fn sets(value: &str) -> Vec<String> {
    ["--mca", "vprotocol_correlated_sets", value].map(str::to_string).to_vec()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| w.to_string()).collect()
}

fn cases(scratch: &Scratch) -> Result<Vec<Case>> {
    let missing = set_file(scratch, "misses-3", "0,1\n2\n")?;
    let repeated = set_file(scratch, "repeats-1", "0-1\n1-3\n")?;
    let nonsense = set_file(scratch, "nonsense", "0,1\ntwo,3\n")?;
    let outside = set_file(scratch, "too-many", "0-9\n")?;
    let none = format!("file:{}", scratch.0.join("not-there").display());
    let case = |name, options, says: &[&[&str]]| Case {
        name,
        options,
        arguments: &[],
        says: says.iter().map(|group| words(group)).collect(),
    };
    let mut cases = vec![
        case("unknown kind of sets", sets("bogus"), &[&["bogus"]]),
        case("set file that is not there", sets(&none), &[&["not-there"]]),
        case("set file that misses a rank", sets(&missing), &[&["misses-3"], &["3"]]),
        case("set file that repeats a rank", sets(&repeated), &[&["repeats-1"], &["rank 1"]]),
        case("set file with nonsense", sets(&nonsense), &[&["nonsense"], &["two"]]),
        case("set file with a rank too many", sets(&outside), &[&["too-many"]]),
        case("/dev/shm too small", words(&["--shm-size", "64k"]), &[&["/dev/shm"]]),
        case(
            "shared-memory folder that is not there",
            words(&["--mca", "vprotocol_correlated_shm_directory", "/not/there"]),
            &[&["/not/there"]],
        ),
    ];
    cases.push(Case {
        name: "a rank that is killed",
        options: Vec::new(),
        arguments: &["2000", "3", "9"],
        says: vec![words(&["rank 3"]), words(&["n1"])],
    });
    Ok(cases)
}

fn try_case(case: &Case, program: &Path) -> Result<()> {
    let mut command = vec![program.as_os_str().to_owned()];
    command.extend(case.arguments.iter().map(Into::into));
    let options: Vec<&str> = case.options.iter().map(String::as_str).collect();
    let mut job = TestJob::new(2, 2, &command).with(&options);
    job.seconds = 60;
    let outcome = job.run()?;
    outcome.must(outcome.code != 0, "this job cannot work, but its exit code is 0")?;
    outcome.must(outcome.code != 124, "this job should have ended by itself")?;
    let said = outcome.said();
    for group in &case.says {
        let good = group.iter().any(|word| said.contains(word));
        outcome.must(good, &format!("the message does not say `{}`", group.join("` or `")))?;
    }
    Ok(())
}

/// Open MPI 4.1's own way loses such texts (`glue-c/include/said_once.h`).
fn at_the_same_time(program: &Path) -> Result<()> {
    for _ in 0..10 {
        let wrong = sets("file:/no/such/file");
        let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
        let outcome = TestJob::new(1, 2, &[program]).with(&wrong).run()?;
        let told = outcome.stderr.contains("The file that lists the correlated sets cannot be");
        outcome.must(told && outcome.code != 0, "the user should read it")?;
    }
    Ok(())
}

/// One rank uses stock Open MPI: it must not be taken for one of ours.
fn without_component(program: &Path) -> Result<()> {
    let script = "[ $OMPI_COMM_WORLD_RANK = 3 ] && export OMPI_MCA_pml=ob1; exec \"$0\"";
    let command = ["sh".into(), "-c".into(), script.into(), program.as_os_str().to_owned()];
    let mut job = TestJob::new(2, 2, &command);
    job.seconds = 60;
    let outcome = job.run()?;
    outcome.must(outcome.code != 0, "this job cannot work, but its exit code is 0")?;
    outcome.must(outcome.code != 124, "this job should have ended by itself")?;
    let said = outcome.said();
    let good = said.contains("ob1") || said.contains("correlated");
    outcome.must(good, "the message says neither `ob1` nor `correlated`")
}

/// Another PML is used, since its priority is higher or the user has asked for it: the job runs,
/// and is told that nothing protects it.
pub fn other_pml(program: &Path, over: &Over) -> Result<()> {
    let higher = ["--mca", "pml", "^cm", "--mca", "vprotocol_correlated_priority", "1", "--mca"];
    let named = ["--mca", "pml", "ob1", "--mca"];
    let text = "This job is not protected";
    for options in [&higher[..], &named] {
        for (value, times) in [("1", 1), ("0", 0)] {
            let recover = ["vprotocol_correlated_recover", value];
            let mut job = over.job(TestJob::new(2, 2, &[program])).with(options).with(&recover);
            job.seconds = 60;
            let outcome = job.run()?;
            // PRRTE 3 puts a NUL into standard output for each help text of a rank.
            let is_right = outcome.stdout.trim_matches('\0') == "OK\n";
            outcome.must(outcome.code == 0 && is_right, "the job should run")?;
            let told = outcome.said().matches(text).count() == times;
            outcome.must(told, &format!("it should be told {times} times: {options:?}"))?;
        }
    }
    Ok(())
}

/// What was built for this Open MPI finds itself in another one: refused, with both versions.
pub fn other_release(program: &Path, over: &Over) -> Result<()> {
    let scratch = Scratch::new("errors")?;
    let library = workloads::library("other_release", &scratch)?;
    let preload = format!("LD_PRELOAD={}", library.display());
    let mut job = over.job(TestJob::new(2, 1, &[program])).with(&["--env", &preload]);
    job.seconds = 60;
    let outcome = job.run()?;
    outcome.must(outcome.code != 0, "this job cannot work, but its exit code is 0")?;
    outcome.must(outcome.code != 124, "this job should have ended by itself")?;
    for word in ["another release", "This is:           9.8.7", "cargo xtask install"] {
        outcome
            .must(outcome.said().contains(word), &format!("the message does not say `{word}`"))?;
    }
    Ok(())
}
