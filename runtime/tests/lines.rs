//! Lines and restarts with a real coordinator, real agents and guardians, and pretended ranks.

mod common;

use common::{Job, wait_for};
use rustbtl_runtime::store;
use std::io::BufRead;

#[test]
fn a_line_of_all_sets_is_taken_listed_and_restarted_from() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("line 1 is complete"), "{text}");
    assert_eq!(job.manifests(), 1);
    for rank in 0..4 {
        let said = job.said(rank);
        for word in ["begin 1 with 2", "resume 1", "release 1", "complete 1"] {
            wait_for(word, || job.said(rank).contains(word));
        }
        assert!(!said.contains("secret"), "{said}");
    }
    let status = job.status();
    assert_eq!(status["lines"][0]["state"], "complete");
    assert_eq!(status["lines"][0]["pause_ns"], 2000);
    assert_eq!(status["sets"][1]["ranks"], serde_json::json!([2, 3]));
    assert_eq!(status["ranks"][3]["log"]["bytes_peak"], 20);
    assert_eq!(job.finish(), [0; 4]);
    let scratch = job.end();

    let lines = scratch.0.join("lines");
    let line = store::newest_global(&lines).expect("a line");
    assert_eq!(line.manifest.command, ["./a"]);
    let _ = std::fs::remove_file(scratch.0.join("finish"));
    let mut again = Job::start_in(scratch, 4, "", Some(line.folder.clone())).ranks();
    again.wait_until_ready();
    for rank in 0..4 {
        wait_for("cards", || again.said(rank).contains("cards 4 true"));
        assert!(again.said(rank).contains(&format!("{rank} restored")));
        assert!(again.said(rank).contains(&format!("welcome {} 1", again.name)));
    }
    assert_eq!(again.finish(), [0; 4]);
    let listed = again.command(&["list", "--verify", &lines.display().to_string()]);
    assert_eq!(listed.0, 0, "{}", listed.1);
    std::fs::write(line.image(2), "PLAIN\nx").expect("a file");
    let listed = again.command(&["list", "--verify", &lines.display().to_string()]);
    assert!(listed.0 == 1 && listed.1.contains("rank-2.img"), "{}", listed.1);
    again.end();
}

#[test]
fn sets_take_lines_of_their_own_and_old_lines_go() {
    let mut job = Job::start(4, "keep 2\n").ranks();
    job.wait_until_ready();
    for _ in 0..3 {
        let (code, text) = job.checkpoint(&["--wait"]);
        assert_eq!(code, 0, "{text}");
    }
    // Two for each of two sets.
    wait_for("old lines are gone", || job.manifests() == 4);
    let folder = job.scratch.0.join("lines").join(&job.name);
    wait_for("their images, too", || !folder.join("checkpoint-1").exists());
    assert!(store::newest_global(&folder).is_err(), "a job is not restarted from lines of sets");
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn lines_are_taken_by_the_clock() {
    let mut job = Job::start(2, "interval 0.1\nkeep 1\n").ranks();
    wait_for("three lines", || job.said(0).matches("complete").count() >= 3);
    assert_eq!(job.finish(), [0; 2]);
    job.end();
}

#[test]
fn the_job_is_ended_at_a_line_if_that_is_asked_for() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--then-exit"]);
    assert_eq!(code, 0, "{text}");
    assert!(!job.said(0).contains("resume"), "nobody goes on");
    let mut wish = String::new();
    job.says.read_line(&mut wish).expect("a line");
    assert_eq!(wish, "end\n");
    assert_eq!(job.manifests(), 1);
}

#[test]
fn a_rank_or_a_disk_that_refuses_ends_the_line_and_not_the_job() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("refuse-image");
    // Tried twice: lines 1 and 2, then 3 and 4.
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 1 && text.contains("there is no room on the disk"), "{text}");
    assert!(text.contains("line 2 was given up"), "{text}");
    job.remove("refuse-image");
    job.touch("refuse-line");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 1 && text.contains("it has an open socket"), "{text}");
    wait_for("abort", || job.said(3).contains("abort 4"));
    job.remove("refuse-line");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 0 && text.contains("line 5"), "{text}");
    assert_eq!(job.manifests(), 1);
    let folder = job.scratch.0.join("lines").join(&job.name);
    wait_for("nothing is left of the others", || {
        (1..5).all(|line| !folder.join(format!("checkpoint-{line}")).exists())
    });
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_line_that_fails_once_is_taken_the_second_time_and_who_asked_for_it_does_not_notice() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("refuse-line-once");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 0 && text.contains("line 2 is complete"), "{text}");
    assert!(job.said(0).contains("abort 1"), "{}", job.said(0));
    job.touch("refuse-line-once");
    let (code, text) = job.checkpoint(&["--then-exit"]);
    assert!(code == 0 && text.contains("line 4"), "{text}");
    let mut wish = String::new();
    job.says.read_line(&mut wish).expect("a line");
    assert_eq!(wish, "end\n", "the end of the job is asked for with the second line, too");
}

#[test]
fn a_due_line_that_fails_is_told_and_tried_again_after_twice_the_time() {
    let mut job = Job::start(2, "interval 0.2\n").ranks();
    job.touch("refuse-image");
    wait_for("three attempts", || job.said(0).matches("abort").count() >= 3);
    let events = job.events();
    let waits: Vec<u64> = events
        .iter()
        .filter(|event| event["event"] == "checkpoint_aborted")
        .map(|event| event["next_ms"].as_u64().expect("a next one"))
        .collect();
    assert_eq!(waits[..3], [400, 800, 1600], "{waits:?}");
    let told = job.told();
    let first = "line 1 was given up: rank ";
    assert!(told.contains(first) && told.contains("the next one is due in 1 s"), "{told}");
    assert!(told.contains("(2 lines in a row)") && !told.contains("(3 lines"), "{told}");
    job.remove("refuse-image");
    wait_for("a line", || job.manifests() > 0);
    assert_eq!(job.finish(), [0; 2]);
    job.end();
}

#[test]
fn a_log_that_is_nearly_full_gets_a_line_of_the_set_that_it_names() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.touch("log-full-2");
    wait_for("a line of set 2", || job.manifests() == 1);
    for rank in [2, 3] {
        wait_for("it is complete", || job.said(rank).contains("complete 1"));
    }
    assert!(!job.said(0).contains("begin") && !job.said(1).contains("begin"));
    let events = job.events();
    let asked = events.iter().find(|event| event["event"] == "log_nearly_full").expect("an event");
    assert_eq!((&asked["set"], &asked["bytes"]), (&2.into(), &77.into()));
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_signal_to_mpirun_takes_a_line_and_another_one_ends_the_job_there() {
    let mut job = Job::start(2, "").ranks();
    // Before anybody is ready: it waits for them.
    job.say("checkpoint stay");
    wait_for("a line", || job.told().contains("line 1 is complete"));
    assert_eq!(job.manifests(), 1);
    wait_for("it goes on", || job.said(1).contains("resume 1"));
    job.say("dance");
    job.say("checkpoint exit");
    let mut wish = String::new();
    job.says.read_line(&mut wish).expect("a line");
    assert_eq!(wish, "end\n");
    assert!(job.told().contains("line 2 is complete"), "{}", job.told());
    assert!(!job.said(0).contains("resume 2"), "nobody goes on");
}
