//! MPI_Wtime of a protected program: what it gives is an outcome like any other. Recorded, and
//! given again to a process that was restored (docs/adr/0010).
//!
//! MPI_Wtime is no function of a PML. So the program and its libraries are made to call `wtime`
//! (`interpose`), which calls Open MPI's. Only times of the thread that has called MPI_Init are
//! recorded: its calls have an order, those of other threads have none.
//!
//! A time is not sent when it is read, but with the next thing that the process does or asks: a
//! program that reads the clock in a loop makes no system call for it. And no more than
//! `TIMES_PER_SECOND` different times are given over long; between them no time passes for the
//! program, which is a question that found nothing (`Determinant::Nothing`): runs of them are one
//! record.
//!
//! Not reached: other clocks, and what `interpose` does not reach.
//!
//! Invariants:
//! 1. What the first thread reads never goes backwards, whatever machine it is restored on.
//! 2. In replay it reads what it has read, in the same places among its other questions.

use crate::determinants::set_order::rustbtl_recording;
use crate::engine::driver_state::Driver;
use crate::engine::shared::is_installed;
use crate::engine::shared::shared;
use crate::ffi::table::Glue;
use crate::mpi::interpose::WTIME;
use crate::sync::engine_lock::is_first;
use core::sync::atomic::{AtomicI64, Ordering};
use rustbtl_coordination::determinants::{NondetCall, Outcome, ReplayDecision};
use std::time::{Duration, SystemTime};

const NS_PER_SECOND: f64 = 1e9;
/// So many are recorded without being sent to the log, at most.
const UNSHIPPED_MAX: usize = 4096;

/// Nanoseconds between this machine's clock and the program's.
static OFFSET_NS: AtomicI64 = AtomicI64::new(0);

/// The program's clock, from the machine's.
fn machine_ns() -> i64 {
    let stock = WTIME.stock();
    if stock == 0 {
        return 0;
    }
    let stock: *const () = core::ptr::with_exposed_provenance(stock);
    // SAFETY: the address of MPI_Wtime, which is never unloaded before us.
    let stock: unsafe extern "C" fn() -> f64 = unsafe { core::mem::transmute(stock) };
    // SAFETY: no arguments.
    let seconds = unsafe { stock() };
    (seconds * NS_PER_SECOND).round() as i64 + OFFSET_NS.load(Ordering::Relaxed)
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / NS_PER_SECOND
}

/// Are times that this thread reads recorded, or forced?
fn times_are_recorded() -> bool {
    rustbtl_recording.load(Ordering::Acquire) != 0 && is_first() && is_installed()
}

/// What the program calls for MPI_Wtime.
extern "C" fn wtime() -> f64 {
    if !times_are_recorded() {
        let now_ns = machine_ns();
        // A snapshot may have been taken in between: from it on, times are recorded.
        if !times_are_recorded() {
            return seconds(now_ns);
        }
    }
    let shared = shared();
    let mut driver = shared.enter();
    let ns = driver.read_clock();
    shared.deliver(driver);
    seconds(ns)
}

/// From the next `interpose::redirect_new_objects` on the program's calls of MPI_Wtime come here.
pub fn install(glue: &Glue) {
    let stock = (glue.wtime as *const ()).expose_provenance();
    WTIME.put(stock, wtime as *const () as usize);
}

impl Driver {
    /// The program's first thread reads the clock while outcomes are recorded or forced.
    fn read_clock(&mut self) -> i64 {
        let given = match self.replay_decision(NondetCall::CLOCK) {
            ReplayDecision::ReportNothing => return self.host.wtime.last_ns,
            ReplayDecision::Await(Outcome::Time(ns)) => Some(i64::try_from(ns).unwrap_or(i64::MAX)),
            ReplayDecision::Await(_) | ReplayDecision::Execute => {
                let (given, lag) = self.host.wtime.read(machine_ns());
                OFFSET_NS.fetch_add(lag, Ordering::Relaxed);
                given
            }
        };
        let outcome = given.map(|ns| Outcome::Time(ns.unsigned_abs()));
        self.read(outcome, UNSHIPPED_MAX);
        self.host.wtime.last_ns = given.unwrap_or(self.host.wtime.last_ns);
        self.host.wtime.last_ns
    }

    /// A snapshot is taken next.
    pub fn snapshot_clock(&mut self) {
        self.host.wtime.snapshotted = Some((machine_ns(), SystemTime::now()));
    }

    /// The process was restored from an image, maybe on another machine: its clock goes on as if it
    /// had been running. Before its threads run; allocates nothing.
    pub fn move_clock(&self) {
        let Some((then_ns, date)) = self.host.wtime.snapshotted else { return };
        let gone = SystemTime::now().duration_since(date).unwrap_or(Duration::ZERO);
        let now_ns = then_ns.saturating_add(i64::try_from(gone.as_nanos()).unwrap_or(0));
        OFFSET_NS.fetch_add(now_ns.saturating_sub(machine_ns()), Ordering::Relaxed);
    }
}
