//! This process' own connection to the coordinator, on which what it records goes out and what is
//! stable comes back. The way by guardian and agents takes seven processes and threads, each of
//! which needs a processor that the ranks of the node keep busy; here the coordinator is the only
//! one, and the program looks for the answer itself while it waits in MPI.
//!
//! It is opened when the first determinant was shipped the long way. Where a frame of the set waits
//! for what is recorded, it goes out at once. Otherwise, where frames take it along, nobody is in a
//! hurry, and on a full node each message to the coordinator takes a processor from a rank: it is
//! gathered until the answer has come and [`PACE_MS`] are over. If the connection breaks, the
//! checkpoint thread ships again the long way.

use crate::determinants::outbox::{Parcel, take_parcel};
use crate::determinants::set_order::{is_held, presses, set_stable};
use crate::os::now_ns;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use rustbtl_coordination::control::{FrameBuffer, FromNode, FromRank, Message, ToRank};
use rustbtl_coordination::handshake::{
    self, CHALLENGE, CLIENT, CONTROL, COORDINATOR, Names, Verdict, WELCOME,
};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long each address may take.
const PATIENCE: Duration = Duration::from_millis(250);
/// Descriptors of ours do not get in the way of programs that count on low numbers.
const FD_MIN: RawFd = 200;
/// What nobody waits for is shipped so often.
pub const PACE_MS: i32 = 2;
const PACE_NS: u64 = PACE_MS as u64 * 1_000_000;
/// Bytes that are read at a time.
const READ_BYTES: usize = 4096;

/// What this process has recorded and does not know to be stable.
#[derive(Debug)]
struct Way {
    rank: PeerId,
    incarnation: Incarnation,
    link: Option<Link>,
    unstable: VecDeque<Parcel>,
    /// What is recorded goes out at once: frames do not take it along.
    hurries: bool,
    shipped_ns: u64,
}

/// Outcome of [`send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It was shipped, or somebody will see to it.
    Shipped,
    /// It will be, if somebody asks again when its time has come.
    Later,
    /// This is not the way.
    NotHere,
}

#[derive(Debug)]
struct Link {
    stream: TcpStream,
    incoming: FrameBuffer,
    outgoing: Vec<u8>,
}

static WAY: Mutex<Way> = Mutex::new(Way {
    rank: PeerId(0),
    incarnation: Incarnation(0),
    link: None,
    unstable: VecDeque::new(),
    hurries: true,
    shipped_ns: 0,
});
/// Its descriptor; -1: it is not open.
static FD: AtomicI32 = AtomicI32::new(-1);
/// An answer is awaited on it.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Something is recorded whose time has not come.
static GATHERS: AtomicBool = AtomicBool::new(false);
/// The checkpoint thread comes by itself before long.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// It has broken: what is not stable has to be shipped again.
static BROKEN: AtomicBool = AtomicBool::new(false);

fn way() -> MutexGuard<'static, Way> {
    WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To poll and to leave out of pictures.
pub fn descriptor() -> Option<RawFd> {
    Some(FD.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
}

/// Is an answer awaited on it?
#[inline]
pub fn waits() -> bool {
    WAITS.load(Ordering::Relaxed)
}

/// Is something recorded whose time has not come?
#[inline]
pub fn gathers() -> bool {
    GATHERS.load(Ordering::Relaxed)
}

/// Does the checkpoint thread come by itself before long?
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// The checkpoint thread says whether it will. False: it has to, something waits for its time.
/// The lock orders this: who puts something there afterwards sees that nobody comes.
pub fn watch(watched: bool) -> bool {
    WATCHED.store(watched, Ordering::Relaxed);
    let _way = way();
    watched || !gathers()
}

/// Has it broken since this was asked last?
pub fn has_broken() -> bool {
    BROKEN.load(Ordering::Relaxed) && BROKEN.swap(false, Ordering::Relaxed)
}

/// A new life begins, in which nothing was recorded yet. The descriptor of an earlier one is not
/// here any more.
/// `hurries`: frames do not take along what is recorded.
pub fn begin(rank: PeerId, incarnation: Incarnation, hurries: bool) {
    let mut way = way();
    way.hurries = hurries;
    // Maybe of another machine's clock.
    way.shipped_ns = 0;
    core::mem::forget(way.link.take());
    way.unstable.clear();
    (way.rank, way.incarnation) = (rank, incarnation);
    BROKEN.store(false, Ordering::Relaxed);
    WAITS.store(false, Ordering::Relaxed);
    GATHERS.store(false, Ordering::Relaxed);
    FD.store(-1, Ordering::Relaxed);
}

/// Nothing is recorded any more.
pub fn end() {
    let mut way = way();
    way.unstable.clear();
    way.close();
}

/// Open it. It does not matter if that fails: there is the long way.
pub fn open(addresses: &str, secret: &[u8]) {
    let Ok(secret) = <&[u8; 32]>::try_from(secret) else { return };
    let rank = way().rank;
    let addresses = addresses.split(' ').filter_map(|address| address.parse().ok());
    let stream = addresses.filter_map(|address| connect(address, secret, rank)).next();
    let Some(stream) = stream else { return };
    let mut way = way();
    FD.store(stream.as_raw_fd(), Ordering::Relaxed);
    way.link = Some(Link { stream, incoming: FrameBuffer::new(), outgoing: Vec::new() });
}

fn connect(address: SocketAddr, secret: &[u8; 32], rank: PeerId) -> Option<TcpStream> {
    let mut stream = high(TcpStream::connect_timeout(&address, PATIENCE).ok()?);
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let nonce = crate::os::random::bytes().ok()?;
    let (version, from, to) = (CONTROL, CLIENT, COORDINATOR);
    let names = Names { version, from, to, incarnation: 0, generation: 0, nonce };
    let hello = names.encode();
    stream.write_all(&hello).ok()?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).ok()?;
    handshake::check_challenge(secret, &names, &challenge).ok()?;
    stream.write_all(&handshake::proof(secret, &hello, &challenge)).ok()?;
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome).ok()?;
    let verdict = handshake::check_welcome(secret, &hello, &challenge, &welcome).ok()?;
    stream.write_all(&FromNode::Direct { rank }.encode().ok()?).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_nonblocking(true).ok()?;
    matches!(verdict, Verdict::Accepted(_)).then_some(stream)
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

/// Ship what is recorded, at once (`now`) or when it is time.
pub fn send(now: bool) -> Sent {
    if FD.load(Ordering::Relaxed) < 0 {
        return Sent::NotHere;
    }
    let mut way = way();
    if way.link.is_none() {
        return Sent::NotHere;
    }
    if !now && !way.is_time() {
        GATHERS.store(true, Ordering::Relaxed);
        // Who takes in the answer sees to it.
        return if way.unstable.is_empty() { Sent::Later } else { Sent::Shipped };
    }
    if way.ship(now) { Sent::Shipped } else { Sent::NotHere }
}

/// It was shipped the long way.
pub fn shipped(parcel: Parcel) {
    way().unstable.push_back(parcel);
}

/// Everything that the coordinator may not have.
pub fn unstable() -> Vec<Parcel> {
    way().unstable.iter().cloned().collect()
}

/// The coordinator says what is stable. False: it speaks of another life.
pub fn stable(incarnation: Incarnation, upto: u64) -> bool {
    way().stable(incarnation, upto)
}

/// Take what has come.
pub fn look() {
    let mut way = way();
    loop {
        match way.next() {
            Ok(Some(ToRank::Stable { incarnation, upto })) => {
                way.stable(incarnation, upto);
                if way.unstable.is_empty() {
                    // Nothing else is awaited.
                    break;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(()) => return way.lose(),
        }
    }
    if gathers() && way.is_time() {
        way.ship(is_held());
    }
}

impl Way {
    fn stable(&mut self, incarnation: Incarnation, upto: u64) -> bool {
        if incarnation != self.incarnation {
            return false;
        }
        self.unstable.retain(|parcel| parcel.last_at() >= upto);
        WAITS.store(self.link.is_some() && !self.unstable.is_empty(), Ordering::Relaxed);
        set_stable(upto);
        true
    }

    /// Has what is recorded to be shipped now?
    fn is_time(&self) -> bool {
        if self.hurries {
            return self.unstable.is_empty() || is_held();
        }
        presses() || self.unstable.is_empty() && now_ns().saturating_sub(self.shipped_ns) >= PACE_NS
    }

    /// `waits`: a frame does. False: it has broken.
    fn ship(&mut self, mut waits: bool) -> bool {
        let Some(link) = &mut self.link else { return false };
        GATHERS.store(false, Ordering::Relaxed);
        self.shipped_ns = now_ns();
        let rank = self.rank;
        while let Some(parcel) = take_parcel() {
            let message = parcel.message(self.incarnation);
            self.unstable.push_back(parcel);
            let first = core::mem::take(&mut waits).then_some(FromRank::Waits {});
            for message in first.into_iter().chain([message]) {
                let frame = FromNode::Rank { rank, message }.encode();
                // Not in silence: what is lost here would be waited for for ever.
                link.outgoing.extend_from_slice(&frame.expect("parcels are short"));
            }
            WAITS.store(true, Ordering::Relaxed);
        }
        let sent = link.flush();
        if sent.is_err() {
            self.lose();
        }
        sent.is_ok()
    }

    fn next(&mut self) -> Result<Option<ToRank>, ()> {
        let Some(link) = &mut self.link else { return Ok(None) };
        link.flush()?;
        loop {
            if let Some(message) = link.incoming.next_message().map_err(drop)? {
                return Ok(Some(message));
            }
            let mut piece = [0; READ_BYTES];
            match link.stream.read(&mut piece) {
                Ok(0) => return Err(()),
                Ok(bytes) => link.incoming.add(&piece[..bytes]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted => {}
                    _ => return Err(()),
                },
            }
        }
    }

    /// The checkpoint thread takes over.
    fn lose(&mut self) {
        self.close();
        BROKEN.store(true, Ordering::Relaxed);
        crate::sync::checkpoint_signals::wake();
    }

    fn close(&mut self) {
        self.link = None;
        FD.store(-1, Ordering::Relaxed);
        WAITS.store(false, Ordering::Relaxed);
        GATHERS.store(false, Ordering::Relaxed);
    }
}

impl Link {
    fn flush(&mut self) -> Result<(), ()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::determinants::outbox::outbox;
    use crate::determinants::set_order::COUNTS;
    use crate::transports::set_memory::Counts;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    const SECRET: [u8; 32] = [7; 32];

    /// The coordinator's end: whoever proves itself gets `Stable` for what it ships, `answers`
    /// times.
    fn coordinator(listener: &TcpListener, answers: u64) -> Vec<u64> {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; handshake::HELLO];
        stream.read_exact(&mut hello).unwrap();
        let names = Names::decode(&hello, CONTROL).unwrap();
        let mine = Names { from: COORDINATOR, to: names.from, nonce: [1; 32], ..names };
        let challenge = handshake::challenge(&SECRET, &hello, &mine);
        stream.write_all(&challenge).unwrap();
        let mut proof = [0; handshake::PROOF];
        if stream.read_exact(&mut proof).is_err() {
            return Vec::new();
        }
        handshake::check_proof(&SECRET, &hello, &challenge, &proof).unwrap();
        let verdict = Verdict::Accepted(0);
        stream.write_all(&handshake::welcome(&SECRET, &hello, &challenge, verdict)).unwrap();
        let (mut incoming, mut from_numbers) = (FrameBuffer::new(), Vec::new());
        while (from_numbers.len() as u64) < answers {
            let mut piece = [0; 1000];
            let bytes = stream.read(&mut piece).unwrap();
            incoming.add(&piece[..bytes]);
            while let Some(message) = incoming.next_message::<FromNode>().unwrap() {
                let FromNode::Rank { message: FromRank::Determinants { from, .. }, .. } = message
                else {
                    assert_eq!(message, FromNode::Direct { rank: PeerId(5) });
                    continue;
                };
                from_numbers.push(from);
                let incarnation = Incarnation(2);
                let answer = ToRank::Stable { incarnation, upto: from + 1 }.encode().unwrap();
                stream.write_all(&answer).unwrap();
            }
        }
        from_numbers
    }

    fn record(number: u64) {
        let bytes = vec![9; 3];
        outbox().push_back(Parcel::Own { from: number, last_at: number, bytes });
    }

    fn until(done: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() && Instant::now() < end {
            look();
            thread::yield_now();
        }
        assert!(done());
    }

    /// One test: there is one connection in a process.
    #[test]
    fn determinants_go_out_one_at_a_time_and_again_when_the_connection_breaks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let there = thread::spawn(move || {
            assert!(coordinator(&listener, 9).is_empty(), "who does not know the secret");
            coordinator(&listener, 3)
        });
        begin(PeerId(5), Incarnation(2), true);
        assert!(send(true) == Sent::NotHere && descriptor().is_none());
        open(&format!("nonsense {address}"), &[8; 32]);
        assert!(descriptor().is_none(), "the coordinator does not prove itself");
        open(&address.to_string(), &SECRET);
        assert!(descriptor().is_some_and(|fd| fd >= FD_MIN));

        record(0);
        assert!(send(false) == Sent::Shipped && waits());
        record(1);
        assert_eq!(send(false), Sent::Shipped);
        until(|| !unstable().is_empty() && unstable()[0].last_at() == 1);
        until(|| !waits());
        record(2);
        assert!(send(false) == Sent::Shipped && !stable(Incarnation(1), 99), "of another life");
        assert_eq!(unstable().len(), 1);
        assert_eq!(there.join().unwrap(), [0, 1, 2]);
        // It closes the connection behind its last answer.
        until(|| descriptor().is_none());
        assert!(has_broken() && !has_broken());
        record(3);
        assert_eq!(send(true), Sent::NotHere);
        shipped(take_parcel().unwrap());
        assert_eq!(unstable().last().map(Parcel::last_at), Some(3));
        end();
        assert!(unstable().is_empty());
        what_nobody_waits_for_is_gathered();
    }

    /// Its time never comes here, so that a slow machine changes nothing.
    fn what_nobody_waits_for_is_gathered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let there = thread::spawn(move || coordinator(&listener, 2));
        let counts: &'static Counts = Box::leak(Box::default());
        COUNTS.store(core::ptr::from_ref(counts).cast_mut(), Ordering::Release);
        begin(PeerId(5), Incarnation(2), false);
        open(&address.to_string(), &SECRET);
        record(0);
        assert_eq!(send(false), Sent::Shipped, "the first");
        until(|| !waits());
        way().shipped_ns = u64::MAX;
        record(1);
        assert_eq!(send(false), Sent::Later);
        look();
        assert!(gathers() && !waits());
        assert!(watch(true) && is_watched());
        assert!(!watch(false) && !is_watched(), "it has to come");
        counts.wanted.store(2, Ordering::Relaxed);
        assert_eq!(send(false), Sent::Shipped, "a frame waits");
        until(|| !waits());
        assert!(watch(false) && !gathers());
        assert_eq!(there.join().unwrap(), [0, 1]);
        COUNTS.store(core::ptr::null_mut(), Ordering::Release);
        end();
    }
}
