//! Output that goes to mpirun by way of the coordinator.

use crate::coordinator::job::tables::mpirun_orders::MpirunOrder;
use std::collections::VecDeque;

/// What mpirun is to print.
#[derive(Debug, Default)]
pub(crate) struct RelayedOutput {
    pub(crate) waiting: VecDeque<MpirunOrder>,
    pub(crate) unanswered: usize,
}
