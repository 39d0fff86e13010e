//! What one seed stands for: the shape of the job, of the transports and of the faults.

use rustbtl_coordination::quiescence::QuiesceMethod;
use rustbtl_fragments::engine::AcknowledgeAfter;
use rustbtl_seeds::Prng;

/// A bug that the simulator plants into its own half of the contract, to prove that the checkers
/// would see the same bug in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A restarted process does not learn what its peers have: repeated sends reach them again.
    RepeatedSendsReachPeers,
    /// The log gives its records in the wrong order.
    ResendOutOfOrder,
    /// Resync does not mention messages whose payload is missing.
    OpenMessagesForgotten,
    /// Frames of an older incarnation are accepted.
    IncarnationIgnored,
    /// A transport lets a later eager fragment overtake.
    EagerOvertakes,
    /// Synchronous sends complete like standard ones.
    SynchronousEarly,
    /// A receive buffer is said to be larger than it is.
    Overrun,
    /// Senders trim what the receiver's set has accepted, not what its checkpoint holds.
    TrimTooEarly,
    /// A grant arrives twice.
    DoubleGrant,
    /// A transport loses a frame.
    FrameLost,
    /// A half-taken frame is offered again from its start.
    SendBufferReused,
    /// Frames of checkpoints bypass all others.
    TokenOvertakes,
    /// A token is sent while the frame before it is half taken.
    TokenPastHalfTaken,
    /// A process claims rendezvous quiescence as soon as it is polled.
    RendezvousQuiescenceSkipped,
    /// Nobody is asked whether a `Done` after the token has arrived.
    FlushSkipped,
    /// A process goes on when it has its snapshot, whatever the others have.
    ResumeEarly,
    /// A set goes on when it has its snapshots of a global checkpoint, whatever the others have.
    SetResumesEarly,
    /// Sends to other sets are not stopped for a global checkpoint.
    OutgoingNotHeld,
    /// Frames that a checkpoint held are dropped at its end.
    HeldFramesLost,
    /// Frames of an earlier checkpoint are taken for those of this one.
    StaleCheckpointAccepted,
    /// A set acknowledges messages after its first snapshot, too.
    AcknowledgedAfterSnapshot,
    /// A set whose logging is suspended is rolled back alone all the same.
    AloneAlthoughSuspended,
    /// A set can be rolled back alone again to any checkpoint that is complete, whether it began
    /// before logging was suspended.
    ResumedWithoutCheckpoint,
    /// Processes acknowledge though the coordinator has not suspended logging towards their set.
    SuspendedByOneself,
    /// Senders trim when a checkpoint is frozen, before it is complete.
    TrimBeforeCommit,
    /// A snapshot of a global checkpoint is taken although a set that was rolled back is still
    /// replaying.
    SnapshotWhileReplaying,
    /// News of matches pass between sets while a global checkpoint is taken.
    MatchesNotHeld,
    /// Frames leave the set whatever is stable.
    GateRemoved,
    /// Determinants are dropped when a checkpoint is frozen, before it is complete.
    DeterminantsTrimmedEarly,
    /// A match is recorded after the frames that depend on it have left.
    RecordedAfterSend,
    /// Replay has one failed poll less than there were.
    RunMiscounted,
    /// Replay knows for which call a date was recorded, and not for how many more.
    DatesForOneCall,
    /// Of the readings of a clock between two messages replay does not know the last.
    ReadingsForgotten,
    /// A restored process draws other random numbers than before.
    DrawnAnew,
    /// The program does not repeat itself, and replay goes on all the same.
    DivergenceIgnored,
    /// The program does not repeat itself (no bug of ours: it is to be reported).
    Diverges,
    /// The contents of what the program sends again differ in the last byte (no bug of ours: it is
    /// to be reported).
    ContentDiffers,
    /// The same, and digests ignore the last bytes.
    DigestIgnoresEnd,
    /// The same, and nobody compares what a set sends that has failed before.
    ComparisonForgotten,
    /// A restarted program leaves out the last message of a stream that its receiver has.
    SendsFewer,
    /// A restarted program sends a message twice.
    SendsMore,
    /// Counters: a process goes on when all have arrived, whatever lies in its rings.
    RingsNotEmptied,
    /// Counters: a process has arrived though some of its frames still wait for room.
    ArrivedEarly,
    /// Counters: nobody reports that a rendezvous is in flight.
    InFlightNotReported,
    /// Counters: those who arrived in an earlier checkpoint count for this one.
    OldCountsCount,
    /// A frame to a third set does not name what was piggybacked here.
    NamesForgotten,
    /// What is named is accepted and not stored.
    NamesNotStored,
    /// What comes behind places that were only named is piggybacked without them.
    PlacesAfterNamesOnly,
    /// What is named of an incarnation that is over counts, whatever of it was there at its end.
    LostPlacesCount,
    /// A place counts when its content is put where it belongs, whatever that names.
    ContentCounts,
    /// A set is restarted though somebody depends on what is lost.
    OrphansIgnored,
    /// What is piggybacked is accepted and not stored.
    PiggybackNotStored,
    /// The coordinator does not give a set what others send of it.
    PiggybackUnmerged,
    /// A place of which only the places that it holds are named counts before those are here.
    NamedPlacesCount,
    /// A frame goes alone although it depends on what its receiver does not have.
    PiggybackForgotten,
    /// Places that hold what the receiver has piggybacked are left out.
    PlacesLeftOut,
    /// A set is restarted before the others have reported what they have of it.
    FenceSkipped,
    /// A process that has reported so accepts more of it.
    FenceForgotten,
    /// An image counts as stored whatever of what it depends on is stable.
    SnapshotUnstable,
    /// Batches and acknowledgements of an earlier incarnation are taken for those of this one.
    StaleIncarnationAccepted,
    /// Windows, rule 1 of the replay: the record's order is lost within a tick.
    WindowOrderForgotten,
    /// Rule 2: the program's actions are not waited for.
    WindowTickIgnored,
    /// Rule 3: calls complete before what was applied earlier.
    WindowCompletesEarly,
    /// What a collective waits for inside of a call is held, too: others wait for its next step.
    WindowBarrierHeld,
    /// Rule 4: what is not recorded is applied as soon as the record is.
    WindowNotWithheld,
    /// Rule 4: each process is through when it is so itself.
    WindowWithheldAlone,
    /// All replays are over when all sets that had failed say that theirs are.
    WindowReportsBelieved,
    /// All that were restarted are asked, others are not.
    WindowSurvivorsNotAsked,
    /// What is left of an earlier record is dropped when a process is restored again.
    WindowRecordDropped,
    /// Operations are not kept for their epoch.
    WindowEpochsIgnored,
    /// Operations and replies are trimmed when a checkpoint is frozen, before it is complete.
    WindowTrimmedEarly,
    /// Replies are not logged.
    WindowRepliesNotLogged,
    /// What was applied is recorded after what depends on it was sent.
    WindowRecordedLate,
}

impl Planted {
    /// Does a restarted program send other contents?
    pub fn alters_contents(self) -> bool {
        matches!(self, Self::ContentDiffers | Self::DigestIgnoresEnd | Self::ComparisonForgotten)
    }

    /// Or another number of messages?
    pub fn alters_sends(self) -> bool {
        self.alters_contents() || matches!(self, Self::SendsFewer | Self::SendsMore)
    }

    /// These options, made such that the bug shows more often: in a job without it, too.
    pub fn adapt(self, options: Options) -> Options {
        match self {
            // Two sets that fail at a time, and programs whose every access counts.
            Self::WindowWithheldAlone => Options {
                windows_free: true,
                windows_share: true,
                failures: 8,
                checkpoints_kept: 1,
                piggyback: false,
                ..options
            },
            // Much is replayed, and little else is there.
            Self::WindowBarrierHeld => Options {
                windows_rush: true,
                windows_share: false,
                failures: 8,
                messages: options.messages.min(6),
                piggyback: false,
                ..options
            },
            // The fewer messages, the less goes wrong.
            _ if options.windows => Options { windows_share: false, ..options },
            _ => Options { method: self.method().unwrap_or(options.method), ..options },
        }
    }

    /// The method of taking checkpoints that a bug is in, if it is in one of them.
    fn method(self) -> Option<QuiesceMethod> {
        match self {
            Self::RingsNotEmptied
            | Self::ArrivedEarly
            | Self::InFlightNotReported
            | Self::OldCountsCount => Some(QuiesceMethod::Counters),
            Self::TokenOvertakes
            | Self::TokenPastHalfTaken
            | Self::FlushSkipped
            | Self::StaleCheckpointAccepted => Some(QuiesceMethod::Frames),
            _ => None,
        }
    }
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
    /// Context ids carry an instance (needed where sets fail).
    pub instances: bool,
    /// Resets of connections between sets.
    pub resets: u32,
    /// Failures of sets.
    pub failures: u32,
    /// Checkpoints taken before.
    pub checkpoints: u32,
    /// Receivers acknowledge until the first snapshot of their set.
    pub acknowledges: Option<AcknowledgeAfter>,
    /// How they acknowledge while logging towards them is suspended, if it ever is.
    pub suspends: Option<AcknowledgeAfter>,
    /// Logs are trimmed when a checkpoint is complete.
    pub trim: bool,
    /// Frames of a failed incarnation may still arrive.
    pub ghosts: bool,
    /// Percent of opportunities for a fault that are taken.
    pub fault_rate: u32,
    /// Checkpoints are taken by the real machines and a coordinator.
    pub coordinated: bool,
    /// How: by frames, or by counts in memory that a set shares.
    pub method: QuiesceMethod,
    /// Checkpoints that are ordered.
    pub orders: u32,
    /// Whole jobs that are restarted from a global checkpoint.
    pub restarts: u32,
    /// Steps after which the coordinator gives a checkpoint up.
    pub timeout: u64,
    /// Percent of snapshots that fail, of images that cannot be stored, of manifests.
    pub storage_failures: u32,
    /// A pair of processes between which frames are long on their way.
    pub slow_wire: Option<(usize, usize)>,
    /// Checkpoints that are kept.
    pub checkpoints_kept: usize,
    /// Determinants are recorded, and restarted sets replay them; sends depend on outcomes.
    pub determinants: bool,
    /// Percent of steps in which determinants move on.
    pub determinant_rate: u32,
    /// Replicas of each set's determinants.
    pub copies: usize,
    /// In place of them: a coordinator, and determinants are piggybacked.
    pub piggyback: bool,
    /// Ranks from this one on do nothing that is recorded.
    pub recorders: usize,
    /// Programs read clocks and draw random numbers.
    pub reads: bool,
    /// Programs have windows.
    pub windows: bool,
    /// Operations are applied in calls of the program only, and all that it finds in its memory
    /// after them goes into what it sends.
    pub windows_free: bool,
    /// Accesses share messages, as in the driver; else each has one of its own.
    pub windows_share: bool,
    /// Accesses follow barriers at once.
    pub windows_rush: bool,
    /// Bytes of an operation in one message.
    pub part_bytes_max: u64,
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
    /// Connections are reset and sets fail.
    Failures,
    /// Checkpoints of sets and of the job by the real machines; jobs are restarted from the latter.
    /// Also resets, and failures of sets where results repeat.
    Checkpoints,
    /// All of MPI, programs whose messages depend on what they observe; single sets fail at any
    /// time, also while checkpoints are taken and others recover.
    Replay,
    /// The same, with piggybacked determinants; the coordinator is slow, and sets fail together.
    Piggyback,
    /// The same, where much of what a failed set has piggybacked is read late, after the fence
    /// around it was answered: the coordinator is quick, and sets fail often.
    Fences,
    /// The same with sets of one rank, of which one or two record something: others name it.
    Chains,
    /// One of Replay and Piggyback, with one-sided communication.
    Windows,
}

impl Options {
    /// The run of a seed.
    pub fn of(tier: Tier, seed: u64) -> Self {
        if tier == Tier::Fences {
            return Self::of(Tier::Piggyback, seed).with_late_frames();
        }
        if tier == Tier::Chains {
            return Self::of(Tier::Piggyback, seed).with_late_frames().with_chains();
        }
        let mut prng = Prng::new(seed).fork(1);
        let faults = tier != Tier::Calm;
        let windows = tier == Tier::Windows;
        let piggyback = tier == Tier::Piggyback || windows && seed % 4 == 3;
        let replay = tier == Tier::Replay || piggyback || windows;
        let coordinated = tier == Tier::Checkpoints || replay;
        let few = if piggyback { 3 } else { 1 + u64::from(faults) };
        let ranks = prng.from_to(few, 6) as u32;
        let size_max = match tier {
            Tier::Resets | Tier::Failures => (ranks - 1).min(3),
            Tier::Windows if piggyback => (ranks / 2).clamp(1, 2),
            Tier::Replay | Tier::Windows => (ranks - u32::from(prng.chance(90))).clamp(1, 3),
            Tier::Piggyback | Tier::Fences | Tier::Chains => (ranks / 2).clamp(1, 2),
            Tier::Calm | Tier::Checkpoints => ranks,
        };
        let size = prng.from_to(1, u64::from(size_max));
        let sets = (0..ranks).map(|rank| rank - rank % size as u32).collect();
        let eager = |prng: &mut Prng| prng.pick(&[0, 16, 64, 64, 200]);
        let chunk = |prng: &mut Prng| prng.pick(&[1, 50, 64, 200, 1000]);
        let failures = tier == Tier::Failures;
        let repeatable = failures || faults && !replay && prng.chance(40);
        let failures = failures || coordinated && (replay || repeatable && prng.chance(60));
        let quiet = coordinated && prng.chance(30);
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
            instances: failures || coordinated || prng.chance(50),
            resets: match tier {
                Tier::Calm => 0,
                _ if quiet => 0,
                _ => prng.from_to(u64::from(!failures), 12) as u32,
            },
            failures: if failures { prng.from_to(1, 6) as u32 } else { 0 },
            checkpoints: if tier == Tier::Failures { prng.from_to(0, 12) as u32 } else { 0 },
            acknowledges: acknowledges(seed, 11).filter(|_| coordinated),
            // A set that cannot be rolled back alone replays nothing.
            suspends: acknowledges(seed, 12)
                .filter(|_| coordinated && (!replay || seed.is_multiple_of(5))),
            trim: prng.chance(60),
            ghosts: prng.chance(70),
            fault_rate: prng.pick(&[1, 2, 5, 20]),
            coordinated,
            method: if Prng::new(seed).fork(10).chance(50) {
                QuiesceMethod::Counters
            } else {
                QuiesceMethod::Frames
            },
            orders: if coordinated { prng.from_to(1, 12) as u32 } else { 0 },
            restarts: if coordinated { prng.from_to(0, 4) as u32 } else { 0 },
            timeout: prng.pick(&[300, 1000, 3000, u64::MAX, u64::MAX]),
            storage_failures: prng.pick(&[0, 0, 5, 20]),
            slow_wire: (coordinated && prng.chance(60)).then(|| {
                let rank = |prng: &mut Prng| prng.below(ranks as usize);
                (rank(&mut prng), rank(&mut prng))
            }),
            checkpoints_kept: prng.from_to(1, 3) as usize,
            determinants: replay,
            copies: prng.pick(&[1, 1, 2]),
            piggyback,
            recorders: usize::MAX,
            determinant_rate: if piggyback {
                prng.pick(&[1, 2, 5])
            } else {
                prng.pick(&[2, 5, 30])
            },
            // What they leave is longer than what is piggybacked: frames would rarely carry any.
            reads: !piggyback || Prng::new(seed).fork(13).chance(20),
            windows,
            windows_share: windows && Prng::new(seed).fork(16).chance(50),
            windows_rush: windows && Prng::new(seed).fork(17).chance(30),
            windows_free: windows && Prng::new(seed).fork(14).chance(50),
            part_bytes_max: Prng::new(seed).fork(15).pick(&[32, 80, 1 << 20]),
            planted: None,
        }
    }

    /// Frames leave at once and wait to be read, and what they piggyback fits into slots. Nothing
    /// else than failures goes wrong.
    fn with_late_frames(self) -> Self {
        let calm = Self { resets: 0, restarts: 0, acknowledges: None, suspends: None, ..self };
        let at_once = Self { room_bytes: 100_000, refusals: 0, partial: false, ..calm };
        let short = Self { eager_bytes_max: [200; 2], bytes_max: 100, reads: false, ..at_once };
        Self { wild: true, failures: 8, determinant_rate: 20, ..short }
    }

    /// What few record goes through many sets.
    fn with_chains(self) -> Self {
        let sets = (0..self.sets.len() as u32).collect();
        let recorders = 1 + usize::from(self.seed.is_multiple_of(3));
        let slow = Self { determinant_rate: 3, slow_wire: None, ..self };
        Self { sets, wild: false, recorders, ..slow }
    }

    /// The same program without faults.
    pub fn without_faults(&self) -> Self {
        let calm = Self { resets: 0, failures: 0, checkpoints: 0, planted: None, ..self.clone() };
        Self { coordinated: false, orders: 0, restarts: 0, ..calm }
    }

    /// Number of processes.
    pub fn ranks(&self) -> usize {
        self.sets.len()
    }

    /// Does this process do anything that is recorded?
    pub fn records(&self, rank: usize) -> bool {
        rank < self.recorders
    }

    /// Do all?
    pub fn all_record(&self) -> bool {
        self.recorders == usize::MAX
    }

    /// Are these two in one set?
    pub fn same_set(&self, a: usize, b: usize) -> bool {
        self.sets[a] == self.sets[b]
    }
}

fn acknowledges(seed: u64, fork: u64) -> Option<AcknowledgeAfter> {
    let mut prng = Prng::new(seed).fork(fork);
    let after = |prng: &mut Prng| prng.pick(&[1, 3, 20, 1000]);
    let policy = AcknowledgeAfter { bytes: after(&mut prng) * 100, messages: after(&mut prng) };
    prng.chance(50).then_some(policy)
}
