//! Output that the coordinator relays to mpirun.

use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use std::collections::VecDeque;

/// What mpirun is to print.
#[derive(Debug, Default)]
pub(crate) struct RelayedOutput {
    pub(crate) waiting: VecDeque<MpirunOrder>,
    pub(crate) unanswered: usize,
}
