//! time() of a protected program: the date that its first thread gets is recorded, and given again
//! to a process that was restored (docs/adr/0014). Programs seed random numbers with it.
//!
//! As MPI_Wtime's (`wtime`), calls are made to come here by `interpose`; but only those of objects
//! that call MPI, and of libgfortran: Open MPI and the C library read the date when they like, and
//! not as often in the next incarnation. The machine is coordination's `ProgramTime`.
//!
//! A signal handler may call time() at any moment: so nothing is allocated, sent or passed to C in
//! here, and where the thread is in the engine already it gets the machine's date.
//!
//! Not recorded: programs with MPI_THREAD_SERIALIZED, whose other threads may be in MPI meanwhile.
//!
//! Invariant: a date that is recorded goes out before the next thing that the process sends
//! (`SLOW_PATH`).

use crate::determinants::set_order::rustbtl_recording;
use crate::engine::driver_state::Driver;
use crate::engine::shared::is_installed;
use crate::engine::shared::shared;
use crate::mpi::interpose::TIME;
use crate::sync::engine_lock;
use core::sync::atomic::Ordering;

/// The machine's date.
fn machine() -> u64 {
    // SAFETY: null: nothing is stored.
    let now = unsafe { libc::time(core::ptr::null_mut()) };
    // Before 1970 is no date that a cluster has.
    u64::try_from(now).unwrap_or(0)
}

/// The program's, if this call is one that is recorded, or forced.
fn recorded() -> Option<u64> {
    let is_on = || rustbtl_recording.load(Ordering::Acquire) != 0;
    if !is_on() || !engine_lock::is_first() || !is_installed() {
        return None;
    }
    let mut driver = shared().enter_unless_inside()?;
    // It may have been switched off meanwhile.
    is_on().then(|| driver.read_date(machine()))
}

/// What the program calls for time().
///
/// # Safety
/// `out` is null or writable.
unsafe extern "C" fn time(out: *mut libc::time_t) -> libc::time_t {
    // A snapshot may be taken meanwhile: from it on, dates are recorded.
    let seconds = recorded().unwrap_or_else(|| {
        let now = machine();
        recorded().unwrap_or(now)
    });
    let seconds = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
    // SAFETY: the caller's promise.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = seconds;
    }
    seconds
}

/// From the next `interpose::redirect_new_objects` on the program's calls of time() come here.
pub fn install() {
    TIME.put(libc::time as *const () as usize, time as *const () as usize);
}

impl Driver {
    /// A snapshot is taken next: dates of the process that is made from it are no earlier ones.
    pub fn snapshot_date(&mut self) {
        self.host.record.snapshotted(machine());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_recorded_gets_the_machines_date_in_both_places() {
        let before = machine();
        let mut stored = 0;
        // SAFETY: writable.
        let given = unsafe { time(&raw mut stored) };
        assert_eq!(given, stored);
        // SAFETY: null.
        let second = unsafe { time(core::ptr::null_mut()) };
        assert!(before <= given.unsigned_abs() && given <= second);
    }
}
