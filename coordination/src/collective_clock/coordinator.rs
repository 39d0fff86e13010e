//! The coordinator's part: collects the counters of all ranks, hands targets on, has those go on
//! for whom others wait, and knows when all are drained. Invariants: see the module above.
//!
//! Why `Drained` is true when it is said: a rank at its targets enters nothing of its own accord
//! (Y2), so a rank whose last words are that it is drained, and that it has received all that it
//! was sent, stays so until it is sent something. What it has sent before those words was read
//! before them. When the last words of all are such, nothing that could move anybody is under way.

use super::io::{ClockError, DrainFailure, DrainInput, DrainOutput};
use crate::control::{
    CheckpointId, ClockCounter, ClockTarget, FromClock, Hindrance, MemberRuns, ToClock,
};
use rustbtl_fragments::ids::PeerId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A communicator, in a drain.
#[derive(Clone, Debug)]
struct Clock {
    members: MemberRuns,
    target: u64,
    /// The ranks that have it.
    numbers: BTreeMap<PeerId, Member>,
}

/// A rank of a communicator.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// What it calls the clock.
    number: u32,
    /// Up to here it has come, or was sent a target.
    knows: u64,
}

/// A rank, in a drain.
#[derive(Clone, Debug)]
struct Rank {
    /// Its communicators: by its own number, which of the drain's clocks.
    clocks: BTreeMap<u32, usize>,
    answered: bool,
    /// Messages that it was sent.
    orders: u32,
    /// Those it had received when it last said how it is.
    seen: u32,
    hindrance: Hindrance,
    stop: u32,
    /// The highest stop that was lifted.
    lifted: u32,
    waits_for: Vec<PeerId>,
}

impl Rank {
    /// Y5.
    fn is_drained(&self) -> bool {
        self.answered && self.seen == self.orders && self.hindrance == Hindrance::None
    }
}

#[derive(Clone, Debug)]
struct Drain {
    checkpoint: u64,
    deadline: u64,
    /// `Drained` was said.
    is_held: bool,
    ranks: BTreeMap<PeerId, Rank>,
    /// Ranks that have not answered to the beginning.
    unanswered: usize,
    /// Ranks that are not drained.
    awaited: BTreeSet<PeerId>,
    clocks: Vec<Clock>,
    by_group: BTreeMap<(u64, u32), Vec<usize>>,
    /// Clocks that were used and that some of their members do not have yet.
    unmade: BTreeSet<usize>,
    /// Clocks of which somebody may not know the target.
    raised: BTreeSet<usize>,
    /// Ranks that wait for somebody.
    waiting: usize,
    /// The highest rank of the job: processes of other jobs have numbers above.
    highest: u64,
}

/// The drain of all ranks, one checkpoint after the other.
#[derive(Clone, Debug)]
pub struct CollectiveDrain {
    ranks: Vec<PeerId>,
    timeout_ms: u64,
    now: u64,
    drain: Option<Drain>,
    outputs: VecDeque<DrainOutput>,
}

impl CollectiveDrain {
    /// For a job of these ranks. A drain that takes more than `timeout_ms` milliseconds is given
    /// up: a rank that computes for long may be on its way to a collective that others are in, and
    /// they wait for it anyway, but those that are stopped would not.
    pub fn new(ranks: &[PeerId], timeout_ms: u64) -> Self {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        Self { ranks, timeout_ms, now: 0, drain: None, outputs: VecDeque::new() }
    }

    /// Something has happened. `now` in milliseconds, any monotonic clock.
    ///
    /// # Errors
    /// A rank broke the protocol; nothing has changed.
    pub fn handle(&mut self, now: u64, input: DrainInput) -> Result<(), ClockError> {
        self.now = self.now.max(now);
        match input {
            DrainInput::Begin { checkpoint } => self.begin(checkpoint),
            DrainInput::Message { rank, message } => self.on_message(rank, message)?,
            DrainInput::Refused { rank, checkpoint, refusal } => {
                self.known(rank)?;
                if self.is_in(checkpoint) {
                    self.give_up(DrainFailure::Refused(rank, refusal));
                }
            }
            DrainInput::RankFailed { rank } => {
                self.known(rank)?;
                self.give_up(DrainFailure::RankFailed(rank));
            }
            DrainInput::End { checkpoint } => {
                self.drain.take_if(|drain| drain.checkpoint == checkpoint);
            }
            DrainInput::Tick => {}
        }
        if self.next_deadline().is_some_and(|deadline| deadline <= self.now)
            && let Some(reason) = self.late()
        {
            self.give_up(reason);
        }
        Ok(())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<DrainOutput> {
        self.outputs.pop_front()
    }

    /// When `Tick` is to be handed in, in milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.drain.as_ref().filter(|drain| !drain.is_held).map(|drain| drain.deadline)
    }

    /// Ranks that are not drained, ascending.
    pub fn awaited(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.drain.iter().flat_map(|drain| drain.awaited.iter().copied())
    }

    fn known(&self, rank: PeerId) -> Result<(), ClockError> {
        self.ranks.binary_search(&rank).map(drop).map_err(|_| ClockError::Rank(rank))
    }

    fn is_in(&self, checkpoint: u64) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.checkpoint == checkpoint)
    }

    fn begin(&mut self, checkpoint: u64) {
        let rank = Rank {
            clocks: BTreeMap::new(),
            answered: false,
            orders: 1,
            seen: 0,
            hindrance: Hindrance::None,
            stop: 0,
            lifted: 0,
            waits_for: Vec::new(),
        };
        self.drain = Some(Drain {
            checkpoint,
            deadline: self.now.saturating_add(self.timeout_ms),
            is_held: false,
            ranks: self.ranks.iter().map(|&id| (id, rank.clone())).collect(),
            unanswered: self.ranks.len(),
            awaited: self.ranks.iter().copied().collect(),
            clocks: Vec::new(),
            by_group: BTreeMap::new(),
            unmade: BTreeSet::new(),
            raised: BTreeSet::new(),
            waiting: 0,
            highest: self.ranks.last().map_or(0, |rank| rank.0.into()),
        });
        for &rank in &self.ranks {
            let message = ToClock::Drain { checkpoint: CheckpointId(checkpoint) };
            self.outputs.push_back(DrainOutput::Send { rank, message });
        }
    }

    fn give_up(&mut self, reason: DrainFailure) {
        if let Some(Drain { checkpoint, .. }) = self.drain.take() {
            self.outputs.push_back(DrainOutput::GiveUp { checkpoint, reason });
        }
    }

    fn late(&self) -> Option<DrainFailure> {
        let drain = self.drain.as_ref()?;
        if let Some((&rank, _)) = drain.ranks.iter().find(|(_, rank)| !rank.answered) {
            return Some(DrainFailure::NoAnswer(rank));
        }
        // Below its target: whoever is inside a collective waits for such a one.
        let with = |hindrance| {
            let mut found = drain.awaited.iter().map(|id| (id, &drain.ranks[id]));
            found.find(|(_, rank)| rank.hindrance == hindrance).map(|(&id, _)| id)
        };
        let hindered = [Hindrance::BelowTarget, Hindrance::Incomplete]
            .into_iter()
            .find_map(|why| with(why).map(|rank| DrainFailure::Timeout(rank, why)));
        let unanswered = drain.awaited.first().map(|&rank| DrainFailure::NoAnswer(rank));
        let unmade = drain.unmade.first().and_then(|&at| drain.members_without(at).next());
        let unmade = unmade.map(|rank| DrainFailure::Timeout(rank, Hindrance::None));
        hindered.or(unanswered).or(unmade)
    }

    fn on_message(&mut self, id: PeerId, message: FromClock) -> Result<(), ClockError> {
        self.known(id)?;
        let (FromClock::Counters { checkpoint: CheckpointId(number), .. }
        | FromClock::Raised { checkpoint: CheckpointId(number), .. }
        | FromClock::State { checkpoint: CheckpointId(number), .. }) = message;
        let Some(drain) = self.drain.as_mut().filter(|drain| drain.checkpoint == number) else {
            return Ok(());
        };
        let Some(rank) = drain.ranks.get_mut(&id) else { return Err(ClockError::Rank(id)) };
        let outcome = match message {
            FromClock::Counters { counters, .. } => {
                drain.check_counters(id, &counters)?;
                drain.add_counters(id, counters)
            }
            _ if !rank.answered => return Err(ClockError::TooEarly(id)),
            FromClock::Raised { clock, sequence, .. } => {
                let Some(&clock) = rank.clocks.get(&clock) else {
                    return Err(ClockError::Clock(clock));
                };
                // Y5: what it has said of itself before is not true any more.
                rank.hindrance = Hindrance::Incomplete;
                let outcome = drain.raise(id, clock, sequence);
                drain.update_made(clock);
                outcome
            }
            FromClock::State { orders, hindrance, stop, waits_for, .. } => {
                if orders > rank.orders || orders < rank.seen {
                    return Err(ClockError::Orders(id));
                }
                rank.seen = orders;
                rank.hindrance = hindrance;
                rank.stop = stop;
                drain.waiting -= usize::from(!rank.waits_for.is_empty());
                drain.waiting += usize::from(!waits_for.is_empty());
                rank.waits_for = waits_for;
                Ok(())
            }
        };
        if let Err(reason) = outcome {
            self.give_up(reason);
            return Ok(());
        }
        drain.update(id);
        if drain.is_held {
            return Ok(());
        }
        drain.hand_on_targets(&mut self.outputs);
        drain.lift(&mut self.outputs);
        if drain.is_drained() {
            drain.is_held = true;
            self.outputs.push_back(DrainOutput::Drained { checkpoint: drain.checkpoint });
        }
        Ok(())
    }

    /// Assert what can be seen of the invariants from inside.
    pub fn check(&self) {
        let Some(drain) = &self.drain else { return };
        for (id, rank) in &drain.ranks {
            assert_eq!(!rank.is_drained(), drain.awaited.contains(id), "Y5: rank {id}");
        }
        let waiting = drain.ranks.values().filter(|rank| !rank.waits_for.is_empty()).count();
        assert_eq!(drain.waiting, waiting, "Y6: who waits");
        let unanswered = drain.ranks.values().filter(|rank| !rank.answered).count();
        assert_eq!(drain.unanswered, unanswered);
        assert!(!drain.is_held || drain.unmade.is_empty(), "Y4: a communicator is half made");
        for (at, clock) in drain.clocks.iter().enumerate() {
            for (id, member) in &clock.numbers {
                assert_eq!(drain.ranks[id].clocks[&member.number], at);
                assert!(clock.members.contains(*id));
                let is_sent = drain.unanswered > 0 || member.knows >= clock.target;
                assert!(is_sent, "Y4: rank {id} does not know its target");
            }
        }
    }
}

impl Drain {
    fn is_drained(&self) -> bool {
        self.awaited.is_empty() && self.unmade.is_empty()
    }

    /// `rank` may have become drained, or is not any more.
    fn update(&mut self, id: PeerId) {
        if self.ranks[&id].is_drained() {
            self.awaited.remove(&id);
        } else {
            self.awaited.insert(id);
        }
    }

    fn check_counters(&self, id: PeerId, counters: &[ClockCounter]) -> Result<(), ClockError> {
        let mut numbers = BTreeSet::new();
        for counter in counters {
            if !counter.members.is_sound() {
                return Err(ClockError::Members);
            }
            if !counter.members.contains(id) {
                return Err(ClockError::NotMember(id));
            }
            let is_known = self.ranks[&id].clocks.contains_key(&counter.clock);
            let is_twice =
                self.find(counter).is_some_and(|at| self.clocks[at].numbers.contains_key(&id));
            if is_known || is_twice || !numbers.insert(counter.clock) {
                return Err(ClockError::Clock(counter.clock));
            }
        }
        Ok(())
    }

    fn find(&self, counter: &ClockCounter) -> Option<usize> {
        let same = self.by_group.get(&(counter.group, counter.context))?;
        same.iter().copied().find(|&at| self.clocks[at].members == counter.members)
    }

    fn add_counters(
        &mut self,
        id: PeerId,
        counters: Vec<ClockCounter>,
    ) -> Result<(), DrainFailure> {
        for counter in counters {
            let at = self.find(&counter).unwrap_or_else(|| {
                let at = self.clocks.len();
                let members = counter.members.clone();
                self.clocks.push(Clock { members, target: 0, numbers: BTreeMap::new() });
                self.by_group.entry((counter.group, counter.context)).or_default().push(at);
                at
            });
            self.clocks[at].numbers.insert(id, Member { number: counter.clock, knows: 0 });
            if let Some(rank) = self.ranks.get_mut(&id) {
                rank.clocks.insert(counter.clock, at);
            }
            self.raise(id, at, counter.sequence)?;
            self.update_made(at);
        }
        if let Some(rank) = self.ranks.get_mut(&id).filter(|rank| !rank.answered) {
            rank.answered = true;
            self.unanswered -= 1;
        }
        Ok(())
    }

    fn update_made(&mut self, at: usize) {
        let clock = &self.clocks[at];
        if clock.target > 0 && (clock.numbers.len() as u64) < clock.members.size() {
            self.unmade.insert(at);
        } else {
            self.unmade.remove(&at);
        }
    }

    /// A rank has entered so many.
    fn raise(&mut self, id: PeerId, at: usize, sequence: u64) -> Result<(), DrainFailure> {
        let clock = &mut self.clocks[at];
        if let Some(member) = clock.numbers.get_mut(&id) {
            member.knows = member.knows.max(sequence);
        }
        if sequence > 0 && clock.members.highest() > self.highest {
            return Err(DrainFailure::OtherJob(id, clock.members.highest()));
        }
        // A communicator that was made since is no collective.
        if self.is_held && sequence > clock.target {
            return Err(DrainFailure::BeganWhileHeld(id));
        }
        clock.target = clock.target.max(sequence);
        self.raised.insert(at);
        Ok(())
    }

    /// All members that do not know of a target get it, those of one rank in one message.
    fn hand_on_targets(&mut self, outputs: &mut VecDeque<DrainOutput>) {
        if self.unanswered > 0 {
            return;
        }
        let mut news: BTreeMap<PeerId, Vec<ClockTarget>> = BTreeMap::new();
        for at in core::mem::take(&mut self.raised) {
            let clock = &mut self.clocks[at];
            let target = clock.target;
            for (&id, member) in &mut clock.numbers {
                if member.knows < target {
                    member.knows = target;
                    let raised = ClockTarget { clock: member.number, target };
                    news.entry(id).or_default().push(raised);
                }
            }
        }
        for (id, targets) in news {
            let checkpoint = CheckpointId(self.checkpoint);
            self.order(id, ToClock::Raise { checkpoint, targets }, outputs);
        }
    }

    fn order(&mut self, id: PeerId, message: ToClock, outputs: &mut VecDeque<DrainOutput>) {
        if let Some(rank) = self.ranks.get_mut(&id) {
            rank.orders += 1;
            outputs.push_back(DrainOutput::Send { rank: id, message });
            self.update(id);
        }
    }

    /// Y6: of all for whom somebody waits who is not drained, or for whom such a one waits, and so
    /// on, those that are stopped go on.
    fn lift(&mut self, outputs: &mut VecDeque<DrainOutput>) {
        if self.unanswered > 0 || self.waiting == 0 {
            return;
        }
        let mut seen = BTreeSet::new();
        let mut todo: Vec<PeerId> = self.awaited.iter().copied().collect();
        let unmade = self.unmade.iter().flat_map(|&at| self.members_without(at));
        todo.extend(unmade);
        let mut lifted = Vec::new();
        while let Some(id) = todo.pop() {
            let Some(rank) = self.ranks.get(&id) else { continue };
            for &other in &rank.waits_for {
                if seen.insert(other) {
                    todo.push(other);
                    let stopped = self.ranks.get(&other).filter(|other| other.stop > other.lifted);
                    lifted.extend(stopped.map(|rank| (other, rank.stop)));
                }
            }
        }
        for (id, stop) in lifted {
            if let Some(rank) = self.ranks.get_mut(&id) {
                rank.lifted = stop;
            }
            self.order(
                id,
                ToClock::Lift { checkpoint: CheckpointId(self.checkpoint), stop },
                outputs,
            );
        }
    }

    /// Ranks that are members of a communicator and have not made it yet.
    fn members_without(&self, at: usize) -> impl Iterator<Item = PeerId> + '_ {
        let clock = &self.clocks[at];
        let of_it = self.ranks.keys().copied().filter(|&id| clock.members.contains(id));
        of_it.filter(|id| !clock.numbers.contains_key(id))
    }
}
