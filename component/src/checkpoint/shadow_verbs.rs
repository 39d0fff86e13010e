//! Verbs that the program uses past MPI, through `librustbtl_verbs.so` (docs/adr/0044): they are
//! drained before a checkpoint of all ranks (`coordination::verbs_drain`), left out of images, and
//! made again in a restored process. What is sent over them is not logged: a failure rolls all
//! ranks back.

use crate::checkpoint::state::Checkpoint;
use crate::os::now_ns;
use crate::sync::checkpoint_signals::{SIGNALS, mark_not_replayable};
use core::ffi::c_void;
use core::ops::Range;
use rustbtl_coordination::control::{CheckpointId, FromRank, ReplayBlocker, ToRank};
use rustbtl_coordination::quiescence::Input as QuiescenceInput;
use rustbtl_coordination::verbs_drain::{CONNECTED, Input, MADE, Output, Phase, VerbsDrain};
use rustbtl_shadow::interface::{Callbacks, Interface, SYMBOL, VERSION};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// In the environment: the guardian has loaded the library.
const JOB: &str = "RUSTBTL_VERBS_JOB";
/// How often the thread looks whether somebody is inside, or the pause is over.
const LOOK_MS: i32 = 1;
/// How long the program goes on where a connection is only being made.
const PAUSE_NS: u64 = 10_000_000;
/// Calls of the drain in a row.
const DRAINS: usize = 64;
/// A name that nobody has published by then is no name.
const UNKNOWN: Duration = Duration::from_secs(2);
/// An answer that has not come by then was lost with a coordinator.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Nobody answers any more.
const NOBODY: Duration = Duration::from_secs(60);
/// Between two questions for the same name.
const AGAIN: Duration = Duration::from_millis(2);

const NOT_LOGGED: &str = "it uses verbs past MPI (vprotocol_correlated_shadow_verbs), and what it \
                          sends over them is not logged";
const NOT_DRAINED: &str = "the program uses verbs past MPI; only checkpoints of the whole job \
                           drain them";

/// Questions for names that are open, by number, and their answers.
type Answers = BTreeMap<u32, Option<Vec<u8>>>;

/// The number of the last question, and those that are open.
struct Questions {
    answers: Mutex<(u32, Answers)>,
    answered: Condvar,
}

static QUESTIONS: Questions =
    Questions { answers: Mutex::new((0, BTreeMap::new())), answered: Condvar::new() };

/// An answer has come.
pub(crate) fn name_found(number: u32, value: Vec<u8>) {
    let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = answers.1.get_mut(&number) {
        *answer = Some(value);
    }
    QUESTIONS.answered.notify_all();
}

/// Ask once. None: no answer has come in time.
fn ask(name: &[u8], generation: u64) -> Option<Vec<u8>> {
    let mut answers = QUESTIONS.answers.lock().unwrap_or_else(PoisonError::into_inner);
    answers.0 = answers.0.wrapping_add(1);
    let number = answers.0;
    answers.1.insert(number, None);
    let question = FromRank::FindVerbsName { number, name: name.to_vec(), generation };
    let is_sent = SIGNALS.get().is_some_and(|signals| (signals.send)(&question));
    let until = Instant::now() + UNANSWERED;
    while is_sent && answers.1.get(&number).is_some_and(Option::is_none) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let waited = QUESTIONS.answered.wait_timeout(answers, left);
        answers = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    answers.1.remove(&number).flatten()
}

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
    let begin = Instant::now();
    let mut has_answer = false;
    // Who has told the program the name has published it, perhaps over a longer way.
    while begin.elapsed() < if has_answer { UNKNOWN } else { NOBODY } {
        match ask(name, generation) {
            Some(found) if found.len() == 16 => {
                // SAFETY: the library has room for 16 bytes.
                unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), value, 16) };
                return true;
            }
            answer => has_answer |= answer.is_some(),
        }
        std::thread::sleep(AGAIN);
    }
    false
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

impl ShadowVerbs {
    /// Find the library, if the guardian has loaded it. After `SIGNALS` are there.
    pub(crate) fn attach() -> Result<Self, String> {
        if std::env::var_os(JOB).is_none() {
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

    /// Why no snapshot may be taken for this checkpoint.
    pub(crate) fn not_drained(&self, checkpoint: CheckpointId) -> Option<&'static str> {
        // SAFETY: no arguments.
        let is_used = self.library.is_some_and(|library| unsafe { (library.is_used)() });
        (is_used && !self.drain.is_drained_for(checkpoint.0)).then_some(NOT_DRAINED)
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
        // SAFETY: no arguments.
        let is_used = unsafe { (library.is_used)() };
        // SAFETY: a sink and what it takes.
        let (tallies, ()) = taken(|to| unsafe { (library.tallies)(to, append) });
        [&[is_used.into()][..], &tallies].concat()
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
        let ToRank::VerbsParts { checkpoint: id, step, parts } = message else { return };
        let Some(library) = self.verbs.library else { return };
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
            let checkpoint = CheckpointId(self.verbs.drain.checkpoint());
            self.send(&FromRank::CheckpointFailed { checkpoint, reason });
            return self.release_verbs(checkpoint);
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

    /// How long the thread may sleep, if a drain says so.
    pub(crate) fn verbs_timeout_ms(&self) -> Option<i32> {
        match self.verbs.drain.phase() {
            Phase::Closing | Phase::Pausing | Phase::AwaitDrained => Some(LOOK_MS),
            Phase::Draining => Some(0),
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

    /// Nobody will ever say that it is over.
    pub(crate) fn abandon_verbs(&mut self) {
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
        self.send(&FromRank::VerbsPart { checkpoint, step, part });
        loop {
            match self.guardian.wait(-1) {
                Ok(Some(ToRank::VerbsParts { checkpoint: of, step: which, parts }))
                    if of == checkpoint && which == step =>
                {
                    return parts.into_iter().flat_map(|part| part.part).collect();
                }
                Ok(Some(other)) => self.flush_state.later.push(other),
                Ok(None) => {}
                Err(error) => self.fatal(&format!("after the restart: {error}")),
            }
        }
    }
}
