//! The order of a set as its ranks on this node share it, and the flags that the way of a message
//! looks at: what is stable, what waits, whether anything is recorded or forced.

use crate::transports::set_memory::{Counts, SLOTS};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};

/// For C: not 0 while anything is recorded or forced.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of glue.h")]
pub static rustbtl_recording: AtomicI32 = AtomicI32::new(0);

/// For C: changes when recording begins, and in a process that was restored from an image. The
/// program may be frozen between the test for completion and the record of it. Then its next
/// incarnation would test again, find something else, and not be forced: so what was seen in an
/// earlier epoch is not returned to the program: C asks again.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of glue.h")]
pub static rustbtl_epoch: AtomicU32 = AtomicU32::new(0);

/// For C: 1 while neighbours write to this process' windows themselves, and its program has not
/// asked for anything in vain yet.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of glue.h")]
pub static rustbtl_awaits_poll: AtomicI32 = AtomicI32::new(0);

/// The present one. It changes only where the engine is held.
pub fn epoch() -> u32 {
    rustbtl_epoch.load(Ordering::Acquire)
}

/// So many waits after a frame had to wait for determinants others still get the processor sooner.
pub(crate) const PATIENT_WAITS: u8 = 200;

/// What is left of them.
pub(crate) static PATIENT: AtomicU8 = AtomicU8::new(0);

/// Has a frame had to wait for determinants lately, so that processes that are no ranks have a part
/// in messages? Asked in each long wait.
#[inline]
pub fn has_waited() -> bool {
    let left = PATIENT.load(Ordering::Relaxed);
    PATIENT.store(left.saturating_sub(1), Ordering::Relaxed);
    left > 0
}

/// Not 0: sends and receives have more to do than usual; see `Driver::update_slow_path`.
pub static SLOW_PATH: AtomicU8 = AtomicU8::new(0);
/// A run of questions that found nothing has to be recorded first, or times and dates be sent to
/// the log.
pub(crate) const RUN: u8 = 1;
/// Outcomes are forced: receives are posted, whatever they are for.
pub(crate) const REPLAY: u8 = 2;

/// Receives of requests are posted late.
pub(crate) const DEFERRED: u8 = 4;

/// There are windows of one-sided communication: the program's actions are counted.
pub(crate) const WINDOWS: u8 = 8;

/// A frame waits for determinants: the checkpoint thread lets it go.
pub(crate) static HELD: AtomicBool = AtomicBool::new(false);

/// Where the set counts; null: nowhere. It lives as long as the segment, or the process.
pub(crate) static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(core::ptr::null_mut());
/// Place of the first determinant that is counted there.
pub(crate) static BASE: AtomicU64 = AtomicU64::new(0);

/// All before this place in the order of the set are stable. Without the engine: the program may
/// be in it for long.
pub fn set_stable(upto: u64) {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    if let Some(counts) = unsafe { counts.as_ref() } {
        // [stable] what is stable was recorded before.
        counts.stable.fetch_max(upto, Ordering::AcqRel);
    }
}

/// All before this place are stable, as far as this process knows.
pub fn stable() -> u64 {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    unsafe { counts.as_ref() }.map_or(0, |counts| counts.stable.load(Ordering::Acquire))
}

/// Has what is recorded to be sent to the log at once? A frame of the set waits for it, or so much
/// is not stable that frames will soon have to. `flushed`: so much was recorded when that was done
/// last, and the answer is awaited; 0: none is.
pub fn must_flush(flushed: u64) -> bool {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    let Some(counts) = (unsafe { counts.as_ref() }) else { return true };
    let base = BASE.load(Ordering::Relaxed);
    let stable = counts.stable.load(Ordering::Relaxed).max(base);
    let recorded = base + counts.recorded.load(Ordering::Relaxed);
    counts.wanted.load(Ordering::Relaxed) > stable
        || recorded > stable + UNSTABLE_MAX && recorded >= flushed + FLUSHED_MIN
}

/// Up to which place frames of the set have waited for what is recorded.
pub fn wanted() -> u64 {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    unsafe { counts.as_ref() }.map_or(0, |counts| counts.wanted.load(Ordering::Relaxed))
}

/// Does a frame of the set wait for what is recorded?
pub fn is_awaited() -> bool {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    unsafe { counts.as_ref() }.is_some_and(|counts| {
        let stable = counts.stable.load(Ordering::Relaxed).max(BASE.load(Ordering::Relaxed));
        counts.wanted.load(Ordering::Relaxed) > stable
    })
}

/// So much of a set may go on not being stable where nobody waits: a quarter of its slots. A frame
/// to a peer that has had none for long can still piggyback it.
const UNSTABLE_MAX: u64 = SLOTS as u64 / 4;
/// While the answer to the last is awaited, no less than this is worth another message.
const FLUSHED_MIN: u64 = SLOTS as u64 / 8;

/// No frame waits any more.
#[inline]
pub fn released() {
    HELD.store(false, Ordering::Relaxed);
}

/// Does a frame wait?
pub fn is_held() -> bool {
    HELD.load(Ordering::Relaxed)
}

/// Is a message of this tag, or pattern of tags, an action of the program: its own, or one of a
/// blocking collective? (The library chooses when those of nonblocking ones are sent.)
pub fn acts(tag: i32) -> bool {
    of_program(tag) || crate::ffi::collective_tags::collective_of(tag).is_some()
}

/// Is this tag, or pattern of tags, one of the program's (not of the library's own traffic)?
pub fn of_program(tag: i32) -> bool {
    tag >= crate::ffi::table::ANY
}
