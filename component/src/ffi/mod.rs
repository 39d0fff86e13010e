//! The border to C: its function table, an MPI operation, help texts, parameters.

pub mod collective;
pub mod collective_tags;
pub mod config;
pub mod help;
pub mod operation;
pub mod table;
pub mod verbose;
