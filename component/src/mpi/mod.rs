//! MPI as the program sees it: point-to-point, outcomes of tests and waits, clocks, files, windows.

pub mod files;
pub mod interpose;
pub mod outcomes;
pub mod time;
pub mod windows;
pub mod wtime;
