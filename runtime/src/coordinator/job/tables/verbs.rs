//! Verbs that programs use past MPI (docs/adr/0044).

use rustbtl_coordination::verbs_drain::{Exchange, Names};

/// What the coordinator knows of them.
#[derive(Debug, Default)]
pub(crate) struct Verbs {
    pub(crate) exchange: Exchange,
    pub(crate) names: Names,
}
