//! Random programs that always end.
//!
//! All processes' scripts are made together, message by message, so that each message has its
//! receive. Three rules keep them free of deadlock: a receive pattern is a function of context
//! and tag; a process waits in the middle of a round only where all patterns of the run are
//! exact; sends that wildcards may take in another order are waited for at the very end.

use crate::model::{Pattern, lane};
use crate::options::Options;
use crate::windows::programs::{Call, Made};
use rustbtl_coordination::instances::Instances;
use rustbtl_fragments::ids::{ContextId, PeerId};
use rustbtl_seeds::Prng;

/// Names a request in its process.
pub type Request = u32;

/// One step of a program. `comm` is an index into [`Script::comms`].
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub enum Op {
    /// Go on when all members have come here (stands for the agreement on a context id).
    Agree { comm: usize },
    /// Make the communicator.
    AddComm { comm: usize },
    /// Free it.
    DelComm { comm: usize },
    /// Post a send.
    Send { comm: usize, to: u32, tag: i32, bytes: u64, synchronous: bool, request: Request },
    /// Post a receive.
    Receive { comm: usize, pattern: Pattern, capacity: u64, request: Request },
    /// Probe until something is there, then go on.
    Probe { comm: usize, pattern: Pattern },
    /// Claim a message, waiting until it is there, and receive it.
    Claim { comm: usize, pattern: Pattern, capacity: u64, request: Request },
    /// Cancel a receive; if it was in time, post it again.
    CancelAndRepeat { request: Request, tag: Option<i32> },
    /// Post a receive that nothing matches and cancel it.
    CancelLonely { comm: usize },
    /// Wait for one request.
    Wait { request: Request },
    /// Wait for every request whose sends no wildcard takes.
    WaitAll,
    /// Wait for the rest.
    WaitRest,
    /// Calls about a window, one after the other: its place among the windows, its communicator.
    Window { window: usize, comm: usize, calls: Vec<Call> },
}

/// Steps that belong together.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Steps.
    pub ops: Vec<Op>,
    /// Steps of different library streams (negative tags) may be taken in any order.
    pub loose: bool,
}

/// A communicator of the job.
#[derive(Clone, Debug)]
pub struct Comm {
    /// Context id and instance.
    pub context: ContextId,
    /// Processes, by rank.
    pub members: Vec<usize>,
}

/// The programs of all processes.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Communicators; 0 is the world.
    pub comms: Vec<Comm>,
    /// Segments of each process.
    pub programs: Vec<Vec<Segment>>,
    /// How many windows are made.
    pub windows: usize,
}

/// Tag of receives that nothing matches.
const LONELY_TAG: i32 = 77;

struct Maker<'a> {
    options: &'a Options,
    prng: Prng,
    script: Script,
    requests: Vec<Request>,
    instances: Instances,
    windows: Vec<Made>,
}

/// The script of a seed.
pub fn script(options: &Options) -> Script {
    let ranks = options.ranks();
    let world = Comm { context: ContextId(0), members: (0..ranks).collect() };
    let mut maker = Maker {
        options,
        prng: Prng::new(options.seed).fork(2),
        script: Script { comms: vec![world], programs: vec![Vec::new(); ranks], windows: 0 },
        requests: vec![0; ranks],
        instances: Instances::default(),
        windows: Vec::new(),
    };
    for rank in 0..ranks {
        maker.segment(rank, vec![Op::AddComm { comm: 0 }], false);
    }
    for _ in 0..options.rounds {
        maker.round();
    }
    maker.free_windows(0);
    for rank in 0..ranks {
        maker.segment(rank, vec![Op::WaitRest, Op::DelComm { comm: 0 }], false);
    }
    maker.script
}

impl Op {
    /// Steps of one lane keep their order in a loose segment.
    pub fn lane(&self) -> i32 {
        match self {
            Op::Send { tag, .. } => lane(*tag),
            Op::Receive { pattern: Pattern { tag, .. }, .. } | Op::CancelAndRepeat { tag, .. } => {
                tag.map_or(0, lane)
            }
            _ => 0,
        }
    }
}

impl Maker<'_> {
    fn segment(&mut self, rank: usize, ops: Vec<Op>, loose: bool) {
        if !ops.is_empty() {
            self.script.programs[rank].push(Segment { ops, loose });
        }
    }

    fn request(&mut self, rank: usize) -> Request {
        self.requests[rank] += 1;
        self.requests[rank]
    }

    fn round(&mut self) {
        let mut comms = vec![0];
        let mut used: Vec<u16> = Vec::new();
        for _ in 0..self.prng.below(3) {
            let context = self.prng.pick(&[3, 4, 5, 65_000]);
            if !used.contains(&context) {
                used.push(context);
                comms.push(self.new_comm(context));
            }
        }
        if self.options.windows {
            self.begin_windows();
        }
        let ranks = self.options.ranks();
        // Per process: what is posted, and what blocks and therefore comes last.
        let mut posts: Vec<Vec<Op>> = vec![Vec::new(); ranks];
        let mut late: Vec<Vec<Op>> = vec![Vec::new(); ranks];
        let ordered = !self.options.wild && self.prng.chance(40);
        for _ in 0..self.options.messages {
            let comm = self.prng.pick(&comms);
            self.message(comm, ordered, &mut posts, &mut late);
            self.access_windows(&mut posts);
        }
        for rank in 0..ranks {
            let mut ops = core::mem::take(&mut posts[rank]);
            if !ordered {
                self.prng.shuffle(&mut ops);
                self.add_cancels(&mut ops);
            }
            self.segment(rank, ops, !ordered);
            self.segment(rank, core::mem::take(&mut late[rank]), false);
            self.segment(rank, vec![Op::WaitAll], false);
        }
        self.end_windows();
        for comm in comms.into_iter().skip(1) {
            for rank in self.script.comms[comm].members.clone() {
                self.segment(rank, vec![Op::DelComm { comm }], false);
            }
        }
    }

    fn new_comm(&mut self, context: u16) -> usize {
        let mut members: Vec<usize> = (0..self.options.ranks()).collect();
        self.prng.shuffle(&mut members);
        members.truncate(1 + self.prng.below(members.len()));
        let comm = self.script.comms.len();
        for &rank in &members {
            self.segment(rank, vec![Op::Agree { comm }, Op::AddComm { comm }], false);
        }
        let ids: Vec<PeerId> = members.iter().map(|&rank| PeerId(rank as u32)).collect();
        let instance = self.instances.next(context, &ids);
        let context = if self.options.instances { instance } else { ContextId::new(context, 0) };
        self.script.comms.push(Comm { context, members });
        comm
    }

    /// Each member makes these calls about a window.
    fn all_call(&mut self, (window, comm): (usize, usize), calls: Vec<Vec<Call>>) {
        let members = self.script.comms[comm].members.clone();
        for (rank, calls) in members.into_iter().zip(calls) {
            if !calls.is_empty() {
                self.segment(rank, vec![Op::Window { window, comm, calls }], false);
            }
        }
    }

    fn begin_windows(&mut self) {
        for _ in 0..self.prng.below(3) {
            let context = self.prng.pick(&[8, 10, 12]);
            let used = |made: &Made| {
                let context_of = self.script.comms[made.comm].context;
                context_of.number() == u32::from(context)
            };
            if self.windows.iter().any(used) {
                continue;
            }
            let comm = self.new_comm(context);
            let ranks = self.script.comms[comm].members.len();
            let window = self.script.windows;
            self.script.windows += 1;
            self.all_call((window, comm), vec![vec![Call::Create]; ranks]);
            self.windows.push(Made::new(comm, window, ranks));
        }
        let mut windows = core::mem::take(&mut self.windows);
        for made in &mut windows {
            let calls = made.begin(&mut self.prng);
            self.all_call((made.window, made.comm), calls);
        }
        self.windows = windows;
    }

    fn access_windows(&mut self, posts: &mut [Vec<Op>]) {
        for made in &mut self.windows {
            if self.prng.chance(30) {
                continue;
            }
            let Some((origin, calls)) = made.access(&mut self.prng) else { continue };
            let rank = self.script.comms[made.comm].members[origin];
            let Made { window, comm, .. } = *made;
            posts[rank].push(Op::Window { window, comm, calls });
        }
    }

    fn end_windows(&mut self) {
        let mut windows = core::mem::take(&mut self.windows);
        for made in &mut windows {
            let calls = made.end(self.options.windows_rush.then_some(&mut self.prng));
            self.all_call((made.window, made.comm), calls);
        }
        self.windows = windows;
        self.free_windows(60);
    }

    /// Free windows; `keep`: percent that live longer.
    fn free_windows(&mut self, keep: u32) {
        for made in core::mem::take(&mut self.windows) {
            if self.prng.chance(keep) {
                self.windows.push(made);
                continue;
            }
            self.all_call((made.window, made.comm), made.free());
            for rank in self.script.comms[made.comm].members.clone() {
                self.segment(rank, vec![Op::WaitAll, Op::DelComm { comm: made.comm }], false);
            }
        }
    }

    fn bytes(&mut self) -> u64 {
        let eager = u64::from(self.prng.pick(&self.options.eager_bytes_max));
        let chunk = u64::from(self.prng.pick(&self.options.chunk_bytes_max));
        let max = self.options.bytes_max;
        let bytes = match self.prng.below(8) {
            0 => 0,
            1 => eager,
            2 => eager + 1,
            3 => eager + chunk,
            4 => eager + 3 * chunk + 1,
            5 => self.prng.from_to(0, max),
            _ => self.prng.from_to(0, eager.max(8)),
        };
        bytes.min(max)
    }

    fn message(&mut self, comm: usize, ordered: bool, posts: &mut [Vec<Op>], late: &mut [Vec<Op>]) {
        let Comm { context, members } = self.script.comms[comm].clone();
        let (from, to) = (self.prng.below(members.len()), self.prng.below(members.len()));
        let (sender, receiver) = (members[from], members[to]);
        let tag = self.prng.pick(&[0, 1, 2, 3, -1, -2, -2, -101, -102, -103]);
        let (bytes, synchronous) = (self.bytes(), self.prng.chance(25));
        let pattern = pattern(self.options, context, from as u32, tag);
        let capacity = match self.prng.below(6) {
            0 => bytes / 2,
            1 => bytes + 5,
            2 => 0,
            _ => bytes,
        };
        let request = self.request(sender);
        let send = Op::Send { comm, to: to as u32, tag, bytes, synchronous, request };
        posts[sender].push(send);
        if ordered && sender != receiver && self.prng.chance(25) {
            posts[sender].push(Op::Wait { request });
        }
        let request = self.request(receiver);
        let polls = !self.options.repeatable && self.prng.chance(20);
        let polls = polls && self.options.records(receiver);
        if !polls {
            posts[receiver].push(Op::Receive { comm, pattern, capacity, request });
            if ordered && self.prng.chance(25) {
                posts[receiver].push(Op::Wait { request });
            }
            return;
        }
        let last = if ordered { &mut posts[receiver] } else { &mut late[receiver] };
        if self.prng.chance(30) {
            last.push(Op::Probe { comm, pattern });
        }
        last.push(Op::Claim { comm, pattern, capacity, request });
    }

    fn add_cancels(&mut self, ops: &mut Vec<Op>) {
        if !self.options.repeatable && self.options.all_record() {
            for at in (0..ops.len()).rev() {
                if let Op::Receive { request, pattern, .. } = ops[at]
                    && self.prng.chance(10)
                {
                    let tag = pattern.tag;
                    if self.options.determinants && tag.is_some_and(|tag| tag < 0) {
                        continue;
                    }
                    ops.insert(at + 1, Op::CancelAndRepeat { request, tag });
                }
            }
        }
        if self.prng.chance(30) {
            let at = self.prng.below(ops.len() + 1);
            ops.insert(at, Op::CancelLonely { comm: 0 });
        }
    }
}

/// The pattern that nothing matches.
pub fn lonely(context: u32) -> Pattern {
    Pattern { context, source: Some(0), tag: Some(LONELY_TAG) }
}

/// The pattern of a context and tag (rule 1).
pub fn pattern(options: &Options, context: ContextId, source: u32, tag: i32) -> Pattern {
    let exact = Pattern { context: context.0, source: Some(source), tag: Some(tag) };
    let any_source = Pattern { source: None, ..exact };
    match context.number() {
        3 if tag >= 0 && options.wild => Pattern { tag: None, ..any_source },
        4 if tag >= 0 => Pattern { tag: None, ..exact },
        _ if tag % 2 != 0 && options.wild => any_source,
        _ => exact,
    }
}
