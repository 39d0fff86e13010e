//! What is part of this process' image and what is not, and taking it.

use crate::checkpoint::shared_memory_barrier::Together;
use crate::checkpoint::state::Checkpoint;
use crate::engine::driver_state::Process;
use crate::engine::shared::Taken as Engine;
use core::ops::Range;
use rustbtl_coordination::control::{CheckpointId, FromRank, Message, ToRank, frozen_in_pause};
use rustbtl_fragments::ids::PeerId;
use rustbtl_process::freeze::{Copying, FreezeOptions, FrozenChild, Outcome, Restored, Snapshot};
use std::os::fd::RawFd;

/// Room for the description of a process, which is seldom more than 100 KB; untouched until used.
const LETTER_BYTES: usize = 16 << 20;

/// So much may be heard while the process stands still, without an allocation.
const HEARD_MAX: usize = 256;

/// What came of it.
pub enum Taken {
    /// A frozen copy and what only the process itself knows.
    Child(FrozenChild, Vec<u8>),
    /// The guardian has read the process while it stood still.
    Stored,
    /// Why there is none; the program is unharmed.
    Failed(String),
    /// This is the process that was made from the picture.
    Restored(Restored),
}

/// What the line covers of the logs of processes of other sets.
pub fn covered(process: &Process) -> Vec<(PeerId, Vec<u8>)> {
    let own = process.host.set;
    let others = process.engine.traffic().filter(|(_, set, _)| *set != own);
    others.map(|(peer, ..)| (peer, process.engine.received_from(peer).encode())).collect()
}

/// Descriptors and memory of the transports, which are made anew after a restore.
fn left_out(process: &Process) -> (Vec<RawFd>, Vec<Range<usize>>) {
    let mut descriptors = process.host.transports.descriptors();
    let ranges = process.host.transports.memory();
    descriptors.extend(crate::determinants::coordinator_link::COORDINATOR_LINK.descriptor());
    (descriptors, ranges)
}

/// Take the picture of this process, whose set is silent. `heard`: what the guardian has said
/// meanwhile.
pub(crate) fn take(
    checkpoint: &mut Checkpoint,
    line: CheckpointId,
    engine: &mut Option<Engine>,
    heard: &mut Vec<ToRank>,
) -> Taken {
    let Some(process) = engine else { return Taken::Failed("no line".into()) };
    let (dropped, exclude) = left_out(process);
    let muted: Vec<RawFd> = crate::os::pmix::server_socket().into_iter().collect();
    let supplied = [0, 1, 2, checkpoint.guardian.fd()];
    let guardian = &checkpoint.guardian;
    // Where there can be no copy, the guardian reads this process itself, which waits for it. A
    // parked thread may hold the lock of malloc, so room for what is to be said is made before.
    let mut letter = Vec::with_capacity(LETTER_BYTES);
    guardian.prepare();
    heard.reserve(HEARD_MAX);
    let coordination_ns = checkpoint.phases.coordination_ns();
    let mut stored = false;
    let mut while_paused = |snapshot: &Snapshot<'_>| {
        stored = frozen_in_pause(line, snapshot.description, coordination_ns, &mut letter)
            && guardian.send_frame(&letter).is_ok()
            && released(guardian, line, heard);
    };
    let frames = (
        FromRank::Suspended { checkpoint: line }.encode(),
        ToRank::OutputDrained { checkpoint: line }.encode(),
    );
    let (Ok(parked), Ok(drained)) = frames else { return Taken::Failed("no message".into()) };
    // What the program has printed before the picture must not be taken for what it prints after.
    let together = Together::of(checkpoint, line, process);
    let mut after_suspended = || {
        together.parked()?;
        guardian.exchange(&parked, &drained)
    };
    let mut before_release = || together.pictured();
    let mut options = FreezeOptions {
        after_suspended: Some(&mut after_suspended),
        before_release: Some(&mut before_release),
        supplied: &supplied,
        muted: &muted,
        dropped: &dropped,
        exclude: &exclude,
        copying: Copying::ForkOrPause,
        while_paused: Some(&mut while_paused),
        ..FreezeOptions::default()
    };
    let frozen = checkpoint.freezer.freeze(&mut options);
    if frozen.is_err() {
        together.failed();
    }
    match frozen {
        Ok(Outcome::Continued(continued)) => match continued.child {
            Some(child) => Taken::Child(child, continued.description),
            None if stored => Taken::Stored,
            None => Taken::Failed("the guardian went away while it read the process".into()),
        },
        Ok(Outcome::Restored(restored)) => Taken::Restored(restored),
        Err(error) => Taken::Failed(error.to_string()),
    }
}

/// Wait until the guardian has read this process.
fn released(
    guardian: &crate::checkpoint::guardian_link::Guardian,
    line: CheckpointId,
    heard: &mut Vec<ToRank>,
) -> bool {
    loop {
        match guardian.wait(-1) {
            Ok(Some(ToRank::Release { checkpoint: which })) if which == line => return true,
            Ok(Some(ToRank::Abort { checkpoint: which, .. })) if which == line => return false,
            Ok(Some(other)) if heard.len() < heard.capacity() => heard.push(other),
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
