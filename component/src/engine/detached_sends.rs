//! Sends that are *detached*: complete for the program, not sent. While there are any the progress
//! thread has to be awake (its T1); here is what the driver signals to it.

use crate::determinants::set_order;
use crate::engine::driver_state::Driver;
use crate::engine::shared::is_installed;
use crate::os::idle_processor;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::thread::Thread;

/// Messages above this are announced by all transports.
const ANNOUNCED_BYTES: u64 = 64 << 10;
/// Where no processor is idle a blocking send waits so long for its receiver's request before it is
/// detached: in programs whose ranks exchange messages most requests come within that time, and
/// nobody has to be awake for what is not detached. The progress thread adapts it: it sees whether
/// the program needs it.
pub(crate) static PATIENCE_NS: AtomicU64 = AtomicU64::new(2_000_000);
/// Starts the progress thread; set where a process begins its incarnation.
static SPAWNER: OnceLock<fn() -> Option<Thread>> = OnceLock::new();

/// Who starts the thread when the first send is detached. The first that is given counts.
pub fn set_spawner(start: fn() -> Option<Thread>) {
    let _ = SPAWNER.set(start);
}

/// Sends that are complete for the program and not sent.
pub(crate) static DETACHED: AtomicUsize = AtomicUsize::new(0);
/// How often sends were detached while none was, or fewer were.
pub(crate) static DETACHES: AtomicUsize = AtomicUsize::new(0);
/// How often the program has looked for messages, or this thread in its place. To send is not to
/// look: a program that only sends sees no request.
pub(crate) static POLLS: AtomicUsize = AtomicUsize::new(0);
/// The thread sleeps until a send is detached.
pub(crate) static ASLEEP: AtomicBool = AtomicBool::new(false);
pub(crate) static OVER: AtomicBool = AtomicBool::new(false);
/// Whom to wake; `None`: the system gives no thread, or no way to keep the program out.
pub(crate) static WHO: OnceLock<Option<Thread>> = OnceLock::new();

/// Will somebody answer for a send of so many bytes? The thread is started at the first of them.
#[inline]
pub fn for_send(bytes: u64) -> bool {
    bytes > ANNOUNCED_BYTES && who().is_some()
}

fn who() -> Option<&'static Thread> {
    WHO.get_or_init(|| SPAWNER.get().and_then(|start| start())).as_ref()
}

/// The program's one thread in MPI is in a blocking send, from the moment on at which that is not
/// complete: it polls until it is. What lacks room meanwhile most often goes before it ends.
static WAITING: AtomicBool = AtomicBool::new(false);

/// A blocking send is not complete; its call waits for it next.
#[inline]
pub(crate) fn begin_wait() {
    WAITING.store(true, Ordering::Relaxed);
}

/// Is the program in such a call?
#[inline]
pub(crate) fn is_waiting() -> bool {
    WAITING.load(Ordering::Relaxed)
}

/// The call returns: what is not sent now needs the progress thread (its T1).
#[inline(never)]
pub(crate) fn end_wait(driver: &Driver) {
    WAITING.store(false, Ordering::Relaxed);
    update(driver);
}

/// The program has polled, or somebody has in its place.
#[inline]
pub fn polled(driver: &Driver) {
    // Who writes has the process to himself.
    POLLS.store(POLLS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    update(driver);
}

/// The number of detached sends may be another one.
#[inline]
pub fn update(driver: &Driver) {
    // Windows are as good as a send that is never over: their targets may compute.
    let detached = driver.engine.detached_sends()
        + usize::from(lacks_room(driver))
        + usize::from(driver.host.windows.are_served());
    let before = DETACHED.load(Ordering::Relaxed);
    let later = detached > before && is_waiting() && !idle_processor::was_there();
    if before != detached && !later {
        set(detached);
    }
}

/// Is there a frame that could go, if there were room? Gathered sends are not complete, so the
/// program comes back for them; what waits for determinants is looked after elsewhere.
#[inline]
pub(crate) fn lacks_room(driver: &Driver) -> bool {
    driver.host.lacks_room() || (!driver.engine.is_flushed() && !set_order::is_held())
}

#[inline(never)]
fn set(detached: usize) {
    if detached > DETACHED.load(Ordering::Relaxed) {
        // Who writes has the process to himself.
        DETACHES.store(DETACHES.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
    // [detached] before ASLEEP is read; the thread does it the other way round.
    DETACHED.store(detached, Ordering::SeqCst);
    if detached > 0
        && is_installed()
        && let Some(thread) = who()
        && ASLEEP.load(Ordering::SeqCst)
    {
        thread.unpark();
    }
}
