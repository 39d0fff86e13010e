//! What other users of the same host can do to a job: real coordinator, agents and guardians,
//! pretended ranks.

mod common;

use common::{Job, Scratch};
use rustbtl_runtime::os;
use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

/// Another user.
const OTHER: u32 = 65534;

fn give_away(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        give_away(&entry.path());
    }
    chown(path, Some(OTHER), None).expect("root");
}

#[test]
fn a_checkpoint_of_another_user_is_not_restarted_from() {
    if os::euid() != 0 {
        return eprintln!("SKIPPED: only root can make files of another user");
    }
    let mut job = Job::start(2, "").ranks();
    job.wait_until_ready();
    assert_eq!(job.checkpoint(&["--all", "--wait"]).0, 0);
    let folder = job.scratch.0.join("checkpoints").join(&job.name);
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("checkpoint-1")), 0o700);
    assert_eq!(mode(&folder.join("checkpoint-1/manifest.json")), 0o600);
    assert_eq!(job.finish(), [0; 2]);
    let shown = folder.display().to_string();
    // In place of mpirun: exit code 0 shows that it was reached.
    let restart = ["restart", "--mpirun", "/bin/true", &shown];
    assert_eq!(job.command(&restart).0, 0);
    fs::set_permissions(folder.join("checkpoint-1"), Permissions::from_mode(0o770)).expect("own");
    let (code, text) = job.command(&restart);
    assert!(code != 0 && text.contains("chmod g-w"), "{text}");
    give_away(&folder);
    let (code, text) = job.command(&restart);
    assert!(code != 0 && text.contains(&format!("belongs to user {OTHER}")), "{text}");
    assert!(text.contains(&format!("Do this as user {OTHER}")), "{text}");
    let (code, text) = job.command(&["report", &shown]);
    assert!(code != 0 && text.contains("belongs to user"), "{text}");
    let above = job.scratch.0.join("checkpoints").display().to_string();
    let (code, text) = job.command(&["list", &above]);
    assert!(code == 0 && text.contains("left out: ") && !text.contains("global"), "{text}");
    job.end();
}

#[test]
fn a_job_runs_though_somebody_has_taken_the_names_that_can_be_guessed() {
    let scratch = Scratch::new();
    let taken = scratch.0.join("run/rustbtl");
    fs::create_dir(&taken).expect("a folder");
    fs::set_permissions(&taken, Permissions::from_mode(0o777)).expect("own");
    let mut job = Job::start_local_in(scratch, 4, 1);
    let local = job.scratch.0.join("local");
    fs::create_dir(&local).expect("a folder");
    for node in ["n0", "n1"] {
        fs::write(local.join(format!("rustbtl-{}-{node}", os::euid())), "").expect("a file");
    }
    job = job.ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    let random = job.name.rsplit('-').next().expect("a name").to_owned();
    let folder = format!("/tmp/rustbtl-jobs-{}-{random}", os::euid());
    assert!(Path::new(&folder).is_dir());
    assert_eq!(job.finish(), [0; 4]);
    for node in ["n0", "n1"] {
        fs::remove_file(local.join(format!("rustbtl-{}-{node}", os::euid()))).expect("a file");
    }
    job.end();
    assert!(!Path::new(&folder).exists());
}

#[test]
fn silent_connections_keep_no_agent_out_and_fill_no_list_of_events() {
    let job = Job::start(4, "");
    let at = format!("127.0.0.1:{}", job.port);
    let connect = |_| TcpStream::connect(&at).expect("it listens");
    let silent: Vec<TcpStream> = (0..300).map(connect).collect();
    let mut job = job.ranks();
    job.wait_until_ready();
    let refused = |event: &&serde_json::Value| event["event"] == "refused";
    let events = job.events();
    let left_out: u64 = events.iter().filter_map(|event| event["left_out"].as_u64()).sum();
    let shown = events.iter().filter(refused).count();
    assert!((10..150).contains(&shown), "{shown} events, {left_out} left out");
    drop(silent);
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}
