//! MPI_Wtime of a protected program: what it gives is an outcome like any other. Recorded, and
//! given again to a process that was restored (docs/adr/0010).
//!
//! MPI_Wtime is no function of a PML. So the program and its libraries are made to call `wtime`
//! (`in_place`), which calls Open MPI's. Only the thread that has called MPI_Init is heard: its
//! calls have an order, those of other threads have none.
//!
//! A time is not shipped when it is read, but with the next thing that the process does or asks: a
//! program that reads the clock in a loop makes no system call for it. And no more than
//! `TIMES_PER_SECOND` different times are given over long; between them the clock stands still,
//! which is a question that found nothing (`Determinant::Nothing`): runs of them are one record.
//!
//! Not reached: other clocks, and what `in_place` does not reach.
//!
//! Invariants:
//! 1. What the first thread reads never goes back, whatever machine it is restored on.
//! 2. In replay it reads what it has read, in the same places among its other questions.

use crate::door::is_first;
use crate::glue::Glue;
use crate::in_place::WTIME;
use crate::process::{Process, is_installed, shared};
use crate::record::rustbtl_recording;
use core::sync::atomic::{AtomicI64, Ordering};
use rustbtl_coordination::determinants::{NondetCall, Outcome, ReplayDecision};
use std::time::{Duration, SystemTime};

const NS_PER_SECOND: f64 = 1e9;
/// So many different times are given in a second, over long.
const TIMES_PER_SECOND: i64 = 10_000;
const NS_PER_TIME: i64 = 1_000_000_000 / TIMES_PER_SECOND;
/// So many seconds' worth of them can be had at once.
const BURST_NS: i64 = 1_000_000_000;
/// So many are recorded without being shipped, at most.
const UNSHIPPED_MAX: usize = 4096;

/// Nanoseconds between this machine's clock and the program's.
static OFFSET_NS: AtomicI64 = AtomicI64::new(0);

/// The clock of the program's first thread; part of its picture.
#[derive(Debug, Default)]
pub struct ProgramClock {
    /// What was given last.
    last_ns: i64,
    /// Until when the times that were given are paid for.
    paid_ns: i64,
    /// The program's clock and the machine's date when the picture was taken.
    pictured: Option<(i64, SystemTime)>,
}

impl ProgramClock {
    /// The clock says `now_ns`: what is given? None: what was given last. And how far the program's
    /// clock has to be put forward.
    fn tell(&mut self, now_ns: i64) -> (Option<i64>, i64) {
        let behind = (self.last_ns - now_ns).max(0);
        let now_ns = now_ns + behind;
        let paid_ns = self.paid_ns.max(now_ns) + NS_PER_TIME;
        if now_ns == self.last_ns || paid_ns > now_ns + BURST_NS {
            return (None, behind);
        }
        self.paid_ns = paid_ns;
        (Some(now_ns), behind)
    }
}

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
fn is_heard() -> bool {
    rustbtl_recording.load(Ordering::Acquire) != 0 && is_first() && is_installed()
}

/// What the program calls for MPI_Wtime.
extern "C" fn wtime() -> f64 {
    if !is_heard() {
        let now_ns = machine_ns();
        // A picture may have been taken in between: from it on, times are recorded.
        if !is_heard() {
            return seconds(now_ns);
        }
    }
    let shared = shared();
    let mut process = shared.enter();
    let ns = process.read_clock();
    shared.deliver(process);
    seconds(ns)
}

/// From the next `in_place::look_again` on the program's calls of MPI_Wtime come here.
pub fn install(glue: &Glue) {
    let stock = (glue.wtime as *const ()).expose_provenance();
    WTIME.put(stock, wtime as *const () as usize);
}

impl Process {
    /// The program's first thread reads the clock while outcomes are recorded or forced.
    fn read_clock(&mut self) -> i64 {
        let given = match self.asked(NondetCall::CLOCK) {
            ReplayDecision::ReportNothing => return self.host.wtime.last_ns,
            ReplayDecision::Await(Outcome::Time(ns)) => Some(i64::try_from(ns).unwrap_or(i64::MAX)),
            ReplayDecision::Await(_) | ReplayDecision::Execute => {
                let (given, behind) = self.host.wtime.tell(machine_ns());
                OFFSET_NS.fetch_add(behind, Ordering::Relaxed);
                given
            }
        };
        let outcome = given.map(|ns| Outcome::Time(ns.unsigned_abs()));
        self.read(outcome, UNSHIPPED_MAX);
        self.host.wtime.last_ns = given.unwrap_or(self.host.wtime.last_ns);
        self.host.wtime.last_ns
    }

    /// A picture is taken next.
    pub fn picture_clock(&mut self) {
        self.host.wtime.pictured = Some((machine_ns(), SystemTime::now()));
    }

    /// The process was made from a picture, maybe on another machine: its clock goes on as if it
    /// had been running.
    pub fn restore_clock(&mut self) {
        let Some((then_ns, date)) = self.host.wtime.pictured else { return };
        let gone = SystemTime::now().duration_since(date).unwrap_or(Duration::ZERO);
        let now_ns = then_ns.saturating_add(i64::try_from(gone.as_nanos()).unwrap_or(0));
        OFFSET_NS.fetch_add(now_ns.saturating_sub(machine_ns()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_read_without_end_gives_a_limited_number_of_times() {
        let mut clock = ProgramClock::default();
        let (mut times, mut last) = (0, 0);
        // Ten seconds, read each microsecond.
        for now_ns in (5..10_000_000_000).step_by(1000) {
            let (given, behind) = clock.tell(now_ns);
            assert_eq!(behind, 0);
            if let Some(ns) = given {
                assert!(ns > last && ns == now_ns);
                (last, clock.last_ns) = (ns, ns);
                times += 1;
            }
            assert!(now_ns - last <= NS_PER_TIME);
        }
        let most = 11 * TIMES_PER_SECOND;
        assert!((most - 2..=most).contains(&times), "{times}");
    }

    #[test]
    fn a_clock_that_is_read_seldom_is_exact_and_goes_on_where_it_was() {
        let mut clock = ProgramClock::default();
        for now_ns in (1..50_000_000_000).step_by(150_000) {
            assert_eq!(clock.tell(now_ns), (Some(now_ns), 0));
            clock.last_ns = now_ns;
        }
        let last = clock.last_ns;
        assert_eq!(clock.tell(last), (None, 0));
        // The machine's clock is another one now.
        assert_eq!(clock.tell(last - 700), (None, 700));
        assert_eq!(clock.tell(last - 700 + 900), (Some(last + 200), 0));
    }
}
