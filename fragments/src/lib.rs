//! The message engine: MPI point-to-point as a machine without I/O.
//!
//! It matches messages, moves payloads by eager and rendezvous protocols, numbers streams and
//! repairs channels after a restart. Everything outside (transports, the program's memory, the
//! payload log, completion of MPI requests) is reached through [`host::Host`]; time, randomness and
//! threads do not exist here. `DESIGN.md` in this folder lists the parts and their invariants.
#![forbid(unsafe_code)]

pub mod checkpoint_frame;
pub mod counters;
pub mod engine;
pub mod host;
pub mod ids;
pub mod little_endian;
pub mod matching;
pub mod payload_digest;
pub mod send_gate;
pub mod streams;
pub mod wire;
