//! Matching of messages to receives (MPI-3.1 §3.5), in constant time.

pub mod posted;
pub mod table;
pub mod unexpected;

#[cfg(test)]
mod tests;

pub use posted::Posted;
pub use table::{ANY_SOURCE, ANY_TAG, Key};
pub use unexpected::Unexpected;
