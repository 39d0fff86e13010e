//! Answers for a program that computes.
//!
//! A long message to another node is announced, and sent when its receiver asks for it. When it is
//! in the payload log and nobody has asked, the program's send need not wait for that; but the
//! program may compute for long before it is in MPI again, and the receiver would wait all that
//! time. The same is true of a short one for which there was no connection, or no room. So there is
//! a thread that sleeps on the sockets while sends are *late* (complete for the program, not sent),
//! and polls in the program's place when it does not poll itself (`pace.rs` has when). Stock Open
//! MPI has the sender wait; so do we, for a moment, where no processor is idle
//! (`engine/detached_sends.rs`).
//!
//! Operations of other ranks on the program's windows wait for it, too: it is awake while there
//! are windows that may be locked (docs/adr/0037).
//!
//! Where the system gives no such thread, a long send is complete when its payload has gone.
//! Source: docs/adr/0015.
//!
//! Invariants:
//! * T1 While the thread sleeps for good, no send is late, or the one who makes it late wakes it:
//!   at once, or where a blocking call returns that polls until then.
//! * T2 It touches the process only where the program is kept out (`Shared::take`), and notifies no
//!   one of complete operations but where MPI allows calls from all threads.

use crate::engine::detached_sends::{
    ASLEEP, DETACHED, DETACHES, OVER, PATIENCE_NS, POLLS, lacks_room,
};
use crate::engine::shared::{Shared, shared};
use crate::engine::transport_set::NETWORKS;
use crate::os;
use crate::os::idle_processor;
use crate::os::process::leave_processor;
use crate::os::signals;
use crate::progress::pace::{Pace, Program, Step};
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Between two attempts to send where there is no room, at first and at most.
const ROOM_PAUSE: Duration = Duration::from_micros(100);
const ROOM_PAUSE_MAX: Duration = Duration::from_millis(5);
/// How long to sleep on the sockets: whether the job ends is asked so often.
const SLEEP_NS: u64 = 20_000_000;

/// The same while ranks of this node may access windows here.
const SLEEP_BY_MEMORY_NS: u64 = 1_000_000;

static HANDLE: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Start it. `None`: the system gives no thread, or no way to keep the program out.
#[cold]
pub fn start() -> Option<Thread> {
    let shared = shared();
    shared.prepare().ok()?;
    let mask = signals::block_all();
    let builder = std::thread::Builder::new().name("rustbtl-answer".into());
    let started = builder.stack_size(256 << 10).spawn(move || work(shared));
    signals::restore(&mask);
    let handle = started.ok()?;
    let thread = handle.thread().clone();
    *HANDLE.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    Some(thread)
}

/// The program is in MPI_Finalize. Not while the process is held.
pub fn end() {
    OVER.store(true, Ordering::SeqCst);
    let handle = HANDLE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(handle) = handle {
        handle.thread().unpark();
        let _ = handle.join();
    }
}

/// What to wait for before the next poll.
enum Next {
    /// Something comes.
    Readable([RawFd; NETWORKS], u64),
    /// There is more to be sent than there was room for.
    Room,
}

fn work(shared: &'static Shared) {
    leave_processor();
    let (mut pace, mut room_pause) = (Pace::default(), ROOM_PAUSE);
    while !OVER.load(Ordering::SeqCst) {
        let program = Program {
            detached: DETACHED.load(Ordering::SeqCst) > 0,
            detaches: DETACHES.load(Ordering::Relaxed),
            polls: POLLS.load(Ordering::Relaxed),
        };
        let step = pace.next(idle_processor::is_there(), program);
        PATIENCE_NS.store(pace.patience_ns(), Ordering::Relaxed);
        match step {
            Step::Pause(pause) => std::thread::sleep(pause),
            Step::Sleep => sleep(),
            Step::Poll => {
                let Some((happened, next)) = look(shared) else { return };
                pace.polled(POLLS.load(Ordering::Relaxed));
                room_pause =
                    if happened { ROOM_PAUSE } else { (2 * room_pause).min(ROOM_PAUSE_MAX) };
                match next {
                    Next::Readable(descriptors, ns) => sleep_on(descriptors, ns),
                    Next::Room => std::thread::sleep(room_pause),
                }
            }
        }
    }
}

/// Until a send is late.
fn sleep() {
    // [late] T1.
    ASLEEP.store(true, Ordering::SeqCst);
    if DETACHED.load(Ordering::SeqCst) == 0 && !OVER.load(Ordering::SeqCst) {
        std::thread::park();
    }
    ASLEEP.store(false, Ordering::SeqCst);
}

/// Look in the program's place, and has anything happened? `None`: the system does not let us.
fn look(shared: &'static Shared) -> Option<(bool, Next)> {
    let mut driver = shared.take().ok()?;
    let happened = driver.poll() > 0;
    let descriptors = driver.host.transports.wait_descriptors();
    let descriptors = descriptors.filter(|_| !lacks_room(&driver));
    // What comes through shared memory makes no descriptor readable.
    let by_memory = driver.host.windows.are_served() && driver.host.transports.has_node();
    let ns = if by_memory { SLEEP_BY_MEMORY_NS } else { SLEEP_NS };
    drop(driver);
    if shared.threads {
        shared.deliver(shared.enter());
    }
    Some((happened, descriptors.map_or(Next::Room, |these| Next::Readable(these, ns))))
}

fn sleep_on(descriptors: [RawFd; NETWORKS], ns: u64) {
    // One may be another one by now: then we poll once more.
    if os::sleep_on(descriptors, ns) {
        std::thread::sleep(ROOM_PAUSE);
    }
}
