//! How a coordinator begins: the first one of a job, or one in place of another that was killed.

use crate::coordinator::determinants;
use crate::coordinator::determinants::Determinants;
use crate::coordinator::driver::clock::unix_ms;
use crate::coordinator::driver::event_log::Events;
use crate::coordinator::driver::event_loop::Coordinator;
use crate::coordinator::driver::failover_store;
use crate::coordinator::driver::failover_store::{Memory, Remembered};
use crate::coordinator::driver::manifest_writer::ManifestWriter;
use crate::coordinator::driver::mpirun_pipe::{Words, tell_mpirun};
use crate::coordinator::driver::rank_links::Direct;
use crate::coordinator::job::config;
use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::mpirun_orders::to_mpirun;
use crate::guardian::output_offsets::FOLDER;
use crate::settings::hex;
use crate::{jobs, os};
use rustbtl_coordination::control::CheckpointId;
use rustbtl_coordination::interval::Interval;
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Read};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take to give back the port of a killed coordinator.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// A name that tells jobs apart, on one host and in one directory of lines.
fn job_name() -> String {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let host: String = os::hostname().chars().take(40).filter(|&c| fine(c)).collect();
    format!("{host}-{}-{:x}", std::process::id(), unix_ms() / 1000)
}

/// Lines up to `go`.
fn read_setup(input: &mut impl BufRead) -> Result<JobConfig, String> {
    let mut setup = JobConfig::default();
    loop {
        let mut line = Vec::new();
        let read = input.take(config::LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        read.map_err(|error| format!("reading the setup: {error}"))?;
        if line.pop() != Some(b'\n') {
            return Err("the coordinator is only started by mpirun".into());
        }
        let line = String::from_utf8(line).map_err(|_| "the setup is not UTF-8".to_owned())?;
        if setup.take(&line)? {
            return Ok(setup);
        }
    }
}

/// A restarted job counts its output where the job counted that it goes on from. Without that, it
/// is counted anew: some may be printed again.
fn share_output(setup: &JobConfig, name: &str) {
    let Some(own) = setup.directory.as_ref().map(|folder| folder.join(name)) else { return };
    let theirs = setup.restore.as_ref().and_then(|line| line.parent()).map(|job| job.join(FOLDER));
    if let Some(theirs) = theirs.and_then(|folder| folder.canonicalize().ok()) {
        let _ = std::os::unix::fs::symlink(theirs, own.join(FOLDER));
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    // Takes IPv4, too, where the system allows it (the default).
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// The port of one that has just been killed is free when all of it is gone.
fn listen_again(port: u16) -> io::Result<TcpListener> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        match listen(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Have job and determinants go on from what the coordinator before this one knew.
fn resume(folder: &Path, job: &mut Job, determinants: &mut Determinants) -> Result<Memory, String> {
    let (memory, Remembered { state, determinants: batches }) = Memory::open(folder)?;
    for &(line, rank, clock) in &state.clocks {
        determinants.set_clock(CheckpointId(line), PeerId(rank), clock);
    }
    batches.into_iter().for_each(|batches| determinants.resume(batches));
    job.resume(0, state)?;
    Ok(memory)
}

impl Coordinator {
    pub(crate) fn start(input: &mut impl BufRead) -> Result<Self, String> {
        let setup = read_setup(input)?;
        if !setup.has_storage() && (setup.interval() != Interval::Off || setup.set_interval_ms > 0)
        {
            return Err(
                "vprotocol_correlated_checkpoint_interval or _set_interval is given, but no \
                    directory \
                        for lines: add --mca vprotocol_correlated_checkpoint_dir DIR, a directory \
                        that all \
                        nodes share"
                    .into(),
            );
        }
        let again = setup.again.clone();
        let name = again.as_ref().map_or_else(job_name, |(name, ..)| name.clone());
        if let Some(directory) = &setup.directory {
            let folder = directory.join(&name);
            os::make_folders(&folder).map_err(|error| {
                format!(
                    "the directory for lines, {}, cannot be used: {error}. It must exist on all \
                     nodes, and this user must be able to write into it",
                    directory.display()
                )
            })?;
        }
        if setup.directory.is_some() && again.is_none() {
            share_output(&setup, &name);
        }
        let text = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let (secret, listener) = match &again {
            Some((_, port, secret)) => (*secret, listen_again(*port)),
            None => (os::random().map_err(text("drawing the job's secret"))?, listen(0)),
        };
        let listener = listener.map_err(text("listening for agents"))?;
        listener.set_nonblocking(true).map_err(text("listening for agents"))?;
        let port = listener.local_addr().map_err(text("listening for agents"))?.port();
        let socket = jobs::socket(&jobs::directory()?, &name);
        if again.is_some() {
            let _ = fs::remove_file(&socket);
        }
        let commands = UnixListener::bind(&socket);
        let commands = commands.map_err(|error| format!("{}: {error}", socket.display()))?;
        commands.set_nonblocking(true).map_err(text("listening for commands"))?;
        let events = Events::open(&setup, &name);
        let mut determinants = Determinants::new(determinants::COPIES);
        let session = setup.log.clone();
        let mut job = Job::new(name.clone(), setup);
        job.runs_on(os::hostname());
        let memory = session.map(|session| failover_store::folder(&session, &name));
        let memory = match (memory, &again) {
            (Some(folder), None) => Memory::create(&folder).ok(),
            (Some(folder), Some(_)) => Some(resume(&folder, &mut job, &mut determinants)?),
            (None, None) => None,
            (None, Some(_)) => {
                return Err("there is no session directory in which it had written down what it \
                            knew"
                    .into());
            }
        };
        if memory.is_some() {
            determinants.keep_notes();
        }
        let storer =
            ManifestWriter::start().map_err(text("a thread for what is written to storage"))?;
        tell_mpirun(&format!("{} {port} {name} {}", to_mpirun::OK, hex(&secret)));
        Ok(Self {
            secret,
            started: Instant::now(),
            job,
            determinants,
            journals: std::env::var_os("RUSTBTL_JOURNALS").map(PathBuf::from),
            events,
            memory,
            storer,
            listener,
            commands,
            socket,
            strangers: Vec::new(),
            agents: BTreeMap::new(),
            direct: Direct::default(),
            home: BTreeMap::new(),
            mpirun: Words::default(),
            clients: BTreeMap::new(),
            curious: Vec::new(),
            next: 0,
            beat: 0,
        })
    }
}
