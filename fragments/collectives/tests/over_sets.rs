//! Members of several sets that go on in random order, with random calls. Sets are frozen and
//! rolled back at random moments; what was sent between sets is kept by the senders' logs.

use rustbtl_collectives::member::{Host, Member};
use rustbtl_collectives::over_sets::{Crossing, Place, SetsHost};
use rustbtl_collectives::plan::*;
use rustbtl_collectives::sets::{Sets, Side};
use rustbtl_seeds::{Prng, all_caught, fails, is_one_seed, mix, run_seeds};
use std::collections::BTreeMap;

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
    /// K9: data is changed before it has left.
    ChangesUnsent,
}

const BUGS: [Bug; 6] = [
    Bug::OtherSide,
    Bug::ByArrival,
    Bug::DoesNotRepeat,
    Bug::KeepsReceived,
    Bug::OneAlone,
    Bug::ChangesUnsent,
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
    crossing: Option<Crossing>,
    member: Member,
    own: Vec<u8>,
    result: Vec<u8>,
    scratch: Vec<u8>,
    reads: Place,
    /// Messages sent to and received from other ranks.
    sent: BTreeMap<u32, usize>,
    received: BTreeMap<u32, usize>,
    /// Receivers whose message is still read from where data is collected, with its number.
    leaving: Vec<(u32, usize)>,
    /// Who has been answered for, and with what.
    came: Option<(u32, Vec<u8>)>,
}

impl Rank {
    fn at(&mut self, place: Place) -> &mut Vec<u8> {
        match place {
            Place::Own => &mut self.own,
            Place::Result => &mut self.result,
            Place::Scratch => &mut self.scratch,
        }
    }

    fn collects(&self) -> Place {
        self.crossing.as_ref().unwrap().place()
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
    sets: Sets,
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
    root: u32,
}

impl Turn<'_> {
    fn place(&self) -> u32 {
        self.world.sets.place(self.rank.me)
    }

    fn flush(&mut self) {
        let place = self.rank.collects();
        for (to, number) in core::mem::take(&mut self.rank.leaving) {
            let bytes = self.rank.at(place).clone();
            self.world.leave(self.rank.me, to, number, &bytes);
        }
    }

    fn rank_of(&self, set: u32) -> u32 {
        self.world.sets.stands_for(set, self.root)
    }

    fn has_come(&self, from: u32) -> Option<Vec<u8>> {
        let number = self.rank.received.get(&from).copied().unwrap_or(0);
        self.world.log.get(&(from, self.rank.me))?.get(number)?.clone()
    }
}

impl Host for Turn<'_> {
    fn finished(&self, member: u32) -> u64 {
        self.memory.finished[member as usize]
    }

    fn put(&mut self, plan: &Plan, step: &Step, number: u64) {
        let me = self.place();
        let mut bytes = Vec::new();
        for (at, length) in plan.puts(step, me) {
            let source = self.rank.reads;
            bytes.extend_from_slice(&self.rank.at(source)[at as usize..(at + length) as usize]);
        }
        *self.memory.slot(step.line, me, number) = (bytes, number + 1);
    }

    fn is_up(&mut self, _: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        self.world.random.chance(60) && self.memory.slot(step.line, writer, number).1 == number + 1
    }

    fn take(&mut self, plan: &Plan, step: &Step, number: u64) {
        if plan.call.kind.has_no_data() {
            return;
        }
        let (me, into) = (self.place(), self.rank.collects());
        let mut result: Option<Vec<u8>> = None;
        let at = plan.goes_to(step, me, me) as usize;
        for member in (0..plan.call.size).rev() {
            let bytes = if member != me && step.writers.has(member) {
                self.memory.slot(step.line, member, number).0.clone()
            } else if step.take == Take::Fold && member == me {
                self.rank.own[at..at + step.bytes as usize].to_vec()
            } else {
                continue;
            };
            result = Some(result.map_or(bytes.clone(), |right| folded(&bytes, &right)));
        }
        let result = result.unwrap();
        self.rank.at(into)[at..at + result.len()].copy_from_slice(&result);
    }

    fn finish(&mut self, steps: u64) {
        let me = self.place() as usize;
        self.memory.finished[me] = steps;
    }
}

impl SetsHost for Turn<'_> {
    fn enter(&mut self, from: Place, _: Place) {
        self.rank.reads = from;
    }

    fn send(&mut self, of: Place, set: u32) {
        assert_eq!(of, self.rank.collects());
        let to = self.rank_of(set);
        let number = self.rank.sent.entry(to).or_default();
        self.rank.leaving.push((to, *number));
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

    fn is_here(&mut self, _: Place, set: u32, _: Side) -> bool {
        if self.rank.came.is_some() {
            return true;
        }
        if self.world.random.chance(40) {
            return false;
        }
        let mut from = self.rank_of(set);
        if self.world.bug == Some(Bug::ByArrival) {
            let all: Vec<u32> = (0..self.world.sets.count()).map(|set| self.rank_of(set)).collect();
            let first = all.into_iter().find(|&one| self.has_come(one).is_some());
            from = first.unwrap_or(from);
        }
        self.rank.came = self.has_come(from).map(|bytes| (from, bytes));
        self.rank.came.is_some()
    }

    fn take_from(&mut self, of: Place, _: u32, side: Side) {
        let (from, came) = self.rank.came.take().unwrap();
        *self.rank.received.entry(from).or_default() += 1;
        let other = self.world.bug == Some(Bug::OtherSide);
        let own = self.rank.at(of);
        *own = match side {
            _ if came.is_empty() => return,
            Side::Instead => came,
            Side::Left if !other => folded(&came, own),
            Side::Right if other => folded(&came, own),
            _ => folded(own, &came),
        };
    }
}

/// Neither commutative nor associative: every other order gives something else.
fn folded(left: &[u8], right: &[u8]) -> Vec<u8> {
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect()
    };
    let both = words(left).into_iter().zip(words(right));
    both.flat_map(|(a, b)| mix(a.wrapping_mul(31), b).to_le_bytes()).collect()
}

/// The tree between sets, once more.
fn tree(of_sets: &[Vec<u8>]) -> Vec<u8> {
    match of_sets {
        [one] => one.clone(),
        all => {
            let (left, right) = all.split_at(all.len().div_ceil(2));
            folded(&tree(left), &tree(right))
        }
    }
}

struct Case {
    call: Call,
    own: Vec<Vec<u8>>,
    want: Vec<Option<Vec<u8>>>,
}

fn draw(random: &mut Prng, sets: &Sets, size: u32) -> Case {
    let kind = random.pick(&[Kind::Barrier, Kind::Bcast, Kind::Reduce, Kind::Allreduce]);
    let root = random.below(size as usize) as u32;
    let words = match random.below(6) {
        0..3 => random.from_to(1, 6),
        3..5 => random.from_to(1, 1200),
        _ => random.from_to(1000, 8192),
    };
    let bytes = if kind == Kind::Barrier { 0 } else { words * 8 };
    let element = if kind.folds() { 8 } else { 1 };
    let own: Vec<Vec<u8>> = (0..size)
        .map(|_| (0..bytes / 8).flat_map(|_| random.bits().to_le_bytes()).collect())
        .collect();
    let of_sets: Vec<Vec<u8>> = (0..sets.count())
        .map(|set| {
            let ranks = sets.members(set).iter().rev().map(|&rank| own[rank as usize].clone());
            ranks.reduce(|right, left| folded(&left, &right)).unwrap()
        })
        .collect();
    let want = (0..size).map(|me| match kind {
        Kind::Bcast => Some(own[root as usize].clone()),
        Kind::Reduce if me != root => None,
        Kind::Barrier => None,
        _ => Some(tree(&of_sets)),
    });
    let want = want.collect();
    Case { call: Call { kind, size, root, bytes, element }, own, want }
}

fn enter(rank: &mut Rank, sets: &Sets, case: &Case) {
    let crossing = Crossing::new(sets, rank.me, case.call, true).unwrap();
    rank.own.clone_from(&case.own[rank.me as usize]);
    rank.result = vec![0xEE; rank.own.len()];
    rank.scratch = vec![0xDD; rank.own.len()];
    if case.call.kind == Kind::Bcast && rank.me == case.call.root {
        rank.result.clone_from(&rank.own);
    }
    if crossing.copies_own() {
        let own = rank.own.clone();
        *rank.at(crossing.place()) = own;
    }
    rank.crossing = Some(crossing);
}

fn run(seed: u64, bug: Option<Bug>) {
    let mut random = Prng::new(seed);
    let size = random.from_to(2, 9) as u32;
    let count = random.from_to(1, 5) as usize;
    let sets = Sets::new(&(0..size).map(|_| random.below(count) as u32).collect::<Vec<_>>());
    let calls = random.between(4, 20);
    let cases: Vec<Case> = (0..calls).map(|_| draw(&mut random, &sets, size)).collect();
    let rank = |&me: &u32| {
        let members = sets.members(sets.of(me)).len() as u32;
        let mut rank = Rank {
            me,
            call: 0,
            crossing: None,
            member: Member::new(sets.place(me), members),
            own: Vec::new(),
            result: Vec::new(),
            scratch: Vec::new(),
            reads: Place::Own,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            leaving: Vec::new(),
            came: None,
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
    let mut world = World { random: random.fork(1), sets: sets.clone(), log: BTreeMap::new(), bug };
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
            let mut turn = Turn { rank, memory, world: &mut world, root: crossing.root() };
            let over = crossing.advance(&mut member, &mut turn);
            (rank.crossing, rank.member) = (Some(crossing), member);
            if over {
                if let Some(want) = &case.want[rank.me as usize] {
                    assert!(rank.result == *want, "{}: {:?}", rank.me, case.call);
                }
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
    let sets = Sets::new(&[1, 2, 1, 2]);
    let call = Call { kind: Kind::Allreduce, size: 4, root: 0, bytes: 64, element: 8 };
    let ours = |sets: &Sets, call: Call, commutes| {
        let all = [0, 1, 2, 3].map(|me| Crossing::new(sets, me, call, commutes).is_some());
        assert!(all.iter().all(|&one| one == all[0]), "the same at all members");
        all[0]
    };
    assert!(ours(&sets, call, true));
    assert!(!ours(&sets, call, false), "K7: not in the order of ranks");
    assert!(ours(&Sets::new(&[1, 1, 2, 2]), call, false));
    assert!(ours(&Sets::new(&[1, 1, 1, 2]), call, false));
    assert!(!ours(&sets, Call { bytes: 1 << 20, ..call }, true), "long");
    assert!(!ours(&sets, Call { kind: Kind::Scan, ..call }, true));
}

#[test]
fn planted_bugs_are_caught() {
    if is_one_seed() {
        return;
    }
    let plan = BUGS.map(|bug| (bug, 0, 3000));
    all_caught(plan, |bug, seed| fails(|| run(seed, Some(bug))));
}
