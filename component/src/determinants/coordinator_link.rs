//! This process' own connection to the coordinator, on which what it records goes out and what is
//! stable comes back. The way by guardian and agents takes seven processes and threads, each of
//! which needs a processor that the ranks of the node keep busy; here the coordinator is the only
//! one, and the program polls for the answer itself while it waits in MPI.
//!
//! It is opened when the first determinant was sent by way of the guardian. Where a frame of the
//! set waits for what is recorded, it goes out at once. Otherwise, where frames piggyback it,
//! nobody is in a hurry, and on a full node each message to the coordinator takes a processor from
//! a rank: it is gathered until the answer has come and [`PACE_MS`] are over. If the connection
//! breaks, the checkpoint thread resends by way of the guardian. It is encrypted.
//!
//! What others have piggybacked to here is mostly sent without its content (`unstable_batches`):
//! with it where a frame waits, or a fence asks.

#[cfg(test)]
mod tests;

use crate::determinants::outbox::{DeterminantBatch, outbox};
use crate::determinants::piggyback::recorded;
use crate::determinants::set_order::{is_awaited, is_held, must_flush, set_stable};
use crate::determinants::unstable_batches::UnstableBatches;
use crate::os::now_ns;
use crate::sync::checkpoint_signals;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use rustbtl_coordination::control::{FrameBuffer, FromNode, Message, ToRank};
use rustbtl_coordination::handshake::{
    self, CHALLENGE, CLIENT, CONTROL, COORDINATOR, Names, Verdict, WELCOME,
};
use rustbtl_coordination::sealed_records::Session;
use rustbtl_coordination::session_keys::KeyAgreement;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long each address may take.
const PATIENCE: Duration = Duration::from_millis(250);
/// Descriptors of ours do not get in the way of programs that count on low numbers.
const FD_MIN: RawFd = 200;
/// What nobody waits for is sent to the log so often: each time takes a processor from a rank, on a
/// full node, for the coordinator and for the answer.
pub const PACE_MS: i32 = 100;
const PACE_NS: u64 = PACE_MS as u64 * 1_000_000;
/// After so long nobody counts on the answer any more.
const OVERDUE_NS: u64 = 1_000_000_000;
/// Bytes that are read at a time: an answer is shorter.
const READ_BYTES: usize = 512;

/// The connection, and what this process has recorded and does not know to be stable.
#[derive(Debug)]
pub struct CoordinatorLink {
    unstable: Mutex<Unstable>,
    /// Its descriptor; -1: it is not open.
    fd: AtomicI32,
    /// An answer is awaited on it.
    awaits_answer: AtomicBool,
    /// Something is recorded whose time has not come.
    has_unsent: AtomicBool,
    /// The checkpoint thread comes by itself before long.
    is_polled: AtomicBool,
    /// It has broken: what is not stable has to be sent again.
    is_broken: AtomicBool,
}

/// There is one in a process.
pub static COORDINATOR_LINK: CoordinatorLink = CoordinatorLink::new();

/// What the lock protects.
#[derive(Debug)]
struct Unstable {
    rank: PeerId,
    incarnation: Incarnation,
    stream: Option<Stream>,
    batches: UnstableBatches,
    /// What is recorded goes out at once: it is not piggybacked.
    send_immediately: bool,
    sent_ns: u64,
    /// So much was recorded then.
    flushed: u64,
}

/// Outcome of [`CoordinatorLink::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchSend {
    /// It was sent, or somebody will see to it.
    Sent,
    /// It will be, if somebody asks again when its time has come.
    Later,
    /// The link is not open: the guardian is the way.
    NotOpen,
}

struct Stream {
    socket: TcpStream,
    session: Session,
    incoming: FrameBuffer,
    /// Sealed.
    outgoing: Vec<u8>,
}

impl core::fmt::Debug for Stream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Stream").field(&self.socket).finish()
    }
}

impl CoordinatorLink {
    /// Not open, nothing recorded.
    pub const fn new() -> Self {
        Self {
            unstable: Mutex::new(Unstable {
                rank: PeerId(0),
                incarnation: Incarnation(0),
                stream: None,
                batches: UnstableBatches::new(),
                send_immediately: true,
                sent_ns: 0,
                flushed: 0,
            }),
            fd: AtomicI32::new(-1),
            awaits_answer: AtomicBool::new(false),
            has_unsent: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Unstable> {
        self.unstable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To poll, and to leave out of images.
    pub fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
    }

    /// Is an answer awaited on it?
    #[inline]
    pub fn awaits_answer(&self) -> bool {
        self.awaits_answer.load(Ordering::Relaxed)
    }

    /// Is something recorded whose time has not come?
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.has_unsent.load(Ordering::Relaxed)
    }

    /// Does the checkpoint thread come by itself before long?
    pub fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// The checkpoint thread says whether it will. False: it has to, something waits for its time.
    /// The lock orders this: who puts something there afterwards sees that nobody comes.
    pub fn set_polled(&self, polled: bool) -> bool {
        self.is_polled.store(polled, Ordering::Relaxed);
        let _unstable = self.lock();
        polled || !self.has_unsent()
    }

    /// Has it broken since this was asked last?
    pub fn has_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed) && self.is_broken.swap(false, Ordering::Relaxed)
    }

    /// A new incarnation begins, in which nothing was recorded yet. The descriptor of an earlier
    /// one is not here any more. `send_immediately`: what is recorded is not piggybacked.
    pub fn begin(&self, rank: PeerId, incarnation: Incarnation, send_immediately: bool) {
        let mut unstable = self.lock();
        unstable.send_immediately = send_immediately;
        // Maybe of another machine's clock.
        (unstable.sent_ns, unstable.flushed) = (0, 0);
        core::mem::forget(unstable.stream.take());
        unstable.batches.clear();
        (unstable.rank, unstable.incarnation) = (rank, incarnation);
        self.is_broken.store(false, Ordering::Relaxed);
        self.awaits_answer.store(false, Ordering::Relaxed);
        self.has_unsent.store(false, Ordering::Relaxed);
        self.fd.store(-1, Ordering::Relaxed);
    }

    /// Nothing is recorded any more.
    pub fn end(&self) {
        let mut unstable = self.lock();
        unstable.batches.clear();
        self.close(&mut unstable);
    }

    /// Open it. It does not matter if that fails: the guardian is the other way.
    pub fn open(&self, addresses: &str, secret: &[u8]) {
        let Ok(secret) = <&[u8; 32]>::try_from(secret) else { return };
        let rank = self.lock().rank;
        let addresses = addresses.split(' ').filter_map(|address| address.parse().ok());
        let stream = addresses.filter_map(|address| connect(address, secret, rank)).next();
        let Some(stream) = stream else { return };
        let mut unstable = self.lock();
        self.fd.store(stream.socket.as_raw_fd(), Ordering::Relaxed);
        unstable.stream = Some(stream);
        unstable.batches.another_coordinator();
    }

    /// Send what is recorded, at once (`now`) or when it is time.
    pub fn send(&self, now: bool) -> BatchSend {
        if self.fd.load(Ordering::Relaxed) < 0 {
            return BatchSend::NotOpen;
        }
        let mut unstable = self.lock();
        if unstable.stream.is_none() {
            return BatchSend::NotOpen;
        }
        if !now && !unstable.is_time() {
            // Nothing of nobody needs no time: the checkpoint thread would come for it, find that
            // it has just been here, and come again.
            if outbox().is_empty() {
                return BatchSend::Sent;
            }
            self.has_unsent.store(true, Ordering::Relaxed);
            // Who takes in the answer sees to it.
            return if unstable.batches.is_empty() { BatchSend::Later } else { BatchSend::Sent };
        }
        if self.flush(&mut unstable, now) { BatchSend::Sent } else { BatchSend::NotOpen }
    }

    /// What is recorded waits for an answer that should have come long ago: it goes all the same.
    /// The checkpoint thread comes for that as long as something waits.
    pub fn send_overdue(&self) {
        if !self.has_unsent() {
            return;
        }
        let mut unstable = self.lock();
        if now_ns().saturating_sub(unstable.sent_ns) >= OVERDUE_NS {
            self.flush(&mut unstable, true);
        }
    }

    /// It was sent by way of the guardian.
    pub fn sent_by_guardian(&self, batch: DeterminantBatch) {
        self.lock().batches.push(batch);
    }

    /// Everything that the coordinator may not have.
    pub fn unstable(&self) -> Vec<DeterminantBatch> {
        self.lock().batches.all()
    }

    /// The coordinator reports what is stable. False: of another incarnation.
    pub fn set_stable(&self, incarnation: Incarnation, upto: u64) -> bool {
        self.drop_stable(&mut self.lock(), incarnation, upto)
    }

    /// Take what has come.
    pub fn poll(&self) {
        let mut unstable = self.lock();
        loop {
            match unstable.next() {
                Ok(Some(ToRank::Stable { incarnation, upto })) => {
                    self.drop_stable(&mut unstable, incarnation, upto);
                    if unstable.batches.is_empty() {
                        // Nothing else is awaited.
                        break;
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(()) => return self.lose(&mut unstable),
            }
        }
        if self.has_unsent() && unstable.is_time() {
            self.flush(&mut unstable, is_held());
        }
    }

    fn drop_stable(&self, unstable: &mut Unstable, incarnation: Incarnation, upto: u64) -> bool {
        if incarnation != unstable.incarnation {
            return false;
        }
        unstable.batches.drop_stable(upto);
        let awaits = unstable.stream.is_some() && !unstable.batches.is_empty();
        self.awaits_answer.store(awaits, Ordering::Relaxed);
        set_stable(upto);
        true
    }

    /// `waits`: a frame does. False: it has broken.
    fn flush(&self, unstable: &mut Unstable, waits: bool) -> bool {
        if unstable.stream.is_none() {
            return false;
        }
        unstable.flushed = recorded();
        let contents = waits || unstable.send_immediately || is_awaited();
        let Unstable { rank, incarnation, batches, .. } = &mut *unstable;
        let text = batches.gather((*rank, *incarnation), is_awaited(), contents);
        self.has_unsent.store(batches.has_named(), Ordering::Relaxed);
        let Some(stream) = &mut unstable.stream else { return false };
        if !text.is_empty() {
            unstable.sent_ns = now_ns();
            stream.send(&text);
            self.awaits_answer.store(true, Ordering::Relaxed);
        }
        let sent = stream.flush();
        if sent.is_err() {
            self.lose(unstable);
        }
        sent.is_ok()
    }

    /// The checkpoint thread takes over.
    fn lose(&self, unstable: &mut Unstable) {
        self.close(unstable);
        self.is_broken.store(true, Ordering::Relaxed);
        checkpoint_signals::wake();
    }

    fn close(&self, unstable: &mut Unstable) {
        unstable.stream = None;
        self.fd.store(-1, Ordering::Relaxed);
        self.awaits_answer.store(false, Ordering::Relaxed);
        self.has_unsent.store(false, Ordering::Relaxed);
    }
}

impl Default for CoordinatorLink {
    fn default() -> Self {
        Self::new()
    }
}

impl Unstable {
    /// Has what is recorded to be sent now?
    fn is_time(&self) -> bool {
        if self.send_immediately {
            return self.batches.is_empty() || is_held();
        }
        let flushed = if self.batches.is_empty() { 0 } else { self.flushed };
        // What was only named may wait for another rank.
        let is_answered = self.batches.is_empty() || self.batches.has_named();
        must_flush(flushed) || is_answered && now_ns().saturating_sub(self.sent_ns) >= PACE_NS
    }

    fn next(&mut self) -> Result<Option<ToRank>, ()> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        stream.flush()?;
        loop {
            if let Some(message) = stream.incoming.next_message().map_err(drop)? {
                return Ok(Some(message));
            }
            let mut piece = [0; READ_BYTES];
            match stream.socket.read(&mut piece) {
                Ok(0) => return Err(()),
                Ok(bytes) => stream.take_in(&piece[..bytes])?,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted => {}
                    _ => return Err(()),
                },
            }
        }
    }
}

fn connect(address: SocketAddr, secret: &[u8; 32], rank: PeerId) -> Option<Stream> {
    let mut stream = high(TcpStream::connect_timeout(&address, PATIENCE).ok()?);
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let agreement = KeyAgreement::new(crate::os::random::bytes().ok()?);
    let nonce = agreement.nonce();
    let (version, from, to) = (CONTROL, CLIENT, COORDINATOR);
    let names = Names { version, from, to, incarnation: 0, generation: 0, nonce };
    let hello = names.encode();
    stream.write_all(&hello).ok()?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).ok()?;
    let theirs = handshake::check_challenge(secret, &names, &challenge).ok()?;
    stream.write_all(&handshake::proof(secret, &hello, &challenge)).ok()?;
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome).ok()?;
    let verdict = handshake::check_welcome(secret, &hello, &challenge, &welcome).ok()?;
    let Verdict::Accepted(_) = verdict else { return None };
    let keys = agreement.agree(&theirs.nonce, secret, &hello, &challenge)?;
    let session = Session::of_initiator(&keys);
    stream.set_nodelay(true).ok()?;
    let (incoming, outgoing) = (FrameBuffer::new(), Vec::new());
    let mut stream = Stream { socket: stream, session, incoming, outgoing };
    stream.send(&FromNode::DirectConnection { rank }.encode().ok()?);
    stream.flush().ok()?;
    stream.socket.set_nonblocking(true).ok()?;
    Some(stream)
}

/// The same socket under a higher number, if there is one.
fn high(stream: TcpStream) -> TcpStream {
    // SAFETY: an open descriptor, no memory.
    let fd = unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FD_MIN) };
    if fd < 0 {
        return stream;
    }
    // SAFETY: just made, owned by nobody else.
    TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Stream {
    /// As soon as it is flushed.
    fn send(&mut self, frame: &[u8]) {
        self.session.sealer.seal(frame, &mut self.outgoing);
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<(), ()> {
        let incoming = &mut self.incoming;
        self.session.opener.open(bytes, |text| incoming.add(text)).map_err(drop)
    }

    fn flush(&mut self) -> Result<(), ()> {
        while !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(bytes) => drop(self.outgoing.drain(..bytes)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(()),
                },
            }
        }
        Ok(())
    }
}
