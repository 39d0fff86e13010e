//! What is part of this process' image and what is not, and taking it.

use crate::checkpoint::parted_memory;
use crate::checkpoint::shared_memory_barrier::SharedMemoryBarrier;
use crate::checkpoint::state::Checkpoint;
use crate::engine::driver_state::Driver;
use crate::engine::shared::ExclusiveGuard as Engine;
use crate::files::epoch::Beginning;
use crate::payload_log::memory::unused_ranges;
use core::ops::Range;
use rustbtl_coordination::control::{CheckpointId, FromRank, Message, ToRank, frozen_in_pause};
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::freeze::{
    Copying, FreezeError, FreezeOptions, FrozenChild, Outcome, Restored, Snapshot,
};
use std::os::fd::RawFd;

/// Room for the description of a process, which is seldom more than 100 KB; untouched until used.
const LETTER_BYTES: usize = 16 << 20;

/// So much may be received while the process is suspended, without an allocation.
const HEARD_MAX: usize = 256;

/// What came of it.
pub enum FreezeOutcome {
    /// A frozen copy and what only the process itself knows.
    Child(FrozenChild, Vec<u8>),
    /// The guardian has read the process while it was suspended.
    Stored,
    /// Why there is none; the program is unharmed.
    Failed(String),
    /// This is the process that was restored from the image, which may not write to files yet.
    Restored(Restored, Option<Box<Beginning>>),
}

/// What the checkpoint covers of the logs of processes of other sets.
pub fn received_vectors(driver: &Driver) -> Vec<(PeerId, Vec<u8>)> {
    let own = driver.host.set;
    let others = driver.engine.traffic().filter(|(_, set, _)| *set != own);
    others.map(|(peer, ..)| (peer, driver.engine.received_from(peer).encode())).collect()
}

/// Descriptors and memory of the transports, which are opened again after a restore.
fn left_out(driver: &Driver) -> (Vec<RawFd>, Vec<Range<usize>>) {
    let mut descriptors = driver.host.transports.descriptors();
    let ranges = driver.host.transports.memory();
    descriptors.extend(driver.host.windows.mapped.descriptors());
    descriptors.extend(crate::determinants::coordinator_link::COORDINATOR_LINK.descriptor());
    (descriptors, ranges)
}

/// Take the snapshot of this process, whose set is quiescent. `received`: what the guardian has
/// sent meanwhile.
pub(crate) fn take(
    checkpoint: &mut Checkpoint,
    id: CheckpointId,
    engine: &mut Option<Engine>,
    received: &mut Vec<ToRank>,
) -> FreezeOutcome {
    let Some(driver) = engine else { return FreezeOutcome::Failed("no id".into()) };
    let mut files = match Beginning::of(id.0) {
        Ok(files) => files,
        Err(reason) => {
            SharedMemoryBarrier::of(checkpoint, id, driver).failed();
            return FreezeOutcome::Failed(reason.into());
        }
    };
    if let Some(reason) = crate::mpi::system_v::in_use() {
        SharedMemoryBarrier::of(checkpoint, id, driver).failed();
        return FreezeOutcome::Failed(reason.into());
    }
    driver.close_windows();
    driver.host.forget_freed_log();
    driver.host.transports.before_freeze();
    let elsewhere = driver.host.windows.mapped.elsewhere();
    let (mut dropped, mut exclude) = left_out(driver);
    checkpoint.verbs.leave_out(&mut dropped, &mut exclude);
    dropped.extend(files.iter().flat_map(Beginning::descriptors));
    let shares = checkpoint.sharing.shares;
    checkpoint.shared_memory =
        if shares { parted_memory::of_this_process(&exclude) } else { Vec::new() };
    let record = files.as_ref().map(Beginning::record);
    let dead = unused_ranges(&driver.host.log);
    let muted: Vec<RawFd> = crate::os::pmix::server_socket().into_iter().collect();
    let supplied = [0, 1, 2, checkpoint.guardian.fd()];
    let guardian = &checkpoint.guardian;
    // Where there can be no copy, the guardian reads this process itself, which waits for it. A
    // suspended thread may hold the lock of malloc, so room for what is to be sent is made before.
    let mut letter = Vec::with_capacity(LETTER_BYTES);
    guardian.prepare();
    received.reserve(HEARD_MAX);
    let coordination_ns = checkpoint.phases.coordination_ns();
    let mut stored = false;
    let mut while_paused = |snapshot: &Snapshot<'_>| {
        stored = frozen_in_pause(id, snapshot.description, coordination_ns, &mut letter)
            && guardian.send_frame(&letter).is_ok()
            && released(guardian, id, received);
    };
    let frames = (
        FromRank::Suspended { checkpoint: id }.encode(),
        ToRank::OutputDrained { checkpoint: id }.encode(),
    );
    let (Ok(suspended), Ok(drained), Ok(all_restored)) =
        (frames.0, frames.1, ToRank::AllRestored {}.encode())
    else {
        return FreezeOutcome::Failed("no message".into());
    };
    // What the program has printed before the snapshot must not be taken for what it prints after.
    let barrier = SharedMemoryBarrier::of(checkpoint, id, driver);
    let collectives = &driver.collectives;
    let mut after_suspended = || {
        barrier.suspended()?;
        collectives.hold();
        guardian.exchange(&suspended, &drained)?;
        files.iter_mut().for_each(Beginning::suspended);
        Ok(())
    };
    let mut together = true;
    let mut before_release = || together = barrier.snapshotted();
    // Files and common memory are not what they were before the guardians of all have put them
    // back (docs/adr/0046); nor are the clocks of another machine.
    let clocks: &Driver = driver;
    let mut after_restored = || {
        guardian.await_in_restored(&all_restored)?;
        clocks.move_program_clocks();
        Ok(())
    };
    let mut options = FreezeOptions {
        after_suspended: Some(&mut after_suspended),
        before_release: Some(&mut before_release),
        after_restored: Some(&mut after_restored),
        supplied: &supplied,
        muted: &muted,
        dropped: &dropped,
        exclude: &exclude,
        elsewhere: &elsewhere,
        dead: &dead,
        copying: Copying::ForkOrPause,
        while_paused: Some(&mut while_paused),
        // What an adapter writes to registered memory the kernel does not note (docs/adr/0036).
        track_changes: checkpoint.tracks_changes && !checkpoint.verbs.is_used(),
        file_undo: record.as_ref().map(|(folder, epoch)| (&folder[..], *epoch)),
        ..FreezeOptions::default()
    };
    let frozen = checkpoint.freezer.freeze(&mut options);
    if frozen.is_err() {
        barrier.failed();
    }
    let frozen = match frozen {
        // Others have changed what is in the image, or have none that belongs to it.
        Ok(Outcome::Continued(_)) if !together => {
            barrier.failed();
            Err(FreezeError::Refused {
                what: "memory that ranks of this node share".into(),
                reason: "one of them could not be copied in time",
            })
        }
        frozen => frozen,
    };
    checkpoint.say_how_changes_are_found();
    // A restored process continues when it knows of which job it is.
    let restored = matches!(frozen, Ok(Outcome::Restored(_)));
    if !restored {
        driver.collectives.go_on();
        if let Some(files) = files.take() {
            files.continued(frozen.is_ok());
        }
    }
    match frozen {
        Ok(Outcome::Continued(continued)) => match continued.child {
            Some(child) => {
                driver.host.log.snapshot_taken();
                FreezeOutcome::Child(child, continued.description)
            }
            None if stored => FreezeOutcome::Stored,
            None => {
                FreezeOutcome::Failed("the guardian went away while it read the process".into())
            }
        },
        Ok(Outcome::Restored(restored)) => FreezeOutcome::Restored(restored, files.map(Box::new)),
        Err(error) => FreezeOutcome::Failed(error.to_string()),
    }
}

/// Wait until the guardian has read this process.
fn released(
    guardian: &crate::checkpoint::guardian_link::Guardian,
    id: CheckpointId,
    received: &mut Vec<ToRank>,
) -> bool {
    loop {
        match guardian.wait(-1) {
            Ok(Some(ToRank::Release { checkpoint: which })) if which == id => return true,
            Ok(Some(ToRank::Abort { checkpoint: which, .. })) if which == id => return false,
            Ok(Some(other)) if received.len() < received.capacity() => received.push(other),
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
