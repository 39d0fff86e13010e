//! How the members of a communicator come to have common memory.
//!
//! The first makes it under a name that nobody can guess and tells the others by messages; all say
//! whether they have mapped it, then the name goes. A snapshot in between leaves a name that nobody
//! finds: all learn that, and go on with messages. A restore of the set onto several nodes in
//! between: see `Carrier::share`.

use crate::engine::collectives::room::Room;
use crate::engine::shared::shared;
use crate::mpi::collectives::group::Group;
use crate::mpi::one_sided::memory::{
    rustbtl_window_memory_make, rustbtl_window_memory_map, rustbtl_window_memory_unmap,
    rustbtl_window_memory_unname,
};
use crate::progress::wait;
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_collectives::plan::Kind;

const HERE: u8 = 0;
const NONE: u8 = 2;
/// What the first tells the others: whether it has made it, its name.
const NOTE_BYTES: usize = 1 + 16;

/// The user knows.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Count the memory of one more communicator; false: that is too much.
fn count(bytes: usize, most: u64) -> bool {
    let mut driver = shared().enter();
    let all = driver.collectives.bytes + bytes;
    let fits = all as u64 <= most;
    if fits {
        driver.collectives.bytes = all;
    }
    fits
}

/// Tell the user, once.
fn tell(most: u64) {
    if !TOLD.swap(true, Ordering::Relaxed) {
        let text = format!(
            "the collectives of some communicators use messages: vprotocol_correlated_collectives_\
             memory ({most} bytes) is used up"
        );
        shared().glue.show("notice", &[&text]);
    }
}

/// All members call it after the same step.
pub fn share_memory(group: &mut Group) {
    let partings = group.room.carrier.partings();
    let bytes = Room::bytes(group.size());
    let directory = group.setup.directory;
    let (mut note, mut number, mut start) =
        ([NONE; NOTE_BYTES], [0; NOTE_BYTES - 1], core::ptr::null_mut());
    let counted = count(bytes, group.setup.bytes_max);
    let is_first = group.setup.rank == 0;
    if is_first && counted {
        // SAFETY: C's directory; the other two are ours.
        note[0] =
            unsafe { rustbtl_window_memory_make(directory, bytes as u64, &mut number, &mut start) }
                as u8;
        note[1..].copy_from_slice(&number);
    }
    let told = note;
    let mut well = group.run_own(Kind::Bcast, 0, &told, &mut note);
    let mut mine = if counted { note[0] } else { NONE };
    if !counted && (is_first || note[0] == HERE) {
        // Else the first one does it.
        tell(group.setup.bytes_max);
    }
    if !is_first && mine == HERE {
        number.copy_from_slice(&note[1..]);
        // SAFETY: C's directory; the other two are ours.
        mine = unsafe { rustbtl_window_memory_map(directory, bytes as u64, &number, &mut start) }
            as u8;
    }
    if mine == HERE {
        group.room.set_start(start);
    }
    let mut all = vec![NONE; group.size() as usize];
    well &= group.run_own(Kind::Allgather, 0, &[mine], &mut all);
    if is_first && note[0] == HERE {
        // SAFETY: C's directory; the number is ours.
        unsafe { rustbtl_window_memory_unname(directory, &number) };
    }
    if !(well && all.iter().all(|&one| one == HERE)) {
        drop_memory(group);
        if counted && mine != HERE {
            shared().enter().collectives.bytes -= bytes;
        }
        return;
    }
    let carrier = &group.room.carrier;
    wait::wait_long_for_memory(shared(), &mut || carrier.share(partings).is_some());
}

/// Nobody uses it any more.
pub fn drop_memory(group: &Group) {
    let mut driver = shared().enter();
    let start = group.room.take_start();
    if start.is_null() {
        return;
    }
    let bytes = Room::bytes(group.size());
    driver.collectives.bytes -= bytes;
    drop(driver);
    // SAFETY: mapped by one of the functions above; no step is under way.
    unsafe { rustbtl_window_memory_unmap(start, bytes as u64) };
}
