//! What is loaded into Open MPI: the driver of the message engine.
//!
//! C (`glue-c/`) owns Open MPI's structs and calls in through the functions of [`exports`]; this
//! crate owns the engine, the transports and the payload log, and calls back through the table of
//! functions in [`glue`]. `DESIGN.md` in this folder names the parts and their rules.

#[path = "../os/mod.rs"]
pub mod os;
#[path = "../transports/mod.rs"]
pub mod transports;

pub mod answer;
pub mod bias;
pub mod burst;
pub mod card;
pub mod cards;
pub mod checkpoint;
pub mod copier;
pub mod date;
pub mod door;
pub mod exports;
pub mod files;
pub mod finish;
pub mod glue;
pub mod guardian;
pub mod host;
pub mod idle;
pub mod in_place;
pub mod late;
pub mod lock;
pub mod memory;
pub mod opening;
pub mod operation;
pub mod pages;
pub mod peers;
pub mod process;
pub mod questions;
pub mod record;
pub mod report;
pub mod start;
pub mod summary;
pub mod tell;
pub mod unlogged;
pub mod windows;
pub mod wtime;
