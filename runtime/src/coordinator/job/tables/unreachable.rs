//! Agents that cannot be reached.

/// What is known about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreachableAgents {
    pub(crate) since_ms: Option<u64>,
    /// The job goes on without us.
    pub(crate) protection_disabled: bool,
}
