//! Shadow verbs: what a process has made with libibverbs, kept so that it can be made again.
//!
//! Source: Cao, Kerr, Arya, Cooperman, "Transparent Checkpoint-Restart over InfiniBand", HPDC 2014,
//! with an exact drain in place of theirs (docs/adr/0044). A machine without I/O: the system is the
//! trait [`Host`]. Its user holds the lock, and exchanges between processes what [`Tally`] counts.
//!
//! Invariants, asserted by [`Shadow::check`] (C), by the simulation (S):
//!
//! * V1 Virtual queue-pair numbers and keys are of one object each, and never real ones (C).
//! * V2 Sends complete in their order; those before a completion are over (C).
//! * V3 Receives that are posted are counted; the program has no more than it asked for (C).
//! * V4 A message is captured only where the program has no receive left; it goes to the program's
//!   next receive, before any that comes later (C, S).
//! * V5 A completion queue holds at most [`SPARE`] requests of the shadow's own (C).
//! * V6 What the program gets from a completion queue has its own ids and virtual numbers (C, S).
//! * V7 After a drain nothing is under way: no send, no capture, no message of a connected peer
//!   (C, S).
//! * V8 Nothing is posted twice on the send side, whatever happens (S).
//! * V9 After a restart no old object is destroyed (S).
#![forbid(unsafe_code)]

pub mod abi;
mod check;
mod completions;
mod drain;
mod host;
pub mod interface;
mod names;
mod objects;
mod pairs;
mod posting;
mod queues;
mod rebuild;
mod regions;
mod table;

pub use drain::{Readiness, Tallies, Tally, postponed};
pub use host::*;
pub use names::{Job, Name, Value};
pub use objects::{
    AhId, ChannelId, ContextId, CqId, PdId, QpId, QpWish, RegionId, SPARE, Shadow, SrqId,
};
pub use posting::Owner;
pub use rebuild::{Old, Problem};
