//! Images that nodes keep themselves, and replicas of them on others: real agents, pretended ranks.

mod common;

use common::{Job, agent_pid, wait_for};
use rustbtl_coordination::control::{
    CheckpointId, FrameBuffer, FromReplicaServer, Message, ToReplicaServer,
};
use rustbtl_coordination::sealed_records::Session;
use rustbtl_fragments::ids::PeerId;
use rustbtl_runtime::auth::{self, Host};
use rustbtl_runtime::os;
use rustbtl_runtime::settings;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Where a node keeps images.
fn folder(job: &Job, node: &str) -> PathBuf {
    let name = format!("rustbtl-{}-{node}.{}", os::euid(), job.name);
    job.scratch.0.join("local").join(name)
}

/// Files of a checkpoint on a node.
fn files(job: &Job, node: &str, checkpoint: u32) -> Vec<String> {
    let entries = fs::read_dir(folder(job, node).join(format!("checkpoint-{checkpoint}")));
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut all: Vec<String> = entries.into_iter().flatten().flatten().map(name).collect();
    all.sort();
    all
}

/// The same of all checkpoints, with their numbers.
fn files_of_all_checkpoints(job: &Job, node: &str) -> BTreeSet<(u32, String)> {
    let entries = fs::read_dir(folder(job, node)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let number = |name: String| name.strip_prefix("checkpoint-")?.parse().ok();
    let numbers: Vec<u32> = entries.filter_map(|entry| number(name(entry))).collect();
    let of = |&number: &u32| files(job, node, number).into_iter().map(move |file| (number, file));
    numbers.iter().flat_map(of).collect()
}

/// What each node has to have: the images of each set's youngest checkpoint.
fn files_of_youngest(job: &Job) -> BTreeSet<(u32, String)> {
    let status = job.status();
    let mut wanted = BTreeSet::new();
    for set in status["sets"].as_array().expect("sets") {
        let number = set["last_checkpoint"].as_u64().expect("a checkpoint");
        for rank in set["ranks"].as_array().expect("ranks") {
            for end in ["img", "out"] {
                wanted.insert((number as u32, format!("rank-{rank}.{end}")));
            }
        }
    }
    wanted
}

const ALL: [&str; 8] = [
    "rank-0.img",
    "rank-0.out",
    "rank-1.img",
    "rank-1.out",
    "rank-2.img",
    "rank-2.out",
    "rank-3.img",
    "rank-3.out",
];

fn address(job: &Job, node: &str) -> SocketAddr {
    let status = job.status();
    status["replica_servers"][node].as_str().expect("a node").parse().expect("an address")
}

/// An authenticated connection to the agent of a node.
fn connect(job: &Job, node: &str) -> (TcpStream, Box<Session>) {
    let secret = settings::unhex(&job.secret).expect("a secret");
    let stream = auth::connect(Host::ReplicaServer, &[address(job, node)], &secret, TIMEOUT);
    stream.expect("a connection").into_parts()
}

fn plain(messages: &[ToReplicaServer]) -> Vec<u8> {
    messages.iter().flat_map(|message| message.encode().expect("a frame")).collect()
}

fn send((stream, session): &mut (TcpStream, Box<Session>), messages: &[ToReplicaServer]) {
    let mut sealed = Vec::new();
    session.sealer.seal(&plain(messages), &mut sealed);
    stream.write_all(&sealed).expect("it reads");
}

fn answer((stream, session): &mut (TcpStream, Box<Session>)) -> Option<FromReplicaServer> {
    let (mut buffer, mut bytes) = (FrameBuffer::new(), Vec::new());
    stream.shutdown(Shutdown::Write).expect("an end");
    let _ = stream.read_to_end(&mut bytes);
    session.opener.add(&bytes);
    while let Some(text) = session.opener.next_text().expect("it is sealed") {
        buffer.add(text);
    }
    buffer.next_message().expect("sense")
}

fn begin() -> ToReplicaServer {
    ToReplicaServer::Begin { rank: PeerId(7), checkpoint: CheckpointId(9) }
}

#[test]
fn images_and_replicas_are_there_when_a_checkpoint_is_complete_and_go_with_it_and_with_the_job() {
    let mut job = Job::start_local(4, 1).ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    for node in ["n0", "n1"] {
        assert_eq!(files(&job, node, 1), ALL, "{node}");
    }
    let image =
        |node: &str| fs::read(folder(&job, node).join("checkpoint-1/rank-2.img")).expect("it");
    assert_eq!(image("n0"), image("n1"));
    let status = job.status();
    assert_eq!(status["checkpoints"][0]["held"][2]["nodes"], serde_json::json!(["n0", "n1"]));
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    for node in ["n0", "n1"] {
        wait_for("the old checkpoint is removed", || files(&job, node, 1).is_empty());
        assert_eq!(files(&job, node, 2), ALL, "{node}");
    }
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn without_replicas_each_node_has_its_own_images_only() {
    let mut job = Job::start_local(4, 0).ranks();
    job.wait_until_ready();
    assert_eq!(job.checkpoint(&["--all", "--wait"]).0, 0);
    assert_eq!(files(&job, "n0", 1), ALL[..4]);
    assert_eq!(files(&job, "n1", 1), ALL[4..]);
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn what_is_changed_on_the_wire_is_refused_and_leaves_nothing() {
    let mut job = Job::start_local(4, 1).ranks();
    job.wait_until_ready();
    let bytes = b"image".to_vec();
    let wrong = [
        begin(),
        ToReplicaServer::File { part: 0, bytes: 5 },
        ToReplicaServer::Piece { bytes },
        ToReplicaServer::Checksum { crc32: 1 },
        ToReplicaServer::Commit {},
    ];
    let mut stream = connect(&job, "n1");
    send(&mut stream, &wrong);
    let Some(FromReplicaServer::Refused { reason }) = answer(&mut stream) else {
        panic!("refused")
    };
    assert!(reason.contains("node n1") && reason.contains("checksum"), "{reason}");
    // Half of one, and messages in a wrong order.
    for some in [&wrong[..3], &wrong[1..2], &[begin(), ToReplicaServer::Commit {}]] {
        let mut stream = connect(&job, "n1");
        send(&mut stream, some);
        assert!(matches!(answer(&mut stream), Some(FromReplicaServer::Refused { .. })));
    }
    let mut stream = connect(&job, "n1");
    stream.0.write_all(&[0xff; 100]).expect("it reads");
    assert!(matches!(answer(&mut stream), Some(FromReplicaServer::Refused { .. })));
    // All of it, but not sealed; and sealed, with one bit that is another.
    let mut stream = connect(&job, "n1");
    stream.0.write_all(&plain(&wrong)).expect("it reads");
    assert!(matches!(answer(&mut stream), Some(FromReplicaServer::Refused { .. })));
    let (mut stream, mut sealed) = (connect(&job, "n1"), Vec::new());
    stream.1.sealer.seal(&plain(&wrong), &mut sealed);
    sealed[20] ^= 1;
    stream.0.write_all(&sealed).expect("it reads");
    let Some(FromReplicaServer::Refused { reason }) = answer(&mut stream) else {
        panic!("refused")
    };
    assert!(reason.contains("was it changed?"), "{reason}");
    assert!(!folder(&job, "n1").join("checkpoint-9").exists());
    assert_eq!(job.checkpoint(&["--all", "--wait"]).0, 0, "others are served");
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_peer_without_the_secret_stores_nothing() {
    let mut job = Job::start_local(4, 1).ranks();
    job.wait_until_ready();
    let address = address(&job, "n1");
    let refused = auth::connect(Host::ReplicaServer, &[address], &[7; 32], TIMEOUT).unwrap_err();
    assert!(refused.reason.contains("secret"), "{refused}");
    // One that skips the handshake.
    let mut stream = TcpStream::connect(address).expect("a connection");
    let messages = plain(&[begin(), ToReplicaServer::File { part: 0, bytes: 0 }]);
    stream.write_all(&messages).expect("it reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "unauthenticated peers are answered nothing");
    // Many that send nothing at all.
    let silent: Vec<_> = (0..40).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    drop(silent);
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn a_partner_that_fails_in_the_middle_aborts_the_checkpoint_and_nothing_else() {
    let mut job = Job::start_local(4, 1).ranks();
    job.wait_until_ready();
    let pid = agent_pid(&job, "n1").expect("an agent");
    os::kill(pid, libc::SIGSTOP);
    // The set's own checkpoint waits for its replica on the other node.
    assert_eq!(job.checkpoint(&[]).0, 0);
    wait_for("the own image", || files(&job, "n0", 1).contains(&"rank-0.img".to_owned()));
    os::kill(pid, libc::SIGKILL);
    wait_for("it is noticed", || agent_pid(&job, "n1").is_some_and(|now| now != pid));
    job.wait_until_ready();
    let done = || job.checkpoint(&["--all", "--wait"]).0 == 0;
    wait_for("a checkpoint with replicas", done);
    // The set's checkpoint is tried again after a second: it may be the younger one.
    for node in ["n0", "n1"] {
        let good = || files_of_all_checkpoints(&job, node) == files_of_youngest(&job);
        wait_for("the youngest images of each set, and no others", good);
    }
    assert_eq!(job.finish(), [0; 4]);
    job.end();
}

#[test]
fn leftovers_of_ended_jobs_are_removed() {
    let leftover = {
        let job = Job::start_local(2, 1);
        let path = folder(&job, "n0").with_file_name(format!("rustbtl-{}-n0.ended-1", os::euid()));
        fs::create_dir_all(path.join("checkpoint-1")).expect("a folder");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&path, mode).expect("permissions");
        fs::write(path.join("lock"), "").expect("a file");
        fs::write(path.join("checkpoint-1/rank-0.img"), "").expect("a file");
        let mut job = job.ranks();
        job.wait_until_ready();
        assert_eq!(job.finish(), [0; 2]);
        job.end();
        path
    };
    assert!(!leftover.exists());
}
