//! What of the coordinator talks to the world: sockets, mpirun, files, the clock.

pub(crate) mod clients;
pub(crate) mod clock;
pub(crate) mod event_log;
pub(crate) mod event_loop;
pub(crate) mod failover_store;
pub(crate) mod manifest_writer;
pub(crate) mod mpirun_pipe;
pub(crate) mod rank_links;
pub(crate) mod slurm;
pub(crate) mod start;
