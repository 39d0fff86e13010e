//! This process' way to its guardian: a socket whose number is in `RUSTBTL_GUARDIAN_FD`.
//!
//! Every method takes `&self`: the checkpoint thread reads, and any thread may send. Nothing is
//! locked while a caller waits for a message.

use crate::os::{OsError, errno};
use rustbtl_coordination::control::{
    ControlError, FrameBuffer, FromRank, HEADER_BYTES, Message, ToRank,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// The environment variable that holds the number of the descriptor.
pub const FD_VARIABLE: &str = "RUSTBTL_GUARDIAN_FD";

/// Why there is no talking to the guardian.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GuardianError {
    /// `RUSTBTL_GUARDIAN_FD` does not name a socket.
    #[error("{FD_VARIABLE}={0} does not name a socket of this process")]
    Variable(String),
    /// A system call failed.
    #[error("talking to the guardian: {0}")]
    Os(OsError),
    /// What it sent, or what was to be sent, is wrong.
    #[error("talking to the guardian: {0}")]
    Control(#[from] ControlError),
    /// It has gone: the job is ending.
    #[error("the guardian of this process has gone")]
    Gone,
}

/// The connection.
#[derive(Debug)]
pub struct Guardian {
    socket: OwnedFd,
    incoming: Mutex<FrameBuffer>,
    /// What came while nothing could be allocated; goes in front of what comes.
    early: Mutex<Vec<u8>>,
    /// Held for one whole frame, so that frames of two threads do not mix.
    outgoing: Mutex<()>,
}

const GONE: &str = "the guardian of this process has gone";
/// Is this frame among those that follow each other from here on?
fn has_frame(bytes: &[u8], frame: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(length) = rest.first_chunk() {
        let end = HEADER_BYTES + u32::from_le_bytes(*length) as usize;
        if rest.get(..end) == Some(frame) {
            return true;
        }
        let Some(next) = rest.get(end..) else { return false };
        rest = next;
    }
    false
}

/// Most bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// Room for what comes in [`Guardian::exchange`] besides the answer.
const EARLY_BYTES: usize = 256 << 10;

impl Guardian {
    /// The guardian that started this process; `None`: nobody guards it.
    ///
    /// # Errors
    /// The variable is there but does not name a socket.
    pub fn from_environment() -> Result<Option<Self>, GuardianError> {
        let Some(value) = std::env::var_os(FD_VARIABLE) else { return Ok(None) };
        let value = value.to_string_lossy().into_owned();
        let fd = value.parse::<RawFd>().ok().filter(|&fd| fd > 2 && is_socket(fd));
        let Some(fd) = fd else { return Err(GuardianError::Variable(value)) };
        // SAFETY: an open descriptor that the guardian made for this component alone.
        unsafe { Self::adopt(fd) }.map(Some)
    }

    /// A restored process gets a new socket from whoever restored it.
    ///
    /// # Errors
    /// The descriptor cannot be used.
    ///
    /// # Safety
    /// `fd` is open and belongs to nobody else.
    pub unsafe fn adopt(fd: RawFd) -> Result<Self, GuardianError> {
        // SAFETY: the caller's promise.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // Programs that this one starts are not ranks.
        // SAFETY: an open descriptor, no pointers.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(GuardianError::Os(OsError::last("fcntl", format!("descriptor {fd}"))));
        }
        let early = Mutex::new(Vec::with_capacity(EARLY_BYTES));
        Ok(Self { socket, incoming: Mutex::default(), early, outgoing: Mutex::new(()) })
    }

    /// In a restored process, after [`Self::await_in_restored`]: the socket under the same number
    /// is another one.
    pub fn renew(&self) {
        *self.incoming.lock().unwrap_or_else(PoisonError::into_inner) = FrameBuffer::new();
    }

    /// Short messages can be received without allocating from now on.
    pub fn prepare(&self) {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner).reserve(READ_BYTES);
    }

    /// To poll: readable when [`Self::receive`] has something to do.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Send a message; waits for room, however long it is.
    ///
    /// # Errors
    /// [`GuardianError::Gone`], and what is wrong with the message.
    pub fn send(&self, message: &FromRank) -> Result<(), GuardianError> {
        self.send_frame(&message.encode()?)
    }

    /// Send a message that is encoded already; allocates nothing.
    ///
    /// # Errors
    /// [`GuardianError::Gone`].
    pub fn send_frame(&self, frame: &[u8]) -> Result<(), GuardianError> {
        let _whole = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = frame;
        while !rest.is_empty() {
            // SAFETY: `rest` is readable for its length.
            let put = unsafe {
                libc::send(self.fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL)
            };
            match put {
                0.. => rest = &rest[put as usize..],
                _ => match errno() {
                    libc::EINTR => {}
                    libc::EAGAIN => self.poll(libc::POLLOUT, -1)?,
                    libc::EPIPE | libc::ECONNRESET => return Err(self.gone()),
                    _ => return Err(self.error("send")),
                },
            }
        }
        Ok(())
    }

    /// Send an encoded message and wait until the encoded `answer` has come, without allocating:
    /// a thread that is suspended may hold the allocator's lock. What else comes is kept.
    ///
    /// # Errors
    /// What is wrong, for the user.
    pub fn exchange(&self, frame: &[u8], answer: &[u8]) -> Result<(), &'static str> {
        self.send_frame(frame).map_err(|_| GONE)?;
        // What comes may begin in the middle of a frame, but the answer tells its checkpoint.
        self.await_frame(|early| early.windows(answer.len()).any(|bytes| bytes == answer))
    }

    /// In a restored process, the first thing that is done with the socket: wait until this encoded
    /// message has come, without allocating. What else comes is kept.
    ///
    /// # Errors
    /// What is wrong, for the user.
    pub fn await_in_restored(&self, frame: &[u8]) -> Result<(), &'static str> {
        // Of the process that was frozen.
        self.early.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.await_frame(|early| has_frame(early, frame))
    }

    /// Until `is_there` is true of all that has come.
    fn await_frame(&self, is_there: impl Fn(&[u8]) -> bool) -> Result<(), &'static str> {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        let mut piece = [0u8; READ_BYTES];
        let begin = early.len();
        loop {
            let room = (early.capacity() - early.len()).min(piece.len());
            if room == 0 {
                return Err("the guardian of this process says too much");
            }
            // SAFETY: `piece` is writable for so many bytes.
            let got = unsafe {
                libc::recv(self.fd(), piece.as_mut_ptr().cast(), room, libc::MSG_DONTWAIT)
            };
            match got {
                1.. => early.extend_from_slice(&piece[..got as usize]),
                0 => return Err(GONE),
                _ if errno() == libc::EAGAIN => {
                    self.poll(libc::POLLIN, -1).map_err(|_| "poll failed")?;
                }
                _ if errno() == libc::EINTR => {}
                _ => return Err(GONE),
            }
            if is_there(&early[begin..]) {
                return Ok(());
            }
        }
    }

    /// The next message, if a whole one is there. Never waits.
    ///
    /// # Errors
    /// [`GuardianError::Gone`] once everything that came before is given out; what is wrong with
    /// what came.
    pub fn receive(&self) -> Result<Option<ToRank>, GuardianError> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        if !early.is_empty() {
            incoming.add(&early);
            early.clear();
        }
        drop(early);
        let mut piece = [0u8; READ_BYTES];
        loop {
            if let Some(message) = incoming.next_message()? {
                return Ok(Some(message));
            }
            // SAFETY: `piece` is writable for its length.
            let got = unsafe {
                let flags = libc::MSG_DONTWAIT;
                libc::recv(self.fd(), piece.as_mut_ptr().cast(), piece.len(), flags)
            };
            match got {
                1.. => incoming.add(&piece[..got as usize]),
                0 => return Err(self.gone()),
                _ => match errno() {
                    libc::EAGAIN => return Ok(None),
                    libc::EINTR => {}
                    libc::ECONNRESET => return Err(self.gone()),
                    _ => return Err(self.error("recv")),
                },
            }
        }
    }

    /// The next message, waiting for it at most `milliseconds` (-1: for ever).
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub fn wait(&self, milliseconds: i32) -> Result<Option<ToRank>, GuardianError> {
        let now = self.receive()?;
        if now.is_some() || milliseconds == 0 {
            return Ok(now);
        }
        self.poll(libc::POLLIN, milliseconds)?;
        self.receive()
    }

    fn poll(&self, events: i16, milliseconds: i32) -> Result<(), GuardianError> {
        let mut on = libc::pollfd { fd: self.fd(), events, revents: 0 };
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&mut on, 1, milliseconds) };
        if ready < 0 && errno() != libc::EINTR {
            return Err(self.error("poll"));
        }
        Ok(())
    }

    /// It has closed the connection. If that is because it is ending, this process ends now: the
    /// kernel kills it for that anyway, but later (a process closes what it has open before its
    /// children notice its end). In between nothing of the rank may go on without protection:
    /// what waits for its determinants to be stable would leave, others would have messages that
    /// the rank's next incarnation does not know of.
    fn gone(&self) -> GuardianError {
        if other_end(self.fd()).is_some_and(is_ending) {
            // SAFETY: no arguments, no failure.
            let own = unsafe { libc::getpid() };
            // SAFETY: no pointers.
            unsafe { libc::kill(own, libc::SIGKILL) };
        }
        GuardianError::Gone
    }

    fn error(&self, call: &'static str) -> GuardianError {
        GuardianError::Os(OsError::last(call, format!("descriptor {}", self.fd())))
    }
}

/// The process that has made the socket, as seen from here.
fn other_end(fd: RawFd) -> Option<libc::pid_t> {
    // SAFETY: all-zero is valid.
    let mut who: libc::ucred = unsafe { core::mem::zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (at, size_at) = ((&raw mut who).cast(), &raw mut size);
    // SAFETY: room for the credentials and their size.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, size_at) };
    (got == 0 && who.pid > 0).then_some(who.pid)
}

/// Has the process ended, or begun to?
fn is_ending(pid: libc::pid_t) -> bool {
    /// Of include/linux/sched.h; part of what /proc/PID/stat shows (proc_pid_stat(5)).
    const PF_EXITING: u64 = 4;
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else {
        return std::path::Path::new("/proc/self/stat").exists();
    };
    // The name, in parentheses, may be anything; behind it state, five numbers, and flags.
    let behind = stat.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 1);
    let text = String::from_utf8_lossy(&stat[behind..]);
    let mut words = text.split_ascii_whitespace();
    let state = words.next().unwrap_or_default();
    let flags = words.nth(5).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, "Z" | "X" | "x") || flags & PF_EXITING != 0
}

fn is_socket(fd: RawFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let (at, size_at) = ((&raw mut kind).cast(), &raw mut size);
    // SAFETY: room for an int and its size.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, at, size_at) };
    got == 0 && kind == libc::SOCK_STREAM
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::control::CheckpointId;
    use std::io::{Read, Write};
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    #[test]
    fn a_process_that_ends_is_told_from_one_that_lives() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = std::process::id() as libc::pid_t;
        assert_eq!(other_end(one.as_raw_fd()), Some(own));
        assert!(!is_ending(own));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        assert!(!is_ending(pid));
        child.kill().unwrap();
        // Not waited for: it stays a zombie.
        while !is_ending(pid) {
            thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_ending(pid), "there is none");
    }

    fn pair() -> (Guardian, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // SAFETY: just made, given away.
        (unsafe { Guardian::adopt(ours.into_raw_fd()) }.unwrap(), theirs)
    }

    #[test]
    fn a_frame_is_not_found_in_the_body_of_another_one() {
        let frame = ToRank::AllRestored {}.encode().unwrap();
        let mut other = (frame.len() as u32).to_le_bytes().to_vec();
        other.extend_from_slice(&[0; 4]);
        other.extend_from_slice(&frame);
        assert!(!has_frame(&other, &frame));
        other.extend_from_slice(&frame[..5]);
        assert!(!has_frame(&other, &frame), "not all of it is there");
        other.extend_from_slice(&frame[5..]);
        assert!(has_frame(&other, &frame));
    }

    #[test]
    fn messages_come_out_as_they_arrive_and_the_end_comes_last() {
        let (guardian, mut theirs) = pair();
        assert_eq!(guardian.receive(), Ok(None));
        let frame = ToRank::Resume { checkpoint: CheckpointId(4) }.encode().unwrap();
        let (first, rest) = frame.split_at(5);
        theirs.write_all(first).unwrap();
        assert_eq!(guardian.wait(10), Ok(None));
        theirs.write_all(rest).unwrap();
        theirs.write_all(&ToRank::MayFinish {}.encode().unwrap()).unwrap();
        drop(theirs);
        assert_eq!(guardian.wait(1000), Ok(Some(ToRank::Resume { checkpoint: CheckpointId(4) })));
        assert_eq!(guardian.receive(), Ok(Some(ToRank::MayFinish {})));
        assert_eq!(guardian.receive(), Err(GuardianError::Gone));
        assert_eq!(guardian.send(&FromRank::Ready {}), Err(GuardianError::Gone));
    }

    #[test]
    fn what_comes_before_and_behind_an_answer_is_kept() {
        let (guardian, mut theirs) = pair();
        let id = CheckpointId(4);
        let [resume, drained, trim] = [
            ToRank::Resume { checkpoint: id },
            ToRank::OutputDrained { checkpoint: id },
            ToRank::Trim { checkpoint: id },
        ];
        let all = [&resume, &drained, &trim].map(|message| message.encode().unwrap());
        theirs.write_all(&all.concat()[..5]).unwrap();
        assert_eq!(guardian.receive(), Ok(None));
        let suspended = FromRank::Suspended { checkpoint: id }.encode().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| guardian.exchange(&suspended, &all[1]).unwrap());
            let mut asked = vec![0; suspended.len()];
            theirs.read_exact(&mut asked).unwrap();
            assert_eq!(asked, suspended);
            theirs.write_all(&all.concat()[5..]).unwrap();
        });
        for message in [resume, drained, trim] {
            assert_eq!(guardian.wait(1000), Ok(Some(message)));
        }
        drop(theirs);
        assert!(guardian.exchange(&suspended, &all[1]).is_err());
    }

    #[test]
    fn frames_of_two_threads_do_not_mix() {
        let (guardian, mut theirs) = pair();
        let big = |id| FromRank::CheckpointFailed {
            checkpoint: CheckpointId(id),
            reason: "x".repeat(300_000),
        };
        let read = thread::scope(|scope| {
            let senders = [1, 2].map(|n| {
                let (guardian, big) = (&guardian, &big);
                scope.spawn(move || {
                    for _ in 0..5 {
                        guardian.send(&big(n)).unwrap();
                    }
                })
            });
            let reader = scope.spawn(|| {
                let mut all = vec![0; big(1).encode().unwrap().len() * 10];
                theirs.read_exact(&mut all).unwrap();
                all
            });
            senders.into_iter().for_each(|s| s.join().unwrap());
            reader.join().unwrap()
        });
        let mut buffer = FrameBuffer::new();
        buffer.add(&read);
        let mut seen = 0;
        while let Some(message) = buffer.next_message::<FromRank>().unwrap() {
            assert!(message == big(1) || message == big(2));
            seen += 1;
        }
        assert_eq!(seen, 10);
    }

    #[test]
    fn garbage_from_the_other_end_is_an_error() {
        let (guardian, mut theirs) = pair();
        theirs.write_all(&[0, 0, 0, 0, 99, 2, 1, 0]).unwrap();
        let version = GuardianError::Control(ControlError::Version(99));
        assert_eq!(guardian.receive(), Err(version));
    }
}
