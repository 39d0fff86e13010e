//! Members of several sets that go on in random order, with random calls. Sets are frozen and
//! rolled back at random moments; what was sent between sets is kept by the senders' logs.

use rustbtl_collectives::member::{Host, Member};
use rustbtl_collectives::over_sets::{Crossing, SetsHost};
use rustbtl_collectives::plan::*;
use rustbtl_collectives::sets::Sets;
use rustbtl_collectives::shape::{At, Inside, Place, Shape};
use rustbtl_seeds::{Prng, all_caught, fails, is_one_seed, run_seeds};
use std::collections::BTreeMap;
use std::sync::Arc;

mod cases;
use cases::{Case, draw, folded};

/// What is done wrongly on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// K7: what comes is folded on the other side.
    OtherSide,
    /// K7: whoever comes first is folded first.
    ByArrival,
    /// K8: a set that was rolled back does not repeat what it has sent.
    DoesNotRepeat,
    /// K8: it has what it has received since.
    KeepsReceived,
    /// One member is rolled back alone.
    OneAlone,
    /// What a member collects is not rolled back with it.
    KeepsCollected,
    /// K9: data is changed before it has left.
    ChangesUnsent,
    /// K10: what comes goes to the beginning.
    Misplaced,
    /// K10: blocks are left in the order of sets.
    OrderOfSets,
}

const BUGS: [Bug; 9] = [
    Bug::OtherSide,
    Bug::ByArrival,
    Bug::DoesNotRepeat,
    Bug::KeepsReceived,
    Bug::OneAlone,
    Bug::KeepsCollected,
    Bug::ChangesUnsent,
    Bug::Misplaced,
    Bug::OrderOfSets,
];

/// A member's slots: bytes, and the step after that for which they are.
type Slots = Vec<(Vec<u8>, u64)>;

/// What the members of a set share.
#[derive(Clone, Default)]
struct Memory {
    lines: Vec<Slots>,
    chunks: Vec<Slots>,
    finished: Vec<u64>,
}

impl Memory {
    fn new(size: usize) -> Self {
        let slots = |count: u64| vec![vec![(Vec::new(), 0); count as usize]; size];
        Self { lines: slots(LINES), chunks: slots(CHUNKS), finished: vec![0; size] }
    }

    fn slot(&mut self, line: bool, of: u32, number: u64) -> &mut (Vec<u8>, u64) {
        let (slots, count) =
            if line { (&mut self.lines, LINES) } else { (&mut self.chunks, CHUNKS) };
        &mut slots[of as usize][(number % count) as usize]
    }
}

/// What is rolled back of a member.
#[derive(Clone)]
struct Rank {
    me: u32,
    call: usize,
    crossing: Option<Crossing<Shape>>,
    member: Member,
    /// By place.
    memory: [Vec<u8>; 5],
    /// What the program has said MPI_IN_PLACE for lies in that other place, behind so many bytes.
    alias: Option<(Place, At)>,
    /// By rank: where its block has its place in the result.
    blocks: Vec<u64>,
    after: bool,
    /// Messages sent to and received from other ranks.
    sent: BTreeMap<u32, usize>,
    received: BTreeMap<u32, usize>,
    /// Receivers whose message is still read from where it is, with its number and length.
    leaving: Vec<(u32, usize, At, u64)>,
}

impl Rank {
    fn shape(&self) -> &Shape {
        self.crossing.as_ref().unwrap().shape()
    }

    fn inside(&self) -> Inside {
        self.shape().inside()[usize::from(self.after)].unwrap()
    }

    fn at(&mut self, At(place, at): At, bytes: u64) -> &mut [u8] {
        let At(place, at) = match self.alias {
            Some((of, At(other, behind))) if of == place => At(other, at + behind),
            _ => At(place, at),
        };
        &mut self.memory[place as usize][at as usize..(at + bytes) as usize]
    }
}

#[derive(Clone)]
struct Set {
    memory: Memory,
    ranks: Vec<Rank>,
}

/// What is not rolled back.
struct World {
    random: Prng,
    sets: Arc<Sets>,
    /// All messages that one rank has sent another.
    log: BTreeMap<(u32, u32), Vec<Option<Vec<u8>>>>,
    bug: Option<Bug>,
}

impl World {
    /// A message leaves. One that was sent before must be the same.
    fn leave(&mut self, from: u32, to: u32, number: usize, bytes: &[u8]) {
        let log = self.log.entry((from, to)).or_default();
        log.resize(log.len().max(number + 1), None);
        let before = log[number].get_or_insert_with(|| bytes.to_vec());
        assert!(before == bytes, "K8: {from} sends {to} something else as number {number}");
    }
}

/// A member's turn.
struct Turn<'a> {
    rank: &'a mut Rank,
    memory: &'a mut Memory,
    world: &'a mut World,
}

impl Turn<'_> {
    fn place(&self) -> u32 {
        self.world.sets.place(self.rank.me)
    }

    fn flush(&mut self) {
        for (to, number, from, bytes) in core::mem::take(&mut self.rank.leaving) {
            let bytes = self.rank.at(from, bytes).to_vec();
            self.world.leave(self.rank.me, to, number, &bytes);
        }
    }

    fn has_come(&self, from: u32) -> Option<Vec<u8>> {
        let number = self.rank.received.get(&from).copied().unwrap_or(0);
        self.world.log.get(&(from, self.rank.me))?.get(number)?.clone()
    }

    fn write(&mut self, into: At, bytes: &[u8]) {
        self.rank.at(into, bytes.len() as u64).copy_from_slice(bytes);
    }
}

fn behind(At(place, at): At, more: u64) -> At {
    At(place, at + more)
}

impl Host for Turn<'_> {
    fn finished(&self, member: u32) -> u64 {
        self.memory.finished[member as usize]
    }

    fn put(&mut self, plan: &Plan, step: &Step, number: u64) {
        let (me, from) = (self.place(), self.rank.inside().from);
        let mut bytes = Vec::new();
        for (at, length) in plan.puts(step, me) {
            bytes.extend_from_slice(self.rank.at(behind(from, at), length));
        }
        *self.memory.slot(step.line, me, number) = (bytes, number + 1);
    }

    fn deliver(&mut self, _: &Plan, _: &Step, _: u64) -> bool {
        true
    }

    fn is_up(&mut self, _: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        self.world.random.chance(60) && self.memory.slot(step.line, writer, number).1 == number + 1
    }

    fn take(&mut self, plan: &Plan, step: &Step, number: u64) {
        if plan.call.kind.has_no_data() {
            return;
        }
        let (me, Inside { from, into, .. }) = (self.place(), self.rank.inside());
        let of = |turn: &mut Self, writer: u32| {
            if writer == me {
                return turn.rank.at(behind(from, step.at), step.bytes).to_vec();
            }
            let range = plan.reads(step, me, writer);
            turn.memory.slot(step.line, writer, number).0[range.start as usize..range.end as usize]
                .to_vec()
        };
        if step.take == Take::Fold {
            let all = plan.folds(me).rev().map(|member| of(self, member)).collect::<Vec<_>>();
            if let Some(all) = all.into_iter().reduce(|right, left| folded(&left, &right)) {
                self.write(behind(into, plan.goes_to(step, me, me)), &all);
            }
            return;
        }
        for writer in (0..plan.call.size).filter(|&one| one != me && step.writers.has(one)) {
            let bytes = of(self, writer);
            self.write(behind(into, plan.goes_to(step, me, writer)), &bytes);
        }
    }

    fn finish(&mut self, steps: u64) {
        let me = self.place() as usize;
        self.memory.finished[me] = steps;
    }
}

impl SetsHost for Turn<'_> {
    fn enter(&mut self, after: bool) {
        self.rank.after = after;
    }

    fn copy(&mut self, from: At, into: At, bytes: u64) {
        let bytes = self.rank.at(from, bytes).to_vec();
        self.write(into, &bytes);
    }

    fn give(&mut self, from: At, rank: u32, bytes: u64) {
        let place = match self.world.bug {
            Some(Bug::OrderOfSets) => self.world.sets.ranks().position(|one| one == rank).unwrap(),
            _ => rank as usize,
        };
        self.copy(from, At(Place::Result, self.rank.blocks[place]), bytes);
    }

    fn fold(&mut self, left: At, right: At, into: At, bytes: u64) {
        let other = self.world.bug == Some(Bug::OtherSide);
        let (left, right) = if other { (right, left) } else { (left, right) };
        let left = self.rank.at(left, bytes).to_vec();
        let result = folded(&left, self.rank.at(right, bytes));
        self.write(into, &result);
    }

    fn send(&mut self, from: At, bytes: u64, set: u32) {
        let to = self.rank.shape().stands_for(set);
        let number = self.rank.sent.entry(to).or_default();
        self.rank.leaving.push((to, *number, from, bytes));
        *number += 1;
        if self.world.random.chance(50) {
            self.flush();
        }
    }

    fn are_sent(&mut self) -> bool {
        if self.world.random.chance(50) {
            self.flush();
        }
        self.rank.leaving.is_empty() || self.world.bug == Some(Bug::ChangesUnsent)
    }

    fn is_here(&mut self, into: At, bytes: u64, set: u32) -> bool {
        let mut from = self.rank.shape().stands_for(set);
        if self.world.bug == Some(Bug::ByArrival) {
            let all = (0..self.world.sets.count()).map(|set| self.rank.shape().stands_for(set));
            from = all.clone().find(|&one| self.has_come(one).is_some()).unwrap_or(from);
        }
        let Some(came) = self.has_come(from) else { return false };
        assert_eq!(came.len() as u64, bytes, "K8");
        let misplaced = self.world.bug == Some(Bug::Misplaced);
        // It is there before anybody looks.
        self.write(if misplaced { At(into.0, 0) } else { into }, &came);
        if self.world.random.chance(40) {
            return false;
        }
        *self.rank.received.entry(from).or_default() += 1;
        true
    }
}

fn enter(rank: &mut Rank, sets: &Arc<Sets>, case: &Case) {
    let shape = Shape::new(sets, rank.me, case.call, true, &case.lengths).unwrap();
    let [stage, other] = shape.needs().map(|bytes| vec![0xDD; bytes as usize]);
    let incoming = vec![0xCC; shape.needs_of_incoming() as usize];
    let of = &case.of[rank.me as usize];
    rank.memory = [of.own.clone(), of.result.clone(), stage, other, incoming];
    rank.alias = of.alias;
    rank.blocks.clone_from(&case.blocks);
    rank.crossing = Some(Crossing::new(shape));
}

fn leave(rank: &Rank, case: &Case) {
    let of = &case.of[rank.me as usize];
    assert!(rank.memory[Place::Own as usize] == of.own, "what {} gives is changed", rank.me);
    let result = &rank.memory[Place::Result as usize];
    assert!(result[..of.want.len()] == of.want, "{}: {:?} {:?}", rank.me, case.call, of.alias);
}

fn run(seed: u64, bug: Option<Bug>) {
    let mut random = Prng::new(seed);
    let size = random.from_to(2, 9) as u32;
    let count = random.from_to(1, 5) as usize;
    let mut of: Vec<u32> = (0..size).map(|_| random.below(count) as u32).collect();
    if random.chance(50) {
        of.sort_unstable();
    }
    let sets = Arc::new(Sets::new(&of));
    let calls = random.between(4, 20);
    let cases: Vec<Case> = (0..calls).map(|_| draw(&mut random, &sets)).collect();
    let rank = |&me: &u32| {
        let members = sets.members(sets.of(me)).len() as u32;
        let mut rank = Rank {
            me,
            call: 0,
            crossing: None,
            member: Member::new(sets.place(me), members),
            memory: Default::default(),
            alias: None,
            blocks: Vec::new(),
            after: false,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            leaving: Vec::new(),
        };
        enter(&mut rank, &sets, &cases[0]);
        rank
    };
    let mut live: Vec<Set> = (0..sets.count())
        .map(|set| {
            let ranks: Vec<Rank> = sets.members(set).iter().map(rank).collect();
            Set { memory: Memory::new(ranks.len()), ranks }
        })
        .collect();
    let mut images = live.clone();
    let mut failures = random.below(4);
    let mut world =
        World { random: random.fork(1), sets: Arc::clone(&sets), log: BTreeMap::new(), bug };
    let mut idle = 0;
    loop {
        let at = random.below(live.len());
        if random.chance(3) {
            images[at] = live[at].clone();
        }
        if failures > 0 && random.chance(1) {
            failures -= 1;
            roll_back(&mut live[at], &images[at], bug);
        }
        let set = &mut live[at];
        let one = random.below(set.ranks.len());
        let (rank, memory) = (&mut set.ranks[one], &mut set.memory);
        if rank.call < calls {
            let case = &cases[rank.call];
            let mut crossing = rank.crossing.clone().unwrap();
            let mut member = rank.member.clone();
            let mut turn = Turn { rank, memory, world: &mut world };
            // Messages leave whether anybody looks or not.
            if turn.world.random.chance(30) {
                turn.flush();
            }
            let over = crossing.advance(&mut member, &mut turn);
            (rank.crossing, rank.member) = (Some(crossing), member);
            if over {
                leave(rank, case);
                rank.call += 1;
                idle = 0;
                if rank.call < calls {
                    enter(rank, &sets, &cases[rank.call]);
                }
            }
        }
        idle += 1;
        assert!(idle < 40_000, "somebody waits in vain");
        if live.iter().flat_map(|set| &set.ranks).all(|rank| rank.call == calls) {
            break;
        }
    }
    for (&(from, to), log) in &world.log {
        let rank = live.iter().flat_map(|set| &set.ranks).find(|rank| rank.me == to).unwrap();
        assert_eq!(rank.received.get(&from).copied().unwrap_or(0), log.len(), "K8: {from} → {to}");
    }
}

fn roll_back(set: &mut Set, image: &Set, bug: Option<Bug>) {
    let before = core::mem::replace(set, image.clone());
    match bug {
        Some(Bug::DoesNotRepeat) => {
            for (rank, before) in set.ranks.iter_mut().zip(before.ranks) {
                rank.sent = before.sent;
            }
        }
        Some(Bug::KeepsReceived) => {
            for (rank, before) in set.ranks.iter_mut().zip(before.ranks) {
                rank.received = before.received;
            }
        }
        Some(Bug::KeepsCollected) => {
            for (rank, mut before) in set.ranks.iter_mut().zip(before.ranks) {
                for place in [Place::Stage, Place::Other] {
                    let now = &mut rank.memory[place as usize];
                    let length = now.len();
                    *now = core::mem::take(&mut before.memory[place as usize]);
                    now.resize(length, 0);
                }
            }
        }
        Some(Bug::OneAlone) => {
            let alone = set.ranks[0].clone();
            *set = before;
            set.ranks[0] = alone;
        }
        _ => {}
    }
}

#[test]
fn every_call_gives_everybody_the_same_bits_whatever_is_rolled_back() {
    let again = "-p rustbtl-collectives --test over_sets every_call";
    run_seeds(400, again, |seed| run(seed, None), drop);
}

#[test]
fn who_is_asked_depends_on_the_call_only() {
    let call = Call { kind: Kind::Allreduce, size: 4, root: 0, bytes: 64, element: 8 };
    let ours = |sets: &[u32], call: Call, commutes| {
        let sets = Arc::new(Sets::new(sets));
        let lengths = [call.bytes; 4];
        let all = [0, 1, 2, 3].map(|me| Shape::new(&sets, me, call, commutes, &lengths).is_some());
        assert!(all.iter().all(|&one| one == all[0]), "the same at all members");
        all[0]
    };
    let turns = [1, 2, 1, 2];
    assert!(ours(&turns, call, true));
    assert!(!ours(&turns, call, false), "K7: not in the order of ranks");
    assert!(ours(&[1, 1, 2, 2], call, false));
    assert!(ours(&[1, 1, 1, 2], call, false));
    assert!(!ours(&turns, Call { bytes: 1 << 20, ..call }, true), "long");
    for kind in [Kind::Scan, Kind::Exscan] {
        assert!(!ours(&turns, Call { kind, ..call }, true), "K7: not in the order of ranks");
        assert!(ours(&[1, 1, 2, 2], Call { kind, ..call }, false));
    }
    for (kind, bytes) in [
        (Kind::Allgather, 1 << 12),
        (Kind::Allgatherv, 1 << 12),
        (Kind::Gather, 1 << 12),
        (Kind::Scatter, 1 << 14),
        (Kind::ReduceScatterBlock, 1 << 14),
        (Kind::ReduceScatter, 1 << 14),
        (Kind::Alltoall, 1 << 11),
    ] {
        assert!(ours(&turns, Call { kind, bytes, ..call }, true), "{kind:?}");
        assert!(!ours(&turns, Call { kind, bytes: bytes + 8, ..call }, true), "{kind:?}");
    }
    // Not all members know how long they are.
    for kind in [Kind::Gatherv, Kind::Scatterv, Kind::Alltoallv] {
        assert!(!ours(&[1, 1, 2, 2], Call { kind, ..call }, true), "{kind:?}");
    }
}

#[test]
fn planted_bugs_are_caught() {
    if is_one_seed() {
        return;
    }
    let plan = BUGS.map(|bug| (bug, 0, 3000));
    all_caught(plan, |bug, seed| fails(|| run(seed, Some(bug))));
}
