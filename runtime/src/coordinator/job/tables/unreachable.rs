//! Agents that cannot be reached.

/// Since when, and what follows.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreachableAgents {
    pub(crate) since_ms: Option<u64>,
    /// The job continues without protection.
    pub(crate) protection_disabled: bool,
}
