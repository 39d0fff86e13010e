//! Whose a file or memory is that a process maps. Folders in which Open MPI, PRRTE and PMIx keep
//! what belongs to one job on one node: they are gone with the node, and after a restart others
//! have other names. And memory of the component's own.

use core::ffi::CStr;

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

/// As restored memory is seen that a server has made, of PMIx or of Open MPI's daemons: processes
/// that have it share nothing by it.
pub const SERVER_MEMORY: &CStr = c"rustbtl-of-server";

/// Is it such memory, by its path in /proc/PID/maps?
pub fn is_server_memory(path: &[u8]) -> bool {
    name_in(path).strip_prefix(b"memfd:") == Some(SERVER_MEMORY.to_bytes())
}

/// The last part of a path in /proc/PID/maps, whether its name was removed or not.
fn name_in(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

/// As restored memory of the component's own is seen.
pub const OWN_MEMORY: &CStr = c"rustbtl-own";

/// Does this path in /proc/PID/maps name memory that the component has made for itself: of the
/// ranks of a node, or of a window? (`rustbtl-USER-NUMBER`, see its `transports::shm`.)
pub fn is_own_memory(path: &[u8]) -> bool {
    let name = name_in(path);
    if name.strip_prefix(b"memfd:") == Some(OWN_MEMORY.to_bytes()) {
        return true;
    }
    let mut words = name.split(|byte| *byte == b'-');
    let [first, user, number] =
        [words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
    first == b"rustbtl"
        && !user.is_empty()
        && user.iter().all(u8::is_ascii_digit)
        && number.len() == 32
        && number.iter().all(u8::is_ascii_hexdigit)
        && words.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::{is_own_memory, is_session_folder};

    #[test]
    fn own_memory_is_known_before_and_after_a_restore() {
        for path in [
            "/dev/shm/rustbtl-0-8e367fff57e7836f4f64627023d87d40 (deleted)",
            "/scratch/a place/rustbtl-1000-8e367fff57e7836f4f64627023d87d40",
            "/memfd:rustbtl-own (deleted)",
        ] {
            assert!(is_own_memory(path.as_bytes()), "{path}");
        }
        for path in [
            "/dev/shm/rustbtl-results",
            "/dev/shm/rustbtl--8e367fff57e7836f4f64627023d87d40",
            "/dev/shm/rustbtl-0-8e367fff57e7836f4f64627023d87d40-x",
            "/memfd:rustbtl-shared (deleted)",
            "/dev/shm/#5 (deleted)",
            "",
        ] {
            assert!(!is_own_memory(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn folders_of_both_versions_are_known() {
        for name in ["ompi.n1.0", "openmpi-sessions-0@n1_0", "prted.n1.20.0", "prterun.n0.7.0"] {
            assert!(is_session_folder(name.as_bytes()), "{name}");
        }
        assert!(is_session_folder(b"prte.n0.7.0") && is_session_folder(b"pmix-12"));
        assert!(!is_session_folder(b"prte") && !is_session_folder(b"my.prted.files"));
    }
}
