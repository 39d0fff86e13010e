//! What the coordinator knows of the job: plain data.

pub(crate) mod checkpoint_requests;
pub(crate) mod checkpoints;
pub(crate) mod collective_drain;
pub(crate) mod failover;
pub(crate) mod hosts;
pub(crate) mod mpirun_orders;
pub(crate) mod output;
pub(crate) mod persisted;
pub(crate) mod replicas;
pub(crate) mod rollback;
pub(crate) mod silence;
pub(crate) mod spares;
pub(crate) mod standstill;
pub(crate) mod suspensions;
pub(crate) mod text;
pub(crate) mod unreachable;
pub(crate) mod verbs;
pub(crate) mod waiting;
