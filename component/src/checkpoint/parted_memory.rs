//! Memory that ranks of a node share with each other (`shm_open`, MAP_SHARED, windows over Open
//! MPI's components), after a restore: processes that are on different nodes then have a copy each,
//! and no message would ever say so.
//!
//! Before a snapshot each process notes what it shares, in its own memory. A restored one publishes
//! that with its endpoint, and ends the job if somebody on another node had the same, and one of
//! the two writes to it. Memory is known by the machine, the device and the inode that it had. Not
//! ours: windows look for themselves (`parted_by_restore`), and collectives go by messages then.

use crate::checkpoint::shared_memory_barrier::{is_of_program, is_shared, name_of};
use crate::peers::endpoint::Endpoint;
use core::ops::Range;
use rustbtl_process::session_folders::{is_pmix_folder, is_session_folder};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Of one that writes to it; the other bits name the memory.
const WRITES: u64 = 1;
/// More are not looked at.
const OBJECTS_MAX: usize = 4096;

/// Does a line of /proc/self/maps tell of memory that is only in processes, and not in a file? What
/// the daemons of Open MPI made is theirs.
fn is_memory(line: &[u8], writes: bool) -> bool {
    let name = name_of(line);
    let mut folders = name.split(|&byte| byte == b'/');
    if folders.clone().any(is_pmix_folder) {
        return false;
    }
    if folders.any(is_session_folder) {
        return writes;
    }
    let unnamed = name.starts_with(b"/memfd:") || name.ends_with(b" (deleted)");
    is_of_program(line) && (unnamed || name.starts_with(b"/dev/shm/"))
}

/// What these mappings share, but `without`.
fn shared_in(maps: &[u8], machine: &[u8], without: &[Range<usize>]) -> Vec<u64> {
    let mut objects: BTreeMap<(&[u8], &[u8]), u64> = BTreeMap::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').take(5).collect();
        let [_, rights, _, device, inode] = words[..] else { continue };
        let writes = rights.get(1) == Some(&b'w');
        if is_shared(line, without) && is_memory(line, writes) {
            *objects.entry((device, inode)).or_default() |= u64::from(writes);
        }
    }
    let named = objects.iter().take(OBJECTS_MAX).map(|((device, inode), writes)| {
        let digest = Sha256::new().chain_update(machine).chain_update(device);
        let digest = digest.chain_update(b" ").chain_update(inode).finalize();
        let number = digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        number & !WRITES | writes
    });
    named.collect()
}

/// What this process shares, but `without`. Nothing, if that cannot be seen.
pub(crate) fn of_this_process(without: &[Range<usize>]) -> Vec<u64> {
    let read = |path| std::fs::read(path).unwrap_or_default();
    shared_in(&read("/proc/self/maps"), &read("/proc/sys/kernel/random/boot_id"), without)
}

/// One of those on other nodes who shared memory with this process.
pub(crate) fn parted_from<'a>(
    own: &[u64],
    node: &str,
    others: impl IntoIterator<Item = &'a Endpoint>,
) -> Option<&'a Endpoint> {
    let meets = |other: &Endpoint| {
        let same = |&(mine, theirs): &(&u64, &u64)| mine | WRITES == theirs | WRITES;
        let pairs = own.iter().flat_map(|mine| other.shared_memory.iter().map(move |t| (mine, t)));
        pairs.filter(same).any(|(mine, theirs)| (mine | theirs) & WRITES != 0)
    };
    others.into_iter().find(|other| other.node != node && meets(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(lines: &[(&str, &str, &str)]) -> Vec<u64> {
        let line = |(rights, inode, name): &(&str, &str, &str)| {
            format!("7f0000000000-7f0000002000 {rights} 00000000 00:1b {inode}    {name}\n")
        };
        let text: String = lines.iter().map(line).collect();
        shared_in(text.as_bytes(), b"machine", &[])
    }

    fn on(node: &str, shared_memory: Vec<u64>) -> Endpoint {
        Endpoint { node: node.into(), shared_memory, ..Endpoint::default() }
    }

    #[test]
    fn what_is_shared_is_known_by_its_inode() {
        let one = shared(&[("rw-s", "7", "/dev/shm/x"), ("r--s", "7", "/dev/shm/x")]);
        assert_eq!(one.len(), 1);
        assert_eq!(one, shared(&[("rw-s", "7", "/dev/shm/x (deleted)")]));
        assert_ne!(one, shared(&[("rw-s", "8", "/dev/shm/x")]));
        let read = shared(&[("r--s", "7", "/dev/shm/x")]);
        assert_eq!((one[0] & WRITES, read[0] & WRITES, one[0] & !WRITES), (1, 0, read[0]));
        let windows = "/tmp/ompi.n1.0/pid.7/1/shared_window_3.n1";
        assert_eq!(shared(&[("rw-s", "7", windows)]).len(), 1);
        for other in [
            ("rw-p", "/dev/shm/x"),
            ("rw-s", "/scratch/a table"),
            ("rw-s", "/memfd:rustbtl-window (deleted)"),
            ("rw-s", "/memfd:rustbtl-of-server (deleted)"),
            ("rw-s", "/dev/shm/rustbtl-0-8e367fff57e7836f4f64627023d87d40 (deleted)"),
            ("rw-s", "/memfd:rustbtl-own (deleted)"),
            ("r--s", "/tmp/ompi.n1.0/hwloc.sm"),
            ("r--s", "/tmp/ompi.n1.0/hwloc.sm (deleted)"),
            ("rw-s", "/tmp/ompi.n1.0/pid.7/pmix_dstor_ds21_7/smlockseg-0"),
            ("rw-s", "/dev/infiniband/uverbs0"),
        ] {
            assert_eq!(shared(&[(other.0, "7", other.1)]), [], "{other:?}");
        }
    }

    #[test]
    fn who_is_on_another_node_is_found_if_one_of_them_writes() {
        let (written, read) = (vec![0x10 | WRITES, 0x20], vec![0x10, 0x20]);
        let nodes = [on("a", written.clone()), on("b", vec![0x30 | WRITES]), on("c", read.clone())];
        let from = |own: &[u64], node| parted_from(own, node, &nodes).map(|one| &one.node[..]);
        assert_eq!(from(&written, "a"), Some("c"));
        assert_eq!(from(&written, "b"), Some("a"));
        assert_eq!(from(&read, "c"), Some("a"));
        assert_eq!(from(&[0x20], "d"), None, "nobody writes to it");
        assert_eq!(from(&[0x40 | WRITES], "d"), None, "nobody else has it");
        assert_eq!(parted_from(&written, "a", &[on("a", written.clone())]), None, "one node");
    }
}
