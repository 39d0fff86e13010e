//! Transport over InfiniBand and RoCE: reliable queue pairs beside TCP connections.

pub mod api;
pub mod fake;
pub mod sys;
