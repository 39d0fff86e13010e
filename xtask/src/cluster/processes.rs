//! The processes of a cluster, as /proc shows them to its first process.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The variable that tells a program its rank.
const RANK: &str = "OMPI_COMM_WORLD_RANK";

/// All but the first one.
pub fn all() -> impl Iterator<Item = libc::pid_t> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| pid != 1)
}

/// The process with the lowest number of which this is true.
pub fn find(wanted: impl Fn(libc::pid_t) -> bool) -> Option<libc::pid_t> {
    all().filter(|&pid| wanted(pid)).min()
}

/// Is it this program, with this first word?
pub fn is(pid: libc::pid_t, program: &str, word: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0');
    let name = words.next().and_then(|path| path.rsplit('/').next());
    name == Some(program) && (word.is_empty() || words.next() == Some(word))
}

/// The rank that its environment names.
pub fn rank(pid: libc::pid_t) -> Option<u32> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    all.split(|&byte| byte == 0).find_map(|entry| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        if name == RANK { value.parse().ok() } else { None }
    })
}

/// The rank whose program it is, or a child of its program; not its guardian.
pub fn program_of(pid: libc::pid_t) -> Option<u32> {
    rank(pid).filter(|_| !is(pid, "rustbtl", ""))
}

/// Who has started it.
pub fn parent(pid: libc::pid_t) -> Option<libc::pid_t> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, also spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Those in a network namespace. What has ended and is not buried yet is in none.
pub fn in_network(network: &OwnedFd) -> Vec<libc::pid_t> {
    let place = |file: String| fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
    let wanted = place(format!("/proc/self/fd/{}", network.as_raw_fd()));
    all().filter(|pid| wanted.is_some() && place(format!("/proc/{pid}/ns/net")) == wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::Command;

    #[test]
    fn this_process_is_found_by_its_parent() {
        let me = std::process::id() as libc::pid_t;
        let mother = parent(me).unwrap();
        assert!(find(|pid| parent(pid) == Some(mother)).is_some());
    }

    #[test]
    fn this_process_is_found_in_its_network() {
        let network = OwnedFd::from(File::open("/proc/self/ns/net").unwrap());
        assert!(in_network(&network).contains(&(std::process::id() as libc::pid_t)));
        // Some namespace, but none of a network.
        let other = OwnedFd::from(File::open("/proc/self/ns/uts").unwrap());
        assert!(in_network(&other).is_empty());
    }

    #[test]
    fn a_program_is_known_by_its_rank() {
        let mut child = Command::new("sleep").arg("60").env(RANK, "12").spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        // Between fork and exec it still has our environment.
        while !is(pid, "sleep", "60") {
            std::thread::yield_now();
        }
        let found = program_of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(12));
        assert_eq!(rank(pid), None);
    }
}
