//! The driver of the message engine: its state, what it does for the engine, how frames leave and
//! come in. Below it are locks, FFI, log, peers and determinants; above it whoever calls MPI.

pub mod acknowledging;
pub mod backoff;
pub mod burst;
pub mod channels;
pub mod collectives;
pub mod counting;
pub mod deferred_receives;
pub mod detached_sends;
pub mod direct_receive;
pub mod driver;
pub mod driver_state;
pub mod host;
pub mod logged_sends;
pub mod piggyback_host;
pub mod recording;
pub mod shared;
pub mod transmit;
pub mod transport_set;
pub mod wait_policy;
pub mod windows;
