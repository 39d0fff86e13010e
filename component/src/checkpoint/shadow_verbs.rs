//! Verbs that the program uses past MPI, through `librustbtl_verbs.so` (docs/adr/0044): they are
//! drained before a checkpoint of all ranks (`coordination::verbs_drain`), left out of images, and
//! made again in a restored process. What is sent over them is not logged: a failure rolls all
//! ranks back.

use crate::checkpoint::state::Checkpoint;
use crate::checkpoint::verbs_names;
use crate::os::now_ns;
use crate::sync::checkpoint_signals::{SIGNALS, mark_not_replayable};
use core::ffi::c_void;
use core::ops::Range;
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToRank};
use rustbtl_coordination::quiescence::Input as QuiescenceInput;
use rustbtl_coordination::verbs_drain::{
    CONNECTED, Input, MADE, Output, PART_BYTES_MAX, Phase, Pieces, TooLong, VerbsDrain,
};
use rustbtl_shadow::interface::{Callbacks, Interface, SYMBOL, VERSION};
use std::os::fd::RawFd;

/// In the environment: the guardian has loaded the library. Empty: into the process that has
/// started this one.
const JOB: &str = "RUSTBTL_VERBS_JOB";
/// How often the thread looks whether somebody is inside, or the pause is over.
const LOOK_MS: i32 = 1;
/// How long the program goes on where a connection is only being made.
const PAUSE_NS: u64 = 10_000_000;
/// Calls of the drain in a row.
const DRAINS: usize = 64;

const NOT_LOGGED: &str = "it uses verbs past MPI (vprotocol_correlated_shadow_verbs), and what it \
                          sends over them is not logged";
const NOT_DRAINED: &str = "the program uses verbs past MPI; only checkpoints of the whole job \
                           drain them";

unsafe extern "C" fn opened() {
    mark_not_replayable(NOT_LOGGED, ReplayBlocker::Others);
}

unsafe extern "C" fn publish(name: *const u8, count: usize, generation: u64, value: *const u8) {
    // SAFETY: the library gives a name of so many bytes.
    let name = unsafe { core::slice::from_raw_parts(name, count) }.to_vec();
    // SAFETY: and a value of 16.
    let value = unsafe { core::slice::from_raw_parts(value, 16) }.to_vec();
    if let Some(signals) = SIGNALS.get() {
        (signals.send)(&FromRank::VerbsName { name, generation, value });
    }
}

unsafe extern "C" fn find(name: *const u8, count: usize, generation: u64, value: *mut u8) -> bool {
    // SAFETY: the library gives a name of so many bytes.
    let name = unsafe { core::slice::from_raw_parts(name, count) };
    let Some(found) = verbs_names::find(name, generation) else { return false };
    // SAFETY: the library has room for 16 bytes.
    unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), value, found.len()) };
    true
}

/// What the checkpoint thread knows of them.
#[derive(Debug, Default)]
pub(crate) struct ShadowVerbs {
    library: Option<&'static Interface>,
    drain: VerbsDrain,
    /// What the others know of what is posted here.
    told: Vec<u8>,
    /// When the pause is over.
    later_ns: u64,
    /// Some rank uses verbs, as of the last drain.
    job_uses_them: bool,
    /// Parts of others that have come.
    pieces: Pieces,
}

/// Takes bytes for a `Vec`.
unsafe extern "C" fn append(to: *mut c_void, bytes: *const u8, count: usize) {
    // SAFETY: `taken` gives a vector.
    let to = unsafe { &mut *to.cast::<Vec<u8>>() };
    // SAFETY: the library gives so many bytes.
    to.extend_from_slice(unsafe { core::slice::from_raw_parts(bytes, count) });
}

/// What a function of the library gives to its sink, and what it returns.
fn taken<T>(call: impl FnOnce(*mut c_void) -> T) -> (Vec<u8>, T) {
    let mut bytes = Vec::new();
    let outcome = call((&raw mut bytes).cast());
    (bytes, outcome)
}

fn too_long(part: &[u8]) -> TooLong {
    TooLong { bytes: part.len(), most: PART_BYTES_MAX, together: false }
}

impl ShadowVerbs {
    /// Find the library, if the guardian has loaded it. After `SIGNALS` are there.
    pub(crate) fn attach() -> Result<Self, String> {
        if std::env::var_os(JOB).is_none_or(|job| job.is_empty()) {
            return Ok(Self::default());
        }
        // SAFETY: a C string.
        let table = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
        // SAFETY: what has that name is such a table, or null.
        let table = unsafe { table.cast::<Interface>().as_ref() };
        let Some(library) = table.filter(|table| table.version == VERSION) else {
            return Err(
                "vprotocol_correlated_shadow_verbs is set, and librustbtl_verbs.so of this \
                        release is not loaded: a program that is linked statically, or runs with \
                        other rights than its user's, cannot have it"
                    .into(),
            );
        };
        // SAFETY: the functions stay.
        if !unsafe { (library.attach)(Callbacks { opened, publish, find }) } {
            return Err("RUSTBTL_VERBS_FOLDER is set in a protected job: unset it".into());
        }
        Ok(Self { library: Some(library), ..Self::default() })
    }

    /// Has the program ever opened an adapter?
    pub(crate) fn is_used(&self) -> bool {
        // SAFETY: no arguments.
        self.library.is_some_and(|library| unsafe { (library.is_used)() })
    }

    /// Why no snapshot may be taken for this checkpoint.
    pub(crate) fn not_drained(&self, checkpoint: CheckpointId) -> Option<&'static str> {
        (self.is_used() && !self.drain.is_drained_for(checkpoint.0)).then_some(NOT_DRAINED)
    }

    /// Adapters are in no image.
    pub(crate) fn leave_out(&self, fds: &mut Vec<RawFd>, ranges: &mut Vec<Range<usize>>) {
        let Some(library) = self.library else { return };
        // SAFETY: a sink and what it takes.
        let (bytes, ()) = taken(|to| unsafe { (library.descriptors)(to, append) });
        for fd in bytes.as_chunks().0.iter().map(|bytes| RawFd::from_ne_bytes(*bytes)) {
            if !fds.contains(&fd) {
                fds.push(fd);
            }
        }
        // SAFETY: as above.
        let (bytes, ()) = taken(|to| unsafe { (library.memory)(to, append) });
        let numbers = bytes.as_chunks().0.iter().map(|bytes| usize::from_ne_bytes(*bytes));
        for range in numbers.collect::<Vec<_>>().as_chunks::<2>().0 {
            let [start, end] = *range;
            // Our own transport's are left out already.
            if !ranges.iter().any(|known| known.start <= start && end <= known.end) {
                ranges.push(start..end);
            }
        }
    }

    /// This rank's part of the tallies: does it use verbs, and what has it posted?
    fn tallies(&self) -> Vec<u8> {
        let Some(library) = self.library else { return vec![0] };
        // SAFETY: a sink and what it takes.
        let (tallies, ()) = taken(|to| unsafe { (library.tallies)(to, append) });
        [&[self.is_used().into()][..], &tallies].concat()
    }
}

impl Checkpoint {
    /// A checkpoint of all ranks begins.
    pub(crate) fn drain_verbs_or_stop(&mut self, id: CheckpointId) {
        if self.verbs.library.is_none() || self.quiescence.has_finished() {
            return self.input(QuiescenceInput::StopOutgoing { checkpoint: id.0 });
        }
        self.verbs_input(Input::Begin { checkpoint: id.0 });
    }

    fn verbs_input(&mut self, input: Input) {
        self.verbs.drain.handle(input);
        while let Some(output) = self.verbs.drain.poll_output() {
            match (output, self.verbs.library) {
                // `step_verbs` does it.
                (Output::Close | Output::Drain, _) => {}
                // SAFETY: by the thread that has closed it.
                (Output::Open, Some(library)) => unsafe { (library.open)() },
                (Output::Open, None) => {}
                (Output::Send { checkpoint, part, .. }, _) if part.len() > PART_BYTES_MAX => {
                    let reason = too_long(&part).to_string();
                    self.verbs_failed(CheckpointId(checkpoint), reason);
                }
                (Output::Send { checkpoint, step, part }, _) => {
                    self.send(&FromRank::VerbsPart {
                        checkpoint: CheckpointId(checkpoint),
                        step,
                        part,
                    });
                }
                (Output::Drained { checkpoint }, _) => {
                    self.input(QuiescenceInput::StopOutgoing { checkpoint });
                }
            }
        }
        if self.verbs.drain.phase() == Phase::Pausing {
            self.verbs.later_ns = now_ns() + PAUSE_NS;
        }
    }

    /// Parts of all ranks have come.
    pub(crate) fn verbs_parts(&mut self, message: ToRank) {
        let ToRank::VerbsParts { checkpoint: id, step, parts, is_last } = message else { return };
        let Some(library) = self.verbs.library else { return };
        let Some(parts) = self.verbs.pieces.add((id.0, step), parts, is_last) else { return };
        let is_of_this = id.0 == self.verbs.drain.checkpoint();
        let waits = matches!(self.verbs.drain.phase(), Phase::Tallies | Phase::Draining);
        let mut postponed = false;
        if is_of_this && waits && step.is_multiple_of(2) {
            self.verbs.job_uses_them = parts.iter().any(|part| part.part.first() == Some(&1));
            let all: Vec<&[u8]> =
                parts.iter().map(|part| part.part.get(1..).unwrap_or_default()).collect();
            let all = all.concat();
            // SAFETY: so many bytes.
            unsafe { (library.told)(all.as_ptr(), all.len()) };
            // SAFETY: no arguments.
            postponed = unsafe { (library.is_postponed)() };
        }
        self.verbs_input(Input::All { checkpoint: id.0, step, postponed });
    }

    /// What can be done now.
    pub(crate) fn step_verbs(&mut self) {
        let Some(library) = self.verbs.library else { return };
        match self.verbs.drain.phase() {
            // SAFETY: this thread opens it.
            Phase::Closing if unsafe { (library.try_close)() } => {
                let tallies = self.verbs.tallies();
                self.verbs.told.clone_from(&tallies);
                self.verbs_input(Input::Closed { tallies });
            }
            Phase::Pausing if now_ns() >= self.verbs.later_ns => self.verbs_input(Input::Later),
            Phase::Draining => self.drain_verbs(library),
            // Others may still need what is to be done here for them.
            Phase::AwaitDrained => {
                // SAFETY: no arguments.
                let _ = unsafe { (library.drain)() };
            }
            _ => {}
        }
    }

    fn drain_verbs(&mut self, library: &'static Interface) {
        let mut outcome = 0;
        for _ in 0..DRAINS {
            // SAFETY: no arguments; the gate is closed by this thread.
            outcome = unsafe { (library.drain)() };
            if outcome != 0 {
                break;
            }
        }
        if outcome < 0 {
            let reason = format!("its adapter refuses to drain its verbs: error {}", -outcome);
            return self.verbs_failed(CheckpointId(self.verbs.drain.checkpoint()), reason);
        }
        // A connection that fails meanwhile is not waited for, at either end.
        let readiness = |tallies: &[u8]| {
            let all = rustbtl_shadow::interface::decode_tallies(tallies.get(1..)?)?;
            Some(all.into_values().map(|tally| (tally.qpn, tally.readiness)).collect::<Vec<_>>())
        };
        let tallies = self.verbs.tallies();
        if readiness(&tallies) != readiness(&self.verbs.told) {
            self.verbs.told.clone_from(&tallies);
            self.verbs_input(Input::Changed { tallies });
        }
        if outcome == 1 {
            self.verbs_input(Input::Over);
        }
    }

    /// This rank cannot take part: the checkpoint is given up, and the program goes on.
    fn verbs_failed(&mut self, checkpoint: CheckpointId, reason: String) {
        self.send(&FromRank::CheckpointFailed { checkpoint, reason });
        self.release_verbs(checkpoint);
    }

    /// How long the thread may sleep, if a drain says so.
    pub(crate) fn verbs_timeout_ms(&self) -> Option<i32> {
        match self.verbs.drain.phase() {
            // Draining as well: other ranks need the processors, and perhaps the adapter.
            Phase::Closing | Phase::Pausing | Phase::Draining | Phase::AwaitDrained => {
                Some(LOOK_MS)
            }
            Phase::Idle | Phase::Tallies | Phase::Drained => None,
        }
    }

    /// Is the checkpoint over with this message? All have their snapshot then, or none needs one.
    pub(crate) fn end_verbs_drain(&mut self, message: &ToRank) {
        if let ToRank::Resume { checkpoint } | ToRank::Abort { checkpoint, .. } = message {
            self.release_verbs(*checkpoint);
        }
    }

    /// The checkpoint is over.
    fn release_verbs(&mut self, id: CheckpointId) {
        self.verbs_input(Input::Release { checkpoint: id.0 });
    }

    /// Nobody will ever say that it is over, nor what a name stands for.
    pub(crate) fn abandon_verbs(&mut self) {
        verbs_names::nobody_answers();
        self.release_verbs(CheckpointId(self.verbs.drain.checkpoint()));
    }

    /// In a restored process: everything again, if any rank has something. All ranks are restored
    /// together then.
    pub(crate) fn restore_verbs(&mut self, id: CheckpointId) {
        let Some(library) = self.verbs.library else { return };
        if self.verbs.job_uses_them {
            // SAFETY: a sink and what it takes; the gate was closed over the image.
            let (names, is_made) = taken(|to| unsafe { (library.make)(to, append) });
            if !is_made {
                self.fatal(&format!("verbs: {}", String::from_utf8_lossy(&names)));
            }
            let names = self.exchange_verbs(id, MADE, names);
            // SAFETY: so many bytes.
            unsafe { (library.know)(names.as_ptr(), names.len()) };
            // SAFETY: a sink and what it takes.
            let (said, is_connected) = taken(|to| unsafe { (library.connect)(to, append) });
            let said = String::from_utf8_lossy(&said);
            if !is_connected {
                self.fatal(&format!("verbs: {said}"));
            }
            self.exchange_verbs(id, CONNECTED, Vec::new());
            self.shared.glue.verbose(crate::ffi::verbose::INFO, || {
                format!("verbs are made again, {said} receives posted")
            });
        }
        self.release_verbs(id);
    }

    /// Give a part, and wait for those of all.
    fn exchange_verbs(&mut self, checkpoint: CheckpointId, step: u32, part: Vec<u8>) -> Vec<u8> {
        if part.len() > PART_BYTES_MAX {
            self.fatal(&format!("after the restart: {}", too_long(&part)));
        }
        self.send(&FromRank::VerbsPart { checkpoint, step, part });
        loop {
            match self.guardian.wait(-1) {
                Ok(Some(ToRank::VerbsParts { checkpoint: of, step: which, parts, is_last }))
                    if of == checkpoint && which == step =>
                {
                    let all = self.verbs.pieces.add((of.0, which), parts, is_last);
                    if let Some(all) = all {
                        return all.into_iter().flat_map(|part| part.part).collect();
                    }
                }
                // A step that is over here and was not everywhere, when a coordinator was lost.
                Ok(Some(ToRank::VerbsParts { .. })) => {}
                Ok(Some(other)) => self.flush_state.later.push(other),
                Ok(None) => {}
                Err(error) => self.fatal(&format!("after the restart: {error}")),
            }
        }
    }
}
