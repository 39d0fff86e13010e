//! A processor's memory runs out for one process: the kernel's own killer ends it, or a child of
//! it, as soon as it touches fresh memory.

use crate::error::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

/// Where the controller of memory is mounted (version 1), and where groups of version 2 are.
const ROOTS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
/// Fresh memory that a process still gets, bytes. What it has already does not count.
const LEFT: u64 = 1 << 20;

/// Who gets into this group has no memory left.
fn group(root: &Path, limit: &str, pid: libc::pid_t) -> Result<PathBuf> {
    let group = root.join(format!("rustbtl-{}-{pid}", process::id()));
    fs::create_dir(&group).context(|| group.display().to_string())?;
    let file = group.join(limit);
    fs::write(&file, LEFT.to_string()).context(|| file.display().to_string())?;
    Ok(group)
}

/// The process gets no more memory. False: this system has no controller of memory that we may
/// use.
pub fn exhaust(pid: libc::pid_t) -> Result<bool> {
    sweep();
    for (root, limit) in ROOTS {
        let root = Path::new(root);
        if !root.join("cgroup.procs").exists() {
            continue;
        }
        let Ok(group) = group(root, limit, pid) else { continue };
        let members = group.join("cgroup.procs");
        fs::write(&members, pid.to_string()).context(|| members.display().to_string())?;
        return Ok(true);
    }
    Ok(false)
}

/// Removes groups of processes that have ended; the kernel keeps those that have not.
pub fn sweep() {
    for (root, _) in ROOTS {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("rustbtl-") {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn who_gets_no_more_memory_is_killed_when_it_needs_some() {
        // The kernel may kill a process of the pipe instead of the shell: what arrived tells.
        let script = "read _; x=$(head -c 64M /dev/zero | tr '\\0' x); [ ${#x} -eq 67108864 ]";
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(process::Stdio::piped()).stdout(process::Stdio::null());
        let mut child = child.spawn().unwrap();
        let limited = exhaust(libc::pid_t::try_from(child.id()).unwrap()).unwrap();
        drop(child.stdin.take());
        let ended = child.wait().unwrap();
        assert_eq!(ended.success(), !limited, "{ended}");
        sweep();
    }
}
