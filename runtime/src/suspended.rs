//! Processes of ours that somebody has suspended (SIGSTOP) and does not have go on, while those
//! that they serve run. Nothing would ever be decided any more: they are ended, and replaced like
//! any that has failed. A job that is suspended as a whole (by a batch system, a terminal) is not
//! touched: nobody of it looks.

use crate::os::{self, Pid};
use std::fs;

/// After so many looks in a row a suspended process is given up.
const LOOKS: u32 = 3;

/// What was seen of a process until now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looks(u32);

impl Looks {
    /// One more look; true: it is given up.
    pub fn saw(&mut self, suspended: bool) -> bool {
        self.0 = if suspended { self.0 + 1 } else { 0 };
        self.0 >= LOOKS
    }
}

/// Is it suspended? Who is watched by a debugger is not, nor is who is not there.
pub fn is_suspended(pid: Pid) -> bool {
    state(pid) == Some('T')
}

/// Is it suspended, although a process that it has started runs?
pub fn is_suspended_alone(pid: Pid) -> bool {
    is_suspended(pid)
        && children(pid).into_iter().any(|child| !matches!(state(child), Some('T' | 'Z') | None))
}

/// Ends a suspended process.
pub fn end(pid: Pid) {
    let Ok(process) = os::pidfd(pid) else { return };
    // It may have ended, and its number be another one's.
    if is_suspended(pid) {
        os::kill_pidfd(&process);
    }
}

fn state(pid: Pid) -> Option<char> {
    os::stat_field(pid, 0).filter(|_| pid > 0)?.chars().next()
}

/// Whom a process has started.
pub fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |text: String| text.split(' ').filter_map(|pid| pid.parse().ok()).collect();
    texts.flat_map::<Vec<Pid>, _>(pids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::thread;
    use std::time::{Duration, Instant};

    fn wait_for(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < until, "it does not come");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn shell(script: &str) -> (Child, Pid) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        (child, pid)
    }

    #[test]
    fn a_process_is_given_up_after_some_looks_in_a_row() {
        let mut looks = Looks::default();
        assert!(!looks.saw(true) && !looks.saw(true) && !looks.saw(false));
        assert!(!looks.saw(true) && !looks.saw(true) && looks.saw(true));
    }

    #[test]
    fn only_who_is_suspended_is_ended() {
        let (mut child, pid) = shell("sleep 60 & wait");
        wait_for(|| !children(pid).is_empty());
        let sleeper = children(pid)[0];
        end(pid);
        assert!(!is_suspended(pid) && !is_suspended(0) && !is_suspended_alone(pid));
        os::kill(pid, libc::SIGSTOP);
        wait_for(|| is_suspended(pid));
        assert!(is_suspended_alone(pid), "what it has started runs");
        os::kill(sleeper, libc::SIGSTOP);
        wait_for(|| is_suspended(sleeper));
        assert!(!is_suspended_alone(pid), "all of it is suspended");
        end(pid);
        assert!(!child.wait().unwrap().success());
        os::kill(sleeper, libc::SIGKILL);
    }
}
