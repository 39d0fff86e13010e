//! For tests: sends its guardian what a rank sends, and computes nothing.
//!
//! `pretend_rank FOLDER [restored]`: prints a line for each event. Files in FOLDER control it:
//! `finish`: it finishes. `refuse-checkpoint`: it refuses checkpoints. `refuse-checkpoint-once`:
//! one rank refuses one. `log-full-2`: rank 0 reports that its log is full of messages to set 2.
//! `refuse-image`: its images cannot be stored. `print`: it prints numbered lines on both streams,
//! and continues with the next number after a restart. Without a guardian it reports that and ends.

use rustbtl_coordination::control::{
    CheckpointId, FrameBuffer, FromRank, Message, SnapshotMemory, ToRank,
};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::env;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Rank {
    rank: u32,
    folder: PathBuf,
    socket: UnixStream,
    finishing: bool,
    /// Numbered lines that were printed.
    printed: u64,
    suspended: bool,
}

fn number(name: &str) -> u32 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Only numbered lines are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// In one piece: several ranks share the descriptor.
fn print_line(line: String) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let _ = io::stdout().write_all(format!("{line}\n").as_bytes());
}

impl Rank {
    fn send(&mut self, message: &FromRank) -> io::Result<()> {
        let frame = message.encode().map_err(io::Error::other)?;
        self.socket.write_all(&frame)
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    /// Once: whoever removes the file.
    fn refuses(&self) -> bool {
        self.has("refuse-checkpoint") || self.has_once("refuse-checkpoint-once")
    }

    fn has_once(&self, file: &str) -> bool {
        std::fs::remove_file(self.folder.join(file)).is_ok()
    }

    fn description(&self) -> Vec<u8> {
        if self.has("refuse-image") {
            return b"refuse".to_vec();
        }
        let own = env::current_exe().unwrap_or_default();
        format!("{}\n{}\n{}", own.display(), self.folder.display(), self.printed).into_bytes()
    }

    fn freeze(&mut self, checkpoint: CheckpointId) -> io::Result<()> {
        let (snapshot, description) = (SnapshotMemory::InPause, self.description());
        let (coordination_ns, pause_ns) = (1000, 2000);
        self.send(&FromRank::Frozen {
            checkpoint,
            snapshot,
            description,
            coordination_ns,
            pause_ns,
        })
    }

    fn print(&mut self) {
        let _ = io::stderr().write_all(format!("err {}\n", self.printed).as_bytes());
        let _ = io::stdout().write_all(format!("out {}\n", self.printed).as_bytes());
        self.printed += 1;
    }

    /// True: the end.
    fn handle(&mut self, order: &ToRank) -> io::Result<bool> {
        let rank = self.rank;
        match order {
            ToRank::Welcome { job, restarted_from } => {
                let from = restarted_from.map_or(0, |checkpoint| checkpoint.0);
                print_line(format!("{rank} welcome {job} {from}"));
            }
            ToRank::StopOutgoing { checkpoint } => {
                self.send(&FromRank::OutgoingStopped { checkpoint: *checkpoint })?
            }
            ToRank::Begin { checkpoint, .. } if self.refuses() => {
                let reason = "it has an open socket".into();
                self.send(&FromRank::CheckpointFailed { checkpoint: *checkpoint, reason })?;
            }
            ToRank::Begin { checkpoint, .. } if self.has("print") => {
                self.suspended = true;
                self.send(&FromRank::Suspended { checkpoint: *checkpoint })?;
            }
            ToRank::Begin { checkpoint, members, .. } => {
                print_line(format!("{rank} begin {checkpoint} with {}", members.len()));
                self.freeze(*checkpoint)?;
            }
            ToRank::OutputDrained { checkpoint } => {
                self.freeze(*checkpoint)?;
                self.suspended = false;
            }
            ToRank::Abort { checkpoint, reason } => {
                print_line(format!("{rank} abort {checkpoint} {reason}"))
            }
            ToRank::CheckpointComplete { checkpoint, .. } => {
                print_line(format!("{rank} complete {checkpoint}"))
            }
            ToRank::Resume { checkpoint } => print_line(format!("{rank} resume {checkpoint}")),
            ToRank::Release { checkpoint } => print_line(format!("{rank} release {checkpoint}")),
            ToRank::Endpoints { endpoints, .. } => {
                let good = (0..).zip(endpoints).all(|(rank, of)| of.endpoint == [rank, 0xCA]);
                print_line(format!("{rank} endpoints {} {good}", endpoints.len()));
            }
            ToRank::ReportStatus {} => self.send(&FromRank::Status {
                log_bytes: 10,
                log_bytes_peak: 20,
                messages: 1,
                largest: SetId(0),
                log_budget: 40,
            })?,
            ToRank::MayFinish {} => return Ok(true),
            _ => {}
        }
        Ok(false)
    }

    fn run(&mut self, size: u32) -> io::Result<()> {
        self.send(&FromRank::Hello {
            rank: PeerId(self.rank),
            size,
            pid: std::process::id(),
            incarnation: Incarnation(0),
            version: "test".into(),
            set: SetId(self.rank / 2 * 2),
            endpoint: vec![self.rank as u8, 0xCA],
        })?;
        self.send(&FromRank::Ready {})?;
        self.socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (mut buffer, mut piece) = (FrameBuffer::new(), [0; 4096]);
        loop {
            if self.has("print") && !self.finishing && !self.suspended {
                (0..5).for_each(|_| self.print());
                self.socket.set_read_timeout(Some(Duration::from_micros(300)))?;
            }
            if self.rank == 0 && self.has_once("log-full-2") {
                self.send(&FromRank::LogNearlyFull { set: SetId(2), bytes: 77 })?;
            }
            if !self.finishing && self.has("finish") {
                self.finishing = true;
                self.send(&FromRank::Finishing {})?;
            }
            match self.socket.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => buffer.add(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            while let Some(order) = buffer.next_message().map_err(io::Error::other)? {
                if self.handle(&order)? {
                    return Ok(());
                }
            }
        }
    }
}

fn main() -> ExitCode {
    let mut words = env::args_os().skip(1);
    let folder = words.next().map(PathBuf::from).unwrap_or_default();
    let rank = number("OMPI_COMM_WORLD_RANK");
    let next = words.next().and_then(|word| word.into_string().ok());
    let printed = next.as_deref().and_then(|word| word.parse().ok()).unwrap_or(0);
    QUIET.store(folder.join("print").exists(), Ordering::Relaxed);
    if next.is_some() {
        print_line(format!("{rank} restored"));
    }
    if env::var_os("RUSTBTL_SECRET").is_some() {
        print_line(format!("{rank} sees the secret"));
    }
    if env::var_os("RUSTBTL_GUARDIAN_FD").is_none() {
        print_line(format!("{rank} has no guardian"));
        return ExitCode::SUCCESS;
    }
    // SAFETY: the guardian made it for this program.
    let socket = unsafe { UnixStream::from_raw_fd(number("RUSTBTL_GUARDIAN_FD") as i32) };
    let finishing = false;
    match (Rank { rank, folder, socket, finishing, printed, suspended: false })
        .run(number("OMPI_COMM_WORLD_SIZE"))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(format!("{rank} failed: {error}"));
            ExitCode::from(3)
        }
    }
}
