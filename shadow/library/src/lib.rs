//! `librustbtl_verbs.so`: shadow verbs for programs that call libibverbs themselves.
//!
//! It is loaded in front of libibverbs (`LD_PRELOAD`) and has its functions by the same names.
//! Where `RUSTBTL_VERBS_FOLDER` is not set, each call is handed on and nothing else happens. Where
//! it is, contexts that the program opens are ours: their table of operations is, too, and objects
//! made in them stand for real ones, which can be made again (`rustbtl_shadow`).
//!
//! Calls that come from inside of libibverbs and its providers have real objects: they are handed
//! on. A context is ours if its operations are (`is_ours`).

pub mod abi;
pub mod channels;
pub mod checkpoints;
pub mod directory;
pub mod environment;
pub mod exports;
pub mod in_job;
mod left_out;
pub mod names;
pub mod operations;
pub mod real;
pub mod refused;
pub mod state;
pub mod system;
