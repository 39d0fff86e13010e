//! Messages of ranks. The numbers in front are those on the wire: never give one to another
//! message.

use super::codec::Field;
use super::collective_messages::{FromClock, ToClock};
use super::fields::{
    CheckpointId, CheckpointKind, RankEndpoint, RankPart, ReplayBlocker, SnapshotMemory,
};
use super::frame::{ControlError, Message};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

messages! {
/// From a rank, to its guardian or (through guardian and agent) to the coordinator.
class 1 FromRank {
    /// First on every connection, also on that of a restored rank.
    1 Hello {
        /// Who it is.
        rank: PeerId,
        /// Ranks in its world.
        size: u32,
        /// Process id, as it sees it itself.
        pid: u32,
        /// How often its set was restarted.
        incarnation: Incarnation,
        /// Version of the component.
        version: String,
        /// Its correlated set.
        set: SetId,
        /// How others reach it: the component's own encoding.
        endpoint: Vec<u8>,
    },
    /// A checkpoint may be ordered from now on (MPI_Init is over, or the restart).
    2 Ready {},
    /// Answer to `StopOutgoing`: nothing leaves the set until `Resume`.
    3 OutgoingStopped {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Answer to `Begin`: the snapshot is taken. The guardian writes the image.
    4 Frozen {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Where the memory is.
        snapshot: SnapshotMemory,
        /// What only the process itself knows: the image part's own encoding.
        description: Vec<u8>,
        /// From `Begin` to the end of the quiescence phases.
        coordination_ns: u64,
        /// How long the program was suspended.
        pause_ns: u64,
    },
    /// It cannot take part; the whole checkpoint fails. Also when quiescence is not reached.
    5 CheckpointFailed {
        /// This checkpoint.
        checkpoint: CheckpointId,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Answer to `ReportStatus`.
    6 Status {
        /// Payload log now.
        log_bytes: u64,
        /// And at most so far.
        log_bytes_peak: u64,
        /// Messages in it.
        messages: u64,
        /// The set that holds most of it.
        largest: SetId,
        /// Memory that the log may take.
        log_budget: u64,
    },
    /// What a checkpoint has made superfluous in the log of `to`; opaque, routed as it is.
    7 ReceivedVector {
        /// By this checkpoint.
        checkpoint: CheckpointId,
        /// For whom.
        to: PeerId,
        /// The received vector.
        bytes: Vec<u8>,
    },
    /// It is in MPI_Finalize and needs nobody any more. `MayFinish` comes when all have said so.
    8 Finishing {},
    /// The program wants a checkpoint.
    9 RequestCheckpoint {
        /// The asker's number for it, repeated in `CheckpointAnswer`.
        number: u32,
        /// Of all sets, not only of its own.
        all: bool,
        /// The job ends when the checkpoint is complete.
        then_exit: bool,
        /// `CheckpointAnswer` shall come when the checkpoint is complete, not when it is ordered.
        wait: bool,
    },
    /// To the guardian only: the program is suspended for its snapshot. Answered by `Drained`.
    10 Suspended {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Of a rank that was restarted alone: its replay is complete, as far as it knows. Of any rank
    /// that has answered `ReplayPending`: that is over.
    30 ReplayComplete {},
    /// In place of `Frozen`, of a global checkpoint: lost work is not replayed yet, or a channel to
    /// a restarted rank is not repaired. `ReplayComplete` follows.
    31 ReplayPending {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// What it has recorded of nondeterministic calls.
    40 Determinants {
        /// In which incarnation.
        incarnation: Incarnation,
        /// Number of the first.
        from: u64,
        /// `determinants::rank_batch`, each with its place in the order of the set.
        bytes: Vec<u8>,
    },
    /// Its event clock at the freeze of a checkpoint: what the checkpoint covers of its
    /// determinants.
    41 EventClock {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Number of the next determinant.
        clock: u64,
        /// In which incarnation.
        incarnation: Incarnation,
        /// Place of the next one in the order of the set. The checkpoint is of use when all before
        /// it are stable: the snapshot depends on what was piggybacked to it.
        recorded: u64,
    },
    /// What came piggybacked on messages: `determinants::Piggybacked`.
    43 Piggybacked {
        /// In which incarnation of its own it took that in.
        incarnation: Incarnation,
        /// The place of that in the order of its own set.
        at: u64,
        /// As it came.
        bytes: Vec<u8>,
    },
    /// Answer to `Fence`: nothing more of those incarnations is accepted.
    44 Fenced {
        /// Of this set.
        set: SetId,
        /// Before this one.
        before: Incarnation,
        /// The incarnation of its own in which it answers.
        incarnation: Incarnation,
        /// What its own set had recorded by then lies before this place.
        recorded: u64,
    },
    /// On its own connection: a frame waits for the answer to what follows.
    45 FrameGated {},
    /// Not all that it does is recorded, so its set cannot be rolled back alone.
    42 NotReplayable {
        /// Why.
        reason: String,
        /// Which other rollback is impossible.
        blocker: ReplayBlocker,
    },
    /// In its replay a rank does something else than before its failure. It goes no further, and
    /// waits for a global rollback.
    46 Diverged {
        /// Which: the sender, or one whose message is not what it had sent before.
        rank: PeerId,
        /// What it does, and what it did.
        problem: String,
    },
    /// Answer to `ReportWaiting`.
    47 Waited {
        /// Its number.
        sample: u32,
        /// How long the program has waited inside MPI with nothing to do, all in all.
        waited_ns: u64,
        /// Messages that it has sent, sent again and accepted, all in all.
        messages: u64,
    },
    /// Yes, to `ReportReplay`.
    48 ReplayReported {
        /// Its number.
        number: u64,
    },
    /// What its collective clock says (docs/adr/0038).
    50 Clock {
        /// What.
        message: FromClock,
    },
    /// Collectives of a communicator bypass rustbtl: no snapshot of this rank may be taken before
    /// they are drained. Before `Ready` where that is so of MPI's own communicators.
    51 CollectivesBypass {},
    /// Its part in a step of the drain of verbs, or of what follows a restart (docs/adr/0044).
    52 VerbsPart {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Which step.
        step: u32,
        /// Opaque.
        part: Vec<u8>,
    },
    /// What a name of verbs stands for; it takes the place of that of an older generation.
    53 VerbsName {
        /// Opaque.
        name: Vec<u8>,
        /// Of the name.
        generation: u64,
        /// What it stands for.
        value: Vec<u8>,
    },
    /// What does this name stand for?
    54 FindVerbsName {
        /// Repeated in the answer.
        number: u32,
        /// The name.
        name: Vec<u8>,
        /// Of this generation.
        generation: u64,
    },
    /// The payload log costs the program more than it may, or is on its way to its budget and no
    /// checkpoint is wanted for it: suspend logging towards `set`.
    12 LoggingOverBudget {
        /// The set that holds most of the log.
        set: SetId,
        /// What the log has cost the program.
        spent_ns: u64,
        /// In this time.
        elapsed_ns: u64,
    },
    /// The payload log is on its way to its budget: a checkpoint of `set` would let it be trimmed.
    11 LogNearlyFull {
        /// The set that holds most of the log.
        set: SetId,
        /// How much that is.
        bytes: u64,
    },
}

/// To a rank, from its guardian or (through agent and guardian) from the coordinator.
class 2 ToRank {
    /// Answer to `Hello`.
    1 Welcome {
        /// Name of the job.
        job: String,
        /// The checkpoint that the job was restarted from.
        restarted_from: Option<CheckpointId>,
    },
    /// Global checkpoints, first step: hold what leaves the set, answer `Stopped`.
    2 StopOutgoing {
        /// For this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Take a checkpoint together with `members`, answer `Frozen` or `CheckpointFailed`.
    3 Begin {
        /// Its number.
        checkpoint: CheckpointId,
        /// Alone, or with all sets (then outgoing messages stay held until `Resume`).
        kind: CheckpointKind,
        /// All ranks of the set, ascending.
        members: Vec<PeerId>,
        /// The job will end at this checkpoint: nobody needs to go on quickly.
        then_exit: bool,
    },
    /// Global checkpoints, last step: messages may leave the set again.
    4 Resume {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// The checkpoint will not be: undo, go on. Comes at any point between `StopOutgoing` or
    /// `Begin` and `CheckpointComplete`.
    5 Abort {
        /// This checkpoint.
        checkpoint: CheckpointId,
        /// Why.
        reason: String,
    },
    /// The checkpoint of `set` is stored and committed.
    6 CheckpointComplete {
        /// This checkpoint.
        checkpoint: CheckpointId,
        /// Of this set.
        set: SetId,
        /// The rank is rolled back to none before this one.
        oldest: CheckpointId,
    },
    /// [`FromRank::ReceivedVector`] of `from`.
    7 ReceivedVector {
        /// By this checkpoint.
        checkpoint: CheckpointId,
        /// Whose.
        from: PeerId,
        /// The received vector.
        bytes: Vec<u8>,
    },
    /// How to reach restarted ranks: all of the job after a restart of the job.
    8 Endpoints {
        /// In order of ranks.
        endpoints: Vec<RankEndpoint>,
        /// Those that were restarted together.
        restarted: Vec<PeerId>,
    },
    /// All ranks are `Finishing`.
    9 MayFinish {},
    /// The image of the checkpoint is read: the frozen child is gone, or the rank may leave its
    /// pause.
    10 Release {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// Answer `Status`.
    11 ReportStatus {},
    /// Answer to `RequestCheckpoint`.
    12 CheckpointRequestResult {
        /// The number that was asked with.
        number: u32,
        /// The checkpoint, 0 if there is none.
        checkpoint: CheckpointId,
        /// Empty, or why there is no checkpoint.
        problem: String,
    },
    /// This set will not be rolled back to a checkpoint before this one: send `ReceivedVector` to
    /// peers of other sets.
    13 Trim {
        /// The oldest checkpoint that it can be rolled back to.
        checkpoint: CheckpointId,
    },
    /// Answer to `Suspended`: all that the program has printed so far is taken in and counted.
    14 OutputDrained {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
    },
    /// First to a rank that was made from an image.
    30 Restarted {
        /// The incarnation it runs in; 0: the one after that of the image.
        incarnation: Incarnation,
        /// Other ranks run meanwhile.
        alone: bool,
    },
    /// The memory and the files of all ranks that are restored together are back: threads of the
    /// program may run.
    31 AllRestored {},
    /// Send again what is recorded and not known to be stable: it may be lost.
    40 ResendDeterminants {},
    /// Send at once what is recorded: a frame of another set waits for it.
    49 FlushDeterminants {},
    /// Of the order of the set everything before this place is stable.
    41 Stable {
        /// Of this incarnation.
        incarnation: Incarnation,
        /// This place; `u64::MAX`: nothing is replicated any more, and nothing has to wait.
        upto: u64,
    },
    /// To a restored process, before `Endpoints`: replay what you did after the checkpoint.
    42 Replay {
        /// The one that begins.
        incarnation: Incarnation,
        /// Place of the first determinant that will be recorded.
        at: u64,
        /// `determinants::rank_batch`, each with its number.
        bytes: Vec<u8>,
    },
    /// A set has failed: accept nothing more that its incarnations before this one piggybacked,
    /// answer `Fenced`.
    44 Fence {
        /// Which.
        set: SetId,
        /// The one that begins.
        before: Incarnation,
    },
    /// Acknowledge what comes from other sets until a checkpoint of this number or above: logging
    /// towards the own set is suspended (docs/adr/0026).
    45 SuspendLogging {
        /// No checkpoint before this one is under way.
        before: CheckpointId,
    },
    /// Answer `Waited`: others are being rolled back.
    46 ReportWaiting {
        /// Repeated in the answer.
        sample: u32,
    },
    /// All sets that had failed have completed their replays: one-sided operations that nothing is
    /// known of are applied again (docs/adr/0037).
    47 ReplaysOver {
        /// The receiver's, by then.
        incarnation: Incarnation,
    },
    /// Answer `ReplayReported` as soon as that is so (docs/adr/0037). After `Endpoints`.
    48 ReportReplay {
        /// Repeated in the answer. A question with a higher number takes the place of this one.
        number: u64,
        /// False: each channel to a process that was restarted is repaired. True: the own replay is
        /// complete, too.
        replay: bool,
    },
    /// To its collective clock (docs/adr/0038).
    50 Clock {
        /// What.
        message: ToClock,
    },
    /// Parts of a step of the drain of verbs (docs/adr/0044), in pieces.
    52 VerbsParts {
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Which step.
        step: u32,
        /// Of ranks, ascending, also from piece to piece.
        parts: Vec<RankPart>,
        /// All have come with this piece.
        is_last: bool,
    },
    /// Answer to `FindVerbsName`.
    53 VerbsNameFound {
        /// The number that was asked with.
        number: u32,
        /// Empty: nobody has published it; `verbs_drain::NOBODY`: nobody knows any name any more.
        value: Vec<u8>,
    },
    /// From the guardian: where `Determinants` can be sent without a detour.
    43 Coordinator {
        /// With blanks between them, each as `IP:PORT`.
        addresses: String,
        /// The job's secret.
        secret: Vec<u8>,
    },
}
}
