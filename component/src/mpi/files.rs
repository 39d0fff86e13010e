//! MPI-IO whose outcome depends on what a file holds when it is called: a set that was rolled back
//! alone would find what it and others have written since (docs/adr/0023). C sees it, the
//! coordinator is notified.

use crate::sync::checkpoint_signals::mark_not_replayable;
use rustbtl_coordination::control::ReplayBlocker;

/// As glue.h numbers it.
const SIZE: i32 = 0;

const HAS_A_SIZE: &str = "a rank asks for, or sets, the size of a file that it writes to (MPI-IO): \
                          when it runs again the file has another one";
const HAS_A_POINTER: &str = "a rank uses the shared pointer of a file (MPI-IO), and in which order \
                             ranks moved it is not recorded";

/// The program does this with a file that so many ranks have opened together. Others than the one
/// that asks may rely on the answer, and write where others have written since: HDF5 asks on one
/// rank, and has its metadata written by any of them.
pub fn seen(how: i32, ranks: u32) {
    let reason = if how == SIZE { HAS_A_SIZE } else { HAS_A_POINTER };
    let blocker = if ranks > 1 { ReplayBlocker::Others } else { ReplayBlocker::Set };
    mark_not_replayable(reason, blocker);
}
