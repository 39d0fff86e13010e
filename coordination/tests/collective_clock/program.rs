//! Programs: for each rank what it calls, one after the other. Random ones are correct MPI by
//! construction: they are cut from one sequence of events, so that calling them in the order of
//! the sequence never blocks, even if every collective synchronizes.

use rustbtl_seeds::Prng;
use std::collections::{BTreeMap, BTreeSet};

/// When a member may leave a collective, and what it gets there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Barrier, allreduce, alltoall: all must have entered; the sum of all.
    All,
    /// Bcast, scatter: the root may leave at once, others when it has entered; its value.
    FromRoot,
    /// Reduce, gather: the root when all have entered; the sum at the root, 0 at others.
    ToRoot,
    /// Neighbourhood: when both neighbours in the ring have entered; their values.
    Neighbours,
    /// An allreduce that calls `ToRoot` and `FromRoot` on the same communicator.
    Nested,
}

/// One call. `comm` is an index into `Program::comms`, `call` a number that all members of one
/// collective share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Collective {
        comm: usize,
        call: u64,
        kind: Kind,
        root: usize,
    },
    /// Nonblocking, or a start of a persistent one.
    Start {
        comm: usize,
        call: u64,
        kind: Kind,
        root: usize,
    },
    Wait {
        call: u64,
    },
    Test {
        call: u64,
    },
    /// Collective over `parent`; members of `comm` have it afterwards.
    Create {
        parent: usize,
        call: u64,
        comm: usize,
    },
    /// MPI_Comm_idup: two allreduces on `parent`, the second started by progress.
    Idup {
        parent: usize,
        call: u64,
        comm: usize,
    },
    Free {
        comm: usize,
    },
    /// Eager, or it waits until it is received.
    Send {
        to: usize,
        synchronous: bool,
    },
    Receive {
        from: usize,
    },
    SendAny {
        to: usize,
    },
    ReceiveAny,
    Compute {
        steps: usize,
    },
    Finalize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comm {
    /// World ranks, in the order of ranks.
    pub members: Vec<usize>,
    pub context: u32,
    /// There from the beginning.
    pub is_old: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    pub comms: Vec<Comm>,
    pub ranks: Vec<Vec<Op>>,
}

impl Program {
    /// For tests by name: communicators by their members.
    pub fn new(ranks: usize, comms: &[&[usize]]) -> Self {
        let comm = |(context, members): (usize, &&[usize])| Comm {
            members: members.to_vec(),
            context: context as u32,
            is_old: true,
        };
        let comms = comms.iter().enumerate().map(comm).collect();
        Self { comms, ranks: vec![Vec::new(); ranks] }
    }
}

/// Makes a random program.
struct Maker {
    prng: Prng,
    program: Program,
    /// Starts that a rank has not made yet.
    late: Vec<Vec<(usize, Op)>>,
    /// By call: members, and those that have not waited for it.
    open: BTreeMap<u64, (usize, BTreeSet<usize>)>,
    freed: BTreeSet<usize>,
    /// Communicators of MPI_Comm_idup: nobody may use them before all have waited for it.
    unready: Vec<(u64, usize)>,
    next_call: u64,
}

pub fn random(seed: u64) -> Program {
    let mut prng = crate::prng_of(seed);
    let n = prng.between(2, 6);
    let mut program = Program::new(n, &[&(0..n).collect::<Vec<_>>()]);
    for _ in 0..prng.between(0, 4) {
        let members = group(&mut prng, &(0..n).collect::<Vec<_>>());
        let context = program.comms.len() as u32;
        program.comms.push(Comm { members, context, is_old: true });
    }
    let late = vec![Vec::new(); n];
    let (open, freed) = (BTreeMap::new(), BTreeSet::new());
    let unready = Vec::new();
    let mut maker = Maker { prng, program, late, open, freed, unready, next_call: 1 };
    for _ in 0..maker.prng.between(5, 45) {
        maker.event();
        maker.some_late(25);
        maker.some_waits(25);
    }
    maker.some_late(100);
    maker.some_waits(100);
    let finalize = maker.prng.chance(30);
    for rank in 0..n {
        maker.program.ranks[rank].extend(finalize.then_some(Op::Finalize));
    }
    maker.program
}

/// Some of these, in another order; often all of them.
fn group(prng: &mut Prng, of: &[usize]) -> Vec<usize> {
    let all = prng.chance(35);
    let mut members: Vec<usize> = of.iter().copied().filter(|_| all || prng.chance(60)).collect();
    if members.is_empty() {
        members.push(of[prng.below(of.len())]);
    }
    let turn = prng.below(members.len());
    members.rotate_left(turn);
    members
}

impl Maker {
    fn event(&mut self) {
        let n = self.program.ranks.len();
        let usable = |comm: &usize| {
            !self.freed.contains(comm) && self.unready.iter().all(|(_, of)| of != comm)
        };
        let comms: Vec<usize> = (0..self.program.comms.len()).filter(usable).collect();
        let comm = comms[self.prng.below(comms.len())];
        let members = self.program.comms[comm].members.clone();
        let root = members[self.prng.below(members.len())];
        let kinds = [Kind::All, Kind::FromRoot, Kind::ToRoot, Kind::Neighbours, Kind::Nested];
        let kind = kinds[self.prng.below(5)];
        let call = self.next_call;
        self.next_call += 1;
        match self.prng.below(100) {
            0..35 => self.all(comm, Op::Collective { comm, call, kind, root }),
            35..55 => {
                let kind = if kind == Kind::Nested { Kind::All } else { kind };
                self.start(comm, call, Op::Start { comm, call, kind, root });
            }
            55..63 => {
                let new = self.make(comm);
                self.all(comm, Op::Create { parent: comm, call, comm: new });
            }
            63..66 => {
                let (members, context) = (members.clone(), self.context(&members));
                let new = self.program.comms.len();
                self.program.comms.push(Comm { members, context, is_old: false });
                let op = Op::Idup { parent: comm, call, comm: new };
                self.unready.push((call, new));
                self.start(comm, call, op);
            }
            66..70 if comm > 0 => {
                let is_open = self.open.values().any(|(of, _)| *of == comm);
                if !is_open && self.late.iter().flatten().all(|(of, _)| *of != comm) {
                    self.all(comm, Op::Free { comm });
                    self.freed.insert(comm);
                }
            }
            70..90 if n > 1 => {
                let from = self.prng.below(n);
                let to = (from + self.prng.between(1, n - 1)) % n;
                if self.prng.chance(20) {
                    self.program.ranks[from].push(Op::SendAny { to });
                    self.program.ranks[to].push(Op::ReceiveAny);
                } else {
                    let synchronous = self.prng.chance(30);
                    self.program.ranks[from].push(Op::Send { to, synchronous });
                    self.program.ranks[to].push(Op::Receive { from });
                }
            }
            _ => {
                let (rank, steps) = (self.prng.below(n), self.prng.between(1, 30));
                self.program.ranks[rank].push(Op::Compute { steps });
            }
        }
    }

    fn make(&mut self, parent: usize) -> usize {
        let of = self.program.comms[parent].members.clone();
        let members = group(&mut self.prng, &of);
        let context = self.context(&members);
        self.program.comms.push(Comm { members, context, is_old: false });
        self.program.comms.len() - 1
    }

    /// One that no member uses; that of a communicator that was freed, if there is one.
    fn context(&self, members: &[usize]) -> u32 {
        let is_used = |context: &u32| {
            self.program.comms.iter().enumerate().any(|(at, comm)| {
                comm.context == *context
                    && !self.freed.contains(&at)
                    && comm.members.iter().any(|member| members.contains(member))
            })
        };
        (0..).find(|context| !is_used(context)).unwrap()
    }

    /// All members call this now; what they have put off on that communicator comes before.
    fn all(&mut self, comm: usize, op: Op) {
        for rank in self.program.comms[comm].members.clone() {
            self.late_of(rank, Some(comm));
            self.program.ranks[rank].push(op);
        }
    }

    fn start(&mut self, comm: usize, call: u64, op: Op) {
        let members = self.program.comms[comm].members.clone();
        for &rank in &members {
            self.late[rank].push((comm, op));
            if self.prng.chance(50) {
                self.late_of(rank, Some(comm));
            }
        }
        self.open.insert(call, (comm, members.into_iter().collect()));
    }

    fn late_of(&mut self, rank: usize, comm: Option<usize>) {
        let is_now = |of: usize| comm.is_none_or(|comm| comm == of);
        let now = self.late[rank].iter().filter(|(of, _)| is_now(*of)).map(|(_, op)| *op);
        self.program.ranks[rank].extend(now);
        self.late[rank].retain(|(of, _)| !is_now(*of));
    }

    fn some_late(&mut self, percent: u32) {
        for rank in 0..self.late.len() {
            while !self.late[rank].is_empty() && self.prng.chance(percent) {
                // Any communicator's first: the order between communicators is free.
                let at = self.prng.below(self.late[rank].len());
                let (comm, _) = self.late[rank][at];
                self.late_of(rank, Some(comm));
            }
        }
    }

    /// Who waits does so after all have started.
    fn some_waits(&mut self, percent: u32) {
        let is_late = |call: u64, late: &[Vec<(usize, Op)>]| {
            late.iter().flatten().any(|(_, op)| match op {
                Op::Start { call: of, .. } | Op::Idup { call: of, .. } => *of == call,
                _ => false,
            })
        };
        for (&call, (_, waiting)) in &mut self.open {
            if is_late(call, &self.late) {
                continue;
            }
            for rank in waiting.clone() {
                if self.prng.chance(percent) {
                    waiting.remove(&rank);
                    self.program.ranks[rank].push(Op::Wait { call });
                } else if self.prng.chance(percent) {
                    self.program.ranks[rank].push(Op::Test { call });
                }
            }
        }
        self.open.retain(|_, (_, waiting)| !waiting.is_empty());
        self.unready.retain(|(call, _)| self.open.contains_key(call));
    }
}
