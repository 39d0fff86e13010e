//! MPI as the program sees it: point-to-point, outcomes of tests and waits, clocks, files, windows;
//! what the C library says of the node; other clocks, and random numbers; what the kernel keeps of
//! processes in no image.

pub mod collectives;
pub mod deadlines;
pub mod files;
pub mod interpose;
pub mod node_identity;
pub mod one_sided;
pub mod outcomes;
pub mod point_to_point;
pub mod processor_sources;
pub mod program_clocks;
pub mod random_numbers;
pub mod system_v;
pub mod time;
pub mod windows;
pub mod wtime;
