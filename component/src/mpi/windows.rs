//! Windows of one-sided communication: which of them a set that is rolled back alone cannot repeat
//! (docs/adr/0021). C sees them, the coordinator is notified.

use crate::engine::shared::is_installed;
use crate::engine::shared::shared;
use crate::sync::checkpoint_signals::mark_not_replayable;
use rustbtl_coordination::control::ReplayBlocker;
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::CommRank;

/// How a window works, as glue.h numbers it.
const BYPASSES: i32 = 0;
const OVER_PML: i32 = 1;
const SHARED_MEMORY: i32 = 2;
const THREADS: i32 = 4;

const BYPASSES_RUSTBTL: &str = "its one-sided communication bypasses rustbtl, over a component of \
                            Open MPI other than osc/pt2pt: nobody could repeat it";
const COMES_ANYTIME: &str = "it uses one-sided communication, and at what moments others wrote to \
                             its windows is not recorded: nobody could repeat it";
const USED_BY_THREADS: &str = "it has one-sided windows and MPI_THREAD_MULTIPLE: in what order its \
                               threads use them is not recorded";
const LEAVES_THE_SET: &str = "it shares the memory of a window with ranks of other sets, which \
                              would not be rolled back with it";
const NONDETERMINISTIC: &str = "its ranks change a window in shared memory in an order that \
                                nobody has recorded (accumulate, fetch and op, compare and swap, \
                                exclusive locks)";

/// A window is made, or used in this way. `comm`: handle of its communicator of `size` ranks.
pub fn seen(how: i32, comm: u64, size: u32) {
    match how {
        BYPASSES => mark_not_replayable(BYPASSES_RUSTBTL, ReplayBlocker::Everybody),
        OVER_PML => mark_not_replayable(COMES_ANYTIME, ReplayBlocker::Set),
        SHARED_MEMORY if !leaves_the_set(comm, size) => {}
        THREADS => mark_not_replayable(USED_BY_THREADS, ReplayBlocker::Set),
        SHARED_MEMORY => mark_not_replayable(LEAVES_THE_SET, ReplayBlocker::Set),
        _ => mark_not_replayable(NONDETERMINISTIC, ReplayBlocker::Set),
    }
}

/// Is one of these ranks not in this process's set?
pub(crate) fn leaves_the_set(comm: u64, size: u32) -> bool {
    if !is_installed() {
        return false;
    }
    let mut driver = shared().enter();
    let own = driver.host.set;
    // Otherwise nobody asks, and nobody has to be met here.
    let other = driver.protected
        && (0..size).any(|rank| {
            let peer = driver.host.resolve(comm, CommRank(rank));
            driver.host.peer_info(peer).set != own
        });
    shared().deliver(driver);
    other
}
