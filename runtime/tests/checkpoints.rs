//! Checkpoints and restarts: real coordinator, agents and guardians, pretended ranks.

mod common;

use common::{Job, wait_for};
use rustbtl_runtime::store;
use std::io::BufRead;

#[test]
fn a_global_checkpoint_is_taken_listed_and_restarted_from() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("checkpoint 1 is complete"), "{text}");
    assert_eq!(job.manifests(), 1);
    for rank in 0..4 {
        let printed = job.printed(rank);
        for word in ["begin 1 with 2", "resume 1", "release 1", "complete 1"] {
            wait_for(word, || job.printed(rank).contains(word));
        }
        assert!(!printed.contains("secret"), "{printed}");
    }
    let status = job.status();
    assert_eq!(status["checkpoints"][0]["state"], "complete");
    assert_eq!(status["checkpoints"][0]["pause_ns"], 2000);
    assert_eq!(status["sets"][1]["ranks"], serde_json::json!([2, 3]));
    assert_eq!(status["ranks"][3]["log"]["bytes_peak"], 20);
    assert_eq!(job.finish(), [0; 4]);
    let scratch = job.end();

    let directory = scratch.0.join("checkpoints");
    let checkpoint = store::newest_global(&directory).expect("a checkpoint");
    assert_eq!(checkpoint.manifest.command, ["./a"]);
    let _ = std::fs::remove_file(scratch.0.join("finish"));
    let mut restarted = Job::start_in(scratch, 4, "", Some(checkpoint.folder.clone())).ranks();
    restarted.wait_until_ready();
    for rank in 0..4 {
        wait_for("endpoints", || restarted.printed(rank).contains("endpoints 4 true"));
        assert!(restarted.printed(rank).contains(&format!("{rank} restored")));
        assert!(restarted.printed(rank).contains(&format!("welcome {} 1", restarted.name)));
    }
    assert_eq!(restarted.finish(), [0; 4]);
    let listed = restarted.command(&["list", "--verify", &directory.display().to_string()]);
    assert_eq!(listed.0, 0, "{}", listed.1);
    std::fs::write(checkpoint.image(2), "PLAIN\nx").expect("a file");
    let listed = restarted.command(&["list", "--verify", &directory.display().to_string()]);
    assert!(listed.0 == 1 && listed.1.contains("rank-2.img"), "{}", listed.1);
    restarted.end();
}

#[test]
fn sets_take_checkpoints_of_their_own_and_old_ones_are_removed() {
    let mut job = Job::start(4, "keep 2\n").ranks();
    job.wait_until_ready();
    for _ in 0..3 {
        let (code, text) = job.checkpoint(&["--wait"]);
        assert_eq!(code, 0, "{text}");
    }
    // Two for each of two sets.
    wait_for("old checkpoints are gone", || job.manifests() == 4);
    let folder = job.scratch.0.join("checkpoints").join(&job.name);
    wait_for("their images, too", || !folder.join("checkpoint-1").exists());
    assert!(store::newest_global(&folder).is_err(), "a job is not restarted from set checkpoints");
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn checkpoints_are_taken_at_intervals() {
    let mut job = Job::start(2, "interval 0.1\nkeep 1\n").ranks();
    wait_for("three checkpoints", || job.printed(0).matches("complete").count() >= 3);
    assert_eq!(job.finish(), [0; 2]);
    job.end();
}

#[test]
fn the_job_is_ended_at_a_checkpoint_if_that_is_requested() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--then-exit"]);
    assert_eq!(code, 0, "{text}");
    assert!(!job.printed(0).contains("resume"), "nobody goes on");
    let mut order = String::new();
    job.answers.read_line(&mut order).expect("a line");
    assert_eq!(order, "end\n");
    assert_eq!(job.manifests(), 1);
}

#[test]
fn a_rank_or_a_disk_that_refuses_aborts_the_checkpoint_and_not_the_job() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("refuse-image");
    // Tried twice: checkpoints 1 and 2, then 3 and 4.
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 1 && text.contains("there is no room on the disk"), "{text}");
    assert!(text.contains("checkpoint 2 was given up"), "{text}");
    job.remove("refuse-image");
    job.touch("refuse-checkpoint");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 1 && text.contains("it has an open socket"), "{text}");
    wait_for("abort", || job.printed(3).contains("abort 4"));
    job.remove("refuse-checkpoint");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 0 && text.contains("checkpoint 5"), "{text}");
    assert_eq!(job.manifests(), 1);
    let folder = job.scratch.0.join("checkpoints").join(&job.name);
    wait_for("nothing is left of the others", || {
        (1..5).all(|number| !folder.join(format!("checkpoint-{number}")).exists())
    });
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_checkpoint_that_fails_once_is_taken_the_second_time_and_its_requester_does_not_notice() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("refuse-checkpoint-once");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 0 && text.contains("checkpoint 2 is complete"), "{text}");
    assert!(job.printed(0).contains("abort 1"), "{}", job.printed(0));
    job.touch("refuse-checkpoint-once");
    let (code, text) = job.checkpoint(&["--then-exit"]);
    assert!(code == 0 && text.contains("checkpoint 4"), "{text}");
    let mut order = String::new();
    job.answers.read_line(&mut order).expect("a line");
    assert_eq!(order, "end\n", "the second checkpoint ends the job, too");
}

#[test]
fn a_due_checkpoint_that_fails_is_reported_and_tried_again_after_twice_the_time() {
    let mut job = Job::start(2, "interval 0.2\n").ranks();
    job.touch("refuse-image");
    wait_for("three attempts", || job.printed(0).matches("abort").count() >= 3);
    let events = job.events();
    let waits: Vec<u64> = events
        .iter()
        .filter(|event| event["event"] == "checkpoint_aborted")
        .map(|event| event["next_ms"].as_u64().expect("a next one"))
        .collect();
    assert_eq!(waits[..3], [400, 800, 1600], "{waits:?}");
    let reported = job.reported();
    let first = "checkpoint 1 was given up: rank ";
    assert!(
        reported.contains(first) && reported.contains("the next one is due in 1 s"),
        "{reported}"
    );
    assert!(
        reported.contains("(2 checkpoints in a row)") && !reported.contains("(3 checkpoints"),
        "{reported}"
    );
    job.remove("refuse-image");
    wait_for("a checkpoint", || job.manifests() > 0);
    assert_eq!(job.finish(), [0; 2]);
    job.end();
}

#[test]
fn a_log_that_is_nearly_full_gets_a_checkpoint_of_the_set_that_it_names() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("log-full-2");
    wait_for("a checkpoint of set 2", || job.manifests() == 1);
    for rank in [2, 3] {
        wait_for("it is complete", || job.printed(rank).contains("complete 1"));
    }
    assert!(!job.printed(0).contains("begin") && !job.printed(1).contains("begin"));
    let events = job.events();
    let request =
        events.iter().find(|event| event["event"] == "log_nearly_full").expect("an event");
    assert_eq!((&request["set"], &request["bytes"]), (&2.into(), &77.into()));
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_signal_to_mpirun_takes_a_checkpoint_and_another_one_ends_the_job_there() {
    let mut job = Job::start(2, "").ranks();
    // Before anybody is ready: it waits for them.
    job.send("checkpoint stay");
    wait_for("a checkpoint", || job.reported().contains("checkpoint 1 is complete"));
    assert_eq!(job.manifests(), 1);
    wait_for("it goes on", || job.printed(1).contains("resume 1"));
    job.send("dance");
    job.send("checkpoint exit");
    let mut order = String::new();
    job.answers.read_line(&mut order).expect("a line");
    assert_eq!(order, "end\n");
    assert!(job.reported().contains("checkpoint 2 is complete"), "{}", job.reported());
    assert!(!job.printed(0).contains("resume 2"), "nobody goes on");
}
