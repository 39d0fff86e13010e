//! Messages of guardians and agents. The numbers in front are those on the wire: never give one to
//! another message.

use super::codec::Field;
use super::fields::{CheckpointId, RankClock};
use super::frame::{ControlError, Message};
use super::rank_messages::{FromRank, ToRank};
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};

messages! {
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
    /// A message of a rank.
    3 Rank {
        /// Which.
        rank: PeerId,
        /// What.
        message: FromRank,
    },
    /// An image is being written; reports its progress.
    4 Frozen {
        /// Whose.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// From `Begin` to the end of the quiescence phases.
        coordination_ns: u64,
        /// How long the program was suspended.
        pause_ns: u64,
    },
    /// An image is safe at its final name.
    5 Stored {
        /// Whose.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Its size.
        bytes: u64,
        /// Memory it holds.
        raw_bytes: u64,
        /// How long it took to write.
        ns: u64,
        /// How much of that the program has lost: nanoseconds in which its threads waited for a
        /// processor or were in the kernel, beyond what is usual for them.
        lost_ns: u64,
        /// Checksum of the file: the image store's own kind.
        checksum: u64,
    },
    /// An image could not be written.
    6 StoreFailed {
        /// Whose.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A checkpoint is complete.
    10 LostBeside {
        /// Which rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// How much its program has lost since its snapshot: see `Stored`.
        lost_ns: u64,
    },
    /// The program of a rank has ended.
    7 Ended {
        /// Which.
        rank: PeerId,
        /// The status as waitpid gives it.
        status: i32,
        /// Its daemon had ordered it to end: mpirun ends the job, or loses that daemon.
        ordered: bool,
    },
    /// A guardian has gone (of an agent).
    8 GuardianDisconnected {
        /// Its rank.
        rank: PeerId,
    },
    /// Still alive.
    9 Heartbeat {
        /// Counts up.
        count: u64,
    },
    /// The program of a rank was ended by a signal; its guardian waits for `Restore` or
    /// `NoRestart`.
    30 RankFailed {
        /// Which.
        rank: PeerId,
        /// The status as waitpid gives it.
        status: i32,
        /// In which incarnation it ran.
        incarnation: Incarnation,
    },
    /// A rank cannot be restarted from its image.
    31 RestoreFailed {
        /// Which.
        rank: PeerId,
        /// In which incarnation it was to run.
        incarnation: Incarnation,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A rank has been made from its image: its memory and its files are back. It does not run
    /// before `AllRestored`.
    37 Restored {
        /// Which.
        rank: PeerId,
        /// In which incarnation it will run.
        incarnation: Incarnation,
    },
    /// How much of a rank's output was forwarded so far, where only the rank's node knows it
    /// otherwise.
    32 OutputOffsets {
        /// Which.
        rank: PeerId,
        /// Bytes of its standard output.
        out: u64,
        /// And of its standard error.
        err: u64,
    },
    /// Of a guardian that a daemon of mpirun's has started: from here on the rank's output, and
    /// nobody else's, goes to mpirun by way of that daemon.
    35 OutputViaDaemon {
        /// Which.
        rank: PeerId,
        /// Bytes of its standard output that were forwarded before.
        out: u64,
        /// And of its standard error.
        err: u64,
    },
    /// Of a guardian whose rank has no daemon of mpirun's: what the rank prints, for mpirun. After
    /// a failover, everything that was not `OutputAccepted` is sent again; empty: here the rank
    /// goes on.
    36 Output {
        /// Which.
        rank: PeerId,
        /// In which incarnation it runs.
        incarnation: Incarnation,
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Bytes of the stream before these.
        position: u64,
        /// These.
        bytes: Vec<u8>,
    },
    /// Of a guardian: nobody supervises a rank any more that it waits for.
    33 ProxyFailed {
        /// Whose guardian reports it.
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
    34 SpareNode {
        /// Where it is asked for that.
        port: u16,
        /// With blanks between them, each as `IP:PORT`: the agent knows them. Empty: no more.
        addresses: String,
    },
    /// Answer to `StoreDeterminants`, of an agent.
    40 DeterminantsReplicated {
        /// Whose determinants.
        set: SetId,
        /// Of which incarnation.
        incarnation: Incarnation,
        /// Everything before this place is here.
        upto: u64,
    },
    /// First on a connection of a rank itself, which sends only `Determinants` and `Piggybacked`,
    /// and receives only `Stable`.
    42 DirectConnection {
        /// Which.
        rank: PeerId,
    },
    /// It cannot keep them.
    41 DeterminantsNotReplicated {
        /// Whose.
        set: SetId,
        /// Why.
        reason: String,
    },
    /// Of an agent: images of ranks of other nodes can be replicated here.
    50 ReplicaServer {
        /// With blanks between them, each as `IP:PORT`.
        addresses: String,
    },
    /// Answer to `ReplicateImage`: it is safe there.
    51 ImageReplicated {
        /// Whose image.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// Where.
        node: String,
    },
    /// There is no replica there.
    52 ImageNotReplicated {
        /// Whose image.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
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
    /// For every rank of the node.
    52 AllRanks {
        /// What.
        message: ToRank,
    },
    /// Images of a checkpoint go into this directory. Comes before `Begin`.
    2 Prepare {
        /// For the guardian of this rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Absolute path, or the name of a folder in the node's own; the guardian makes it if it is
        /// not there.
        directory: String,
    },
    /// Remove what there is of this checkpoint.
    3 Discard {
        /// For the guardian of this rank.
        rank: PeerId,
        /// The checkpoint.
        checkpoint: CheckpointId,
    },
    /// The rank goes on elsewhere: what is left of this incarnation of it ends.
    4 End {
        /// Which.
        rank: PeerId,
        /// As its guardian has reported.
        incarnation: Incarnation,
        /// Why.
        reason: String,
    },
    /// Still alive.
    5 Heartbeat {
        /// Counts up.
        count: u64,
    },
    /// Of an agent: the coordinator is unreachable, and will remain so.
    6 CoordinatorUnreachable {
        /// What is wrong and what to do; empty for all guardians but one.
        reason: String,
    },
    /// For the agent: the coordinator ends because mpirun does, or disables protection; there will
    /// be no failover.
    7 CoordinatorExits {},
    /// From the agent: failover; the new coordinator has to learn who the rank is. A checkpoint
    /// that the one before has ordered will not be.
    8 Reregister {},
    /// From the agent: the coordinator's node is silent, and may be about to have the rank
    /// restarted elsewhere. Its program is suspended until the node is heard again.
    9 Suspend {
        /// False: it goes on.
        suspended: bool,
    },
    /// End the program if it runs, and restart it from its image.
    30 Restore {
        /// For the guardian of this rank.
        rank: PeerId,
        /// Folder of the checkpoint.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// Others go on meanwhile, and may have written to the files that it writes to.
        alone: bool,
    },
    /// Start a guardian for a rank whose node is lost.
    31 Adopt {
        /// For the guardian of this rank, which will wait for it.
        host: PeerId,
        /// The rank to restore.
        rank: PeerId,
        /// Folder of the checkpoint.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// Others go on meanwhile, and may have written to the files that it writes to.
        alone: bool,
        /// Bytes of its standard output that were printed, as far as is known.
        out: u64,
        /// And of its standard error.
        err: u64,
        /// So much has come to mpirun, and no more, whatever was forwarded.
        exact: bool,
    },
    /// All ranks that are restored with this one are as far: it may run.
    37 AllRestored {
        /// For the guardian of this rank.
        rank: PeerId,
        /// As in `Restored`.
        incarnation: Incarnation,
    },
    /// The failed rank is not restarted: end as it has ended.
    32 NoRestart {
        /// Which.
        rank: PeerId,
    },
    /// Have a guardian started on a spare node, for a rank whose node is lost.
    33 AdoptOnSpare {
        /// For the guardian of this rank, which will wait for it.
        host: PeerId,
        /// The rank to restore.
        rank: PeerId,
        /// Folder of the checkpoint.
        directory: String,
        /// The incarnation it will run in.
        incarnation: Incarnation,
        /// Others go on meanwhile, and may have written to the files that it writes to.
        alone: bool,
        /// Bytes of its standard output that were printed, as far as is known.
        out: u64,
        /// And of its standard error.
        err: u64,
        /// So much has come to mpirun, and no more, whatever was forwarded.
        exact: bool,
        /// As the spare node has reported in `SpareNode`.
        addresses: String,
    },
    /// A rank that was started on a spare node goes on elsewhere: do not wait for it.
    35 Abandon {
        /// For the guardian of this rank.
        host: PeerId,
        /// The other rank.
        rank: PeerId,
    },
    /// Answer to `Output`: mpirun has it, and prints it.
    36 OutputAccepted {
        /// For the guardian of this rank.
        rank: PeerId,
        /// As in `Output`.
        stream: u8,
        /// Bytes of the stream that were taken, in all incarnations.
        position: u64,
    },
    /// For who has sent `SpareNode`: nobody will be started here any more.
    34 DismissSpare {},
    /// For the agent: determinants of a set of another node.
    40 StoreDeterminants {
        /// `determinants::DeterminantBatch`.
        batch: Vec<u8>,
    },
    /// For the agent: so much of them a checkpoint covers.
    41 TrimDeterminants {
        /// Of this set.
        set: SetId,
        /// Clocks of its ranks at the checkpoint.
        clocks: Vec<RankClock>,
    },
    /// For the agent: other replicas store them now.
    42 DropDeterminants {
        /// Of this set.
        set: SetId,
    },
    /// For the agent: bring an image that is here, and all that restoring it needs, to another.
    50 ReplicateImage {
        /// Whose.
        rank: PeerId,
        /// Of this checkpoint.
        checkpoint: CheckpointId,
        /// To the agent of this node.
        node: String,
        /// As it has reported in `ReplicaServer`.
        addresses: String,
    },
    /// For the agent: remove what there is of this checkpoint, own images and replicas.
    51 DeleteCheckpoint {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Of these ranks.
        ranks: Vec<PeerId>,
    },
}
}
