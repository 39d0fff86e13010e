//! What this process records of nondeterministic calls, and what it is forced to do again after it
//! was restored. The machine is coordination's `ReplayDecisions`; here are its places: the counts
//! that the ranks of a set on this node share, and the outbox from which the checkpoint thread
//! ships.
//!
//! Off until the first line is taken (of a protected job whose lines have a directory). Then the
//! way of a message pays: one load of [`ATTENTION`] for each send and receive, two loads for each
//! frame that leaves the set, and for a determinant a lock that nobody else holds for long. The
//! eventfd of the checkpoint thread is rung when the outbox stops being empty, and when a frame has
//! to wait for the first time.

pub mod carry;
pub mod direct;
mod journal;
mod outbox;

use crate::host::EngineHost;
use crate::process::Process;
use crate::transports::shm::{Counts, Entry, SLOTS, Shm, Slots};
use carry::{Known, Order};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use direct::Sent;
use journal::Journal;
pub use outbox::{Parcel, take_parcel};
use outbox::{outbox, put};
use rustbtl_coordination::determinants::{
    Divergence, NondetCall, Numbered, Outcome, ReplayDecision, ReplayDecisions, piggyback,
};
use rustbtl_fragments::gate::{Marks, Recorded};
use rustbtl_fragments::ids::{MessageName, PeerId, ReceiveName};

/// For C: not 0 while anything is recorded or forced.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of glue.h")]
pub static rustbtl_recording: AtomicI32 = AtomicI32::new(0);

/// For C: changes when recording begins, and in a process that was made from a picture. The
/// program may be pictured between a look at what is complete and the record of it. Then its next
/// life would look again, at something else, and not be forced: so what was seen in an earlier
/// epoch is not told to the program, it asks again.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of glue.h")]
pub static rustbtl_epoch: AtomicU32 = AtomicU32::new(0);

/// The present one. It changes only where the engine is held.
pub fn epoch() -> u32 {
    rustbtl_epoch.load(Ordering::Acquire)
}

/// So many waits after a frame had to wait for determinants others still get the processor sooner.
const PATIENT_WAITS: u8 = 200;

/// What is left of them.
static PATIENT: AtomicU8 = AtomicU8::new(0);

/// Has a frame had to wait for determinants lately, so that processes that are no ranks have a part
/// in messages? Asked in each long wait.
#[inline]
pub fn has_waited() -> bool {
    let left = PATIENT.load(Ordering::Relaxed);
    PATIENT.store(left.saturating_sub(1), Ordering::Relaxed);
    left > 0
}

/// Not 0: sends and receives have more to do than usual; see [`Process::attend`].
pub static ATTENTION: AtomicU8 = AtomicU8::new(0);
/// A run of questions that found nothing has to be recorded first, or times and dates be shipped.
const RUN: u8 = 1;
/// Outcomes are forced: receives are posted, whatever they are for.
const REPLAY: u8 = 2;

/// Receives of requests are posted late.
const LATE: u8 = 4;

/// A frame waits for determinants: the checkpoint thread lets it go.
static HELD: AtomicBool = AtomicBool::new(false);

/// Counts the program's looks around: while it goes up, the program lets its frames go itself.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// Where the set counts; null: nowhere. It lives as long as the segment, or the process.
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(core::ptr::null_mut());
/// Place of the first determinant that is counted there.
static BASE: AtomicU64 = AtomicU64::new(0);

/// Looks around between two at what is stable, while no frame waits for it: each is a system call.
const LOOKS_FOR_STABLE: u32 = 8;

/// The program looks around: so it does what the checkpoint thread would have to come for.
#[inline]
pub fn look() {
    // Only its own threads write, one at a time.
    let looks = LOOKS.load(Ordering::Relaxed).wrapping_add(1);
    LOOKS.store(looks, Ordering::Relaxed);
    if is_held() || looks.is_multiple_of(LOOKS_FOR_STABLE) {
        if direct::waits() {
            direct::look();
        } else if direct::gathers() {
            direct::send(false);
        }
    }
}

/// How often it has.
pub fn looks() -> u32 {
    LOOKS.load(Ordering::Relaxed)
}

/// All before this place in the order of the set are stable. Without the engine: the program may
/// be in it for long.
pub fn set_stable(upto: u64) {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    if let Some(counts) = unsafe { counts.as_ref() } {
        // [stable] what is stable was recorded before.
        counts.stable.fetch_max(upto, Ordering::AcqRel);
    }
}

/// All before this place are stable, as far as this process knows.
pub fn stable() -> u64 {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    unsafe { counts.as_ref() }.map_or(0, |counts| counts.stable.load(Ordering::Acquire))
}

/// Has what is recorded to be shipped at once? A frame of the set waits for it, or so much is not
/// stable that frames will soon have to.
pub fn presses() -> bool {
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or in memory that is never unmapped while this process records.
    let Some(counts) = (unsafe { counts.as_ref() }) else { return true };
    let base = BASE.load(Ordering::Relaxed);
    let stable = counts.stable.load(Ordering::Relaxed).max(base);
    counts.wanted.load(Ordering::Relaxed) > stable
        || base + counts.recorded.load(Ordering::Relaxed) > stable + UNSTABLE_MAX
}

/// So many dates that wait to be shipped need no allocation: signal handlers may read them. A
/// program that reads the date without end records some twenty a second.
const DATES_ROOM: usize = 1024;

/// So much of a set may go on not being stable where nobody waits: a quarter of its slots.
const UNSTABLE_MAX: u64 = SLOTS as u64 / 4;

/// A parcel is not added to any more when it is so long: a message has a limit.
const PARCEL_BYTES: usize = 4 << 20;

/// Something was put into the empty outbox.
fn ship_soon() {
    match direct::send(false) {
        Sent::Shipped => {}
        Sent::Later if direct::is_watched() => {}
        Sent::Later | Sent::NotHere => crate::checkpoint::ring(),
    }
}

/// No frame waits any more.
#[inline]
pub fn released() {
    HELD.store(false, Ordering::Relaxed);
}

/// Does a frame wait?
pub fn is_held() -> bool {
    HELD.load(Ordering::Relaxed)
}

/// Where a set counts.
#[derive(Debug, Default)]
enum Place {
    /// Nowhere: its ranks share no memory.
    #[default]
    Nowhere,
    /// It is this process alone.
    Alone(Box<Counts>, Box<Slots>),
    /// In the node's segment, in the line of the rank with this local index.
    Shared(usize),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Record {
    on: bool,
    decisions: ReplayDecisions,
    place: Place,
    /// Place of the first determinant of this incarnation.
    base: u64,
    journal: Option<Journal>,
    /// Determinants go with messages, if the receiver keeps them.
    pub carries: bool,
    known: Known,
    /// Room for an entry.
    entry: Vec<u8>,
}

fn counts<'a>(place: &'a Place, shm: &'a Option<Shm>) -> Option<&'a Counts> {
    match place {
        Place::Nowhere => None,
        Place::Alone(counts, _) => Some(counts),
        Place::Shared(index) => shm.as_ref().map(|shm| shm.counts(*index)),
    }
}

/// What it holds.
fn slots<'a>(place: &'a Place, shm: &'a Option<Shm>) -> Option<&'a Slots> {
    match place {
        Place::Nowhere => None,
        Place::Alone(_, slots) => Some(slots),
        Place::Shared(index) => shm.as_ref().map(|shm| shm.slots(*index)),
    }
}

/// The set's order, as far as this life goes.
fn order<'a>(place: &'a Place, base: u64, shm: &'a Option<Shm>) -> Option<Order<'a>> {
    let (counts, slots) = (counts(place, shm)?, slots(place, shm)?);
    Some(Order { counts, slots, base })
}

impl Record {
    /// Is anything recorded?
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Number of the next determinant.
    pub fn clock(&self) -> u64 {
        self.decisions.clock()
    }

    /// The process was made from a picture: the old counts are out of reach.
    pub fn restarted(&mut self) {
        self.place = Place::Nowhere;
        COUNTS.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// A picture is taken next, at this date of the machine.
    pub fn pictured(&mut self, now: u64) {
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
        ATTENTION.store(ATTENTION.load(Ordering::Relaxed) & LATE, Ordering::Relaxed);
        HELD.store(false, Ordering::Relaxed);
        PATIENT.store(0, Ordering::Relaxed);
        self.known.clear();
        outbox().clear();
        direct::end();
    }
}

impl EngineHost {
    /// Local index of the first of these ranks, if all of them share the memory of this node.
    pub fn index_of_set(&self, members: &[PeerId]) -> Option<usize> {
        let shm = self.shm.as_ref()?;
        let all_here = members.iter().all(|&member| shm.index_of(member).is_some());
        let first = members.iter().min().filter(|_| all_here)?;
        shm.index_of(*first)
    }

    /// The set counts where all its processes see it, in memory that is new in each life.
    /// `members`: all of them; `base`: the place that is recorded next.
    pub fn place_counts(&mut self, members: &[PeerId], base: u64) {
        self.record.place = match members {
            [_] => Place::Alone(Box::default(), Box::default()),
            _ => self.index_of_set(members).map_or(Place::Nowhere, Place::Shared),
        };
        self.record.base = base;
        self.record.known.clear();
        BASE.store(base, Ordering::Relaxed);
        let counts = counts(&self.record.place, &self.shm);
        let counts = counts.map_or(core::ptr::null(), core::ptr::from_ref);
        COUNTS.store(counts.cast_mut(), Ordering::Release);
    }

    /// Record from now on.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn switch_on(&mut self) -> Result<(), &'static str> {
        if counts(&self.record.place, &self.shm).is_none() {
            return Err("the processes of this correlated set share no memory, so they cannot \
                        count together what is to be repeated. Choose sets that lie within a node, \
                        with shared memory, or of single processes");
        }
        self.record.on = true;
        self.record.decisions.reserve(DATES_ROOM);
        self.record.journal = Journal::of(self.peers.rank());
        rustbtl_recording.store(1, Ordering::Relaxed);
        rustbtl_epoch.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// What `Host::marks` says while anything is recorded.
    #[inline(never)]
    pub fn marks_now(&self) -> Marks {
        let Some(counts) = counts(&self.record.place, &self.shm) else { return Marks::OPEN };
        // [stable] what is stable was recorded before.
        let stable = counts.stable.load(Ordering::Acquire);
        let recorded = self.record.base + counts.recorded.load(Ordering::Acquire);
        Marks { recorded: Recorded(recorded), stable }
    }

    /// A frame has to wait for what is recorded.
    #[inline(never)]
    pub fn hold(&self) {
        let first = !HELD.swap(true, Ordering::Relaxed);
        if let Some(counts) = counts(&self.record.place, &self.shm) {
            let recorded = self.record.base + counts.recorded.load(Ordering::Acquire);
            counts.wanted.fetch_max(recorded, Ordering::Relaxed);
        }
        PATIENT.store(PATIENT_WAITS, Ordering::Relaxed);
        if direct::send(true) == Sent::NotHere && first {
            crate::checkpoint::ring();
        }
    }

    /// Does nothing have to wait any more?
    fn all_stable(&self) -> bool {
        counts(&self.record.place, &self.shm).is_none_or(|counts| {
            let stable = counts.stable.load(Ordering::Acquire);
            stable >= self.record.base + counts.recorded.load(Ordering::Acquire)
        })
    }

    /// A receive from MPI_ANY_SOURCE took a message.
    #[cold]
    #[inline(never)]
    pub fn record_match(&mut self, receive: ReceiveName, message: MessageName) {
        self.record.decisions.before_library_action();
        self.record.decisions.matched(receive, message);
        self.ship_recorded();
    }

    /// Count what was recorded and put it into the outbox, before anything that depends on it.
    fn ship_recorded(&mut self) {
        let own = PeerId(self.peers.rank());
        let Record { decisions, place, base, journal, carries, entry, .. } = &mut self.record;
        let Some(order) = order(place, *base, &self.shm) else { return };
        let Some(first) = decisions.take_recorded() else { return };
        let mut outbox = outbox();
        let ring = outbox.is_empty();
        let mut next = Some(first);
        while let Some(numbered) = next {
            let at = order.next();
            if *carries {
                entry.clear();
                piggyback::append(entry, own, &numbered);
                order.write(at, Entry::Own(entry));
            }
            put(&mut outbox, at, &numbered);
            if let Some(journal) = journal {
                journal.add(&numbered);
            }
            next = decisions.take_recorded();
        }
        drop(outbox);
        if ring {
            ship_soon();
        }
    }

    /// End the job: the program does not do again what it did.
    #[cold]
    fn diverged(&self, divergence: &Divergence) -> ! {
        self.glue.fatal("divergence", &[&divergence.to_string()])
    }
}

/// Is this tag, or pattern of tags, one of the program's (not of the library's own traffic)?
pub fn of_program(tag: i32) -> bool {
    tag >= crate::glue::ANY
}

impl Process {
    /// Before a send or receive while [`ATTENTION`] is not 0: what was not found until now is
    /// recorded first. (What the library does by itself is not repeatable in its place.)
    #[cold]
    #[inline(never)]
    pub fn act(&mut self, tag: i32) {
        let decisions = &mut self.host.record.decisions;
        if of_program(tag) {
            if let Err(divergence) = decisions.before_action() {
                self.host.diverged(&divergence);
            }
        } else {
            decisions.before_library_action();
        }
        self.host.ship_recorded();
        self.attend();
    }

    /// After anything that the machine was asked or told, and after a receive was posted in
    /// replay: have the outcomes run out, and what do sends and receives have to look at?
    pub fn attend(&mut self) {
        let past = self.host.record.decisions.has_outcomes_to_replay();
        if self.engine.is_replaying() && !past && !self.engine.awaits_receives() {
            self.engine.end_replay(&mut self.host);
            self.host.push();
        }
        let decisions = &self.host.record.decisions;
        let run = if decisions.has_run() || decisions.recorded_pending() > 0 { RUN } else { 0 };
        let replay = if self.engine.has_replay() { REPLAY } else { 0 };
        let late = if self.behind || !self.late.is_empty() { LATE } else { 0 };
        ATTENTION.store(run | replay | late, Ordering::Relaxed);
    }

    /// The answer to a question; None: it found nothing.
    pub fn answered(&mut self, question: NondetCall, outcome: Option<Outcome>) {
        let decisions = &mut self.host.record.decisions;
        match outcome {
            None => decisions.record_nothing(question),
            Some(outcome) => {
                if let Err(divergence) = decisions.record_outcome(question, outcome) {
                    self.host.diverged(&divergence);
                }
                self.host.ship_recorded();
            }
        }
        self.attend();
    }

    /// The program has read the clock; None: the same time as before. It is shipped with what
    /// follows, or when so many wait for that.
    pub fn read(&mut self, outcome: Option<Outcome>, unshipped_max: usize) {
        let decisions = &mut self.host.record.decisions;
        match outcome {
            None => decisions.record_nothing(NondetCall::CLOCK),
            Some(outcome) => {
                if let Err(divergence) = decisions.record_outcome(NondetCall::CLOCK, outcome) {
                    self.host.diverged(&divergence);
                }
                if decisions.recorded_pending() >= unshipped_max {
                    self.host.ship_recorded();
                }
            }
        }
        self.attend();
    }

    /// The program calls time(). Nothing else is done than to note that it has to be shipped: it
    /// may do so in a signal handler.
    pub fn read_date(&mut self, now: u64) -> u64 {
        let decisions = &mut self.host.record.decisions;
        let date = decisions.program_time(now);
        if decisions.recorded_pending() > 0 {
            // Not one operation: whoever else writes it is in here, too.
            ATTENTION.store(ATTENTION.load(Ordering::Relaxed) | RUN, Ordering::Relaxed);
        }
        date
    }

    /// What to do with a question. Ends the job if it is another one than before.
    pub fn asked(&mut self, question: NondetCall) -> ReplayDecision {
        match self.host.record.ask(question) {
            Ok(ask) => {
                if ask == ReplayDecision::ReportNothing {
                    self.attend();
                }
                ask
            }
            Err(divergence) => self.host.diverged(&divergence),
        }
    }

    /// More may be stable: frames that waited go. Call without the program inside.
    pub fn let_go(&mut self) {
        self.timed(|engine, host| engine.flush(host));
        self.host.push();
        if self.engine.is_flushed() || self.host.all_stable() {
            HELD.store(false, Ordering::Relaxed);
        }
    }

    /// The process was restored from a picture, its channels to other sets were reported down:
    /// these determinants of it were kept, the next one of its set has place `at`.
    ///
    /// # Errors
    /// Number of the first determinant that is lost.
    pub fn restore_record(
        &mut self,
        members: &[PeerId],
        at: u64,
        kept: &[Numbered],
    ) -> Result<(), u64> {
        rustbtl_epoch.fetch_add(1, Ordering::AcqRel);
        outbox().clear();
        HELD.store(false, Ordering::Relaxed);
        self.host.place_counts(members, at);
        let journal = self.host.record.journal.as_ref().filter(|_| kept.is_empty());
        let written = journal.map_or(Vec::new(), Journal::read);
        let kept = if kept.is_empty() { &written } else { kept };
        let forced = self.host.record.decisions.restored(kept)?;
        if !kept.is_empty() || self.engine.is_replaying() {
            self.engine.begin_replay(&mut self.host, &forced);
        }
        self.attend();
        self.keep_carried();
        Ok(())
    }

    /// Has everything been done again that was done before (`ReplayComplete`)?
    pub fn has_caught_up(&self) -> bool {
        !self.host.record.decisions.has_outcomes_to_replay() && self.engine.has_caught_up()
    }
}
