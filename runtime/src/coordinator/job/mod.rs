//! The job as the coordinator sees it, without I/O: configuration, tables, rules.

pub(crate) mod config;
pub(crate) mod state;
pub(crate) mod rules;
pub(crate) mod tables;
#[cfg(test)]
pub(crate) mod test_world;
