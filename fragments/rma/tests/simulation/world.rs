//! A job: sets of processes, the network, payload logs, determinants and their gate, checkpoints,
//! failures. A model of what the engine and the coordinator do (fragments/DESIGN.md,
//! coordination/DESIGN.md), as small as it can be.

use crate::model::{self, Outcome};
use crate::neighbours::Shared;
use crate::planted::Planted;
use crate::process::{Line, Logged, Moment, Process, window_id};
use crate::script::{CELLS, COUNTERS, Script};
use rustbtl_rma::record::{Past, Recorded};
use rustbtl_seeds::{Prng, SALT, mix_bytes};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

struct Frame {
    from: usize,
    to: usize,
    line: Line,
    number: usize,
    bytes: Vec<u8>,
    incarnations: (u32, u32),
    depends_on: usize,
}

#[derive(Default)]
pub struct Set {
    pub members: Vec<usize>,
    /// Determinants in the order of the set.
    pub recorded: Vec<(usize, Recorded)>,
    pub shared: Option<Rc<Shared>>,
    stable: usize,
    image: Vec<Process>,
    /// Determinants that the image contains.
    image_at: usize,
    is_replaying: bool,
}

/// What happened.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    pub failures: usize,
    pub during_replay: usize,
    pub checkpoints: usize,
    pub determinants: usize,
    pub forced: usize,
    pub suppressed: usize,
    pub old_frames: usize,
    pub atomics: usize,
    pub kept_in_image: usize,
    pub direct: usize,
}

pub struct World {
    prng: Prng,
    pub script: Script,
    planted: Option<Planted>,
    pub set_of: Vec<usize>,
    pub sets: Vec<Set>,
    pub processes: Vec<Process>,
    incarnations: Vec<u32>,
    wires: BTreeMap<(usize, usize, Line), VecDeque<Frame>>,
    old: Vec<Frame>,
    invoked: BTreeMap<(usize, usize), u64>,
    now: u64,
    failures_left: usize,
    /// Sets share memory.
    pub is_direct: bool,
    /// Of 1000 steps, so many take a checkpoint; a few, so that replays are long.
    checkpoints: usize,
    pub report: Report,
}

const STEPS_MAX: u64 = 200_000;

impl World {
    pub fn new(seed: u64, is_free: bool, planted: Option<Planted>) -> Self {
        let mut prng = Prng::from_state(seed ^ SALT);
        let ranks = prng.between(2, 4);
        let script = match is_free {
            true => Script::free(&mut prng, ranks),
            false => Script::ordered(&mut prng, ranks),
        };
        let mut set_of = Vec::new();
        let mut sets: Vec<Set> = Vec::new();
        for rank in 0..ranks {
            let alone = rank == 0 || (rank == ranks - 1 && sets.len() == 1) || prng.chance(65);
            if alone {
                sets.push(Set::default());
            }
            set_of.push(sets.len() - 1);
            sets.last_mut().expect("one").members.push(rank);
        }
        let processes: Vec<_> = (0..ranks)
            .map(|rank| {
                let apart: Vec<_> = (0..ranks).collect();
                let batches = planted == Some(Planted::BatchesInReplay);
                Process::new(rank, if batches { &apart } else { &set_of }, is_free)
            })
            .collect();
        for set in &mut sets {
            set.image = set.members.iter().map(|&rank| processes[rank].clone()).collect();
        }
        let failures_left = prng.below(4);
        let checkpoints = prng.between(1, 6);
        let is_direct = prng.chance(70);
        let mut world = Self {
            prng,
            script,
            planted,
            set_of,
            sets,
            processes,
            incarnations: vec![0; ranks],
            wires: BTreeMap::new(),
            old: Vec::new(),
            invoked: BTreeMap::new(),
            now: 0,
            failures_left,
            is_direct,
            checkpoints,
            report: Report::default(),
        };
        (0..world.sets.len()).for_each(|set| world.open_areas(set));
        world
    }

    pub fn is(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    fn moment(&self) -> Moment {
        let completes_early = self.is(Planted::CompletesEarly);
        Moment { now: self.now, completes_early, waits_unheld: self.is(Planted::WaitsUnheld) }
    }

    fn record(&mut self, rank: usize, runs: Vec<Recorded>) {
        self.report.determinants += runs.len();
        let set = &mut self.sets[self.set_of[rank]];
        set.recorded.extend(runs.into_iter().map(|run| (rank, run)));
    }

    /// The determinants of a process, then what it sends.
    fn flush(&mut self, rank: usize, runs: Vec<Recorded>) {
        let set = self.set_of[rank];
        self.record_direct(set);
        if !runs.is_empty() {
            self.close_group(set);
        }
        let late = self.is(Planted::RecordsLate);
        let after = if late {
            runs
        } else {
            self.record(rank, runs);
            Vec::new()
        };
        let out = core::mem::take(&mut self.processes[rank].out);
        if out.iter().any(|(to, ..)| self.set_of[*to] != set) {
            self.close_group(set);
        }
        for (to, line, bytes) in out {
            self.emit(rank, to, line, bytes);
        }
        self.record(rank, after);
    }

    fn emit(&mut self, from: usize, to: usize, line: Line, bytes: Vec<u8>) {
        let sender = &mut self.processes[from];
        let sent = sender.sent.entry((to, line)).or_default();
        let number = *sent;
        *sent += 1;
        if self.set_of[from] != self.set_of[to] {
            let logged = Logged { to, line, number, bytes: bytes.clone() };
            if !matches!(line, Line::Replies(_)) || self.planted != Some(Planted::RepliesNotLogged)
            {
                sender.log.push(logged);
            }
            let accepted = self.processes[to].accepted.get(&(from, line));
            if let Some(&hash) = accepted.and_then(|hashes| hashes.get(number)) {
                // The receiver has it: the replay says the same again.
                self.report.suppressed += 1;
                assert_eq!(hash, mix_bytes(1, &bytes), "diverged: {from} to {to}, {line:?}");
                return;
            }
        }
        self.put_on_wire(from, to, line, number, bytes);
    }

    fn put_on_wire(&mut self, from: usize, to: usize, line: Line, number: usize, bytes: Vec<u8>) {
        let depends_on = self.sets[self.set_of[from]].recorded.len();
        let incarnations = (self.incarnations[from], self.incarnations[to]);
        let frame = Frame { from, to, line, number, bytes, incarnations, depends_on };
        self.wires.entry((from, to, line)).or_default().push_back(frame);
    }

    fn may_leave(&self, frame: &Frame) -> bool {
        let (from, to) = (self.set_of[frame.from], self.set_of[frame.to]);
        from == to || self.is(Planted::GateOpen) || frame.depends_on <= self.sets[from].stable
    }

    fn deliver(&mut self, mut frame: Frame, again: bool) {
        let (from, to) = (frame.from, frame.to);
        let current = frame.incarnations == (self.incarnations[from], self.incarnations[to]);
        if !current && !self.is(Planted::OldFrames) {
            self.report.old_frames += 1;
            return;
        }
        let process = &mut self.processes[to];
        let accepted = process.accepted.get(&(from, frame.line)).map_or(0, Vec::len);
        let known = frame.number < accepted;
        if frame.number > accepted || known && self.planted != Some(Planted::Duplicates) {
            assert!(!again || known || !current, "a gap in a stream");
            return;
        }
        if self.planted == Some(Planted::NoEpochs) && matches!(frame.line, Line::Operations(_)) {
            let number = u64::from(frame.bytes[1] != 0);
            frame.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        }
        process.receive(from, frame.line, frame.bytes);
        if !self.script.is_free && self.prng.chance(50) {
            self.progress(to);
        }
    }

    fn progress(&mut self, rank: usize) {
        let runs = self.processes[rank].progress(self.now);
        self.flush(rank, runs);
    }

    /// A process does something.
    fn step(&mut self, rank: usize) {
        let moment = self.moment();
        self.allow(rank);
        let process = &mut self.processes[rank];
        let Some(call) = self.script.programs[rank].get(process.at) else {
            self.progress(rank);
            return;
        };
        let call = call.clone();
        if !process.in_call {
            let before = process.atomics.len();
            let runs = process.begin(&call, &moment);
            for index in before..process.atomics.len() + 1 {
                self.invoked.entry((rank, index)).or_insert(self.now);
            }
            self.flush(rank, runs);
            return;
        }
        self.progress(rank);
        self.processes[rank].finish(&call, &moment);
        self.progress(rank);
    }

    fn run_wires(&mut self, within: Option<usize>) {
        while let Some(key) = self
            .wires
            .iter()
            .find(|((from, to, _), queue)| {
                let inside =
                    Some(self.set_of[*from]) == within && self.set_of[*to] == self.set_of[*from];
                inside && !queue.is_empty()
            })
            .map(|(&key, _)| key)
        {
            if let Some(frame) = self.wires.get_mut(&key).and_then(VecDeque::pop_front) {
                let process = &mut self.processes[frame.to];
                process.receive(frame.from, frame.line, frame.bytes);
            }
        }
    }

    /// The set is quiescent inside, then all its processes are copied at one moment.
    fn checkpoint(&mut self, set: usize) {
        if self.sets[set].is_replaying {
            return;
        }
        self.run_wires(Some(set));
        let members = self.sets[set].members.clone();
        if let Some(shared) = self.sets[set].shared.clone()
            && !self.is(Planted::AreaLeftOut)
        {
            for (me, &rank) in members.iter().enumerate() {
                self.processes[rank].machine.close_area(&shared.lock(), &shared.area(me));
            }
        }
        let mut image: Vec<_> = members.iter().map(|&rank| self.processes[rank].clone()).collect();
        let kept = image.iter().map(|process| process.machine.kept().0).sum::<usize>();
        self.report.kept_in_image += usize::from(kept > 0);
        self.report.checkpoints += 1;
        let at = self.sets[set].recorded.len();
        if self.is(Planted::TornImage) {
            for _ in 0..6 {
                self.some_delivery();
            }
            for process in &mut image {
                process.accepted.clone_from(&self.processes[process.rank].accepted);
            }
        }
        self.sets[set].image = image;
        self.sets[set].image_at = at;
        self.sets[set].stable = self.sets[set].stable.max(at);
        // Stored: others drop what it contains.
        for process in &mut self.processes {
            let from = process.rank;
            let image = &self.sets[set].image;
            process.log.retain(|logged| {
                let of = image.iter().find(|process| process.rank == logged.to);
                let has = of.map(|of| of.accepted.get(&(from, logged.line)).map_or(0, Vec::len));
                has.is_none_or(|has| logged.number >= has)
            });
        }
    }

    fn trim_early(&mut self) {
        let rank = self.prng.below(self.processes.len());
        let accepted = self.processes[rank].accepted.clone();
        for process in &mut self.processes {
            let from = process.rank;
            process.log.retain(|logged| {
                let has = accepted.get(&(from, logged.line)).map_or(0, Vec::len);
                logged.to != rank || logged.number >= has
            });
        }
    }

    fn fail(&mut self, sets: &[usize]) {
        for &set in sets {
            self.report.failures += 1;
            self.report.during_replay += usize::from(self.sets.iter().any(|set| set.is_replaying));
            let members = self.sets[set].members.clone();
            let lost = self.sets[set].stable;
            self.sets[set].recorded.truncate(lost);
            for &rank in &members {
                self.incarnations[rank] += 1;
            }
            for (&(from, to, _), queue) in &mut self.wires {
                if members.contains(&from) || members.contains(&to) {
                    for frame in queue.drain(..) {
                        if self.prng.chance(50) {
                            self.old.push(frame);
                        }
                    }
                }
            }
            for (place, &rank) in members.iter().enumerate() {
                self.processes[rank] = self.sets[set].image[place].clone();
                let at = self.sets[set].image_at;
                let past = self.sets[set].recorded[at..].iter();
                let mut own: Vec<Past> = past
                    .flat_map(|(of, recorded)| match recorded {
                        Recorded::Own(run) if *of == rank => vec![Past::Own(*run)],
                        Recorded::Own(_) => Vec::new(),
                        Recorded::Group(group) => {
                            let of_rank = group.iter().filter(|(member, _)| *member == place);
                            of_rank.map(|(_, run)| Past::Direct(*run)).collect()
                        }
                    })
                    .collect();
                self.report.forced += own.len();
                if self.is(Planted::Order) {
                    let key = |past: &Past| match past {
                        Past::Own(run) => (run.tick, run.source),
                        Past::Direct(run) => (run.applied.tick, run.applied.source),
                    };
                    own.sort_by_key(key);
                }
                let machine = &mut self.processes[rank].machine;
                machine.begin_replay(own).expect("nothing is missing");
                if self.planted == Some(Planted::Tick) {
                    (0..100_000).for_each(|_| machine.action());
                }
            }
            self.sets[set].is_replaying = true;
            self.open_areas(set);
        }
        // Channels are repaired: what the other end has not accepted is sent again from the log.
        for from in 0..self.processes.len() {
            for logged in self.processes[from].log.clone() {
                let (to, line) = (logged.to, logged.line);
                let touched = |rank: usize| sets.contains(&self.set_of[rank]);
                if !touched(from) && !touched(to) {
                    continue;
                }
                let accepted = self.processes[to].accepted.get(&(from, line)).map_or(0, Vec::len);
                if logged.number >= accepted {
                    self.put_on_wire(from, to, line, logged.number, logged.bytes);
                }
            }
        }
    }

    /// Has a process said again all that others have of it, and applied all that is recorded?
    fn is_through(&self, rank: usize) -> bool {
        let process = &self.processes[rank];
        let others =
            self.processes.iter().filter(|other| self.set_of[other.rank] != self.set_of[rank]);
        let said = |other: &Process| {
            other.accepted.iter().filter(|((from, _), _)| *from == rank).all(
                |((_, line), hashes)| {
                    process.sent.get(&(other.rank, *line)).copied().unwrap_or(0) >= hashes.len()
                },
            )
        };
        process.machine.is_record_applied() && others.into_iter().all(said)
    }

    fn end_replays(&mut self) {
        let replaying: Vec<usize> = (0..self.processes.len())
            .filter(|&rank| self.sets[self.set_of[rank]].is_replaying)
            .collect();
        if replaying.is_empty() {
            return;
        }
        if self.is(Planted::NoWithholding) || self.is(Planted::WithholdsAlone) {
            for &rank in &replaying {
                if self.is(Planted::NoWithholding) || self.is_through(rank) {
                    self.processes[rank].machine.end_replay();
                }
            }
        }
        if replaying.iter().all(|&rank| self.is_through(rank)) {
            for rank in replaying {
                let process = &mut self.processes[rank];
                assert!(process.machine.end_replay(), "the record is applied");
                if let Some(shared) = &process.hood.shared {
                    process.machine.update_accepts(&shared.area(process.hood.me));
                }
                self.sets[self.set_of[rank]].is_replaying = false;
            }
        }
    }

    /// A frame at the head of a wire arrives; false: none may.
    fn some_delivery(&mut self) -> bool {
        let ready: Vec<_> = self
            .wires
            .iter()
            .filter(|(_, queue)| queue.front().is_some_and(|frame| self.may_leave(frame)))
            .map(|(&key, _)| key)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let key = ready[self.prng.below(ready.len())];
        let Some(frame) = self.wires.get_mut(&key).and_then(VecDeque::pop_front) else {
            return false;
        };
        if self.prng.chance(5) {
            let bytes = frame.bytes.clone();
            self.old.push(Frame { bytes, ..frame });
        }
        let bytes = frame.bytes.clone();
        self.deliver(Frame { bytes, ..frame }, true);
        true
    }

    fn is_over(&self) -> bool {
        let ended = |process: &Process| process.at == self.script.programs[process.rank].len();
        self.processes.iter().all(ended)
            && self.wires.values().all(VecDeque::is_empty)
            && self.processes.iter().all(|process| process.machine.kept().0 == 0)
            && !self.sets.iter().any(|set| set.is_replaying)
    }

    fn where_all_are(&self) -> String {
        let of = |process: &Process| {
            let call = self.script.programs[process.rank].get(process.at);
            let machine = &process.machine;
            let (record, holds) = (machine.is_record_applied(), machine.holds_completions());
            let replaying = self.sets[self.set_of[process.rank]].is_replaying;
            let (at, kept) = (process.at, machine.kept().0);
            format!(
                "\n{} at {at} {call:?}; kept {kept}, replaying {replaying}, through {}, record \
                applied {record}, holds {holds}",
                process.rank,
                self.is_through(process.rank)
            )
        };
        let wires = self.wires.iter().filter(|(_, queue)| !queue.is_empty());
        let wires: Vec<_> = wires.map(|(key, queue)| (key, queue.len())).collect();
        self.processes.iter().map(of).collect::<String>() + &format!("\nwires {wires:?}")
    }

    /// Run it to its end, and check it.
    pub fn run(mut self) -> Report {
        let ranks = self.processes.len();
        while !self.is_over() {
            self.now += 1;
            if self.now > STEPS_MAX {
                panic!("stuck: {}", self.where_all_are());
            }
            match self.prng.below(1000) {
                0..450 => {
                    self.some_delivery();
                }
                450..900 => {
                    let rank = self.prng.below(ranks);
                    self.step(rank);
                }
                900..940 if !self.script.is_free => {
                    // A thread applies while the program computes.
                    let rank = self.prng.below(ranks);
                    self.progress(rank);
                }
                940..970 => {
                    let set = self.prng.below(self.sets.len());
                    let (stable, all) = (self.sets[set].stable, self.sets[set].recorded.len());
                    self.sets[set].stable = self.prng.between(stable, all);
                }
                place @ 970..976 if place < 970 + self.checkpoints => {
                    let set = self.prng.below(self.sets.len());
                    self.checkpoint(set);
                }
                976..980 if !self.is(Planted::LocksStand) => {
                    let rank = self.prng.below(ranks);
                    self.processes[rank].machine.locks_stood();
                }
                980..990 if !self.old.is_empty() => {
                    let place = self.prng.below(self.old.len());
                    let frame = self.old.swap_remove(place);
                    self.deliver(frame, false);
                }
                990..993 if self.is(Planted::TrimsEarly) => self.trim_early(),
                993..997 if self.failures_left > 0 => {
                    self.failures_left -= 1;
                    let set = self.prng.below(self.sets.len());
                    let second = (set + 1) % self.sets.len();
                    let both = [set, second];
                    let count = if self.prng.chance(35) { 2 } else { 1 };
                    self.fail(&both[..count]);
                }
                _ => {}
            }
            self.end_replays();
        }
        self.check_end()
    }

    fn check_end(mut self) -> Report {
        for process in &mut self.processes {
            process.machine.check();
            if let Some(shared) = process.hood.shared.clone() {
                let area = shared.area(process.hood.me);
                process.machine.close_area(&shared.lock(), &area);
            }
            for instance in 0..if self.script.is_free { 2 } else { 1 } {
                process.machine.free(window_id(instance)).expect("nothing is open");
            }
        }
        self.check_atomics();
        if !self.script.is_free {
            let cells = |process: &Process| (0..CELLS).map(|cell| process.cell(cell)).collect();
            let outcome = Outcome {
                cells: self.processes.iter().map(cells).collect(),
                states: self.processes.iter().map(|process| process.state).collect(),
            };
            assert_eq!(outcome, model::run(&self.script.programs), "not the sequential result");
        }
        self.report
    }

    /// Counters are linearizable: each old value is seen once, without a gap, and an operation that
    /// was over before another began has seen less.
    fn check_atomics(&mut self) {
        for (to, cell) in (0..self.processes.len()).flat_map(|to| COUNTERS.map(|cell| (to, cell))) {
            let mut seen = Vec::new();
            for process in &self.processes {
                for atomic in process.atomics.iter().filter(|atomic| atomic.cell == (to, cell)) {
                    let old = atomic.old.expect("all have ended");
                    let began = self.invoked[&(process.rank, atomic.index)];
                    seen.push((old, began, atomic.responded));
                }
            }
            seen.sort_unstable();
            self.report.atomics += seen.len();
            for ((old, began, _), expected) in seen.iter().zip(0..) {
                assert_eq!(*old, expected, "not linearizable: {to} {cell} {seen:?}");
                let later = seen.iter().filter(|(other, _, _)| other > old);
                for (_, _, responded) in later {
                    assert!(responded >= began, "not in the order of time: {seen:?}");
                }
            }
            assert_eq!(self.processes[to].cell(cell), seen.len() as u64, "the final value");
        }
    }
}
