//! How a coordinator starts: the first one of a job, or one after a failover.

use crate::auth::Host;
use crate::coordinator::determinants;
use crate::coordinator::determinants::Determinants;
use crate::coordinator::driver::clock::unix_ms;
use crate::coordinator::driver::event_log::Events;
use crate::coordinator::driver::event_loop::{Coordinator, UNAUTHENTICATED_MAX};
use crate::coordinator::driver::failover_store;
use crate::coordinator::driver::failover_store::{FailoverStore, LoadedState};
use crate::coordinator::driver::manifest_writer::ManifestWriter;
use crate::coordinator::driver::mpirun_pipe::{MpirunInput, send_to_mpirun};
use crate::coordinator::driver::rank_links::Direct;
use crate::coordinator::driver::slurm;
use crate::coordinator::job::config;
use crate::coordinator::job::config::JobConfig;
use crate::coordinator::job::state::Job;
use crate::coordinator::job::tables::mpirun_orders::to_mpirun;
use crate::guardian::output_offsets::FOLDER;
use crate::half_open::HalfOpenPeers;
use crate::job_secret::Travels;
use crate::listen::Listeners;
use crate::settings::hex;
use crate::{job_secret, jobs, os};
use rustbtl_coordination::control::CheckpointId;
use rustbtl_coordination::interval::Interval;
use rustbtl_coordination::notice_limit::NoticeLimit;
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::private_files::{Folder, make_folders};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Read};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take to give back the port of a killed coordinator.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// A name that is unique on one host and in one directory of checkpoints, and that nobody can
/// guess: folders and sockets of the job are named by it, and who has them first could stop it.
fn job_name() -> io::Result<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let host: String = os::hostname().chars().take(24).filter(|&c| fine(c)).collect();
    let random = hex(&os::random::<{ jobs::RANDOM_BYTES }>()?);
    Ok(format!("{host}-{}-{:x}-{random}", std::process::id(), unix_ms() / 1000))
}

/// The job's folder for its checkpoints: a new one, or after a failover the one that is there.
fn job_folder(directory: &Path, name: &str, failover: bool) -> Result<(), String> {
    let made = make_folders(directory).and_then(|()| {
        let path = directory.join(name);
        let folder = if failover { Folder::open(&path) } else { Folder::create(&path) };
        folder.map(drop).map_err(io::Error::from)
    });
    made.map_err(|error| {
        format!(
            "the directory for checkpoints, {}, cannot be used: {error}. It must exist on all \
             nodes, and this user must be able to write into it",
            directory.display()
        )
    })
}

/// Reads the configuration: text lines up to `go`.
fn read_config(input: &mut impl BufRead) -> Result<JobConfig, String> {
    let mut config = JobConfig::default();
    loop {
        let mut line = Vec::new();
        let read = input.take(config::LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        read.map_err(|error| format!("reading the configuration: {error}"))?;
        if line.pop() != Some(b'\n') {
            return Err("the coordinator is only started by mpirun".into());
        }
        let line =
            String::from_utf8(line).map_err(|_| "the configuration is not UTF-8".to_owned())?;
        if config.take(&line)? {
            return Ok(config);
        }
    }
}

/// A restarted job continues the output counts of the job that it restarts. Without them they begin
/// at 0: some output may be printed again.
fn share_output(config: &JobConfig, name: &str) {
    let Some(own) = config.directory.as_ref().map(|folder| folder.join(name)) else { return };
    let theirs = config
        .restore
        .as_ref()
        .and_then(|checkpoint| checkpoint.parent())
        .map(|job| job.join(FOLDER));
    if let Some(theirs) = theirs.and_then(|folder| folder.canonicalize().ok()) {
        let _ = std::os::unix::fs::symlink(theirs, own.join(FOLDER));
    }
}

/// The port of a killed coordinator is free when its process has ended completely.
fn listen_again(hosts: &[IpAddr], port: u16) -> io::Result<Listeners> {
    let until = Instant::now() + PORT_PATIENCE;
    loop {
        match Listeners::open(hosts, port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Has job and determinants continue with the state of the coordinator before this one.
fn resume(
    folder: &Path,
    job: &mut Job,
    determinants: &mut Determinants,
) -> Result<FailoverStore, String> {
    let (failover_store, LoadedState { state, determinants: batches }) =
        FailoverStore::open(folder)?;
    for &(checkpoint, rank, clock) in &state.clocks {
        determinants.set_clock(CheckpointId(checkpoint), PeerId(rank), clock);
    }
    determinants.resume(batches);
    job.resume(0, state)?;
    Ok(failover_store)
}

impl Coordinator {
    pub(crate) fn start(input: &mut impl BufRead) -> Result<Self, String> {
        let mut config = read_config(input)?;
        if !config.has_storage()
            && (config.interval() != Interval::Off || config.set_interval_ms > 0)
        {
            return Err("vprotocol_correlated_checkpoint_interval or \
                 vprotocol_correlated_set_checkpoint_interval is given, but no directory for \
                 checkpoints: add --mca vprotocol_correlated_checkpoint_dir DIR, a directory that \
                 all nodes share"
                .into());
        }
        let failover = config.failover.clone();
        let text = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let name = match &failover {
            Some((name, ..)) => name.clone(),
            None => job_name().map_err(text("drawing the job's name"))?,
        };
        if let Some(directory) = &config.directory {
            job_folder(directory, &name, failover.is_some())?;
        }
        if config.directory.is_some() && failover.is_none() {
            share_output(&config, &name);
        }
        let (secret, token, listeners) = match &failover {
            Some((_, port, token)) => {
                let listeners = listen_again(&config.hosts, *port);
                (job_secret::open(token)?, token.clone(), listeners)
            }
            None => {
                let in_slurm = std::env::var_os("SLURM_JOB_ID").is_some();
                let (secret, token) = job_secret::draw(&config.secret, in_slurm)?;
                (secret, token, Listeners::open(&config.hosts, 0))
            }
        };
        let listeners = listeners.map_err(text("listening for agents"))?;
        let port = listeners.port();
        let socket = jobs::socket(&jobs::directory(&name)?, &name);
        if failover.is_some() {
            let _ = fs::remove_file(&socket);
        }
        let commands = UnixListener::bind(&socket);
        let commands = commands.map_err(|error| format!("{}: {error}", socket.display()))?;
        commands.set_nonblocking(true).map_err(text("listening for commands"))?;
        let events = Events::open(&config, &name);
        let mut determinants = Determinants::new(determinants::REPLICAS);
        let session = config.log.clone();
        slurm::notify(&config, &name);
        config.secret_travels = Travels::of(&token);
        let mut job = Job::new(name.clone(), config);
        job.set_mpirun_node(os::hostname());
        let failover_store = session.map(|session| failover_store::folder(&session, &name));
        let failover_store = match (failover_store, &failover) {
            (Some(folder), None) => FailoverStore::create(&folder).ok(),
            (Some(folder), Some(_)) => Some(resume(&folder, &mut job, &mut determinants)?),
            (None, None) => None,
            (None, Some(_)) => {
                return Err("there is no session directory in which its state was \
                            persisted"
                    .into());
            }
        };
        if failover_store.is_some() {
            determinants.enable_persistence();
        }
        let manifest_writer =
            ManifestWriter::start().map_err(text("a thread for what is written to storage"))?;
        send_to_mpirun(&format!("{} {port} {name} {token}", to_mpirun::OK));
        Ok(Self {
            secret,
            started: Instant::now(),
            job,
            determinants,
            journals: std::env::var_os("RUSTBTL_JOURNALS").map(PathBuf::from),
            events,
            failover_store,
            manifest_writer,
            listeners,
            commands,
            socket,
            unauthenticated: HalfOpenPeers::new(Host::Coordinator, UNAUTHENTICATED_MAX),
            notices: NoticeLimit::default(),
            agents: BTreeMap::new(),
            direct: Direct::default(),
            home: BTreeMap::new(),
            mpirun: MpirunInput::default(),
            clients: BTreeMap::new(),
            status_waiters: Vec::new(),
            next: 0,
            beat: 0,
        })
    }
}
