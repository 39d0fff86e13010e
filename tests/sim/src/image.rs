//! The snapshot of a simulated process, and what must hold of a checkpoint made of them.

use crate::faults::Faults;
use crate::host::{Memory, SimHost};
use crate::model::Stream;
use crate::process::Program;
use crate::world::World;
use rustbtl_coordination::quiescence::{Input, QuiesceMethod, Quiescence};
use rustbtl_fragments::engine::Engine;
use rustbtl_fragments::ids::*;
use std::collections::{BTreeMap, BTreeSet};

/// One process in a checkpoint.
#[derive(Clone)]
pub struct Image {
    /// Its engine.
    pub engine: Engine<SimHost>,
    memory: Memory,
    /// Its program.
    pub program: Program,
    /// Internal sends on offer.
    exposed: Vec<(usize, u64, Vec<u8>)>,
    machine: Quiescence,
    /// Its received vectors of processes of other sets, as they are sent.
    pub held: BTreeMap<usize, Vec<u8>>,
    /// Its receives that have matched, its messages that checkpoints of others cover, its
    /// agreements.
    matched: BTreeSet<(Stream, u64)>,
    covered: BTreeSet<(Stream, u64)>,
    agreed: BTreeSet<(usize, usize)>,
    missed: Vec<String>,
    /// Frames put into the wire to each process of the set, and taken from it, until then.
    passed: BTreeMap<usize, [u64; 2]>,
    /// What had arrived, with its content.
    seen: BTreeMap<Stream, Vec<u64>>,
}

impl Image {
    /// Its event clock.
    pub fn clock(&self) -> u64 {
        self.memory.decisions.clock()
    }
}

impl World {
    /// The snapshot of a process, now.
    pub fn snapshot(&self, rank: usize) -> Image {
        let missed = self.missed(rank);
        let process = &self.processes[rank];
        let options = &self.shared.options;
        let mut net = self.net.borrow_mut();
        let members = self.members(options.sets[rank]);
        let passed = members.into_iter().map(|other| {
            (other, [net.wire(rank, other).passed[0], net.wire(other, rank).passed[1]])
        });
        let passed = passed.collect();
        let inside = |to: usize| options.same_set(rank, to);
        let exposed =
            net.exposed.iter().filter(|((owner, to, _), _)| *owner == rank && inside(*to));
        let others = process.engine.traffic().filter(|(peer, ..)| !inside(peer.0 as usize));
        let book = &self.shared.book;
        let mine = |(stream, _): &&(Stream, u64)| stream.2 == rank;
        Image {
            engine: process.engine.clone(),
            memory: process.host.memory.clone(),
            program: process.program.clone(),
            exposed: exposed.map(|((_, to, id), bytes)| (*to, *id, bytes.clone())).collect(),
            machine: self.checkpoints.machine(rank).clone(),
            held: others
                .map(|(peer, ..)| (peer.0 as usize, process.engine.received_from(peer).encode()))
                .collect(),
            matched: book.matched.iter().filter(mine).copied().collect(),
            covered: self.faults.covered.iter().filter(|(s, _)| s.1 == rank).copied().collect(),
            agreed: self.shared.agreed.iter().filter(|(_, who)| *who == rank).copied().collect(),
            missed,
            passed,
            seen: self.seen(&process.program),
        }
    }

    /// The contents of what has arrived, as the book has them now.
    fn seen(&self, program: &Program) -> BTreeMap<Stream, Vec<u64>> {
        let sent = |stream: &Stream, count: u64| {
            let sent = self.shared.book.sent.get(stream).into_iter().flatten();
            sent.take(count as usize).map(|sent| sent.message.digest).collect()
        };
        let arrived = program.matching.arrived.iter();
        arrived.map(|(stream, &count)| (*stream, sent(stream, count))).collect()
    }

    /// The process is rolled back to its snapshot, in the next incarnation. Its channels to other
    /// sets are still to be reported.
    pub fn restore(&mut self, rank: usize, image: &Image, keep_exposed: bool) {
        // Senders may have been rolled back while nobody was here who had seen what they sent.
        assert_eq!(image.seen, self.seen(&image.program), "sent again, and not the same");
        let process = &mut self.processes[rank];
        process.engine = image.engine.clone();
        process.host.memory = image.memory.clone();
        process.program = image.program.clone();
        process.host.completed.clear();
        if self.shared.options.determinants {
            let book = &mut self.shared.book;
            book.accepted.retain(|stream, _| stream.2 != rank);
            book.accepted.extend(process.program.matching.arrived.clone());
        }
        process.host.checkpoint_frames.clear();
        process.host.pulls.clear();
        let mut net = self.net.borrow_mut();
        net.incarnations[rank] += 1;
        process.engine.restarted(Incarnation(net.incarnations[rank]));
        if keep_exposed {
            let again = image.exposed.iter();
            net.exposed.extend(again.map(|(to, id, bytes)| ((rank, *to, *id), bytes.clone())));
        }
        drop(net);
        let mut machine = image.machine.clone();
        if machine.is_active() {
            let restored = machine.handle(Input::Restored);
            assert_eq!(restored, Ok(()), "a snapshot is taken in phase Freeze");
        }
        self.checkpoints.put_machine(rank, machine);
        self.carry_out(rank);
    }

    /// The job's common book is rolled back with all processes.
    pub fn restore_book(&mut self, images: &BTreeMap<usize, Image>) {
        self.shared.book.matched = images.values().flat_map(|i| i.matched.clone()).collect();
        self.faults.covered = images.values().flat_map(|i| i.covered.clone()).collect();
        self.shared.agreed = images.values().flat_map(|i| i.agreed.clone()).collect();
    }

    /// What a snapshot taken now would miss: frames under way inside the set, open rendezvous. (Of
    /// a checkpoint that is aborted elsewhere there may be some. Nobody of the set goes on before
    /// all have their snapshot.)
    fn missed(&self, rank: usize) -> Vec<String> {
        let members = self.members(self.shared.options.sets[rank]);
        let mut net = self.net.borrow_mut();
        let mut missed = Vec::new();
        // With counters the others' rings do not matter: each process empties its own.
        let counts = self.shared.options.method == QuiesceMethod::Counters;
        for &a in &members {
            for &b in members.iter().filter(|&&b| !counts || b == rank) {
                if !net.wire(a, b).is_quiescent_but_for_checkpoints() {
                    missed.push(format!("a frame from {a} to {b} at the freeze of {rank}"));
                }
            }
        }
        let inside = |from: usize| members.contains(&from);
        let open = self.processes[rank].incomplete_from(inside);
        if open > 0 {
            missed.push(format!("{open} matched receives at the freeze of {rank}"));
        }
        let pulls = self.processes[rank].host.pulls.iter().filter(|pull| inside(pull.from)).count();
        if pulls > 0 {
            missed.push(format!("{pulls} pulls at the freeze of {rank}"));
        }
        missed
    }

    /// What must hold of a complete checkpoint: nothing was missed, no orphans.
    pub fn assert_consistent(&self, images: &BTreeMap<usize, Image>) {
        for image in images.values() {
            assert!(image.missed.is_empty(), "the checkpoint misses {:?}", image.missed);
        }
        for (a, of_a) in images {
            for (b, [put, _]) in of_a.passed.iter().filter(|(b, _)| *b != a) {
                let taken = images[b].passed[a][1];
                assert_eq!(*put, taken, "{a} had put so many frames on the wire to {b}");
            }
        }
        let programs = images.iter().map(|(&rank, image)| (rank, &image.program)).collect();
        if let Some(orphan) = self.orphan(&programs) {
            panic!("orphan in a checkpoint: {orphan}");
        }
    }

    /// A message that was received and not sent, or a synchronous send that is complete though its
    /// message is not matched.
    pub fn orphan(&self, programs: &BTreeMap<usize, &Program>) -> Option<String> {
        for (&to, receiver) in programs {
            for (stream, &count) in &receiver.matching.arrived {
                let sent = programs.get(&stream.1).map(|sender| sender.sent(stream));
                if let Some(sent) = sent.filter(|sent| count > *sent) {
                    return Some(format!("{to} has {count} of {stream:?}, {sent} were sent"));
                }
            }
        }
        for (stream, sent) in &self.shared.book.sent {
            if self.shared.options.determinants && stream.3 < 0 {
                // The library does not cancel: that its match is known before it is replayed does
                // no harm (fragments/DESIGN.md "Replay").
                continue;
            }
            let (Some(sender), Some(receiver)) = (programs.get(&stream.1), programs.get(&stream.2))
            else {
                continue;
            };
            let arrived = receiver.matching.arrived.get(stream).copied().unwrap_or(0);
            for sent in sent.iter().take(sender.sent(stream) as usize) {
                let number = sent.message.sequence;
                let waits = receiver.matching.waiting().any(|other| *other == sent.message);
                let matched = number < arrived && !waits;
                if sent.synchronous && !matched && !sender.send_is_open(stream, number) {
                    return Some(format!("{stream:?} {number}: complete, not matched"));
                }
            }
        }
        None
    }
}

impl Faults {
    /// What a failed set is restarted from.
    pub fn store(&mut self, set: u32, checkpoint: Vec<Image>) {
        self.stored.insert(set, checkpoint);
    }
}
