//! Who fails together, and what the processes of a job do about it; today the correlated sets and
//! the messages by which a job is controlled.
//! Pure functions and machines: the placement of processes and texts of files come from the driver,
//! and neither time nor threads exist here. `DESIGN.md` in this folder names the parts.
#![forbid(unsafe_code)]

pub mod checkpoints;
pub mod collective_clock;
pub mod control;
pub mod determinants;
pub mod half_open;
pub mod handshake;
pub mod image_transfer;
pub mod instances;
pub mod interval;
pub mod notice_limit;
pub mod one_sided_cut;
mod policy;
pub mod quiescence;
pub mod sealed_records;
pub mod session_keys;
mod set_file;
mod sets;
pub mod verbs_drain;

pub use policy::{PolicyError, SetPolicy, fingerprint};
pub use set_file::{SetFileError, TEXT_BYTES_MAX, WORLD_RANKS_MAX, parse_set_file};
pub use sets::{LocalPeer, Placement, ProcessMap, RankPlace, SetsError, set_of};
