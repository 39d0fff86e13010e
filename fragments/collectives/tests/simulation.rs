//! Members that go on in random order, with random calls; the set's memory parts at any moment.

mod set_calls;

use rustbtl_collectives::carrier::{Carrier, Way};
use rustbtl_collectives::member::{Host, Member};
use rustbtl_collectives::plan::*;
use rustbtl_seeds::{Prng, all_caught, fails, is_one_seed, run_seeds};
use set_calls::{Blocks, Case, draw, element, fold};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// What is done wrongly on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// K1: slots are written whoever may still read them.
    WritesEarly,
    /// K2: slots are read whether they are up or not.
    ReadsEarly,
    /// K2: a step is finished before it is read.
    FinishesEarly,
    /// K4: everybody begins with his own data.
    FoldsFromOwn,
    /// K6: whether a message is sent is decided before the flag is raised.
    DecidesEarly,
    /// K6: after the parting everything is awaited as a message.
    ForgetsMemory,
    /// K6: after the parting the memory of a node is written to.
    WritesOn,
    /// K6: what was up is looked up again when the set is restored again.
    PartsAnew,
    /// K6: what was up is looked up when it is known that the memory has parted, not at the
    /// snapshot.
    NotesLate,
    /// K6: between a snapshot and that moment the memory is read as before.
    ReadsWhileHeld,
    /// K6: what is put in between is taken for delivered.
    SendsNothingWhileHeld,
    /// K6: a flag that was raised since a snapshot is enough, whatever is known by then.
    AsksOnce,
    /// K6: who does not use the memory yet looks for what others have put there.
    ReadsBeforeItShares,
}

const BUGS: [Bug; 13] = [
    Bug::WritesEarly,
    Bug::ReadsEarly,
    Bug::FinishesEarly,
    Bug::FoldsFromOwn,
    Bug::DecidesEarly,
    Bug::ForgetsMemory,
    Bug::WritesOn,
    Bug::PartsAnew,
    Bug::NotesLate,
    Bug::ReadsWhileHeld,
    Bug::SendsNothingWhileHeld,
    Bug::AsksOnce,
    Bug::ReadsBeforeItShares,
];

/// What members share.
#[derive(Clone, Default)]
struct Memory {
    /// By member, then by slot: bytes and the step after that for which they are.
    lines: Vec<Vec<(Vec<u8>, u64)>>,
    chunks: Vec<Vec<(Vec<u8>, u64)>>,
    finished: Vec<u64>,
    /// The step after the last one for which each has raised a flag.
    up: Vec<u64>,
}

impl Memory {
    fn slot(&mut self, line: bool, of: u32, number: u64) -> &mut (Vec<u8>, u64) {
        let (slots, count) =
            if line { (&mut self.lines, LINES) } else { (&mut self.chunks, CHUNKS) };
        &mut slots[of as usize][(number % count) as usize]
    }
}

/// A message: the step that it is of, and what was put.
type Mail = (u64, Vec<u8>);

/// All of the job.
struct World {
    random: Prng,
    /// One while it is common, then one for each node.
    memories: Vec<Memory>,
    /// Where each member is after that.
    nodes: Vec<usize>,
    carriers: Vec<Carrier>,
    /// Which of them have mapped the memory.
    have_memory: Vec<bool>,
    mail: BTreeMap<(u32, u32), VecDeque<Mail>>,
    /// A snapshot is taken in so many puts.
    snapshot_in: Option<u64>,
    /// Since the last one: has it parted? Members that do not know yet.
    has_parted: bool,
    unknowing: Vec<usize>,
    bug: Option<Bug>,
}

impl World {
    fn memory(&mut self, me: u32) -> &mut Memory {
        let at = self.nodes[me as usize] % self.memories.len();
        &mut self.memories[at]
    }

    fn up(&self, member: usize) -> Vec<u64> {
        let up = &self.memories[self.nodes[member] % self.memories.len()].up;
        if self.bug == Some(Bug::ForgetsMemory) { vec![0; up.len()] } else { up.clone() }
    }

    /// All are frozen. Then they go on, or are restored with what each had: on one node, or on two.
    fn snapshot(&mut self) {
        for member in 0..self.carriers.len() {
            let up = self.up(member);
            if self.bug == Some(Bug::PartsAnew) {
                let shared = !self.carriers[member].is_messages();
                self.carriers[member] = Carrier::new(up.len() as u32);
                assert!(!shared || self.carriers[member].share(0) == Some(true));
            }
            self.carriers[member].hold(self.have_memory[member].then(|| up.into_iter()));
        }
        self.has_parted = self.random.chance(75);
        if self.has_parted && self.memories.len() == 1 {
            self.memories = vec![self.memories[0].clone(); 2];
        }
        self.unknowing = (0..self.carriers.len()).collect();
    }

    /// A member learns what has come of the last snapshot.
    fn learn(&mut self) {
        let at = self.random.below(self.unknowing.len());
        let member = self.unknowing.swap_remove(at);
        if self.bug == Some(Bug::NotesLate) {
            let up = self.up(member);
            self.carriers[member].hold(self.have_memory[member].then(|| up.into_iter()));
        }
        match self.has_parted {
            true => self.carriers[member].part(),
            false => self.carriers[member].go_on(),
        }
    }

    fn may_snapshot_here(&mut self) {
        if let Some(left) = &mut self.snapshot_in {
            *left = left.saturating_sub(1);
            if *left == 0 && self.unknowing.is_empty() {
                // There is another one soon.
                self.snapshot_in = self.random.chance(50).then(|| self.random.from_to(1, 4));
                self.snapshot();
            }
        }
    }
}

/// A member with the data of its call.
struct Rank {
    me: u32,
    world: Rc<RefCell<World>>,
    from: Vec<u8>,
    into: Vec<u8>,
    blocks: Blocks,
    /// What was put last, and where it would have been found before.
    put: Vec<u8>,
    early: Way,
    /// Where this member is about to look.
    asked: Option<Way>,
    /// What has come as messages of a step.
    inbox: BTreeMap<(u64, u32), Vec<u8>>,
}

impl Rank {
    /// Of a writer's slot; one of the two is this member.
    fn range(&self, plan: &Plan, step: &Step, reader: u32, writer: u32) -> Range<u64> {
        let range = plan.reads(step, reader, writer);
        let block = match plan.call.kind.varies() {
            false => return range,
            true if writer == self.me => &self.blocks.gives[plan.gives_to(reader) as usize],
            true => &self.blocks.gets[plan.gets_from(writer) as usize],
        };
        range.start..range.start + plan.piece_of(step, block.len() as u64)
    }

    fn goes_to(&self, plan: &Plan, step: &Step, writer: u32) -> u64 {
        match plan.call.kind.varies() {
            true => self.blocks.gets[plan.gets_from(writer) as usize].start as u64 + step.at,
            false => plan.goes_to(step, self.me, writer),
        }
    }

    /// What a writer has put for this reader.
    fn read(&self, plan: &Plan, step: &Step, number: u64, writer: u32) -> Vec<u8> {
        let range = self.range(plan, step, self.me, writer);
        if writer == self.me {
            let at = match plan.call.kind.varies() {
                true => {
                    let block = &self.blocks.gives[plan.gives_to(self.me) as usize];
                    block.start + (step.at as usize).min(block.len())
                }
                false => plan.own(step, self.me) as usize,
            };
            return self.from[at..at + (range.end - range.start) as usize].to_vec();
        }
        if let Some(message) = self.inbox.get(&(number, writer)) {
            return message.clone();
        }
        let mut world = self.world.borrow_mut();
        let slot = world.memory(self.me).slot(step.line, writer, number);
        slot.0.get(range.start as usize..range.end as usize).map_or(vec![0xEE; 8], <[u8]>::to_vec)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        let end = (at + bytes.len()).min(self.into.len());
        self.into[at.min(end)..end].copy_from_slice(&bytes[..end - at.min(end)]);
    }
}

impl Host for Rank {
    fn finished(&self, member: u32) -> u64 {
        let mut world = self.world.borrow_mut();
        if world.bug == Some(Bug::WritesEarly) {
            return u64::MAX;
        }
        if world.carriers[self.me as usize].is_messages() {
            // Messages wait wherever they are: nobody has to be waited for.
            return world.memory(self.me).finished[self.me as usize];
        }
        let finished = world.memory(self.me).finished[member as usize];
        let slow = world.random.below(3) as u64;
        finished.saturating_sub(slow)
    }

    fn put(&mut self, plan: &Plan, step: &Step, number: u64) {
        let source = if step.put == Put::Part { &self.into } else { &self.from };
        let mut bytes = Vec::new();
        if plan.call.kind.varies() {
            for (place, number) in plan.gives(step).enumerate() {
                let block = &self.blocks.gives[number as usize];
                let length = plan.piece_of(step, block.len() as u64) as usize;
                let at = block.start + (step.at as usize).min(block.len());
                bytes.extend_from_slice(&source[at..at + length]);
                bytes.resize((place + 1) * step.bytes as usize, 0xDD);
            }
        } else {
            for (at, length) in plan.puts(step, self.me) {
                bytes.extend_from_slice(&source[at as usize..(at + length) as usize]);
            }
        }
        assert!(bytes.len() as u64 <= if step.line { LINE_BYTES } else { CHUNK_BYTES });
        let mut world = self.world.borrow_mut();
        self.early = world.carriers[self.me as usize].way(self.me, number);
        let parted = world.carriers[self.me as usize].is_messages();
        if !parted || world.bug == Some(Bug::WritesOn) {
            world.memory(self.me).slot(step.line, self.me, number).0 = bytes.clone();
            world.may_snapshot_here();
            let memory = world.memory(self.me);
            memory.slot(step.line, self.me, number).1 = number + 1;
            memory.up[self.me as usize] = number + 1;
            world.may_snapshot_here();
        }
        if parted {
            world.may_snapshot_here();
        }
        self.put = bytes;
    }

    fn deliver(&mut self, plan: &Plan, step: &Step, number: u64) -> bool {
        let mut world = self.world.borrow_mut();
        let way = match world.bug {
            Some(Bug::DecidesEarly) => self.early,
            _ => world.carriers[self.me as usize].way(self.me, number),
        };
        match way {
            Way::Unknown => return world.bug == Some(Bug::SendsNothingWhileHeld),
            Way::Memory => return true,
            Way::Message => {}
        }
        for reader in (0..plan.call.size).filter(|&r| r != self.me && step.readers.has(r)) {
            let range = self.range(plan, step, reader, self.me);
            let message = self.put[range.start as usize..range.end as usize].to_vec();
            world.mail.entry((self.me, reader)).or_default().push_back((number, message));
        }
        true
    }

    fn is_up(&mut self, _: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        if self.world.borrow().bug == Some(Bug::FinishesEarly) {
            self.finish(number + 1);
        }
        let mut world = self.world.borrow_mut();
        if world.random.chance(50) {
            return false;
        }
        let now = world.carriers[self.me as usize].way(writer, number);
        // Others go on between this question and the next one.
        let Some(way) = self.asked.take() else {
            self.asked = Some(now);
            return false;
        };
        if way == Way::Unknown && world.bug != Some(Bug::ReadsWhileHeld) {
            return false;
        }
        if way != Way::Message {
            let reads_early = world.bug == Some(Bug::ReadsEarly);
            return reads_early
                || world.memory(self.me).slot(step.line, writer, number).1 == number + 1
                    && (now == Way::Memory
                        || matches!(world.bug, Some(Bug::AsksOnce | Bug::ReadsWhileHeld)));
        }
        if self.inbox.contains_key(&(number, writer)) {
            return true;
        }
        let mail = world.mail.get_mut(&(writer, self.me));
        let Some((of, message)) = mail.and_then(VecDeque::pop_front) else { return false };
        assert_eq!(of, number, "K6: each once, in order");
        self.inbox.insert((number, writer), message);
        true
    }

    fn take(&mut self, plan: &Plan, step: &Step, number: u64) {
        let me = self.me;
        match step.take {
            Take::Copy | Take::CopyParts => {
                for writer in (0..plan.call.size).filter(|&w| w != me && step.writers.has(w)) {
                    let bytes = self.read(plan, step, number, writer);
                    self.write(self.goes_to(plan, step, writer), &bytes);
                }
            }
            Take::Fold | Take::FoldPart => {
                let mut order: Vec<u32> = plan.folds(me).rev().collect();
                if self.world.borrow().bug == Some(Bug::FoldsFromOwn) && order.contains(&me) {
                    order.retain(|&member| member != me);
                    order.insert(0, me);
                }
                let Some((&first, rest)) = order.split_first() else { return };
                let mut result = self.read(plan, step, number, first);
                for &member in rest {
                    let next = self.read(plan, step, number, member);
                    for at in (0..result.len().min(next.len())).step_by(8) {
                        let folded = fold(element(&next, at), element(&result, at));
                        result[at..at + 8].copy_from_slice(&folded.to_le_bytes());
                    }
                }
                self.write(self.goes_to(plan, step, me), &result);
            }
        }
        self.inbox.retain(|&(of, _), _| of > number);
    }

    fn finish(&mut self, steps: u64) {
        let mut world = self.world.borrow_mut();
        let me = self.me;
        world.memory(me).finished[me as usize] = steps;
    }
}

fn run(seed: u64, bug: Option<Bug>) {
    let mut random = Prng::new(seed);
    let size = random.from_to(2, 5) as u32;
    let n = size as usize;
    let slots = |count: u64| vec![vec![(Vec::new(), 0); count as usize]; n];
    let memory =
        Memory { lines: slots(LINES), chunks: slots(CHUNKS), finished: vec![0; n], up: vec![0; n] };
    let always_messages = random.chance(15);
    let carriers: Vec<Carrier> = (0..size).map(|_| Carrier::new(size)).collect();
    let calls = random.between(5, 40);
    // From the beginning, or in a call in which each learns that all have mapped it.
    let maps_in = (!always_messages && random.chance(40)).then(|| random.below(calls));
    if !always_messages && maps_in.is_none() {
        assert!(carriers.iter().all(|carrier| carrier.share(0) == Some(true)));
    }
    let world = Rc::new(RefCell::new(World {
        random: random.fork(1),
        memories: vec![memory],
        nodes: (0..n).map(|_| random.below(2)).collect(),
        carriers,
        have_memory: vec![!always_messages && maps_in.is_none(); n],
        mail: BTreeMap::new(),
        has_parted: false,
        unknowing: Vec::new(),
        snapshot_in: (!always_messages && random.chance(50)).then(|| random.from_to(1, 120)),
        bug,
    }));
    let mut draw_for = |call: usize| loop {
        let case = draw(&mut random, size);
        if maps_in != Some(call) || case.call.kind == Kind::Allgather && case.call.bytes > 0 {
            return case;
        }
    };
    let cases: Vec<Case> = (0..calls).map(&mut draw_for).collect();
    let plans: Vec<Plan> = cases.iter().map(|case| Plan::new(case.call).unwrap()).collect();
    let mut members: Vec<Member> = (0..size).map(|me| Member::new(me, size)).collect();
    let rank = |me: u32| Rank {
        me,
        world: Rc::clone(&world),
        from: Vec::new(),
        into: Vec::new(),
        blocks: Blocks::default(),
        put: Vec::new(),
        early: Way::Memory,
        asked: None,
        inbox: BTreeMap::new(),
    };
    let mut ranks: Vec<Rank> = (0..size).map(rank).collect();
    let mut at = vec![0; n];
    let (mut partings, mut mapped) = (vec![0; n], vec![false; n]);
    let mut map = |me: usize, call: usize| {
        let mut world = world.borrow_mut();
        if maps_in == Some(call) {
            partings[me] = world.carriers[me].partings();
            // On another node nobody finds it.
            mapped[me] = world.memories.len() == 1;
            world.have_memory[me] = mapped[me];
            if world.bug == Some(Bug::ReadsBeforeItShares) {
                let _ = world.carriers[me].share(u64::MAX);
            }
        }
        if maps_in.is_none_or(|maps_in| maps_in + 1 != call) {
            return true;
        }
        // In the call before all have told each other.
        if mapped.iter().all(|&mapped| mapped) {
            return world.carriers[me].share(partings[me]).is_some();
        }
        world.have_memory[me] = false;
        world.carriers[me].forget_memory();
        true
    };
    let enter = |rank: &mut Rank, call: usize| {
        let me = rank.me as usize;
        rank.from = cases[call].from[me].clone();
        rank.into = cases[call].into[me].clone();
        rank.blocks = cases[call].blocks[me].clone();
        if cases[call].call.kind.varies() {
            if plans[call].copies_own(rank.me) {
                let from = &rank.blocks.gives[plans[call].gives_to(rank.me) as usize];
                let into = rank.blocks.gets[plans[call].gets_from(rank.me) as usize].clone();
                rank.into[into].copy_from_slice(&rank.from[from.clone()]);
            }
        } else if let Some((from, into)) = plans[call].own_block(rank.me) {
            let (from, into) = (from as usize, into as usize);
            let bytes = cases[call].call.bytes as usize;
            rank.into[into..into + bytes].copy_from_slice(&rank.from[from..from + bytes]);
        }
    };
    ranks.iter_mut().for_each(|rank| enter(rank, 0));
    assert!((0..n).all(|me| map(me, 0)));
    let mut enters = vec![false; n];
    let mut idle = 0;
    while at.iter().any(|&call| call < calls) {
        let me = random.below(n);
        if !world.borrow().unknowing.is_empty() && random.chance(20) {
            world.borrow_mut().learn();
        }
        if at[me] == calls {
            continue;
        }
        if enters[me] {
            enters[me] = !map(me, at[me]);
            continue;
        }
        let before = (members[me].number(), at[me]);
        if members[me].advance(&plans[at[me]], &mut ranks[me]) {
            let case = &cases[at[me]];
            assert!(ranks[me].into == case.want[me], "{me}: {:?}", case.call);
            at[me] += 1;
            if at[me] < calls {
                enter(&mut ranks[me], at[me]);
                enters[me] = true;
            }
        }
        idle = if before == (members[me].number(), at[me]) { idle + 1 } else { 0 };
        assert!(idle < 2000, "somebody waits in vain: {at:?}");
    }
    // K5
    assert!(members.iter().all(|member| member.number() == members[0].number()));
    assert!(world.borrow().mail.values().all(VecDeque::is_empty), "K6: nothing is left over");
}

#[test]
fn every_call_gives_everybody_what_mpi_says_however_it_travels() {
    let again = "-p rustbtl-collectives --test simulation every_call";
    run_seeds(600, again, |seed| run(seed, None), drop);
}

#[test]
fn planted_bugs_are_caught() {
    if is_one_seed() {
        return;
    }
    let last = |bug| match bug {
        Bug::FinishesEarly => 2,
        Bug::WritesOn => 11,
        Bug::PartsAnew => 19,
        _ => 0,
    };
    let plan = BUGS.map(|bug| (bug, last(bug), 3000));
    all_caught(plan, |bug, seed| fails(|| run(seed, Some(bug))));
}
