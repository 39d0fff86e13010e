//! Folders in which Open MPI, PRRTE and PMIx keep what belongs to one job on one node. They are
//! gone with the node, and after a restart others have other names.

/// Beginnings of their names: Open MPI 4.1 (`ompi.NODE.UID`, `openmpi-sessions-UID@NODE_0`), PRRTE
/// (`prte.`, `prted.`, `prterun.` and node, process and user), PMIx.
const NAMES: [&[u8]; 6] =
    [b"ompi.", b"openmpi-sessions-", b"prte.", b"prted.", b"prterun.", b"pmix"];

/// Is a folder of this name one of PMIx?
pub fn is_pmix_folder(name: &[u8]) -> bool {
    name.starts_with(b"pmix")
}

/// Is a folder of this name one of them?
pub fn is_session_folder(name: &[u8]) -> bool {
    NAMES.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::is_session_folder;

    #[test]
    fn folders_of_both_versions_are_known() {
        for name in ["ompi.n1.0", "openmpi-sessions-0@n1_0", "prted.n1.20.0", "prterun.n0.7.0"] {
            assert!(is_session_folder(name.as_bytes()), "{name}");
        }
        assert!(is_session_folder(b"prte.n0.7.0") && is_session_folder(b"pmix-12"));
        assert!(!is_session_folder(b"prte") && !is_session_folder(b"my.prted.files"));
    }
}
