//! The BTL of a process, as several threads may use it: a lock around the state, one thread at a
//! time that makes progress, and Open MPI's callbacks, which come back with new messages.
//!
//! Without MPI_THREAD_MULTIPLE there is no lock: MPI forbids two calls at a time. A callback may
//! send and may call progress again, which then does nothing.

use crate::btl::frame::Way;
use crate::btl::outbox::{Cookie, Message};
use crate::btl::state::{Arrived, News, Outcome, State};
use crate::ffi::table::Name;
use crate::os::process;
use crate::sync::lock::Lock;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_fragments::ids::PeerId;
use std::sync::atomic::AtomicI32;

/// Messages that a round of progress hands out of each transport, at most.
const BURST: u32 = 32;

/// What Open MPI is told.
pub trait Above {
    /// A message has arrived.
    fn arrived(&self, message: &Arrived);
    /// A message that waited is over.
    fn over(&self, cookie: Cookie, accepted: bool);
    /// A process is not reached any more. May end the job.
    fn lost(&self, name: Name, reason: &str);
    /// For the user.
    fn notice(&self, text: &str);
}

/// See the module's documentation.
pub struct Core {
    threads: bool,
    lock: Lock,
    in_progress: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: the state is only touched by `with`: under the lock, or by the one thread that may be in
// MPI. The pointers in it are of memory that any thread may read.
unsafe impl Sync for Core {}
// SAFETY: the same.
unsafe impl Send for Core {}

impl Core {
    /// `threads`: more than one may be in MPI at a time.
    pub fn new(state: State, threads: bool) -> Self {
        let state = UnsafeCell::new(state);
        Self { threads, lock: Lock::new(), in_progress: AtomicBool::new(false), state }
    }

    /// Use the state. `what` does not call Open MPI.
    #[inline(always)]
    pub fn with<R>(&self, what: impl FnOnce(&mut State) -> R) -> R {
        if self.threads {
            self.lock.lock();
        }
        // SAFETY: the lock is held, or there is one thread; `what` does not come back here.
        let result = what(unsafe { &mut *self.state.get() });
        if self.threads {
            self.lock.unlock();
        }
        result
    }

    /// See [`State::send`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn send(&self, way: Way, to: PeerId, message: Message, cookie: Cookie) -> Outcome {
        // SAFETY: the caller's promise.
        self.with(|state| unsafe { state.send(way, to, message, cookie) })
    }

    #[inline]
    fn begin_progress(&self) -> bool {
        if self.threads {
            // [progress] what the last one left.
            return !self.in_progress.swap(true, Ordering::Acquire);
        }
        let free = !self.in_progress.load(Ordering::Relaxed);
        self.in_progress.store(true, Ordering::Relaxed);
        free
    }

    /// Move things on; how many things happened.
    pub fn progress(&self, above: &impl Above) -> u32 {
        if !self.begin_progress() {
            return 0;
        }
        let network = self.with(State::begin_round);
        let mut happened = self.hand_out(above, State::peek_node, State::peek_node_again);
        if network {
            happened += self.hand_out(above, State::peek_network, State::peek_network);
        }
        if !self.with(|state| state.is_idle()) {
            self.with(State::send_waiting);
            while let Some((cookie, accepted)) = self.with(State::next_over) {
                if cookie != 0 {
                    above.over(cookie, accepted);
                }
                happened += 1;
            }
        }
        while self.with(|state| state.news_is_due(network))
            && let Some(news) = self.with(|state| state.next_news(network))
        {
            match news {
                News::Lost(name, reason) => above.lost(name, &reason),
                News::Notice(text) => above.notice(&text),
            }
        }
        // [progress] for the next one.
        self.in_progress.store(false, Ordering::Release);
        happened
    }

    #[inline(always)]
    fn hand_out(
        &self,
        above: &impl Above,
        first: impl FnOnce(&mut State) -> Option<Arrived>,
        further: impl Fn(&mut State) -> Option<Arrived>,
    ) -> u32 {
        let mut next = self.with(first);
        let mut count = 0;
        while let Some(arrived) = next {
            above.arrived(&arrived);
            self.with(|state| state.consume(arrived));
            count += 1;
            next = if count < BURST { self.with(&further) } else { None };
        }
        count
    }
}

/// A rank of this node whose memory may be accessed: which process it is, once that is known.
#[derive(Debug, Default)]
pub struct Access(AtomicI32);

/// Not tried yet.
const UNKNOWN: i32 = 0;
/// The kernel does not permit it.
const REFUSED: i32 = -1;

impl Access {
    fn process(&self, core: &Core, peer: PeerId) -> Option<i32> {
        let known = self.0.load(Ordering::Relaxed);
        if known != UNKNOWN {
            return (known != REFUSED).then_some(known);
        }
        let found = core.with(|state| state.accessible(peer))?;
        self.0.store(found.unwrap_or(REFUSED), Ordering::Relaxed);
        found.ok()
    }

    /// Read memory of the peer. False: it cannot be had.
    ///
    /// # Safety
    /// `into` is writable for `len` bytes, and nobody else uses them.
    pub unsafe fn read(
        &self,
        core: &Core,
        peer: PeerId,
        from: u64,
        into: *mut u8,
        len: usize,
    ) -> bool {
        let Some(pid) = self.process(core, peer) else { return false };
        // SAFETY: the caller's promise.
        unsafe { process::read_memory(pid, from, into, len) }.is_ok()
    }

    /// Write memory of the peer. False: it cannot be had.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub unsafe fn write(
        &self,
        core: &Core,
        peer: PeerId,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        let Some(pid) = self.process(core, peer) else { return false };
        // SAFETY: the caller's promise.
        unsafe { process::write_memory(pid, to, from, len) }.is_ok()
    }
}
