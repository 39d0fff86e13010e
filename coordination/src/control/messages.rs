//! The messages. The numbers in front are those on the wire: never give one to another message.

use super::codec::Field;
use super::fields::{LineId, LineKind, Picture, RankCard, RankClock};
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
        card: Vec<u8>,
    },
    /// A line may be ordered from now on (MPI_Init is over, or the restart).
    2 Ready {},
    /// Answer to `StopOutgoing`: nothing leaves the set until `Resume`.
    3 Stopped {
        /// Of this line.
        line: LineId,
    },
    /// Answer to `Begin`: the picture is taken. The guardian writes the image.
    4 Frozen {
        /// Of this line.
        line: LineId,
        /// Where the memory is.
        picture: Picture,
        /// What only the process itself knows: the image part's own encoding.
        description: Vec<u8>,
        /// From `Begin` to the end of the silence.
        coordination_ns: u64,
        /// How long the program stood still.
        pause_ns: u64,
    },
    /// It cannot take part; the whole line fails. Also when the silence is not reached.
    5 LineFailed {
        /// This line.
        line: LineId,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Answer to `TellStatus`.
    6 Status {
        /// Payload log now.
        log_bytes: u64,
        /// And at most so far.
        log_bytes_peak: u64,
        /// Messages in it.
        messages: u64,
        /// The set that holds most of it.
        largest: SetId,
    },
    /// What a line has made superfluous in the log of `to`; opaque, routed as it is.
    7 Covered {
        /// By this line.
        line: LineId,
        /// For whom.
        to: PeerId,
        /// The account.
        bytes: Vec<u8>,
    },
    /// It is in MPI_Finalize and needs nobody any more. `MayFinish` comes when all have said so.
    8 Finishing {},
    /// The program wants a line.
    9 Ask {
        /// The asker's number for it, repeated in `Answer`.
        number: u32,
        /// Of all sets, not only of its own.
        all: bool,
        /// The job ends when the line is complete.
        then_exit: bool,
        /// `Answer` shall come when the line is complete, not when it is ordered.
        wait: bool,
    },
    /// To the guardian only: the program stands still for its picture. Answered by `Drained`.
    10 Parked {
        /// Of this line.
        line: LineId,
    },
    /// Of a rank that was started again alone: it has repeated all that others have of its lost
    /// future, as far as it knows. Of any rank that has said `Behind`: that is over.
    30 CaughtUp {},
    /// In place of `Frozen`, of a global line: lost work is not repeated, or a channel to a rank
    /// that was started again is not repaired. `CaughtUp` follows.
    31 Behind {
        /// Of this line.
        line: LineId,
    },
    /// What it has recorded of nondeterministic calls.
    40 Determinants {
        /// In which incarnation.
        incarnation: Incarnation,
        /// Number of the first.
        from: u64,
        /// `determinants::parcel`, each with its place in the order of the set.
        bytes: Vec<u8>,
    },
    /// Its event clock at the freeze of a line: what the line covers of its determinants.
    41 Clock {
        /// Of this line.
        line: LineId,
        /// Number of the next determinant.
        clock: u64,
        /// In which incarnation.
        incarnation: Incarnation,
        /// Place of the next one in the order of the set. The line is of use when all before it
        /// are stable: the picture depends on what was carried to it.
        recorded: u64,
    },
    /// What was carried to it with messages: `determinants::Carried`.
    43 Carried {
        /// In which incarnation of its own it took that in.
        incarnation: Incarnation,
        /// The place of that in the order of its own set.
        at: u64,
        /// As it came.
        bytes: Vec<u8>,
    },
    /// Answer to `Fence`: nothing is taken in of those lives any more.
    44 Fenced {
        /// Of this set.
        set: SetId,
        /// Before this one.
        before: Incarnation,
        /// The life of its own that it speaks of.
        incarnation: Incarnation,
        /// What its own set had recorded by then lies before this place.
        recorded: u64,
    },
    /// Not all that it does is recorded, so its set cannot go back alone.
    42 NotRecording {
        /// Why.
        reason: String,
    },
    /// The payload log is on its way to its budget: a line of `set` would let it be trimmed.
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
        /// The line that the job was restarted from.
        restarted_from: Option<LineId>,
    },
    /// Global lines, first step: hold what leaves the set, answer `Stopped`.
    2 StopOutgoing {
        /// For this line.
        line: LineId,
    },
    /// Take a line together with `members`, answer `Frozen` or `LineFailed`.
    3 Begin {
        /// Its number.
        line: LineId,
        /// Alone, or with all sets (then outgoing messages stay held until `Resume`).
        kind: LineKind,
        /// All ranks of the set, ascending.
        members: Vec<PeerId>,
        /// The job will end at this line: nobody needs to go on quickly.
        then_exit: bool,
    },
    /// Global lines, last step: messages may leave the set again.
    4 Resume {
        /// Of this line.
        line: LineId,
    },
    /// The line will not be: undo, go on. Comes at any point between `StopOutgoing` or `Begin`
    /// and `LineComplete`.
    5 Abort {
        /// This line.
        line: LineId,
        /// Why.
        reason: String,
    },
    /// The line of `set` is stored and committed.
    6 LineComplete {
        /// This line.
        line: LineId,
        /// Of this set.
        set: SetId,
    },
    /// [`FromRank::Covered`] of `from`.
    7 Covered {
        /// By this line.
        line: LineId,
        /// Whose.
        from: PeerId,
        /// The account.
        bytes: Vec<u8>,
    },
    /// How to reach ranks that were started again: all of the job after a restart of the job.
    8 Cards {
        /// In order of ranks.
        cards: Vec<RankCard>,
        /// Those that were started again, together.
        restarted: Vec<PeerId>,
    },
    /// All ranks are `Finishing`.
    9 MayFinish {},
    /// The image of the line is read: the frozen child is gone, or the rank may leave its pause.
    10 Release {
        /// Of this line.
        line: LineId,
    },
    /// Answer `Status`.
    11 TellStatus {},
    /// Answer to `Ask`.
    12 Answer {
        /// The number that was asked with.
        number: u32,
        /// The line, 0 if there is none.
        line: LineId,
        /// Empty, or why there is no line.
        problem: String,
    },
    /// This set goes back to no line before this one: send `Covered` to peers of other sets.
    13 Trim {
        /// The oldest line that it can go back to.
        line: LineId,
    },
    /// Answer to `Parked`: all that the program has printed so far is taken in and counted.
    14 Drained {
        /// Of this line.
        line: LineId,
    },
    /// First to a rank that was made from an image.
    30 Reborn {
        /// The incarnation it runs in; 0: the one after that of the image.
        incarnation: Incarnation,
    },
    /// Say again what is recorded and not known to be stable: it may be lost.
    40 ShipAgain {},
    /// Of the order of the set everything before this place is stable.
    41 Stable {
        /// Of this incarnation.
        incarnation: Incarnation,
        /// This place; `u64::MAX`: nothing is kept any more, and nothing has to wait.
        upto: u64,
    },
    /// To a restored process, before `Cards`: do again what you did after the line.
    42 Replay {
        /// The one that begins.
        incarnation: Incarnation,
        /// Place of the first determinant that will be recorded.
        at: u64,
        /// `determinants::parcel`, each with its number.
        bytes: Vec<u8>,
    },
    /// A set has fallen: take in nothing more of what its lives before this one carry, answer
    /// `Fenced`.
    44 Fence {
        /// Which.
        set: SetId,
        /// The one that begins.
        before: Incarnation,
    },
    /// From the guardian: where `Determinants` can be brought without a detour.
    43 Coordinator {
        /// With blanks between them, each as `IP:PORT`.
        addresses: String,
        /// The job's secret.
        secret: Vec<u8>,
    },
}

/// Up the tree: guardian to agent, agent to coordinator.
class 3 FromNode {
    /// First of a guardian.
    1 Guardian {
        /// The rank it guards.
        rank: PeerId,
        /// Ranks in the world of the job.
        size: u32,
        /// Its process id.
        pid: u32,
        /// How often its set was restarted.
        incarnation: Incarnation,
    },
    /// First of an agent.
    2 Agent {
        /// Name of its node.
        node: String,
        /// Its process id.
        pid: u32,
        /// Version of the program.
        version: String,
    },
    /// What a rank says.
    3 Rank {
        /// Which.
        rank: PeerId,
        /// What.
        message: FromRank,
    },
    /// An image is on its way to the storage; tells how it looks so far.
    4 Frozen {
        /// Whose.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// From `Begin` to the end of the silence.
        coordination_ns: u64,
        /// How long the program stood still.
        pause_ns: u64,
    },
    /// An image is safe at its final name.
    5 Stored {
        /// Whose.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// Its size.
        bytes: u64,
        /// Memory it holds.
        raw_bytes: u64,
        /// How long it took to write.
        ns: u64,
        /// Checksum of the file: the image store's own kind.
        checksum: u64,
    },
    /// An image could not be written.
    6 StoreFailed {
        /// Whose.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The program of a rank has ended.
    7 Ended {
        /// Which.
        rank: PeerId,
        /// As waitpid tells it.
        status: i32,
    },
    /// A guardian has gone (of an agent).
    8 Gone {
        /// Its rank.
        rank: PeerId,
    },
    /// Still alive.
    9 Beat {
        /// Counts up.
        count: u64,
    },
    /// The program of a rank was ended by a signal; its guardian waits for `Restore` or `GiveUp`.
    30 Fallen {
        /// Which.
        rank: PeerId,
        /// As waitpid tells it.
        status: i32,
        /// In which incarnation it ran.
        incarnation: Incarnation,
    },
    /// A rank cannot be made from its image.
    31 NotRestored {
        /// Which.
        rank: PeerId,
        /// What is wrong and what to do.
        reason: String,
    },
    /// What was handed on of a rank's output so far, where only the rank's node has that otherwise.
    32 Printed {
        /// Which.
        rank: PeerId,
        /// Bytes of its standard output.
        out: u64,
        /// And of its standard error.
        err: u64,
    },
    /// Of a guardian that a daemon of mpirun's has started: from here on the rank's output, and
    /// nobody else's, goes to mpirun by way of that daemon.
    35 OwnWay {
        /// Which.
        rank: PeerId,
        /// Bytes of its standard output that had gone before.
        out: u64,
        /// And of its standard error.
        err: u64,
    },
    /// Of a guardian: nobody looks any more after a rank that it waits for.
    33 Unhosted {
        /// Whose guardian says it.
        host: PeerId,
        /// The rank.
        rank: PeerId,
        /// In which incarnation it was to run.
        incarnation: Incarnation,
        /// Its guardian was killed; or else its node, a spare one, cannot be reached any more.
        reachable: bool,
        /// What is wrong.
        reason: String,
    },
    /// No rank runs on this node, and ranks of lost nodes can be started here.
    34 Spare {
        /// Where it is asked for that.
        port: u16,
        /// With blanks between them, each as `IP:PORT`: the agent knows them. Empty: no more.
        addresses: String,
    },
    /// Answer to `Keep`, of an agent.
    40 Kept {
        /// Whose determinants.
        set: SetId,
        /// Of which incarnation.
        incarnation: Incarnation,
        /// Everything before this place is here.
        upto: u64,
    },
    /// First on a connection of a rank itself, which says nothing but `Determinants` and `Carried`,
    /// and hears nothing but `Stable`.
    42 Direct {
        /// Which.
        rank: PeerId,
    },
    /// It cannot keep them.
    41 NotKept {
        /// Whose.
        set: SetId,
        /// Why.
        reason: String,
    },
    /// Of an agent: images of ranks of other nodes can be brought here.
    50 Shelf {
        /// With blanks between them, each as `IP:PORT`.
        addresses: String,
    },
    /// Answer to `Copy`: it is safe there.
    51 Copied {
        /// Whose image.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// Where.
        node: String,
    },
    /// There is no copy there.
    52 NotCopied {
        /// Whose image.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// Where.
        node: String,
        /// What is wrong and what to do.
        reason: String,
    },
}

/// Down the tree: coordinator to agent, agent to guardian.
class 4 ToNode {
    /// For a rank.
    1 Rank {
        /// Which.
        rank: PeerId,
        /// What.
        message: ToRank,
    },
    /// Images of a line go into this directory. Comes before `Begin`.
    2 Prepare {
        /// For the guardian of this rank.
        rank: PeerId,
        /// The line.
        line: LineId,
        /// Absolute path, or the name of a folder in the node's own; the guardian makes it if it is
        /// not there.
        directory: String,
    },
    /// Remove what there is of this line.
    3 Discard {
        /// For the guardian of this rank.
        rank: PeerId,
        /// The line.
        line: LineId,
    },
    /// The rank goes on elsewhere: what there is of this life of it ends.
    4 End {
        /// Which.
        rank: PeerId,
        /// As its guardian has said.
        incarnation: Incarnation,
        /// Why.
        reason: String,
    },
    /// Still alive.
    5 Beat {
        /// Counts up.
        count: u64,
    },
    /// Of an agent: there is no way to the coordinator, and there will be none.
    6 Alone {
        /// What is wrong and what to do; empty for all guardians but one.
        reason: String,
    },
    /// For the agent: the coordinator ends because mpirun does, or lets the job go on without it;
    /// nobody comes after it.
    7 Over {},
    /// From the agent: there is another coordinator, which has to hear who the rank is. A line
    /// that the one before has ordered will not be.
    8 Introduce {},
    /// End the program if it runs, and make it again from its image.
    30 Restore {
        /// For the guardian of this rank.
        rank: PeerId,
        /// Folder of the line.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
    },
    /// Start a guardian for a rank whose node is lost.
    31 Adopt {
        /// For the guardian of this rank, which will wait for it.
        host: PeerId,
        /// The rank to restore.
        rank: PeerId,
        /// Folder of the line.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// Bytes of its standard output that were printed, as far as is known.
        out: u64,
        /// And of its standard error.
        err: u64,
        /// So much has come to mpirun, and no more, whatever was handed on.
        exact: bool,
    },
    /// The fallen rank is not started again: end as it has ended.
    32 GiveUp {
        /// Which.
        rank: PeerId,
    },
    /// Have a guardian started on a spare node, for a rank whose node is lost.
    33 AdoptAt {
        /// For the guardian of this rank, which will wait for it.
        host: PeerId,
        /// The rank to restore.
        rank: PeerId,
        /// Folder of the line.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// Bytes of its standard output that were printed, as far as is known.
        out: u64,
        /// And of its standard error.
        err: u64,
        /// So much has come to mpirun, and no more, whatever was handed on.
        exact: bool,
        /// As the spare node has said in `Spare`.
        addresses: String,
    },
    /// A rank that was started on a spare node goes on elsewhere: do not wait for it.
    35 Abandon {
        /// For the guardian of this rank.
        host: PeerId,
        /// The other rank.
        rank: PeerId,
    },
    /// For who has said `Spare`: nobody will be started here any more.
    34 Dismiss {},
    /// For the agent: determinants of a set of another node.
    40 Keep {
        /// `determinants::Batch`.
        batch: Vec<u8>,
    },
    /// For the agent: so much of them a line covers.
    41 KeepLess {
        /// Of this set.
        set: SetId,
        /// Clocks of its ranks at the line.
        clocks: Vec<RankClock>,
    },
    /// For the agent: others keep them now.
    42 KeepNot {
        /// Of this set.
        set: SetId,
    },
    /// For the agent: bring an image that is here, and all that restoring it needs, to another.
    50 Copy {
        /// Whose.
        rank: PeerId,
        /// Of this line.
        line: LineId,
        /// To the agent of this node.
        node: String,
        /// As it has said in `Shelf`.
        addresses: String,
    },
    /// For the agent: remove what there is of this line, own images and copies.
    51 Clear {
        /// The line.
        line: LineId,
        /// Of these ranks.
        ranks: Vec<PeerId>,
    },
}
}
