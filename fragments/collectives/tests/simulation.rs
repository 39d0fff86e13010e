//! Members that go on in random order, with random calls; the set's memory parts at any moment.

use rustbtl_collectives::carrier::Carrier;
use rustbtl_collectives::member::{Host, Member};
use rustbtl_collectives::plan::*;
use rustbtl_seeds::{Prng, all_caught, fails, is_one_seed, mix, run_seeds};
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
}

const BUGS: [Bug; 8] = [
    Bug::WritesEarly,
    Bug::ReadsEarly,
    Bug::FinishesEarly,
    Bug::FoldsFromOwn,
    Bug::DecidesEarly,
    Bug::ForgetsMemory,
    Bug::WritesOn,
    Bug::PartsAnew,
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
    mail: BTreeMap<(u32, u32), VecDeque<Mail>>,
    /// The memory parts in so many puts.
    parts_in: Option<u64>,
    bug: Option<Bug>,
}

impl World {
    fn memory(&mut self, me: u32) -> &mut Memory {
        let at = self.nodes[me as usize] % self.memories.len();
        &mut self.memories[at]
    }

    /// All are frozen, and go on with what each had.
    fn part(&mut self) {
        if self.memories.len() == 1 {
            self.memories = vec![self.memories[0].clone(); 2];
        }
        for (carrier, &node) in self.carriers.iter_mut().zip(&self.nodes) {
            let mut up = self.memories[node].up.clone();
            if self.bug == Some(Bug::ForgetsMemory) {
                up.fill(0);
            }
            if self.bug == Some(Bug::PartsAnew) {
                *carrier = Carrier::new(up.len() as u32);
            }
            carrier.part(Some(up.into_iter()));
        }
    }

    fn may_part_here(&mut self) {
        if let Some(left) = &mut self.parts_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                // It is restored again soon.
                self.parts_in = self.random.chance(50).then(|| self.random.from_to(1, 4));
                self.part();
            }
        }
    }
}

/// Element of folds: neither commutative nor associative.
fn fold(a: u64, b: u64) -> u64 {
    mix(a.wrapping_mul(31), b)
}

fn element(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where blocks vary: where they lie in what a member gives, and in what it gets.
#[derive(Clone, Default)]
struct Blocks {
    gives: Vec<Range<usize>>,
    gets: Vec<Range<usize>>,
}

/// A member with the data of its call.
struct Rank {
    me: u32,
    world: Rc<RefCell<World>>,
    from: Vec<u8>,
    into: Vec<u8>,
    blocks: Blocks,
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
        if world.carriers[0].is_messages() {
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
        let early = world.carriers[self.me as usize].sends(self.me, number);
        let parted = world.carriers[self.me as usize].is_messages();
        if !parted || world.bug == Some(Bug::WritesOn) {
            world.memory(self.me).slot(step.line, self.me, number).0 = bytes.clone();
            world.may_part_here();
            let memory = world.memory(self.me);
            memory.slot(step.line, self.me, number).1 = number + 1;
            memory.up[self.me as usize] = number + 1;
            world.may_part_here();
        }
        if parted {
            world.may_part_here();
        }
        let sends = world.carriers[self.me as usize].sends(self.me, number);
        let sends = if world.bug == Some(Bug::DecidesEarly) { early } else { sends };
        if sends {
            let size = plan.call.size;
            for reader in (0..size).filter(|&r| r != self.me && step.readers.has(r)) {
                let range = self.range(plan, step, reader, self.me);
                let message = bytes[range.start as usize..range.end as usize].to_vec();
                world.mail.entry((self.me, reader)).or_default().push_back((number, message));
            }
        }
    }

    fn is_up(&mut self, _: &Plan, step: &Step, number: u64, writer: u32) -> bool {
        if self.world.borrow().bug == Some(Bug::FinishesEarly) {
            self.finish(number + 1);
        }
        let mut world = self.world.borrow_mut();
        if world.random.chance(50) {
            return false;
        }
        if !world.carriers[self.me as usize].comes_as_message(writer, number) {
            let reads_early = world.bug == Some(Bug::ReadsEarly);
            return reads_early
                || world.memory(self.me).slot(step.line, writer, number).1 == number + 1;
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

/// A call, and what each member has and must get.
struct Case {
    call: Call,
    from: Vec<Vec<u8>>,
    into: Vec<Vec<u8>>,
    want: Vec<Vec<u8>>,
    blocks: Vec<Blocks>,
}

/// Calls that are too long are others'.
fn draw(random: &mut Prng, size: u32) -> Case {
    loop {
        let case = draw_any(random, size);
        if Plan::new(case.call).is_some() {
            return case;
        }
    }
}

fn draw_any(random: &mut Prng, size: u32) -> Case {
    let kind = random.pick(&Kind::ALL);
    let root = random.below(size as usize) as u32;
    let count = match random.below(8) {
        0 => 0,
        1..4 => random.from_to(1, 6),
        4..6 => random.from_to(1, 1200),
        6 => random.from_to(1000, 9000),
        _ => random.from_to(8000, 65_000),
    };
    if kind.varies() {
        return draw_varying(random, Call { kind, size, root, bytes: count * 8, element: 8 });
    }
    let (bytes, n) = (if kind == Kind::Barrier { 0 } else { count * 8 }, size as usize);
    let call = Call { kind, size, root, bytes, element: if kind.folds() { 8 } else { 1 } };
    let block = bytes as usize;
    let gives = match kind {
        Kind::Alltoall | Kind::Scatter | Kind::ReduceScatterBlock => n * block,
        _ => block,
    };
    let gets = match kind {
        Kind::Allgather | Kind::Alltoall | Kind::Gather => n * block,
        _ => block,
    };
    let from: Vec<_> = (0..n).map(|_| fill(random, gives)).collect();
    let into: Vec<_> = (0..n).map(|_| fill(random, gets)).collect();
    let piece = |w: usize, at: usize| from[w][at * block..(at + 1) * block].to_vec();
    let folded = |members: Range<usize>, at: usize| -> Option<Vec<u8>> {
        let mut members = members.rev();
        let mut result = piece(members.next()?, at);
        for w in members {
            let next = piece(w, at);
            for at in (0..block).step_by(8) {
                let folded = fold(element(&next, at), element(&result, at));
                result[at..at + 8].copy_from_slice(&folded.to_le_bytes());
            }
        }
        Some(result)
    };
    let want = (0..n).map(|me| {
        let is_root = me == root as usize;
        let all: Option<Vec<u8>> = match kind {
            Kind::Barrier => None,
            Kind::Bcast if is_root => None,
            Kind::Bcast => Some(piece(root as usize, 0)),
            Kind::Reduce | Kind::Gather if !is_root => None,
            Kind::Reduce | Kind::Allreduce => folded(0..n, 0),
            Kind::Allgather | Kind::Gather => Some((0..n).flat_map(|w| piece(w, 0)).collect()),
            Kind::Alltoall => Some((0..n).flat_map(|w| piece(w, me)).collect()),
            Kind::Scatter => Some(piece(root as usize, me)),
            Kind::ReduceScatterBlock => folded(0..n, me),
            Kind::Scan => folded(0..me + 1, 0),
            Kind::Exscan => folded(0..me, 0),
            _ => unreachable!("its blocks vary"),
        };
        all.unwrap_or_else(|| into[me].clone())
    });
    let want = want.collect();
    Case { call, from, into, want, blocks: vec![Blocks::default(); n] }
}

fn fill(random: &mut Prng, length: usize) -> Vec<u8> {
    let mut all: Vec<u8> = Vec::with_capacity(length + 8);
    while all.len() < length {
        all.extend_from_slice(&random.bits().to_le_bytes());
    }
    all.truncate(length);
    all
}

/// Blocks of up to `call.bytes`, with gaps between them.
fn draw_varying(random: &mut Prng, mut call: Call) -> Case {
    let (n, root, kind) = (call.size as usize, call.root as usize, call.kind);
    let most = (call.bytes / 8) as usize;
    let mut draw = || if random.chance(20) { 0 } else { random.below(most + 1) * 8 };
    // What one gives another, as long as everybody is concerned.
    let mut lengths: Vec<Vec<usize>> = (0..n).map(|_| (0..n).map(|_| draw()).collect()).collect();
    for w in 0..n {
        for r in 0..n {
            lengths[w][r] = match kind {
                Kind::Alltoallv => lengths[w][r],
                Kind::Gatherv | Kind::Allgatherv => lengths[w][0],
                _ => lengths[0][r],
            };
        }
    }
    call.bytes = lengths.iter().flatten().copied().max().unwrap_or(0) as u64;
    let lay = |random: &mut Prng, lengths: Vec<usize>| -> Vec<Range<usize>> {
        let mut at = 0;
        let block = |length: usize| {
            let start = at + if kind.folds() { 0 } else { random.below(3) * 8 };
            at = start + length;
            start..at
        };
        lengths.into_iter().map(block).collect()
    };
    let mut blocks = Vec::new();
    for (me, row) in lengths.iter().enumerate() {
        let column: Vec<usize> = lengths.iter().map(|row| row[me]).collect();
        let gives = match kind {
            Kind::Gatherv | Kind::Allgatherv => vec![row[0]],
            Kind::Scatterv if me != root => Vec::new(),
            _ => row.clone(),
        };
        let gets = match kind {
            Kind::Gatherv if me != root => Vec::new(),
            Kind::Scatterv | Kind::ReduceScatter => vec![lengths[root][me]],
            _ => column,
        };
        blocks.push(Blocks { gives: lay(random, gives), gets: lay(random, gets) });
    }
    let end = |blocks: &[Range<usize>]| blocks.last().map_or(0, |block| block.end);
    let from: Vec<_> = blocks.iter().map(|blocks| fill(random, end(&blocks.gives))).collect();
    let into: Vec<_> = blocks.iter().map(|blocks| fill(random, end(&blocks.gets))).collect();
    let mut want = into.clone();
    for me in 0..n {
        let given = |w: usize| {
            let all = &blocks[w].gives;
            from[w][all[if all.len() == n { me } else { 0 }].clone()].to_vec()
        };
        if kind == Kind::ReduceScatter {
            let mut result = given(n - 1);
            for w in (0..n - 1).rev() {
                let next = given(w);
                for at in (0..result.len()).step_by(8) {
                    let folded = fold(element(&next, at), element(&result, at));
                    result[at..at + 8].copy_from_slice(&folded.to_le_bytes());
                }
            }
            want[me] = result;
        } else if kind == Kind::Scatterv {
            want[me][blocks[me].gets[0].clone()].copy_from_slice(&given(root));
        } else {
            for (w, place) in blocks[me].gets.iter().enumerate() {
                want[me][place.clone()].copy_from_slice(&given(w));
            }
        }
    }
    Case { call, from, into, want, blocks }
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
    if !always_messages {
        assert!(carriers.iter().all(|carrier| carrier.share(0)));
    }
    let world = Rc::new(RefCell::new(World {
        random: random.fork(1),
        memories: vec![memory],
        nodes: (0..n).map(|_| random.below(2)).collect(),
        carriers,
        mail: BTreeMap::new(),
        parts_in: (!always_messages && random.chance(50)).then(|| random.from_to(1, 120)),
        bug,
    }));
    let calls = random.between(5, 40);
    let cases: Vec<Case> = (0..calls).map(|_| draw(&mut random, size)).collect();
    let plans: Vec<Plan> = cases.iter().map(|case| Plan::new(case.call).unwrap()).collect();
    let mut members: Vec<Member> = (0..size).map(|me| Member::new(me, size)).collect();
    let rank = |me: u32| Rank {
        me,
        world: Rc::clone(&world),
        from: Vec::new(),
        into: Vec::new(),
        blocks: Blocks::default(),
        inbox: BTreeMap::new(),
    };
    let mut ranks: Vec<Rank> = (0..size).map(rank).collect();
    let mut at = vec![0; n];
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
    let mut idle = 0;
    while at.iter().any(|&call| call < calls) {
        let me = random.below(n);
        if at[me] == calls {
            continue;
        }
        let before = (members[me].number(), at[me]);
        if members[me].advance(&plans[at[me]], &mut ranks[me]) {
            let case = &cases[at[me]];
            assert!(ranks[me].into == case.want[me], "{me}: {:?}", case.call);
            at[me] += 1;
            if at[me] < calls {
                enter(&mut ranks[me], at[me]);
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
