//! What one seed stands for: the shape of the job, of the transports and of the faults.

use crate::prng::Prng;

/// A bug that the simulator plants into its own half of the contract, to prove that the checkers
/// would see the same bug in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A restarted process is not told what its peers have: repeated sends reach them again.
    RepeatedSendsReachPeers,
    /// The log gives its records in the wrong order.
    ResendOutOfOrder,
    /// Resync does not mention messages whose payload is missing.
    OpenMessagesForgotten,
    /// Frames of an older incarnation are let in.
    IncarnationIgnored,
    /// A transport lets a later eager fragment overtake.
    EagerOvertakes,
    /// Synchronous sends complete like standard ones.
    SynchronousEarly,
    /// A receive buffer is said to be larger than it is.
    Overrun,
    /// Senders trim what the receiver's set has accepted, not what its line holds.
    TrimTooEarly,
    /// A grant arrives twice.
    DoubleGrant,
    /// A transport loses a frame.
    FrameLost,
    /// A half-taken frame is offered again from its start.
    SendBufferReused,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Set of each rank (the lowest rank in it).
    pub sets: Vec<u32>,
    /// Eager limit inside a set and between sets.
    pub eager_bytes_max: [u32; 2],
    /// Chunk size inside a set and between sets.
    pub chunk_bytes_max: [u32; 2],
    /// Bytes that a wire holds before it is full.
    pub room_bytes: usize,
    /// A wire takes parts of frames.
    pub partial: bool,
    /// Percent of offers that are refused for no reason.
    pub refusals: u32,
    /// Percent of exposures that succeed.
    pub exposures: u32,
    /// Percent of pulls that are refused, and that are done at once.
    pub pulls: [u32; 2],
    /// Percent of payload frames that are delivered out of order.
    pub reorder: u32,
    /// Rounds of the program, messages in each.
    pub rounds: usize,
    /// Messages in each round.
    pub messages: usize,
    /// Largest message.
    pub bytes_max: u64,
    /// Wildcards, probes, claims and races with cancel (not where results must repeat).
    pub wild: bool,
    /// Results do not depend on timing: no wildcards, polls or cancels.
    pub repeatable: bool,
    /// Context ids carry an instance (needed where sets die).
    pub instances: bool,
    /// Resets of connections between sets.
    pub resets: u32,
    /// Deaths of sets.
    pub deaths: u32,
    /// Lines taken before.
    pub lines: u32,
    /// Logs are trimmed when a line is complete.
    pub trim: bool,
    /// Frames of a dead incarnation may still arrive.
    pub ghosts: bool,
    /// Percent of opportunities for a fault that are taken.
    pub fault_rate: u32,
    /// A bug.
    pub planted: Option<Planted>,
}

/// Which part of the space of seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// No faults, all of MPI.
    Calm,
    /// Connections are reset.
    Resets,
    /// Connections are reset and sets die.
    Deaths,
}

impl Options {
    /// The run of a seed.
    pub fn of(tier: Tier, seed: u64) -> Self {
        let mut prng = Prng::new(seed).fork(1);
        let faults = tier != Tier::Calm;
        let ranks = prng.from_to(if faults { 2 } else { 1 }, 6) as u32;
        let size = prng.from_to(1, u64::from(if faults { (ranks - 1).min(3) } else { ranks }));
        let sets = (0..ranks).map(|rank| rank - rank % size as u32).collect();
        let eager = |prng: &mut Prng| prng.pick(&[0, 16, 64, 64, 200]);
        let chunk = |prng: &mut Prng| prng.pick(&[1, 50, 64, 200, 1000]);
        let deaths = tier == Tier::Deaths;
        let repeatable = deaths || tier == Tier::Resets && prng.chance(40);
        Self {
            seed,
            sets,
            eager_bytes_max: [eager(&mut prng), eager(&mut prng)],
            chunk_bytes_max: [chunk(&mut prng).max(16), chunk(&mut prng).max(16)],
            room_bytes: prng.pick(&[40, 100, 300, 1000, 100_000]),
            partial: prng.chance(60),
            refusals: prng.pick(&[0, 0, 10, 50]),
            exposures: prng.pick(&[0, 50, 100]),
            pulls: prng.pick(&[[0, 100], [100, 0], [20, 40], [10, 0]]),
            reorder: prng.pick(&[0, 30, 100]),
            rounds: prng.from_to(1, 5) as usize,
            messages: prng.from_to(2, 25) as usize,
            bytes_max: prng.pick(&[100, 700, 700, 4000]),
            wild: !repeatable && prng.chance(60),
            repeatable,
            instances: deaths || prng.chance(50),
            resets: if faults { prng.from_to(u64::from(!deaths), 12) as u32 } else { 0 },
            deaths: if deaths { prng.from_to(1, 6) as u32 } else { 0 },
            lines: if deaths { prng.from_to(0, 12) as u32 } else { 0 },
            trim: prng.chance(60),
            ghosts: prng.chance(70),
            fault_rate: prng.pick(&[1, 2, 5, 20]),
            planted: None,
        }
    }

    /// The same program without faults.
    pub fn without_faults(&self) -> Self {
        Self { resets: 0, deaths: 0, lines: 0, planted: None, ..self.clone() }
    }

    /// Number of processes.
    pub fn ranks(&self) -> usize {
        self.sets.len()
    }

    /// Are these two in one set?
    pub fn same_set(&self, a: usize, b: usize) -> bool {
        self.sets[a] == self.sets[b]
    }
}
