//! MPI_Wtime of a protected program: one more of its clocks (`program_clocks`; docs/adr/0010).
//!
//! MPI_Wtime is no function of a PML. So the program and its libraries are made to call `wtime`
//! (`interpose`). It reads the clock that Open MPI's reads, from the same moment on: so the
//! functions that call ours and those that call Open MPI's understand each other, and a clock that
//! was restored on another machine goes on.
//!
//! Invariants: those of `program_clocks`.

use crate::ffi::table::Glue;
use crate::mpi::interpose::WTIME;
use crate::mpi::program_clocks::{MPI_CLOCK, machine_ns, read};
use core::sync::atomic::{AtomicI64, Ordering};

const NS_PER_SECOND: f64 = 1e9;

/// The kernel's monotonic clock when Open MPI's MPI_Wtime was 0.
static ORIGIN_NS: AtomicI64 = AtomicI64::new(0);

/// What the program calls for MPI_Wtime.
extern "C" fn wtime() -> f64 {
    let ns = read(MPI_CLOCK, libc::CLOCK_MONOTONIC);
    let since_ns = ns.cast_signed().saturating_sub(ORIGIN_NS.load(Ordering::Relaxed));
    since_ns as f64 / NS_PER_SECOND
}

/// Ours says what Open MPI's says now.
fn begin_with(stock: impl Fn() -> f64) {
    // Read first: the program does not read less of ours than it has read of Open MPI's.
    let now_ns = machine_ns(libc::CLOCK_MONOTONIC);
    let origin_ns = now_ns.cast_signed() - (stock() * NS_PER_SECOND).round() as i64;
    ORIGIN_NS.store(origin_ns, Ordering::Relaxed);
}

/// From the next `interpose::redirect_new_objects` on the program's calls of MPI_Wtime come here.
pub fn install(glue: &Glue) {
    // SAFETY: no arguments.
    begin_with(|| unsafe { (glue.wtime)() });
    let stock = (glue.wtime as *const ()).expose_provenance();
    WTIME.put(stock, wtime as *const () as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_goes_on_where_open_mpis_is_and_is_never_behind_it() {
        let now_ns = machine_ns(libc::CLOCK_MONOTONIC).cast_signed();
        // Since MPI_Init; since the machine was started; an image of one that runs for longer.
        for origin_ns in [now_ns - 5_000_000, 0, now_ns + 10_000_000_000_000_000] {
            let stock = || {
                let ns = machine_ns(libc::CLOCK_MONOTONIC).cast_signed() - origin_ns;
                ns as f64 / NS_PER_SECOND
            };
            begin_with(stock);
            for _ in 0..1000 {
                let (before, ours, after) = (stock(), wtime(), stock());
                assert!(before <= ours && ours <= after + 0.5, "{before} {ours} {after}");
            }
        }
    }
}
