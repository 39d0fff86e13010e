//! Waiting for a lock that a suspended process may hold: a guardian that somebody has suspended
//! (SIGSTOP) while it starts the node's agent would keep all others of the node from one.

use crate::os::{self, Pid};
use crate::suspended::{self, Looks};
use std::fs::{self, DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Locks the file. While that takes long, its holder is looked at: one that `may_be_ended`, and is
/// suspended in some looks in a row, is ended.
pub(super) fn lock(
    file: &File,
    look: Duration,
    may_be_ended: impl Fn(Pid) -> bool + Sync,
) -> io::Result<()> {
    if os::lock(file, false)? {
        return Ok(());
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(file, look, &over, &may_be_ended));
        let locked = os::lock(file, true).map(drop);
        over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        locked
    })
}

fn watch(file: &File, look: Duration, over: &AtomicBool, may_be_ended: &impl Fn(Pid) -> bool) {
    let mut looks = Looks::default();
    loop {
        thread::park_timeout(look);
        if over.load(Ordering::Relaxed) {
            return;
        }
        let holder = holder(file).filter(|&pid| may_be_ended(pid));
        if looks.saw(holder.is_some_and(suspended::is_suspended)) {
            let pid = holder.unwrap_or(0);
            tracing::warn!("process {pid} is suspended, others wait for it, and it is ended");
            suspended::end(pid);
            looks = Looks::default();
        }
    }
}

/// Who has locked the file (flock(2)), as the kernel says.
fn holder(file: &File) -> Option<Pid> {
    let of = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    candidates(&locks, of.ino()).into_iter().find(|&pid| has_locked(pid, &of))
}

/// Who has locked a file with this number, on any file system: nodes that share a kernel have file
/// systems of their own, which count alike.
fn candidates(locks: &str, inode: u64) -> Vec<Pid> {
    let inode = inode.to_string();
    let holder = |line: &str| {
        // Number, kind, advisory, mode, process, device and inode. Who waits has an arrow.
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = *words.get(1)? == "FLOCK"
            && *words.get(3)? == "WRITE"
            && words.get(5)?.rsplit(':').next()? == inode;
        if is_it { words.get(4)?.parse().ok() } else { None }
    };
    locks.lines().filter_map(holder).collect()
}

/// Has the process this file open, and locked? The device that /proc/locks names is not always
/// that of stat(2).
fn has_locked(pid: Pid, of: &Metadata) -> bool {
    let numbers = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let same = |entry: &DirEntry| {
        let found = fs::metadata(entry.path());
        found.is_ok_and(|found| (found.dev(), found.ino()) == (of.dev(), of.ino()))
    };
    let is_locked = |entry: DirEntry| {
        let number = entry.file_name();
        let info = format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK"))
    };
    numbers.filter(same).any(is_locked)
}

/// Another guardian, and not what somebody else has locked it with.
pub(super) fn is_this_program(pid: Pid) -> bool {
    let own = fs::read_link("/proc/self/exe");
    let theirs = fs::read_link(format!("/proc/{pid}/exe"));
    matches!((own, theirs), (Ok(own), Ok(theirs)) if own == theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn a_holder_that_stays_suspended_is_ended_if_it_may_be() {
        let path = std::env::temp_dir().join(format!("rustbtl-held-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(&path).args(["sleep", "1000"]);
        let mut child = command.spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while holder(&file) != Some(pid) {
            assert!(Instant::now() < until, "it does not lock the file");
            thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a child that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        assert!(!is_this_program(pid) && is_this_program(std::process::id() as Pid));
        lock(&file, Duration::from_millis(20), |ended| ended == pid).unwrap();
        assert!(!child.wait().unwrap().success(), "it was ended");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_of_other_file_systems_with_the_same_number_are_others() {
        let locks = "8: FLOCK ADVISORY READ 16370 00:2c:12 0 EOF\n\
                     9: FLOCK ADVISORY WRITE 16371 00:2c:12 0 EOF\n\
                     10: POSIX ADVISORY WRITE 16366 00:2f:12 0 EOF\n\
                     11: FLOCK ADVISORY WRITE 16366 00:2f:13 0 EOF\n\
                     14: FLOCK ADVISORY WRITE 16368 00:2f:12 0 EOF\n\
                     14: -> FLOCK ADVISORY WRITE 16367 00:2f:12 0 EOF\n";
        assert_eq!(candidates(locks, 12), [16371, 16368]);
        let path = |name| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (held, open) = (path("rustbtl-locked"), path("rustbtl-open"));
        let [held_file, open_file] = [&held, &open].map(|path| File::create(path).unwrap());
        let own = std::process::id() as Pid;
        assert!(os::lock(&held_file, false).unwrap());
        assert!(has_locked(own, &held_file.metadata().unwrap()));
        assert!(!has_locked(own, &open_file.metadata().unwrap()), "open, and not locked");
        assert!(!has_locked(own, &fs::metadata("/proc/self/exe").unwrap()), "not open");
        drop((held_file, open_file));
        [held, open].iter().for_each(|path| fs::remove_file(path).unwrap());
    }

    #[test]
    fn a_holder_that_runs_is_waited_for() {
        let path = std::env::temp_dir().join(format!("rustbtl-runs-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let mut command = Command::new("flock");
        let mut child = command.arg("--no-fork").arg(&path).args(["sleep", "0.3"]).spawn().unwrap();
        while holder(&file).is_none() && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        lock(&file, Duration::from_millis(5), |_| true).unwrap();
        assert!(child.wait().unwrap().success());
        fs::remove_file(&path).unwrap();
    }
}
