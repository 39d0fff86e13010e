//! What follows from each message: `impl Job`, one file a subject. No I/O.

pub(crate) mod all_restored;
pub(crate) mod checkpoint_requests;
pub(crate) mod checkpoints;
pub(crate) mod collective_drain;
pub(crate) mod diagnostics;
pub(crate) mod divergence;
pub(crate) mod failover;
pub(crate) mod guardian_loss;
pub(crate) mod mpirun_messages;
pub(crate) mod node_silence;
pub(crate) mod orphans;
pub(crate) mod output_relay;
pub(crate) mod placement;
pub(crate) mod rank_ends;
pub(crate) mod recovery_notice;
pub(crate) mod replay_marks;
pub(crate) mod replays_end;
pub(crate) mod replication;
pub(crate) mod rollback;
pub(crate) mod rollback_all;
pub(crate) mod standstill;
pub(crate) mod status;
pub(crate) mod suspension;
pub(crate) mod unreachable_agents;
pub(crate) mod verbs_drain;
pub(crate) mod waiting;
