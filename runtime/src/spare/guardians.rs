//! Guardians of the ranks that were restarted on this spare node. Each has a thread, which forwards
//! its output to the rank's proxy.

use crate::agent::stream::BlockingStream;
use crate::auth::AuthenticatedStream;
use crate::command::PLACEHOLDER;
use crate::guardian::exit_report;
use crate::guardian::exit_report::{ExitReport, ExitReportReader};
use crate::guardian::images::RestartInfo;
use crate::local;
use crate::os;
use crate::os::{Pid, Poll};
use crate::settings;
use crate::settings::Printed;
use rustbtl_coordination::control::{FromSpare, ToSpare};
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are forwarded at a time.
const PIECE_BYTES: usize = 64 << 10;
/// How long an earlier incarnation of a rank may take to end here.
const EARLIER_INCARNATION_MAX: Duration = Duration::from_secs(10);

/// Guardians that run, by rank; each leads a process group.
type GuardianPids = Arc<Mutex<BTreeMap<PeerId, Pid>>>;

/// See the module's documentation.
pub struct SpareGuardians {
    guardians: GuardianPids,
    /// Where the node keeps images, if there is no folder that all nodes share.
    local: Option<PathBuf>,
}

fn guardian_of(guardians: &GuardianPids, rank: PeerId) -> Option<Pid> {
    guardians.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).copied()
}

/// What is to be started.
struct Start {
    rank: PeerId,
    folder: PathBuf,
    restart: RestartInfo,
    printed: Printed,
}

impl SpareGuardians {
    /// None yet.
    pub fn new(local: Option<PathBuf>) -> Self {
        Self { guardians: GuardianPids::default(), local }
    }

    /// Serves an authenticated proxy.
    pub fn serve(&self, stream: AuthenticatedStream) {
        let (guardians, local) = (Arc::clone(&self.guardians), self.local.clone());
        thread::spawn(move || {
            let _ = os::enable_keepalive(stream.socket());
            // Output may wait for its reader without a limit.
            let Ok(mut proxy) = BlockingStream::with_timeout(stream, None) else { return };
            let ended = match proxy.receive::<ToSpare>() {
                Ok(ToSpare::Start { rank, directory, incarnation, alone, out, err, exact }) => {
                    let restart = RestartInfo { incarnation, alone };
                    let printed = Printed { bytes: [out, err], exact };
                    folder(&directory, local.as_deref()).and_then(|folder| {
                        let start = Start { rank, folder, restart, printed };
                        run_guardian(&mut proxy, &start, &guardians)
                    })
                }
                _ => return,
            };
            let message = match ended {
                Ok(End::Ended(status)) => FromSpare::Ended { status },
                Ok(End::Killed(reason)) => FromSpare::Killed { reason },
                Ok(End::ProxyLost) => return,
                Err(reason) => FromSpare::Refused { reason },
            };
            if proxy.send(&message).is_ok() {
                proxy.drain();
            }
        });
    }

    /// Nothing of the job may stay.
    pub fn end_all(&self) {
        let guardians = self.guardians.lock().unwrap_or_else(PoisonError::into_inner);
        for &guardian in guardians.values() {
            end_group(guardian);
        }
    }
}

/// The folder that the coordinator names.
fn folder(directory: &str, local: Option<&Path>) -> Result<PathBuf, String> {
    let path = Path::new(directory);
    let below = || local.and_then(|local| local::checkpoint_below(local, directory));
    let folder = if path.is_absolute() { Some(path.to_owned()) } else { below() };
    folder.ok_or_else(|| format!("there is no folder {directory:?} on node {}", os::hostname()))
}

fn end_group(guardian: Pid) {
    os::kill(-guardian, libc::SIGKILL);
}

/// How a rank's guardian has ended here.
enum End {
    /// As waitpid returns it.
    Ended(i32),
    /// The rank has not ended: its guardian was killed, and the program with it.
    Killed(String),
    /// The connection of its proxy is lost.
    ProxyLost,
}

fn run_guardian(
    proxy: &mut BlockingStream,
    start: &Start,
    guardians: &GuardianPids,
) -> Result<End, String> {
    let rank = start.rank;
    end_earlier(rank, guardians)?;
    let (mut child, mut reader) = start_guardian(start).map_err(|error| {
        format!("starting a guardian for rank {rank} on node {}: {error}", os::hostname())
    })?;
    let pid = child.id() as Pid;
    guardians.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, pid);
    let forwarded = forward_output(proxy, &mut child);
    if forwarded.is_err() {
        end_group(pid);
    }
    let status = child.wait();
    guardians.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
    let status = status.map_err(|error| error.to_string())?;
    if forwarded.is_err() {
        return Ok(End::ProxyLost);
    }
    match reader.read(status) {
        ExitReport::Ended => Ok(End::Ended(status.into_raw())),
        ExitReport::Killed => {
            let node = os::hostname();
            let reason = format!("the guardian of rank {rank} on spare node {node} was killed");
            Ok(End::Killed(reason))
        }
        ExitReport::NotRestored(reason) => Err(reason),
    }
}

/// Ends an earlier incarnation of the rank, whose proxy was lost unnoticed.
fn end_earlier(rank: PeerId, guardians: &GuardianPids) -> Result<(), String> {
    let until = Instant::now() + EARLIER_INCARNATION_MAX;
    while let Some(earlier) = guardian_of(guardians, rank) {
        end_group(earlier);
        if Instant::now() >= until {
            return Err(format!("an earlier incarnation of rank {rank} does not end"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn start_guardian(start: &Start) -> io::Result<(Child, ExitReportReader)> {
    let (reader, stdin) = exit_report::channel()?;
    let mut guardian = os::this_program();
    guardian.arg("guardian").arg(PLACEHOLDER).process_group(0);
    guardian.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    guardian.env("OMPI_COMM_WORLD_RANK", start.rank.to_string());
    guardian.env(settings::RESTORE, &start.folder);
    guardian.env(settings::INCARNATION, start.restart.incarnation.to_string());
    guardian.env(settings::ALONE, u8::from(start.restart.alone).to_string());
    guardian.env(settings::PRINTED, start.printed.to_string());
    Ok((guardian.spawn()?, reader))
}

/// Forwards a guardian's output until its end; the error: the connection of the proxy is lost.
fn forward_output(proxy: &mut BlockingStream, child: &mut Child) -> Result<(), String> {
    let mut buffer = vec![0; PIECE_BYTES];
    let pid = child.id() as Pid;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    while out.is_some() || err.is_some() {
        let mut poll = Poll::default();
        let from_proxy = poll.add(proxy.fd(), false);
        let stdout = out.as_ref().map(|out| poll.add(out.as_raw_fd(), false));
        let stderr = err.as_ref().map(|err| poll.add(err.as_raw_fd(), false));
        poll.wait(None).map_err(|error| error.to_string())?;
        let ready = |slot: Option<usize>| slot.is_some_and(|slot| poll.is_ready(slot));
        if ready(stdout) {
            forward(proxy, 1, &mut out, &mut buffer)?;
        }
        if ready(stderr) {
            forward(proxy, 2, &mut err, &mut buffer)?;
        }
        if poll.is_ready(from_proxy) {
            proxy.read()?;
        }
        while let Some(message) = proxy.next::<ToSpare>()? {
            match message {
                ToSpare::Signal { number } => os::kill(-pid, number),
                ToSpare::Start { .. } => return Err("it has started a rank already".into()),
            }
        }
    }
    Ok(())
}

/// Forwards what a stream has; `from` is `None` after its end.
fn forward(
    proxy: &mut BlockingStream,
    stream: u8,
    from: &mut Option<impl Read>,
    buffer: &mut [u8],
) -> Result<(), String> {
    let Some(open) = from else { return Ok(()) };
    match open.read(buffer) {
        Ok(bytes) if bytes > 0 => {
            proxy.send(&FromSpare::Output { stream, bytes: buffer[..bytes].to_vec() })
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        _ => {
            *from = None;
            Ok(())
        }
    }
}
