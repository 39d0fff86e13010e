//! Failures around a job: unauthenticated peers, lost agents, lost coordinators, lost guardians.

mod common;

use common::{Job, agent_pid, code, end, example, wait_for};
use rustbtl_runtime::os;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn unauthenticated_peers_get_nothing_and_harm_nothing() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    let port: u16 = job.port.parse().expect("a port");
    // One that never sends anything, others that send garbage.
    let _silent = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let mut half = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    half.write_all(b"rustbtl/").expect("sent");
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 4096], &[0; 64]] {
        let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let _ = peer.write_all(garbage);
        let _ = peer.set_read_timeout(Some(Duration::from_secs(10)));
        let _ = peer.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(job.finish(), [0; 2]);
    job.end();
}

#[test]
fn a_guardian_with_a_wrong_secret_gets_no_protection_and_its_program_runs() {
    let job = Job::start(1, "");
    let mut command = job.guardian(0, "other", &["sh", "-c", "sleep 8; exit 4"]);
    command.env("RUSTBTL_SECRET", "00".repeat(32));
    let mut guardian = command.spawn().expect("a guardian");
    wait_for("a message", || job.printed(0).contains("does not know this job's secret"));
    assert_eq!(code(&end(&mut guardian)), 4);
    assert!(job.status()["ranks"].as_array().expect("ranks").is_empty());
    job.end();
}

#[test]
fn a_killed_agent_is_replaced_and_checkpoints_are_taken_again() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    let agent = agent_pid(&job, "n1").expect("an agent");
    os::kill(agent, libc::SIGKILL);
    wait_for("another agent", || agent_pid(&job, "n1").is_some_and(|pid| pid != agent));
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn without_a_coordinator_the_job_runs_to_its_end() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    os::kill(job.coordinator.id() as i32, libc::SIGKILL);
    let _ = job.coordinator.wait();
    wait_for("one message", || {
        let printed = job.printed(0) + &job.printed(1);
        printed.matches("coordinator has ended, and there is no other").count() == 1
    });
    assert_eq!(job.finish(), [0; 2]);
    let left = || std::fs::read_dir(job.scratch.0.join("tmp/n0")).map_or(0, Iterator::count);
    wait_for("the agent is gone", || left() == 0);
}

#[test]
fn a_failed_over_coordinator_has_the_state_of_the_one_before() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    assert_eq!(job.checkpoint(&["--all", "--wait"]).0, 0);
    for failovers in 1..=3 {
        job.fail_over();
        wait_for("all have reconnected", || {
            let completed = |event: &serde_json::Value| event["event"] == "failover_completed";
            job.events().into_iter().filter(completed).count() == failovers
        });
        let status = job.status();
        assert_eq!(status["protection"]["coordinators_before"], failovers);
        assert_eq!(status["protection"]["waits_for"], serde_json::Value::Null);
        assert_eq!(job.ready_ranks(), 4);
        let (code, text) = job.checkpoint(&["--all", "--wait"]);
        assert_eq!(code, 0, "{text}");
        wait_for("the oldest one is dropped", || job.manifests() == 2);
    }
    let numbers: Vec<u64> = job
        .events()
        .iter()
        .filter(|event| event["event"] == "checkpoint_completed")
        .filter_map(|event| event["checkpoint"].as_u64())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let printed: String = (0..4).map(|rank| job.printed(rank)).collect();
    assert!(!printed.contains("coordinator"), "{printed}");
    assert_eq!(job.finish(), [0; 4]);
    let scratch = job.end();
    let left = fs::read_dir(scratch.0.join("run")).expect("a folder").flatten();
    let left: Vec<_> = left.filter(|file| file.path().extension().is_some()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_coordinator_without_the_state_of_the_one_before_reports_that() {
    let job = Job::start(2, "").ranks();
    job.wait_until_ready();
    let folder = job.scratch.0.join("run").join(format!("rustbtl-{}.state", job.name));
    os::kill(job.coordinator.id() as i32, libc::SIGKILL);
    wait_for("its end", || {
        std::net::TcpListener::bind(("127.0.0.1", job.port.parse::<u16>().expect("a port"))).is_ok()
    });
    fs::remove_file(folder.join("state.json")).expect("it is there");
    let answer = job.failover_answer();
    assert!(answer.starts_with("error") && answer.contains("state.json"), "{answer}");
}

#[test]
fn at_the_end_of_a_job_nobody_misses_the_coordinator() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    // mpirun ends it before the last programs have ended.
    job.hang_up();
    assert!(end(&mut job.coordinator).success());
    assert_eq!(job.finish(), [0; 2]);
    let left = || std::fs::read_dir(job.scratch.0.join("tmp/n0")).map_or(0, Iterator::count);
    wait_for("the agent is gone", || left() == 0);
    let printed = job.printed(0) + &job.printed(1);
    assert!(!printed.contains("coordinator"), "{printed}");
}

#[test]
fn a_program_dies_with_its_guardian() {
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    let pid = job.status()["ranks"][1]["pid"].as_i64().expect("a pid") as i32;
    let mut guardian = job.guardians.remove(1);
    guardian.kill().expect("killed");
    guardian.wait().expect("ended");
    wait_for("its program is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    wait_for("it is noticed", || job.status()["ranks"][1]["state"] == "unreachable");
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert!(code == 1 && text.contains("rank 1"), "{text}");
}

#[test]
fn a_guardian_ends_as_its_program_ends() {
    let job = Job::start(1, "");
    let table = [
        ("exit 0", 0),
        ("exit 5", 5),
        ("kill -SEGV $$", 139),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -ABRT $$", 134),
    ];
    for (script, wanted) in table {
        let mut guardian = job.guardian(0, "n", &["sh", "-c", script]).spawn().expect("started");
        assert_eq!(code(&end(&mut guardian)), wanted, "{script}");
    }
    for (program, wanted) in [("/not/there", 127), ("not-in-path", 127), ("/etc/passwd", 126)] {
        let mut guardian = job.guardian(0, "n", &[program]).spawn().expect("started");
        assert_eq!(code(&end(&mut guardian)), wanted, "{program}");
        assert!(job.printed(0).contains(&format!("cannot start {program}")), "{}", job.printed(0));
    }
    job.end();
}

#[test]
fn mpirun_is_answered_how_a_lost_node_is_recovered() {
    let mut job = Job::start(4, "").ranks();
    job.wait_until_ready();
    job.lose("not-there");
    assert_eq!(job.answered(), "recovered\n");
    // The pretended nodes have their host's name.
    let host = os::hostname();
    job.lose(&host);
    let answer = job.answered();
    let wanted = format!("fail node {host} was lost, and recovery is switched off");
    assert!(answer.starts_with(&wanted), "{answer}");
    assert_eq!(job.finish(), [0; 4]);
    let scratch = job.end();
    let jobs = fs::read_dir(scratch.0.join("checkpoints")).expect("checkpoints").flatten();
    let events = jobs.map(|job| job.path().join("events.jsonl")).next().expect("the job");
    let events = fs::read_to_string(events).expect("events");
    assert_eq!(events.matches("\"node_lost\"").count(), 2, "{events}");
}

#[test]
fn a_signal_to_the_guardian_reaches_the_program() {
    let job = Job::start(1, "");
    let script = "trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let mut guardian = job.guardian(0, "n", &["sh", "-c", script]).spawn().expect("started");
    wait_for("the trap", || job.printed(0).contains("up"));
    // From a process that is not its parent, as orted would be.
    let kill = format!("kill -USR1 {}", guardian.id());
    let sent = std::process::Command::new("sh").args(["-c", &kill]).status().expect("sent");
    assert!(sent.success());
    assert_eq!(code(&end(&mut guardian)), 9);
    job.end();
}

/// The shell in which the user has started mpirun is the parent of what is orted on its node.
#[test]
fn who_has_started_orted_is_not_taken_for_it() {
    let job = Job::start(1, "");
    let script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done";
    let orted = "\"$@\"; exit $?";
    let mut orted = job.guardian_under(orted, 0, "n", &["sh", "-c", script]).spawn().expect("sh");
    wait_for("the trap", || job.printed(0).contains("up"));
    let children = format!("/proc/{0}/task/{0}/children", orted.id());
    let guardian = fs::read_to_string(children).expect("children").trim().parse().expect("one");
    os::kill(guardian, libc::SIGTERM);
    assert_eq!(code(&end(&mut orted)), 9);
    job.end();
}

#[test]
fn a_low_limit_of_open_files_is_no_obstacle_and_stays_as_it_is() {
    let job = Job::start(1, "");
    let script = "ulimit -Sn; test -S /proc/$$/fd/199 && echo connected";
    let low = "ulimit -Sn 64; exec \"$@\"";
    let mut guardian = job.guardian_under(low, 0, "n", &["sh", "-c", script]).spawn().expect("sh");
    assert_eq!(code(&end(&mut guardian)), 0, "{}", job.printed(0));
    assert_eq!(job.printed(0), "64\nconnected\n");
    job.end();
}

#[test]
fn in_an_unprotected_job_a_guardian_becomes_its_program() {
    let mut command = std::process::Command::new(example("plain_images"));
    command.args(["guardian", "sh", "-c", "echo $$ $*; exit 7", "x", "--", "--help", "-V"]);
    let child = command.env_remove("RUSTBTL_COORDINATOR").stdout(Stdio::piped()).spawn();
    let child = child.expect("started");
    let pid = child.id();
    let output = child.wait_with_output().expect("ended");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, format!("{pid} -- --help -V\n"));
    assert_eq!(output.status.code(), Some(7));
}
