//! The coordinator's part in lines: when, whose, in which order; complete, or dropped.
//!
//! Source: DESIGN §6; docs/adr/0002 "Lines".
//!
//! ```text
//!  set line:    Begin ─all Frozen─> (resumed by themselves) ─all Stored─> Commit ─Committed─> kept
//!  global line: StopOutgoing ─all Stopped─> Begin ─all Frozen─> Resume ─all Stored─> Commit …
//! ```
//!
//! Invariants:
//! * L1 Numbers of lines ascend; each is used once.
//! * L2 A global line is taken alone; at most `sets_at_once` set lines are under way, one of a set.
//! * L3 `Commit` only when every rank of the line has stored; `Trim`, `Drop` of older lines and
//!   `Exit` only after `Committed`.
//! * L4 A line that is ordered ends in `Complete` or in `Abort` and `Drop`, once.
//! * L5 Messages are trimmed by the oldest line that their receiver's set can go back to alone.
//! * L6 No line is ordered of a set that has lost a rank or of which one is in MPI_Finalize; no
//!   global line while there is such a set or one that repeats its past, or a rank has refused one
//!   since something is not repaired ([`Why::passes`]) and has not said that it is.
//! * L7 A line that somebody asked for and that failed is tried once more, if its reason may pass
//!   ([`Why::may_pass`]); lines that are due are tried again after twice the time, each time. What
//!   passes by itself does not count: such a line is ordered again when it has (L6).
//! * L8 When all sets go back together, the line that they go to is the youngest of each of them
//!   and of the job from then on, whatever was kept.

mod back;
mod words;

use crate::silence::{Answer, Refusal, Scope};
use rustbtl_fragments::ids::{PeerId, SetId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
pub use words::{Config, Input, Known, SchedulerError, Output, Why};

/// Somebody asks for a line.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// When it was asked for; not before this time.
    from: u64,
    /// It was tried, and failed (L7).
    again: bool,
}

#[derive(Clone, Debug, Default)]
struct Set {
    ranks: BTreeSet<PeerId>,
    lost: bool,
    /// Others have seen what it has not done again yet: of such a state a global line would hold
    /// messages that nobody has sent.
    behind: bool,
    /// Ranks that have refused a global line since something is not repaired.
    late: BTreeSet<PeerId>,
    finishing: bool,
    wanted: Option<Wanted>,
    due: Option<u64>,
    pause_ms: Option<u64>,
    /// Lines in a row that were aborted.
    aborted: u32,
    /// Complete lines that it can go back to alone, ascending; global ones, too.
    kept: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Stopping,
    Taking,
    Storing,
    Committing,
}

#[derive(Clone, Debug)]
struct Line {
    scope: Scope,
    sets: Vec<SetId>,
    phase: Phase,
    exit: bool,
    /// Somebody asked for it.
    asked: Option<Wanted>,
    ranks: BTreeSet<PeerId>,
    stopped: BTreeSet<PeerId>,
    frozen: BTreeSet<PeerId>,
    stored: BTreeSet<PeerId>,
    begun: u64,
    pause_ms: u64,
    deadline: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Lines {
    config: Config,
    sets: BTreeMap<SetId, Set>,
    set_of: BTreeMap<PeerId, SetId>,
    lines: BTreeMap<u64, Line>,
    next_line: u64,
    now: u64,
    global_due: Option<u64>,
    global_wanted: Option<Wanted>,
    /// With it, the end of the job.
    exit_wanted: bool,
    global_pause_ms: Option<u64>,
    global_aborted: u32,
    /// Complete global lines, ascending.
    globals: VecDeque<u64>,
    exiting: bool,
    outputs: VecDeque<Output>,
}

impl Lines {
    /// For a job whose ranks belong to these sets. `first_line`: lines are numbered from here;
    /// above all that its folder holds. `now` in milliseconds, here and below.
    pub fn new(config: Config, set_of: &[(PeerId, SetId)], first_line: u64, now: u64) -> Self {
        let mut sets: BTreeMap<SetId, Set> = BTreeMap::new();
        for &(rank, set) in set_of {
            sets.entry(set).or_default().ranks.insert(rank);
        }
        let mut lines = Self {
            config,
            sets,
            set_of: set_of.iter().copied().collect(),
            lines: BTreeMap::new(),
            next_line: first_line,
            now,
            global_due: None,
            global_wanted: None,
            exit_wanted: false,
            global_pause_ms: None,
            global_aborted: 0,
            globals: VecDeque::new(),
            exiting: false,
            outputs: VecDeque::new(),
        };
        // Staggered: the sets share storage, hence not all at once.
        let count = lines.sets.len() as u64;
        let interval = lines.config.set_interval.next_ms(1, None);
        for (at, set) in (1..).zip(lines.sets.values_mut()) {
            let part = |ms| (u128::from(ms) * at / u128::from(count)) as u64;
            set.due = interval.map(|ms| now.saturating_add(part(ms)));
        }
        let interval = lines.config.global_interval.next_ms(lines.sets.len(), None);
        lines.global_due = interval.map(|ms| now.saturating_add(ms));
        lines
    }

    /// For a job that was restored from the global line `line`: every set can go back to it.
    pub fn restored(
        config: Config,
        set_of: &[(PeerId, SetId)],
        line: u64,
        first_line: u64,
        now: u64,
    ) -> Self {
        let mut lines = Self::new(config, set_of, first_line.max(line + 1), now);
        lines.globals.push_back(line);
        lines.sets.values_mut().for_each(|set| set.kept.push_back(line));
        lines
    }

    /// What is left if this machine is lost: lines under way are not.
    pub fn known(&self) -> Known {
        let kept = |(&id, set): (&SetId, &Set)| (id, set.kept.iter().copied().collect());
        let globals = self.globals.iter().copied().collect();
        let kept = self.sets.iter().map(kept).collect();
        Known { next_line: self.next_line, globals, kept }
    }

    /// For a job in the middle of which the machine that knew this was lost.
    pub fn resumed(config: Config, set_of: &[(PeerId, SetId)], known: &Known, now: u64) -> Self {
        let mut lines = Self::new(config, set_of, known.next_line, now);
        lines.globals.extend(&known.globals);
        for (id, kept) in &known.kept {
            if let Some(set) = lines.sets.get_mut(id) {
                set.kept.extend(kept);
            }
        }
        lines
    }

    /// Something has happened.
    ///
    /// # Errors
    /// See [`SchedulerError`]; nothing has changed.
    pub fn handle(&mut self, now: u64, input: Input) -> Result<(), SchedulerError> {
        self.now = self.now.max(now);
        match input {
            Input::Tick => {}
            Input::Demand { set } => self.demand(set)?,
            Input::Checkpoint { exit } => self.checkpoint(exit)?,
            Input::Answered { rank, answer } => self.on_answer(rank, answer)?,
            Input::Stored { rank, line } => self.on_stored(rank, line)?,
            Input::NotStored { rank, line } => {
                self.rank(rank)?;
                self.abort(line, Why::NotStored(rank));
            }
            Input::Committed { line } => self.on_committed(line),
            Input::NotCommitted { line } => {
                if self.lines.get(&line).is_some_and(|line| line.phase == Phase::Committing) {
                    self.abort(line, Why::Manifest);
                }
            }
            Input::Lost { rank } => self.on_lost(rank)?,
            Input::Back { set, line } => self.on_back(set, line)?,
            Input::AllBack { line } => self.on_all_back(line)?,
            Input::ReplayComplete { set } => {
                self.sets.get_mut(&set).ok_or(SchedulerError::Set(set))?.behind = false;
            }
            Input::Repaired { rank } => {
                self.rank(rank)?.late.remove(&rank);
            }
            Input::Finishing { rank } => self.rank(rank)?.finishing = true,
        }
        self.time_out();
        self.schedule();
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When `Tick` is to be handed in, in milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        let lines = self.lines.values().map(|line| line.deadline);
        let usable = || self.sets.values().filter(|set| set.usable());
        let wanted = usable().filter_map(|set| set.wanted).chain(self.global_wanted);
        let dues = usable().filter_map(|set| set.due).chain(wanted.map(|wanted| wanted.from));
        // What is due and not ordered waits for a line to end, not for time.
        let dues = dues.chain(self.global_due).filter(|&due| due > self.now && !self.exiting);
        lines.chain(dues).min()
    }

    /// Lines under way.
    pub fn under_way(&self) -> usize {
        self.lines.len()
    }

    /// The youngest complete global line.
    pub fn last_global(&self) -> Option<u64> {
        self.globals().next_back()
    }

    /// The complete global lines that are kept, ascending.
    pub fn globals(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.globals.iter().copied()
    }

    /// The complete lines that a set can go back to alone, ascending. After `Lost` and until `Back`
    /// they do not change.
    pub fn lines_of(&self, set: SetId) -> impl Iterator<Item = u64> + '_ {
        self.sets.get(&set).into_iter().flat_map(|set| set.kept.iter().copied())
    }

    fn rank(&mut self, rank: PeerId) -> Result<&mut Set, SchedulerError> {
        let set = self.set_of.get(&rank).and_then(|set| self.sets.get_mut(set));
        set.ok_or(SchedulerError::Rank(rank))
    }

    fn demand(&mut self, id: SetId) -> Result<(), SchedulerError> {
        let set = self.sets.get_mut(&id).ok_or(SchedulerError::Set(id))?;
        if set.finishing {
            return Err(SchedulerError::Finishing);
        }
        // Also while a line of it is under way: the pictures may be older than what is asked for.
        set.wanted.get_or_insert(Wanted { from: self.now, again: false });
        Ok(())
    }

    fn checkpoint(&mut self, exit: bool) -> Result<(), SchedulerError> {
        if self.sets.values().any(|set| set.finishing) {
            return Err(SchedulerError::Finishing);
        }
        self.global_wanted.get_or_insert(Wanted { from: self.now, again: false });
        self.exit_wanted |= exit;
        Ok(())
    }

    fn on_answer(&mut self, rank: PeerId, answer: Answer) -> Result<(), SchedulerError> {
        self.rank(rank)?;
        let (Answer::Stopped { line: number }
        | Answer::Frozen { line: number }
        | Answer::Failed { line: number, .. }) = answer;
        let asked = self.lines.get(&number).is_none_or(|line| {
            line.ranks.contains(&rank)
                && match answer {
                    Answer::Stopped { .. } => line.scope == Scope::Global,
                    Answer::Frozen { .. } => line.phase >= Phase::Taking,
                    Answer::Failed { .. } => true,
                }
        });
        if !asked {
            return Err(SchedulerError::NotAsked(rank, number));
        }
        if matches!(answer, Answer::Failed { why: Refusal::Behind, .. }) {
            // Also if another one was faster, and the line is aborted: it would refuse the next.
            self.rank(rank)?.late.insert(rank);
        }
        let Some(line) = self.lines.get_mut(&number) else { return Ok(()) };
        match answer {
            Answer::Stopped { .. } => {
                line.stopped.insert(rank);
            }
            Answer::Frozen { .. } => {
                line.frozen.insert(rank);
            }
            Answer::Failed { why, .. } => {
                if why == Refusal::Finishing {
                    self.rank(rank)?.finishing = true;
                }
                self.abort(number, Why::Failed(rank, why));
                return Ok(());
            }
        }
        self.advance(number);
        Ok(())
    }

    fn on_stored(&mut self, rank: PeerId, number: u64) -> Result<(), SchedulerError> {
        self.rank(rank)?;
        let Some(line) = self.lines.get_mut(&number) else { return Ok(()) };
        if !line.frozen.contains(&rank) {
            return Err(SchedulerError::NotAsked(rank, number));
        }
        line.stored.insert(rank);
        self.advance(number);
        Ok(())
    }

    fn advance(&mut self, number: u64) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        let all = line.ranks.len();
        if line.phase == Phase::Stopping && line.stopped.len() == all {
            line.phase = Phase::Taking;
            let (scope, sets) = (line.scope, line.sets.clone());
            self.outputs.push_back(Output::Begin { line: number, scope, sets });
        }
        if line.phase == Phase::Taking && line.frozen.len() == all {
            line.phase = Phase::Storing;
            line.pause_ms = self.now - line.begun;
            line.deadline = self.now.saturating_add(self.config.store_timeout_ms);
            if line.scope == Scope::Global && !line.exit {
                self.outputs.push_back(Output::Resume { line: number });
            }
        }
        if line.phase == Phase::Storing && line.stored.len() == all {
            line.phase = Phase::Committing;
            let (scope, sets) = (line.scope, line.sets.clone());
            self.outputs.push_back(Output::Commit { line: number, scope, sets });
        }
    }

    fn on_committed(&mut self, number: u64) {
        let Some(line) = self.lines.remove(&number) else { return };
        debug_assert_eq!(line.phase, Phase::Committing, "L3: committed on order only");
        let Line { scope, sets, pause_ms, exit, .. } = line;
        self.outputs.push_back(Output::Complete { line: number, pause_ms });
        let kept = self.config.kept_lines.max(1);
        let mut dropped = BTreeSet::new();
        if scope == Scope::Global {
            self.global_pause_ms = Some(pause_ms);
            self.global_aborted = 0;
            self.globals.push_back(number);
            if self.globals.len() > kept {
                dropped.extend(self.globals.pop_front());
            }
        }
        for id in sets {
            let Some(set) = self.sets.get_mut(&id) else { continue };
            if scope == Scope::Set {
                set.pause_ms = Some(pause_ms);
                set.aborted = 0;
            }
            let oldest = set.kept.front().copied();
            set.kept.push_back(number);
            while set.kept.len() > kept {
                dropped.extend(set.kept.pop_front());
            }
            // L5.
            if let Some(&line) = set.kept.front()
                && oldest != Some(line)
            {
                self.outputs.push_back(Output::Trim { set: id, line });
            }
        }
        self.drop_unused(dropped);
        if exit {
            self.exiting = true;
            self.outputs.push_back(Output::Exit { line: number });
        }
    }

    /// L4: the line is void.
    fn abort(&mut self, number: u64, why: Why) {
        let Some(line) = self.lines.remove(&number) else { return };
        let (now, retry_ms) = (self.now, self.config.retry_ms);
        let first = line.asked.is_some_and(|asked| !asked.again);
        let retried = why.passes() || first && retry_ms > 0 && why.may_pass();
        let from = now.saturating_add(retry_ms);
        let again = line.asked.filter(|_| retried);
        let again = again.map(|asked| Wanted { from, again: asked.again || !why.passes() });
        let next = match line.scope {
            Scope::Set => line.sets.iter().filter_map(|id| self.aborted_set(*id, again)).min(),
            Scope::Global if why.passes() => {
                self.global_wanted = self.global_wanted.or(again);
                self.exit_wanted |= line.exit;
                if line.asked.is_none() {
                    self.global_due = Some(from);
                }
                Some(from)
            }
            Scope::Global => {
                self.global_aborted += 1;
                let interval = self.config.global_interval;
                let interval = interval.next_ms(self.sets.len(), self.global_pause_ms);
                self.global_due = interval.map(|ms| later(now, ms, self.global_aborted));
                self.global_wanted = self.global_wanted.or(again);
                self.exit_wanted |= line.exit && retried;
                let wanted = self.global_wanted.map(|wanted| wanted.from);
                wanted.into_iter().chain(self.global_due).min()
            }
        };
        let next_ms = next.map(|next| next.saturating_sub(now));
        let sets = line.sets;
        self.outputs.push_back(Output::Abort { line: number, sets, why, retried, next_ms });
        self.outputs.push_back(Output::Drop { line: number });
    }

    /// When the next line of the set is taken.
    fn aborted_set(&mut self, id: SetId, again: Option<Wanted>) -> Option<u64> {
        let set = self.sets.get_mut(&id)?;
        set.aborted += 1;
        let interval = self.config.set_interval.next_ms(1, set.pause_ms);
        set.due = interval.map(|ms| later(self.now, ms, set.aborted));
        set.wanted = set.wanted.or(again);
        set.wanted.map(|wanted| wanted.from).into_iter().chain(set.due).min()
    }

    fn time_out(&mut self) {
        let late: Vec<(u64, Why)> = self
            .lines
            .iter()
            .filter(|(_, line)| line.deadline <= self.now)
            .map(|(&number, line)| (number, line.awaited().map_or(Why::Manifest, Why::Timeout)))
            .collect();
        late.into_iter().for_each(|(number, why)| self.abort(number, why));
    }

    /// Order what is wanted or due (L2, L6).
    fn schedule(&mut self) {
        let global = self.lines.values().any(|line| line.scope == Scope::Global);
        if global || self.exiting {
            return;
        }
        let now = self.now;
        let due = |due: Option<u64>| due.is_some_and(|due| due <= now);
        let asked = |wanted: Option<Wanted>| due(wanted.map(|wanted| wanted.from));
        let wanted = asked(self.global_wanted) || due(self.global_due);
        if wanted && self.sets.values().all(|set| set.usable() && set.is_repaired()) {
            if self.lines.is_empty() {
                self.begin_global();
            }
            return;
        }
        while self.lines.len() < self.config.sets_at_once.max(1) {
            let busy: BTreeSet<SetId> =
                self.lines.values().flat_map(|line| line.sets.iter().copied()).collect();
            let next = self
                .sets
                .iter()
                .filter(|(id, set)| set.usable() && !busy.contains(id))
                .filter(|(_, set)| asked(set.wanted) || due(set.due))
                .min_by_key(|(_, set)| {
                    let wanted = set.wanted.filter(|&wanted| asked(Some(wanted)));
                    (wanted.is_none(), wanted.map(|wanted| wanted.from), set.due)
                });
            let Some((&id, _)) = next else { return };
            self.begin_set(id);
        }
    }

    fn begin_set(&mut self, id: SetId) {
        let (now, interval) = (self.now, self.config.set_interval);
        let Some(set) = self.sets.get_mut(&id) else { return };
        let asked = set.wanted.take();
        set.due = interval.next_ms(1, set.pause_ms).map(|ms| now.saturating_add(ms));
        let line = self.open(Scope::Set, vec![id], asked, false);
        self.outputs.push_back(Output::Begin { line, scope: Scope::Set, sets: vec![id] });
    }

    fn begin_global(&mut self) {
        let (now, count) = (self.now, self.sets.len());
        let asked = self.global_wanted.take();
        let exit = core::mem::take(&mut self.exit_wanted);
        let interval = self.config.global_interval.next_ms(count, self.global_pause_ms);
        self.global_due = interval.map(|ms| now.saturating_add(ms));
        let sets = self.sets.keys().copied().collect();
        let line = self.open(Scope::Global, sets, asked, exit);
        self.outputs.push_back(Output::StopOutgoing { line });
    }

    /// L1.
    fn open(&mut self, scope: Scope, sets: Vec<SetId>, asked: Option<Wanted>, exit: bool) -> u64 {
        let number = self.next_line;
        self.next_line += 1;
        let ranks = sets.iter().flat_map(|set| self.sets[set].ranks.iter().copied()).collect();
        let phase = if scope == Scope::Global { Phase::Stopping } else { Phase::Taking };
        self.lines.insert(
            number,
            Line {
                scope,
                sets,
                phase,
                exit,
                asked,
                ranks,
                stopped: BTreeSet::new(),
                frozen: BTreeSet::new(),
                stored: BTreeSet::new(),
                begun: self.now,
                pause_ms: 0,
                deadline: self.now.saturating_add(self.config.silence_timeout_ms),
            },
        );
        number
    }

    /// Assert the invariants that can be seen at rest.
    pub fn check(&self) {
        let global = self.lines.values().filter(|line| line.scope == Scope::Global).count();
        assert!(global == 0 || self.lines.len() == 1, "L2: a global line is taken alone");
        assert!(self.lines.len() <= self.config.sets_at_once.max(1), "L2: too many at once");
        let of_sets: usize = self.lines.values().map(|line| line.sets.len()).sum();
        let sets: BTreeSet<SetId> =
            self.lines.values().flat_map(|line| line.sets.iter().copied()).collect();
        assert_eq!(of_sets, sets.len(), "L2: two lines of one set");
        assert!(self.lines.keys().all(|&line| line < self.next_line), "L1");
        for line in self.lines.values() {
            let stored = line.stored.len() == line.ranks.len();
            assert_eq!(line.phase == Phase::Committing, stored, "L3");
            assert!(line.frozen.is_superset(&line.stored), "stored before it was frozen");
        }
        for set in self.sets.values() {
            assert!(set.kept.iter().is_sorted(), "kept lines ascend");
            assert!(set.kept.len() <= self.config.kept_lines.max(1), "too many lines are kept");
        }
    }
}

/// Lines that fail again and again must not keep the program from its work: each waits twice as
/// long as the one before.
fn later(now: u64, interval_ms: u64, aborted: u32) -> u64 {
    now.saturating_add(interval_ms.saturating_mul(1 << aborted.min(16)))
}

impl Set {
    fn usable(&self) -> bool {
        !self.lost && !self.finishing
    }

    fn is_repaired(&self) -> bool {
        !self.behind && self.late.is_empty()
    }
}

impl Line {
    /// A rank whose answer is awaited.
    fn awaited(&self) -> Option<PeerId> {
        let answered = match self.phase {
            Phase::Stopping => &self.stopped,
            Phase::Taking => &self.frozen,
            Phase::Storing => &self.stored,
            Phase::Committing => return None,
        };
        self.ranks.difference(answered).next().copied()
    }
}
