//! The ranks that were started on this spare node: a thread for each, which passes on what its
//! guardian prints to the stand-in.

use crate::agent::stream::Patient;
use crate::command::PLACEHOLDER;
use crate::guardian::exit_report;
use crate::guardian::exit_report::{Awaited, Word};
use crate::guardian::images::Life;
use crate::local;
use crate::os;
use crate::os::{Pid, Poll};
use crate::settings;
use crate::settings::Printed;
use rustbtl_coordination::control::{FromSpare, ToSpare};
use rustbtl_fragments::ids::PeerId;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are passed on at a time.
const PIECE_BYTES: usize = 64 << 10;
/// How long an earlier life of a rank may take to end here.
const EARLIER_LIFE: Duration = Duration::from_secs(10);

/// Guardians that run, by rank; each leads a process group.
type Guardians = Arc<Mutex<BTreeMap<PeerId, Pid>>>;

/// See the module's documentation.
pub struct Hosted {
    guardians: Guardians,
    /// Where the node keeps images, if there is no folder that all nodes share.
    local: Option<PathBuf>,
}

fn guardian_of(guardians: &Guardians, rank: PeerId) -> Option<Pid> {
    guardians.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).copied()
}

/// What is to be started.
struct Start {
    rank: PeerId,
    folder: PathBuf,
    life: Life,
    printed: Printed,
}

impl Hosted {
    /// Nobody yet.
    pub fn new(local: Option<PathBuf>) -> Self {
        Self { guardians: Guardians::default(), local }
    }

    /// A stand-in that has proved itself.
    pub fn serve(&self, stream: TcpStream) {
        let (guardians, local) = (Arc::clone(&self.guardians), self.local.clone());
        thread::spawn(move || {
            let _ = os::notice_silence(&stream);
            // What is printed waits as long as its reader does.
            let Ok(mut proxy) = Patient::over(stream, None) else { return };
            let ended = match proxy.receive::<ToSpare>() {
                Ok(ToSpare::Start { rank, directory, incarnation, alone, out, err, exact }) => {
                    let life = Life { incarnation, alone };
                    let printed = Printed { bytes: [out, err], exact };
                    folder(&directory, local.as_deref()).and_then(|folder| {
                        let start = Start { rank, folder, life, printed };
                        host(&mut proxy, &start, &guardians)
                    })
                }
                _ => return,
            };
            let message = match ended {
                Ok(End::Ended(status)) => FromSpare::Ended { status },
                Ok(End::Killed(reason)) => FromSpare::Killed { reason },
                Ok(End::Alone) => return,
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

/// As the coordinator calls it.
fn folder(directory: &str, local: Option<&Path>) -> Result<PathBuf, String> {
    let path = Path::new(directory);
    let below = || local.and_then(|local| local::line_below(local, directory));
    let folder = if path.is_absolute() { Some(path.to_owned()) } else { below() };
    folder.ok_or_else(|| format!("there is no folder {directory:?} on node {}", os::hostname()))
}

fn end_group(guardian: Pid) {
    os::kill(-guardian, libc::SIGKILL);
}

/// How it is over with a rank here.
enum End {
    /// As waitpid tells it.
    Ended(i32),
    /// The rank has not ended: its guardian was killed, and it was with it.
    Killed(String),
    /// Its stand-in has gone.
    Alone,
}

fn host(proxy: &mut Patient, start: &Start, guardians: &Guardians) -> Result<End, String> {
    let rank = start.rank;
    end_earlier(rank, guardians)?;
    let (mut child, mut awaited) = start_guardian(start).map_err(|error| {
        format!("starting a guardian for rank {rank} on node {}: {error}", os::hostname())
    })?;
    let pid = child.id() as Pid;
    guardians.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, pid);
    let followed = follow(proxy, &mut child);
    if followed.is_err() {
        end_group(pid);
    }
    let status = child.wait();
    guardians.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
    let status = status.map_err(|error| error.to_string())?;
    if followed.is_err() {
        return Ok(End::Alone);
    }
    match awaited.word(status) {
        Word::Ended => Ok(End::Ended(status.into_raw())),
        Word::Killed => {
            let node = os::hostname();
            let reason = format!("the guardian of rank {rank} on spare node {node} was killed");
            Ok(End::Killed(reason))
        }
        Word::NotRestored(reason) => Err(reason),
    }
}

/// An earlier life of the rank, whose stand-in was lost without a word.
fn end_earlier(rank: PeerId, guardians: &Guardians) -> Result<(), String> {
    let until = Instant::now() + EARLIER_LIFE;
    while let Some(earlier) = guardian_of(guardians, rank) {
        end_group(earlier);
        if Instant::now() >= until {
            return Err(format!("an earlier life of rank {rank} does not end"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn start_guardian(start: &Start) -> io::Result<(Child, Awaited)> {
    let (awaited, stdin) = exit_report::awaited()?;
    let mut guardian = os::this_program();
    guardian.arg("guardian").arg(PLACEHOLDER).process_group(0);
    guardian.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    guardian.env("OMPI_COMM_WORLD_RANK", start.rank.to_string());
    guardian.env(settings::RESTORE, &start.folder);
    guardian.env(settings::INCARNATION, start.life.incarnation.to_string());
    guardian.env(settings::ALONE, u8::from(start.life.alone).to_string());
    guardian.env(settings::PRINTED, start.printed.to_string());
    Ok((guardian.spawn()?, awaited))
}

/// Until it has printed its last; the error: the stand-in has gone.
fn follow(proxy: &mut Patient, child: &mut Child) -> Result<(), String> {
    let mut room = vec![0; PIECE_BYTES];
    let pid = child.id() as Pid;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    while out.is_some() || err.is_some() {
        let mut poll = Poll::default();
        let said = poll.add(proxy.fd(), false);
        let printed = out.as_ref().map(|out| poll.add(out.as_raw_fd(), false));
        let complained = err.as_ref().map(|err| poll.add(err.as_raw_fd(), false));
        poll.wait(None).map_err(|error| error.to_string())?;
        let ready = |place: Option<usize>| place.is_some_and(|place| poll.is_ready(place));
        if ready(printed) {
            pass_on(proxy, 1, &mut out, &mut room)?;
        }
        if ready(complained) {
            pass_on(proxy, 2, &mut err, &mut room)?;
        }
        if poll.is_ready(said) {
            proxy.take_in()?;
        }
        while let Some(message) = proxy.next::<ToSpare>()? {
            match message {
                ToSpare::Signal { number } => os::kill(-pid, number),
                ToSpare::Start { .. } => return Err("it has said so already".into()),
            }
        }
    }
    Ok(())
}

/// What is there of a stream; it is `None` when it is over.
fn pass_on(
    proxy: &mut Patient,
    stream: u8,
    from: &mut Option<impl Read>,
    room: &mut [u8],
) -> Result<(), String> {
    let Some(open) = from else { return Ok(()) };
    match open.read(room) {
        Ok(bytes) if bytes > 0 => {
            proxy.send(&FromSpare::Output { stream, bytes: room[..bytes].to_vec() })
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        _ => {
            *from = None;
            Ok(())
        }
    }
}
