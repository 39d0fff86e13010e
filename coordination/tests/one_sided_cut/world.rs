//! Processes, adapters, and channels that keep their order. What is done when is noted as how many
//! snapshots the process has taken so far: that says of each access whether the cut parts it.

use rustbtl_coordination::one_sided_cut::*;
use rustbtl_fragments::ids::PeerId;
use rustbtl_seeds::Prng;
use std::collections::{BTreeMap, VecDeque};

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A process goes on when it has its own snapshot.
    GoesOnEarly,
    /// A frame overtakes what was sent before it.
    OutOfOrder,
    /// The adapter reads memory for a request later than it could, behind what is sent meanwhile.
    LazyAdapter,
    /// A get is told to be complete when its data leaves the target.
    CompleteEarly,
    /// Requests that the adapter has not answered are in no snapshot.
    AdapterNotInImage,
}

#[derive(Clone, Copy, Debug)]
enum Wire {
    Frame(CutFrame),
    Put(u64),
    Request(u64),
    Data(u64),
}

/// How many snapshots were taken before each step of an access.
#[derive(Clone, Copy, Default, Debug)]
struct Steps {
    is_get: bool,
    started: Option<u64>,
    read: Option<u64>,
}

/// A process as its snapshot has it.
#[derive(Clone)]
struct Process {
    machine: OneSidedCut,
    /// Accesses that the program has made.
    made: u64,
    /// Accesses that are over: gets of this process, puts into its memory. How often.
    over: BTreeMap<(usize, u64), u32>,
}

/// What was seen.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    pub overlaps: u64,
    pub crosses: u64,
    pub waves: u64,
    pub restarts: u64,
    /// Sent of each kind.
    pub markers: u64,
    pub second: u64,
    pub flushes: u64,
    pub peeks: u64,
    /// Pairs whose marker came while a get was open.
    pub open_pairs: u64,
    pub delayed: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        for (mine, theirs) in [
            (&mut self.overlaps, other.overlaps),
            (&mut self.crosses, other.crosses),
            (&mut self.waves, other.waves),
            (&mut self.restarts, other.restarts),
            (&mut self.markers, other.markers),
            (&mut self.second, other.second),
            (&mut self.flushes, other.flushes),
            (&mut self.peeks, other.peeks),
            (&mut self.open_pairs, other.open_pairs),
            (&mut self.delayed, other.delayed),
        ] {
            *mine += theirs;
        }
    }
}

pub struct World {
    processes: Vec<Process>,
    method: CutMethod,
    planted: Option<Planted>,
    channels: BTreeMap<(usize, usize), VecDeque<Wire>>,
    steps: BTreeMap<(usize, u64), Steps>,
    /// Each process's accesses: how many, and where they go.
    accesses: u64,
    targets: Prng,
    /// Snapshots taken, and the last of each process.
    taken: Vec<u64>,
    images: Vec<Option<Process>>,
    wave: u64,
    lazy: VecDeque<(usize, Output)>,
    restored: bool,
    /// The step that is done began in the checkpoint in which it ends.
    in_wave: bool,
    pub report: Report,
}

impl World {
    pub fn new(
        n: usize,
        method: CutMethod,
        accesses: u64,
        seed: u64,
        planted: Option<Planted>,
    ) -> Self {
        let ids: Vec<PeerId> = (0..n as u32).map(PeerId).collect();
        let process = |&me| Process {
            machine: OneSidedCut::new(me, &ids, method),
            made: 0,
            over: BTreeMap::new(),
        };
        Self {
            processes: ids.iter().map(process).collect(),
            method,
            planted,
            channels: BTreeMap::new(),
            steps: BTreeMap::new(),
            accesses,
            targets: Prng::new(seed ^ 0x5eed),
            taken: vec![0; n],
            images: vec![None; n],
            wave: 0,
            lazy: VecDeque::new(),
            restored: false,
            in_wave: false,
            report: Report::default(),
        }
    }

    fn n(&self) -> usize {
        self.processes.len()
    }

    /// Where an access goes and whether it reads is a part of the program: the same when it is made
    /// again.
    fn access(&self, at: usize, id: u64) -> Access {
        let mut prng = self.targets.fork(id * 64 + at as u64);
        let to = (at + 1 + prng.below(self.n() - 1)) % self.n();
        Access { to: PeerId(to as u32), id, is_get: prng.chance(60) }
    }

    pub fn hand_in(&mut self, at: usize, input: Input) {
        let before = self.processes[at].machine.wave();
        let handled = self.processes[at].machine.handle(input);
        handled.unwrap_or_else(|e| panic!("{at}: {input:?}: {e}"));
        self.in_wave = before.is_some() && before == self.processes[at].machine.wave();
        while let Some(output) = self.processes[at].machine.poll_output() {
            let lazy = self.planted == Some(Planted::LazyAdapter);
            if lazy && matches!(output, Output::Reply { .. }) {
                self.lazy.push_back((at, output));
            } else {
                self.carry_out(at, output);
            }
        }
    }

    fn put_on(&mut self, from: usize, to: PeerId, wire: Wire) {
        let channel = self.channels.entry((from, to.0 as usize)).or_default();
        if self.planted == Some(Planted::OutOfOrder) && matches!(wire, Wire::Frame(_)) {
            channel.push_front(wire);
        } else {
            channel.push_back(wire);
        }
    }

    fn step_of(&mut self, origin: usize, id: u64) -> &mut Steps {
        self.steps.entry((origin, id)).or_default()
    }

    fn carry_out(&mut self, at: usize, output: Output) {
        let now = self.taken[at];
        match output {
            Output::Send { to, frame } => {
                match frame {
                    CutFrame::Marker { .. } => self.report.markers += 1,
                    CutFrame::SecondMarker { .. } => self.report.second += 1,
                    CutFrame::FlushAsk { .. } | CutFrame::FlushAnswer { .. } => {
                        self.report.flushes += 1
                    }
                    CutFrame::Peek { .. } => self.report.peeks += 1,
                    CutFrame::State { .. } => (),
                }
                self.put_on(at, to, Wire::Frame(frame));
            }
            Output::Start(access) => {
                assert!(!self.in_wave, "B1: {at} starts {access:?} in a checkpoint");
                let steps = self.step_of(at, access.id);
                *steps = Steps { is_get: access.is_get, started: Some(now), ..*steps };
                let wire = if access.is_get { Wire::Request } else { Wire::Put };
                self.put_on(at, access.to, wire(access.id));
            }
            Output::Reply { to, id } => {
                if self.restored && self.planted == Some(Planted::AdapterNotInImage) {
                    return;
                }
                let delay = self.method == CutMethod::Delay;
                assert!(!(delay && self.in_wave), "B5: {at} answers in a checkpoint");
                self.step_of(to.0 as usize, id).read = Some(now);
                self.put_on(at, to, Wire::Data(id));
                if self.planted == Some(Planted::CompleteEarly) {
                    self.hand_in(to.0 as usize, Input::Data { from: PeerId(at as u32) });
                }
            }
            Output::Snapshot { wave } => {
                assert_eq!(wave, self.wave, "B3: of the one that is under way");
                assert_eq!(now + 1, wave, "B3: one of each");
                self.taken[at] += 1;
                self.images[at] = Some(self.processes[at].clone());
                if self.planted == Some(Planted::GoesOnEarly) {
                    self.hand_in(at, Input::Resume { wave });
                }
            }
        }
    }

    /// The access is over: does the cut part it?
    fn over(&mut self, origin: usize, id: u64, at: usize) {
        let now = self.taken[at];
        let steps = *self.step_of(origin, id);
        let left = if steps.is_get { steps.read } else { steps.started };
        let crosses = left != Some(now);
        let overlaps = steps.is_get && steps.started != Some(now);
        self.report.crosses += u64::from(crosses);
        self.report.overlaps += u64::from(overlaps);
        *self.processes[at].over.entry((origin, id)).or_default() += 1;
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let wire = self.channels.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let peer = PeerId(from as u32);
        match wire.expect("chosen because there is one") {
            Wire::Frame(frame) => {
                self.hand_in(to, Input::Frame { from: peer, frame });
                // Behind it: with a marker that comes before the order to resume, accesses start.
                let is_open = self.processes[to].machine.has_open(peer);
                let is_marker = matches!(frame, CutFrame::Marker { .. });
                self.report.open_pairs += u64::from(is_open && is_marker);
            }
            Wire::Put(id) => self.over(from, id, to),
            Wire::Request(id) => {
                let before = self.step_of(from, id).read;
                self.hand_in(to, Input::Request { from: peer, id });
                let waits = self.step_of(from, id).read == before;
                self.report.delayed += u64::from(waits);
            }
            Wire::Data(id) => {
                if self.planted != Some(Planted::CompleteEarly) {
                    self.hand_in_data(to, peer, id);
                } else {
                    self.over(to, id, to);
                }
            }
        }
    }

    /// The program sees what was read before the machine goes on: it is in a snapshot that follows.
    fn hand_in_data(&mut self, at: usize, from: PeerId, id: u64) {
        self.over(at, id, at);
        self.hand_in(at, Input::Data { from });
    }

    pub fn begin(&mut self, at: usize) {
        self.wave += 1;
        self.report.waves += 1;
        self.hand_in(at, Input::Begin { wave: self.wave });
    }

    fn all_frozen(&self) -> bool {
        self.taken.iter().all(|&taken| taken == self.wave)
    }

    /// All are what they were in the last checkpoint that is complete.
    pub fn restart(&mut self) {
        assert!(self.all_frozen() && self.wave > 0, "chosen because it is complete");
        self.channels.clear();
        self.lazy.clear();
        self.report.restarts += 1;
        for at in 0..self.n() {
            self.processes[at] = self.images[at].clone().expect("all have one");
        }
        self.restored = true;
        for at in 0..self.n() {
            self.hand_in(at, Input::Restored);
        }
        self.restored = false;
    }

    /// Deliver, make accesses, begin checkpoints and restart until nothing is left to do.
    pub fn run(&mut self, prng: &mut Prng, waves: u64, mut restarts: u64) {
        let n = self.n();
        loop {
            let full: Vec<(usize, usize)> = self
                .channels
                .iter()
                .filter(|(_, c)| !c.is_empty())
                .map(|(&pair, _)| pair)
                .collect();
            let making: Vec<usize> =
                (0..n).filter(|&at| self.processes[at].made < self.accesses).collect();
            let resuming: Vec<usize> = (0..n)
                .filter(|&at| self.all_frozen() && self.processes[at].machine.wave().is_some())
                .collect();
            let may_begin = self.wave < waves && self.all_frozen();
            let mut moves: Vec<u8> = Vec::new();
            moves.extend((!full.is_empty()).then_some([0; 6]).into_iter().flatten());
            moves.extend((!making.is_empty()).then_some([1; 4]).into_iter().flatten());
            moves.extend((!resuming.is_empty()).then_some(2));
            moves.extend(may_begin.then_some(3));
            let may_restart = restarts > 0 && self.wave > 0 && self.all_frozen();
            moves.extend(may_restart.then_some(4));
            moves.extend((!self.lazy.is_empty()).then_some(5));
            if moves.is_empty() {
                break;
            }
            match prng.pick(&moves) {
                0 => {
                    let (from, to) = prng.pick(&full);
                    self.deliver(from, to);
                }
                1 => {
                    let at = prng.pick(&making);
                    let access = self.access(at, self.processes[at].made);
                    self.processes[at].made += 1;
                    self.hand_in(at, Input::Access(access));
                }
                2 => self.hand_in(prng.pick(&resuming), Input::Resume { wave: self.wave }),
                3 => self.begin(prng.below(n)),
                4 => {
                    restarts -= 1;
                    self.restart();
                }
                _ => {
                    let (at, output) = self.lazy.pop_front().expect("there is one");
                    self.carry_out(at, output);
                }
            }
        }
    }

    /// Each access was made, and is over, once: also in a job that was restarted.
    pub fn must_be_whole(&self) {
        for at in 0..self.n() {
            assert!(self.processes[at].machine.is_idle(), "{at} waits for ever");
            for id in 0..self.accesses {
                let access = self.access(at, id);
                let place = if access.is_get { at } else { access.to.0 as usize };
                let times = self.processes[place].over.get(&(at, id)).copied().unwrap_or_default();
                assert_eq!(times, 1, "access {id} of {at}: {access:?}");
            }
        }
    }
}
