//! Output of a rank over several incarnations: guardians and programs are killed with SIGKILL at
//! any moment, and what they have printed, put together, is what one undisturbed run prints.

mod common;

use common::{Job, Scratch, end, wait_for};
use rustbtl_runtime::store;
use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

const INCARNATIONS: u32 = 12;

fn start(job: &Job, incarnation: u32) -> Child {
    let rank = common::example("pretend_rank").display().to_string();
    let folder = job.scratch.0.display().to_string();
    let mut guardian = job.counting_guardian(0, "n0", &[&rank, &folder]);
    let file = |name: &str| {
        File::create(job.scratch.0.join(format!("out/{name}-{incarnation:02}"))).expect("a file")
    };
    guardian.stdout(file("out")).stderr(file("err")).spawn().expect("a guardian")
}

/// The numbers that a stream has printed in all incarnations.
fn numbers(scratch: &Path, stream: &str) -> Vec<u64> {
    let text: String = (0..INCARNATIONS)
        .map(|incarnation| {
            fs::read_to_string(scratch.join(format!("out/{stream}-{incarnation:02}")))
        })
        .map(|text| text.expect("a file"))
        .collect();
    // SIGKILL can tear a line at the end of a page of a file.
    let number = |line: &str| line.strip_prefix(stream).and_then(|n| n.trim().parse().ok());
    text.lines().filter_map(number).collect()
}

#[test]
fn nothing_is_printed_twice_and_nothing_is_missing() {
    let mut scratch = Scratch::new();
    fs::write(scratch.0.join("print"), "").expect("a file");
    let mut checkpoint = None;
    for incarnation in 0..INCARNATIONS {
        let mut job = Job::start_in(scratch, 1, "", checkpoint.take());
        job.guardians.push(start(&job, incarnation));
        job.wait_until_ready();
        // Some incarnations end without a checkpoint of their own.
        if incarnation % 3 != 1 {
            let (code, text) = job.checkpoint(&["--all", "--wait"]);
            assert_eq!(code, 0, "{text}");
        }
        thread::sleep(Duration::from_micros(20_000 + 3_700 * u64::from(incarnation)));
        if incarnation + 1 < INCARNATIONS {
            job.guardians[0].kill().expect("it runs");
            end(&mut job.guardians[0]);
            job.guardians.clear();
        } else {
            assert_eq!(job.finish(), [0]);
        }
        scratch = job.end();
        let newest = store::newest_global(&scratch.0.join("checkpoints"));
        checkpoint = Some(newest.expect("a checkpoint").folder);
    }
    for stream in ["out", "err"] {
        let all = numbers(&scratch.0, stream);
        assert!(all.len() > 100, "{}", all.len());
        let wrong: Vec<_> = all.windows(2).filter(|pair| pair[0] + 1 != pair[1]).collect();
        assert!(wrong.iter().all(|pair| pair[0] < pair[1]), "printed twice: {wrong:?}");
        // A piece that is counted and not yet written when SIGKILL comes is lost: one system call.
        assert!(wrong.len() <= 2, "missing: {wrong:?}");
    }
}

#[test]
fn output_of_children_that_outlive_the_program_arrives() {
    let job = Job::start(1, "");
    let script = "echo first; (sleep 0.3; echo second; echo third >&2) & exit 0";
    let start = |script| job.counting_guardian(0, "n0", &["sh", "-c", script]).spawn();
    let mut guardian = start(script).expect("a guardian");
    assert!(end(&mut guardian).success());
    assert_eq!(job.printed(0), "first\nsecond\nthird\n");
    let script = "echo first; sleep 3 & exit 7";
    let mut guardian = start(script).expect("a guardian");
    wait_for("its end", || guardian.try_wait().expect("a child").is_some());
    assert_eq!(job.printed(0), "first\n");
    job.end();
}
