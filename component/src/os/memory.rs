//! How much memory this node has for the processes of a job: what the machine has, or the limit of
//! a control group that they are in (SLURM, containers), whichever is less.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Limits above this are no limits: version 1 has a large number in place of "max".
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// Bytes of memory for the job on this node, if that can be known.
pub fn node_bytes() -> Option<u64> {
    let total = read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_of(Path::new("/sys/fs/cgroup"), &groups);
    total.into_iter().chain(limit).min()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit of a group in /proc/self/cgroup and of those above it. `root`: where control
/// groups are mounted.
fn limit_of(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let (top, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            of if of.split(',').any(|name| name == "memory") => {
                (root.join(of), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let own = top.join(path.trim_start_matches('/'));
        let up = own.ancestors().take_while(|folder| folder.starts_with(&top));
        up.map(|folder| folder.join(file)).collect::<Vec<PathBuf>>()
    });
    let limits = limits.filter_map(|file| read_to_string(file).ok()?.trim().parse::<u64>().ok());
    limits.filter(|&bytes| bytes < LIMIT_BYTES_MAX).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read() {
        assert_eq!(total_of("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24 << 20));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!(node_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }

    #[test]
    fn the_lowest_limit_of_a_control_group_and_those_above_it_counts() {
        let root = std::env::temp_dir().join(format!("rustbtl-groups-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("slurm/job/memory.max", "1000000\n");
        write("slurm/job/step/memory.max", "max\n");
        write("other/memory.max", "5\n");
        let of = |groups| limit_of(&root, groups);
        assert_eq!(of("0::/slurm/job/step\n"), Some(1_000_000));
        assert_eq!(of("0::/slurm\n"), None);
        // A path that is not there, as in a container that sees the groups of its host.
        assert_eq!(of("0::/elsewhere\n"), None);
        write("memory.max", "2000000\n");
        assert_eq!(of("0::/elsewhere\n"), Some(2_000_000));
        // Version 1: one line for each controller.
        write("memory/job/memory.limit_in_bytes", "300000\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(of("4:cpu,cpuacct:/job\n3:memory:/job\n"), Some(300_000));
        assert_eq!(of("3:memory:/\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
