//! What is loaded into Open MPI: the driver of the message engine.
//!
//! C (`glue-c/`) owns Open MPI's structs and calls in through the functions of [`exports`]; this
//! crate owns the engine, the transports and the payload log, and calls back through the table of
//! functions in [`ffi::table`]. `DESIGN.md` in this folder names the rooms and their rules.

pub mod btl;
pub mod checkpoint;
pub mod determinants;
pub mod engine;
pub mod exports;
pub mod ffi;
pub mod files;
pub mod lifecycle;
pub mod mpi;
pub mod os;
pub mod payload_log;
pub mod peers;
pub mod progress;
pub mod sync;
pub mod transports;
