//! What this process records: the machine of decisions, where its set counts, and what wakes the
//! checkpoint thread.

use crate::determinants::coordinator_link::{BatchSend, COORDINATOR_LINK};
use crate::determinants::journal::Journal;
use crate::determinants::outbox::outbox;
use crate::determinants::piggyback::{AcceptedPlaces, PiggybackOrder};
use crate::determinants::set_order::{
    COUNTS, DEFERRED, HELD, PATIENT, SLOW_PATH, WINDOWS, is_held, rustbtl_recording,
};
use crate::sync::checkpoint_signals;
use crate::transports::set_memory::{Counts, SetMemory, Slots};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustbtl_coordination::determinants::{
    Divergence, NondetCall, RandomStream, ReplayDecision, ReplayDecisions,
};
use std::time::SystemTime;

/// Counts the program's polls: while it goes up, the program sends its held frames itself.
static PROGRAM_POLLS: AtomicU32 = AtomicU32::new(0);

/// Polls between two questions what is stable, while no frame waits for it: each is a system call,
/// and an answer is awaited nearly always. That of 128 polls is some hundred microseconds old.
const POLLS_FOR_STABLE: u32 = 128;

/// The program polls, and so does what the checkpoint thread would have to come for.
#[inline]
pub fn look() {
    // Only its own threads write, one at a time.
    let program_polls = PROGRAM_POLLS.load(Ordering::Relaxed).wrapping_add(1);
    PROGRAM_POLLS.store(program_polls, Ordering::Relaxed);
    if is_held() || program_polls.is_multiple_of(POLLS_FOR_STABLE) {
        if COORDINATOR_LINK.awaits_answer() {
            COORDINATOR_LINK.poll();
        } else if COORDINATOR_LINK.has_unsent() {
            COORDINATOR_LINK.send(false);
        }
    }
}

/// How often it has.
pub fn program_polls() -> u32 {
    PROGRAM_POLLS.load(Ordering::Relaxed)
}

/// Something was put into the empty outbox.
pub(crate) fn flush_soon() {
    match COORDINATOR_LINK.send(false) {
        BatchSend::Sent => {}
        BatchSend::Later if COORDINATOR_LINK.is_polled() => {}
        BatchSend::Later | BatchSend::NotOpen => checkpoint_signals::wake(),
    }
}

/// Many readings of clocks wait to be sent to the log: the program makes no call that would.
static MANY_WAIT: AtomicBool = AtomicBool::new(false);

/// Have the checkpoint thread send them. Nothing is allocated, no lock taken.
pub(crate) fn flush_many() {
    if !MANY_WAIT.swap(true, Ordering::Relaxed) {
        checkpoint_signals::wake();
    }
}

/// Is it asked for that?
pub(crate) fn many_wait() -> bool {
    MANY_WAIT.swap(false, Ordering::Relaxed)
}

/// Where a set counts.
#[derive(Debug, Default)]
pub(crate) enum Place {
    /// Nowhere: its ranks share no memory.
    #[default]
    Nowhere,
    /// It is this process alone.
    Alone(Box<Counts>, Box<Slots>),
    /// In the node's segment, in the cache line of the rank with this local index.
    Shared(usize),
}

/// What the program's clocks were when a snapshot was taken.
#[derive(Debug)]
pub(crate) struct ClocksThen {
    /// Each that runs from the start of a machine, and the program's nanoseconds on it.
    pub(crate) ns: [(u8, u64); 6],
    /// The machine's date.
    pub(crate) date: SystemTime,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct RecorderState {
    pub(crate) on: bool,
    pub(crate) decisions: ReplayDecisions,
    /// Random numbers of the system.
    pub(crate) random: RandomStream,
    /// What clocks were when a snapshot was taken.
    pub(crate) clocks_then: Option<ClocksThen>,
    pub(crate) place: Place,
    /// Place of the first determinant of this incarnation.
    pub(crate) base: u64,
    pub(crate) journal: Option<Journal>,
    /// Determinants go with messages, if the receiver keeps them.
    pub carries: bool,
    pub(crate) known: AcceptedPlaces,
    /// Room for an entry.
    pub(crate) entry: Vec<u8>,
}

pub(crate) fn counts<'a>(place: &'a Place, node: &'a impl SetMemory) -> Option<&'a Counts> {
    match place {
        Place::Nowhere => None,
        Place::Alone(counts, _) => Some(counts),
        Place::Shared(index) => node.counts(*index),
    }
}

/// What it holds.
pub(crate) fn slots<'a>(place: &'a Place, node: &'a impl SetMemory) -> Option<&'a Slots> {
    match place {
        Place::Nowhere => None,
        Place::Alone(_, slots) => Some(slots),
        Place::Shared(index) => node.slots(*index),
    }
}

/// The set's order, as far as this incarnation goes.
pub(crate) fn order<'a>(
    place: &'a Place,
    base: u64,
    node: &'a impl SetMemory,
) -> Option<PiggybackOrder<'a>> {
    let (counts, slots) = (counts(place, node)?, slots(place, node)?);
    Some(PiggybackOrder { counts, slots, base })
}

impl RecorderState {
    /// Is anything recorded?
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Number of the next determinant.
    pub fn clock(&self) -> u64 {
        self.decisions.clock()
    }

    /// The process was restored from an image: the old counts are unreachable.
    pub fn restarted(&mut self) {
        self.place = Place::Nowhere;
        COUNTS.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// A seed of the kernel's. Once: a process that is rolled back to an image again, or in a job
    /// that was restarted from it, draws what the image's state gives.
    pub fn seed(&mut self) {
        if let Ok(seed) = crate::os::random::bytes() {
            self.random.seed(seed);
        }
    }

    /// A snapshot is taken next, at this date of the machine.
    pub fn snapshotted(&mut self, now: u64) {
        self.decisions.before_snapshot(now);
    }

    /// See `ReplayDecisions::decide`.
    pub fn ask(&mut self, question: NondetCall) -> Result<ReplayDecision, Divergence> {
        self.decisions.decide(question)
    }

    /// Nothing is recorded or forced any more, and nothing has to wait: the job ends, or nobody
    /// keeps determinants.
    pub fn switch_off(&mut self) {
        self.on = false;
        rustbtl_recording.store(0, Ordering::Relaxed);
        let kept = SLOW_PATH.load(Ordering::Relaxed) & (DEFERRED | WINDOWS);
        SLOW_PATH.store(kept, Ordering::Relaxed);
        HELD.store(false, Ordering::Relaxed);
        PATIENT.store(0, Ordering::Relaxed);
        // Who asks without the engine finds nothing to count in.
        COUNTS.store(core::ptr::null_mut(), Ordering::Release);
        self.known.clear();
        outbox().clear();
        COORDINATOR_LINK.end();
    }
}
