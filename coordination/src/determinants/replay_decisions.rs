//! The outcomes of one process: recorded while it is live, forced after a restore.
//!
//! Source: DESIGN §5, §7.4. The driver asks before it polls ([`ReplayDecisions::decide`]) and
//! reports what it found. Plain data of the process: part of its snapshot, so that a checkpoint
//! taken in the middle of a run of failed tests, or of a replay, goes on there.
//!
//! Invariants:
//! * D1 Determinants of a process are numbered from 0 without gaps; a number is used once in all
//!   incarnations that come from the same past.
//! * D2 A run of calls that found nothing is recorded before anything that follows it.
//! * D3 In replay every nondeterministic call is the recorded one, or a [`Divergence`] is reported
//!   and nothing changes.
//! * D4 Dates and readings of clocks are no such calls: none is left over that a call, or the end
//!   of replay, waits for.
//! * D5 What was read from clocks is recorded before the next match, run and outcome: the program's
//!   calls may depend on it, so none of them is ever known without it.

use super::{
    AppliedRun, CallKind, Determinant, DirectRun, NondetCall, Outcome, PastRun, ProgramTime, mix,
};
use super::{CLOCKS, ClockReadings, Readings, Ticks};
use core::fmt;
use rustbtl_fragments::engine::ReplayDeterminants;
use rustbtl_fragments::ids::{MessageName, ReceiveName};
use std::collections::VecDeque;

/// A determinant with its number in its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Numbered {
    /// The event clock.
    pub number: u64,
    /// The outcome.
    pub determinant: Determinant,
}

/// What the driver is to do with a nondeterministic call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayDecision {
    /// Poll, then call [`ReplayDecisions::record_nothing`] or [`ReplayDecisions::record_outcome`].
    Execute,
    /// It found nothing: report that to the program without polling.
    ReportNothing,
    /// It found this: wait until it can be given, then call [`ReplayDecisions::record_outcome`]
    /// with it.
    Await(Outcome),
}

/// The program makes another call than it did before: it has nondeterminism beside that of MPI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// Number of the determinant.
    pub number: u64,
    /// What was recorded.
    pub recorded: String,
    /// What the program does now.
    pub now: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, recorded, now } = self;
        write!(
            f,
            "replay diverges at determinant {number}: recorded was {recorded}, now the program \
             does {now}. Its behaviour depends on something else than MPI (time, random numbers, \
             threads, files that others write): it cannot be replayed"
        )
    }
}

/// A run of calls that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NothingRun {
    first: NondetCall,
    count: u64,
    hash: u64,
}

impl NothingRun {
    fn more(run: Option<Self>, call: NondetCall) -> Self {
        let word = mix(call.arguments, call.kind as u64);
        match run {
            None => Self { first: call, count: 1, hash: word },
            Some(run) => Self { count: run.count + 1, hash: mix(run.hash, word), ..run },
        }
    }
}

/// In place of a number: recorded by another rank of the set.
pub const OF_ANOTHER: u64 = u64::MAX;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct ReplayDecisions {
    /// Number of the next determinant.
    clock: u64,
    /// The run that is going on.
    run: Option<NothingRun>,
    /// Recorded, not yet handed to the set.
    recorded: VecDeque<Numbered>,
    /// Outcomes to be forced, oldest first; matches, dates and readings of clocks are not
    /// among them.
    past: VecDeque<Numbered>,
    dates: ProgramTime,
    clocks: [ClockReadings; CLOCKS],
    /// Of which something is collected, a bit each.
    open_clocks: u32,
    /// Readings for which there was no room in what is collected: not numbered yet, in place.
    readings: VecDeque<Readings>,
    /// Of one-sided operations, after a restore.
    applied: Vec<PastRun>,
}

const _: () = assert!(CLOCKS <= u32::BITS as usize);

impl ReplayDecisions {
    /// Number of the next determinant: with a checkpoint, what it covers.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Is there a run that [`ReplayDecisions::before_action`] would end? One comparison.
    #[inline]
    pub fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// Does none wait to be taken?
    #[inline]
    pub fn has_nothing_pending(&self) -> bool {
        self.recorded.is_empty() && self.readings.is_empty() && self.open_clocks == 0
    }

    /// How many determinants wait to be taken, at least.
    pub fn recorded_pending(&self) -> usize {
        self.recorded.len() + self.readings.len() + self.open_clocks.count_ones() as usize
    }

    /// Are there outcomes of calls left to be forced?
    pub fn has_outcomes_to_replay(&self) -> bool {
        !self.past.is_empty()
    }

    /// The next determinant for the set's ring.
    pub fn take_recorded(&mut self) -> Option<Numbered> {
        self.record_readings();
        self.recorded.pop_front()
    }

    /// What is collected of readings is recorded (D5).
    #[inline]
    fn record_readings(&mut self) {
        if self.open_clocks != 0 {
            self.close_readings();
        }
    }

    #[cold]
    fn close_readings(&mut self) {
        while let Some(readings) = self.readings.pop_front() {
            self.record(Determinant::Readings(Box::new(readings)));
        }
        let open = core::mem::take(&mut self.open_clocks);
        for clock in (0..CLOCKS as u8).filter(|clock| open & 1 << clock != 0) {
            for readings in self.clocks[usize::from(clock)].close(clock).into_iter().flatten() {
                self.record(Determinant::Readings(Box::new(readings)));
            }
        }
    }

    fn record(&mut self, determinant: Determinant) {
        self.recorded.push_back(Numbered { number: self.clock, determinant });
        self.clock += 1;
    }

    /// The program does something that others may notice (send, post, start, free, finish). What it
    /// did not find until now is recorded first (D2).
    ///
    /// # Errors
    /// In replay: it should have gone on with the recorded calls.
    #[inline]
    pub fn before_action(&mut self) -> Result<(), Divergence> {
        if self.run.is_some() { self.end_run("a send, a receive or the like") } else { Ok(()) }
    }

    #[cold]
    fn end_run(&mut self, now: &str) -> Result<(), Divergence> {
        let Some(NothingRun { first, count, hash }) = self.run else { return Ok(()) };
        if !self.past.is_empty() {
            let now = format!("{now} after {count} questions that found nothing");
            return Err(self.divergence(now));
        }
        self.run = None;
        self.record_readings();
        self.record(Determinant::Nothing { first, count, hash });
        Ok(())
    }

    /// The same for what the library does by itself, in its progress: its place among the program's
    /// calls is not repeatable, so in replay nothing is checked.
    #[inline]
    pub fn before_library_action(&mut self) {
        if self.run.is_some() && self.past.is_empty() {
            let ended = self.end_run("");
            debug_assert!(ended.is_ok(), "live");
        }
    }

    fn divergence(&self, now: String) -> Divergence {
        let (number, recorded) = match self.past.front() {
            Some(past) => (past.number, past.determinant.to_string()),
            None => (self.clock, "nothing more".to_string()),
        };
        Divergence { number, recorded, now }
    }

    /// The program makes a nondeterministic call.
    ///
    /// # Errors
    /// In replay: it made another one before.
    pub fn decide(&mut self, call: NondetCall) -> Result<ReplayDecision, Divergence> {
        let Some(past) = self.past.front() else { return Ok(ReplayDecision::Execute) };
        match &past.determinant {
            Determinant::Nothing { first, count, hash } => {
                let run = NothingRun::more(self.run, call);
                if run.first != *first {
                    return Err(self.divergence(call.to_string()));
                }
                if run.count == *count && run.hash != *hash {
                    return Err(self.divergence(format!("other questions, now {call}")));
                }
                self.run = Some(run);
                self.drop_spent_run();
                Ok(ReplayDecision::ReportNothing)
            }
            Determinant::Outcome { call: before, outcome } => {
                if *before != call {
                    return Err(self.divergence(call.to_string()));
                }
                Ok(ReplayDecision::Await(outcome.clone()))
            }
            Determinant::Matched { .. }
            | Determinant::ProgramTime(_)
            | Determinant::Readings(_)
            | Determinant::Applied(_)
            | Determinant::AppliedGroup(_) => {
                unreachable!("matches are the engine's, times the program's without asking")
            }
        }
    }

    /// The recorded run has been replayed to its end.
    fn drop_spent_run(&mut self) {
        if let (Some(run), Some(past)) = (self.run, self.past.front())
            && let Determinant::Nothing { count, .. } = past.determinant
            && run.count >= count
        {
            self.run = None;
            self.past.pop_front();
        }
    }

    /// The outcomes that are left are not forced: for a job that is to end after a divergence.
    pub fn give_up(&mut self) {
        self.past.clear();
        self.run = None;
        self.dates.give_up();
        self.clocks.iter_mut().for_each(ClockReadings::give_up);
    }

    /// The program calls time(), and the machine's date is `now`: what it is given. No memory is
    /// allocated while there is room (see [`ReplayDecisions::reserve`]).
    pub fn program_time(&mut self, now: u64) -> u64 {
        let (given, date) = self.dates.read(now);
        if let Some(date) = date {
            self.record(Determinant::ProgramTime(date));
        }
        given
    }

    /// The program reads a clock so soon after it has read it that it gets the same, if it does.
    #[inline]
    pub fn clock_again(&mut self, clock: u8, tick: u64) -> Option<u64> {
        self.clocks.get_mut(usize::from(clock))?.again(tick)
    }

    /// One of the clocks.
    ///
    /// # Panics
    /// There is none of this number.
    pub fn clock_readings(&self, clock: u8) -> &ClockReadings {
        &self.clocks[usize::from(clock)]
    }

    /// The program reads a clock, which says `now_ns` on the machine: what it is given. No memory
    /// is allocated while there is room (see [`ReplayDecisions::reserve`]).
    ///
    /// # Panics
    /// There is no clock of this number.
    pub fn read_clock(&mut self, clock: u8, now_ns: u64, ticks: Ticks) -> u64 {
        let readings = &mut self.clocks[usize::from(clock)];
        let (given, full) = readings.read(clock, now_ns, ticks);
        if readings.is_open() {
            self.open_clocks |= 1 << clock;
        }
        self.readings.extend(full);
        given
    }

    /// A snapshot is taken next, at this date of the machine.
    pub fn before_snapshot(&mut self, now: u64) {
        self.dates.before_snapshot(now);
    }

    /// So many dates, and readings of clocks, can wait to be taken without an allocation.
    pub fn reserve(&mut self, dates: usize, readings: usize) {
        self.recorded.reserve(dates);
        self.readings.reserve(readings);
    }

    /// A call found nothing (after [`ReplayDecision::Execute`]).
    pub fn record_nothing(&mut self, call: NondetCall) {
        debug_assert!(self.past.is_empty(), "D3: replay says what is found");
        self.run = Some(NothingRun::more(self.run, call));
    }

    /// A call found something; in replay, what was recorded.
    ///
    /// # Errors
    /// In replay: it found something else.
    pub fn record_outcome(&mut self, call: NondetCall, outcome: Outcome) -> Result<(), Divergence> {
        let found = Determinant::Outcome { call, outcome };
        match self.past.front() {
            None => {
                self.end_run("")?;
                self.record_readings();
                self.record(found);
            }
            Some(past) if past.determinant == found => {
                self.past.pop_front();
            }
            Some(_) => return Err(self.divergence(found.to_string())),
        }
        Ok(())
    }

    /// A receive from MPI_ANY_SOURCE took a message (`Host::matched`).
    pub fn matched(&mut self, receive: ReceiveName, message: MessageName) {
        self.record_readings();
        self.record(Determinant::Matched { receive, message });
    }

    /// One-sided operations were applied.
    pub fn applied(&mut self, run: AppliedRun) {
        self.record_readings();
        self.record(Determinant::Applied(run));
    }

    /// One-sided operations were applied directly by ranks of the set. What was recorded and not
    /// taken yet may depend on them: they come before it.
    pub fn applied_directly(&mut self, group: Vec<DirectRun>) {
        if group.is_empty() {
            return;
        }
        self.record_readings();
        let number = self.recorded.front().map_or(self.clock, |first| first.number);
        self.recorded.iter_mut().for_each(|later| later.number += 1);
        let determinant = Determinant::AppliedGroup(group);
        self.recorded.push_front(Numbered { number, determinant });
        self.clock += 1;
    }

    /// What [`ReplayDecisions::restored`] found of one-sided operations, for who repeats them. Of
    /// groups all that they hold.
    pub fn take_applied(&mut self) -> Vec<PastRun> {
        core::mem::take(&mut self.applied)
    }

    /// The process was restored from a snapshot: these determinants of it were kept, of any
    /// number; and, with number [`OF_ANOTHER`], what other ranks of its set have recorded of direct
    /// accesses to it. Gives what the engine is to force.
    ///
    /// # Errors
    /// They do not follow the snapshot without a gap: determinants are lost.
    pub fn restored(&mut self, kept: &[Numbered]) -> Result<ReplayDeterminants, u64> {
        self.recorded.clear();
        let mut forced = ReplayDeterminants::default();
        let mut clock = self.clock;
        let (mut past, mut dates, mut readings) = (Vec::new(), Vec::new(), Vec::new());
        let mut applied = Vec::new();
        for numbered in kept.iter().filter(|numbered| numbered.number >= self.clock) {
            if let (OF_ANOTHER, Determinant::AppliedGroup(runs)) =
                (numbered.number, &numbered.determinant)
            {
                applied.extend(runs.iter().copied().map(PastRun::Direct));
                continue;
            }
            if numbered.number != clock {
                return Err(clock);
            }
            clock += 1;
            match &numbered.determinant {
                Determinant::Matched { receive, message } => {
                    forced.matches.push((*receive, *message));
                    continue;
                }
                Determinant::ProgramTime(date) => {
                    dates.push(*date);
                    continue;
                }
                Determinant::Readings(those) => {
                    readings.push(**those);
                    continue;
                }
                Determinant::Applied(run) => {
                    applied.push(PastRun::Own(*run));
                    continue;
                }
                Determinant::AppliedGroup(runs) => {
                    applied.extend(runs.iter().copied().map(PastRun::Direct));
                    continue;
                }
                Determinant::Outcome { call, outcome } => match outcome {
                    Outcome::Message(message) if call.kind == CallKind::Claim => {
                        forced.claimed.push(*message);
                    }
                    Outcome::Cancelled(Some(receive)) => forced.cancelled.push(*receive),
                    _ => {}
                },
                Determinant::Nothing { .. } => {}
            }
            past.push(numbered.clone());
        }
        self.clock = clock;
        self.past.extend(past);
        self.applied = applied;
        self.dates.restored(dates);
        self.clocks.iter_mut().for_each(ClockReadings::restored);
        self.open_clocks = 0;
        self.readings.clear();
        for those in readings {
            self.clocks[usize::from(those.clock)].force(those);
        }
        self.drop_spent_run();
        Ok(forced)
    }
}

impl fmt::Display for Determinant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matched { receive, message } => write!(f, "{receive:?} takes {message:?}"),
            Self::Nothing { first, count, .. } => {
                write!(f, "{count} questions that found nothing, the first {first}")
            }
            Self::Outcome { call, outcome } => write!(f, "{call} gives {outcome:?}"),
            Self::ProgramTime(date) => write!(f, "{date:?}"),
            Self::Applied(run) => write!(f, "{run:?}"),
            Self::AppliedGroup(runs) => write!(f, "direct accesses {runs:?}"),
            Self::Readings(readings) => {
                let (clock, calls) = (readings.clock, readings.calls());
                write!(f, "{calls} readings of clock {clock}")
            }
        }
    }
}
