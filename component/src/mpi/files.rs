//! MPI-IO whose outcome depends on what a file holds when it is called: a set that was rolled back
//! alone would find what it and others have written since (docs/adr/0023).
//!
//! Files that ranks of several sets open together are repeated call by call (`files::shared_io`).
//! What is left, C sees, and the coordinator is notified: files that are opened in another way, or
//! by ranks of one node alone: Open MPI has their shared pointers in memory.

use crate::determinants::set_order::rustbtl_recording;
use crate::engine::driver_state::Driver;
use crate::engine::recording::ROLLBACK_MAX;
use crate::engine::shared::{is_installed, shared};
use crate::files::shared_io::{self, Call, Given, Repeater};
use crate::mpi::windows::leaves_the_set;
use crate::progress::wait::wait_while_held;
use crate::sync::checkpoint_signals::{mark_not_replayable, report_divergence};
use crate::sync::engine_lock;
use core::sync::atomic::{AtomicU32, Ordering};
use rustbtl_coordination::control::ReplayBlocker;
use rustbtl_coordination::determinants::{NondetCall, Outcome, ReplayDecision};
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::{CommRank, PeerId};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// As glue.h numbers it.
const SIZE: i32 = 0;

const HAS_A_SIZE: &str = "a rank asks for, or sets, the size of a file that it writes to (MPI-IO): \
                          when it runs again the file has another one";
const HAS_A_POINTER: &str = "a rank uses the shared pointer of a file (MPI-IO), and in which order \
                             ranks moved it is not recorded";
const BY_ANOTHER_THREAD: &str = "a thread other than the first one uses a file that ranks of \
                                 several sets have opened together (MPI-IO)";

/// This process.
static RANK: AtomicU32 = AtomicU32::new(0);
/// Ranks of its node in MPI_Init. Not those of now: a replay has to decide as before, wherever it
/// runs, and so does Open MPI.
static NEIGHBOURS: OnceLock<BTreeSet<PeerId>> = OnceLock::new();

/// Files that are repeated, by their handles.
static REPEATED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn repeated() -> MutexGuard<'static, BTreeSet<usize>> {
    REPEATED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program does this with a file that so many ranks have opened together. Others than the one
/// that asks may rely on the answer, and write where others have written since: HDF5 asks on one
/// rank, and has its metadata written by any of them.
pub fn seen(how: i32, ranks: u32, file: usize) {
    if repeated().contains(&file) {
        return;
    }
    let reason = if how == SIZE { HAS_A_SIZE } else { HAS_A_POINTER };
    let blocker = if ranks > 1 { ReplayBlocker::Others } else { ReplayBlocker::Set };
    mark_not_replayable(reason, blocker);
}

/// A file is opened next, to be written to, by the ranks of a communicator: how many descriptors of
/// shared files there were. Negative: it is not repeated.
pub fn opens(comm: u64, size: u32) -> i64 {
    let is_for_it = is_installed() && engine_lock::is_first() && !shared().threads;
    if !is_for_it || !leaves_the_set(comm, size) || !leaves_the_node(comm, size) {
        return -1;
    }
    i64::try_from(shared_io::opening(true)).unwrap_or(-1)
}

/// Was one of these ranks on another node in MPI_Init?
fn leaves_the_node(comm: u64, size: u32) -> bool {
    let mut driver = shared().enter();
    let own = driver.host.peers.rank();
    let leaves = (0..size).any(|rank| {
        let peer = driver.host.resolve(comm, CommRank(rank));
        peer.0 != own && NEIGHBOURS.get().is_none_or(|near| !near.contains(&peer))
    });
    shared().deliver(driver);
    leaves
}

/// It was opened, as `file`; null: it was not.
pub fn opened(before: i64, file: usize) {
    if before < 0 {
        return;
    }
    let now = shared_io::opening(false);
    if file == 0 || usize::try_from(before).is_ok_and(|before| before == now) {
        return;
    }
    repeated().insert(file);
}

/// It is closed.
pub fn closed(file: usize) {
    repeated().remove(&file);
}

/// MPI_File_delete begins, or has ended.
pub fn deletes(begins: bool) {
    shared_io::deleting(begins && is_installed() && engine_lock::is_first() && !shared().threads);
}

/// In MPI_Init.
pub fn install(driver: &Driver) {
    RANK.store(driver.host.peers.rank(), Ordering::Relaxed);
    let _ = NEIGHBOURS.set(driver.neighbours.clone());
    shared_io::install(Repeater { repeat, diverged, refuse });
}

/// The engine may be held by this thread, or by nobody: a rollback of all ends this process.
fn diverged(problem: &str) -> ! {
    report_changed(problem);
    std::thread::sleep(ROLLBACK_MAX);
    shared().glue.fatal("divergence", &[problem])
}

/// What was repeated with files went another way, or may have: all are rolled back.
pub fn report_changed(problem: &str) {
    if !report_divergence(PeerId(RANK.load(Ordering::Relaxed)), problem) {
        shared().glue.fatal("divergence", &[problem]);
    }
}

fn refuse(why: &'static str) {
    mark_not_replayable(why, ReplayBlocker::Others);
}

/// Nobody takes a snapshot between the call and its record: the engine is held.
fn repeat(call: Call, bytes: u64, make: &mut dyn FnMut() -> i64) -> Given {
    if !is_installed() {
        return Given::Now(make());
    }
    let shared = shared();
    let driver = if engine_lock::is_first() { shared.enter_unless_inside() } else { None };
    let Some(mut driver) = driver else {
        refuse(BY_ANOTHER_THREAD);
        return Given::Now(make());
    };
    while driver.host.windows.holds {
        drop(driver);
        wait_while_held(shared);
        driver = shared.enter();
    }
    let given = if rustbtl_recording.load(Ordering::Acquire) != 0 {
        driver.repeat_file_call(NondetCall::file(call as u8, bytes), make)
    } else {
        Given::Now(make())
    };
    shared.deliver(driver);
    given
}

impl Driver {
    fn repeat_file_call(&mut self, question: NondetCall, make: &mut dyn FnMut() -> i64) -> Given {
        let given = match self.replay_decision(question) {
            ReplayDecision::Await(Outcome::Value(value)) => Given::Before(value.cast_signed()),
            ReplayDecision::Execute => Given::Now(make()),
            ReplayDecision::Await(_) | ReplayDecision::ReportNothing => {
                self.host.replay_diverged(&format!("{question} gave something else"))
            }
        };
        let (Given::Now(value) | Given::Before(value)) = given;
        self.record_outcome(question, Some(Outcome::Value(value.cast_unsigned())));
        given
    }
}
