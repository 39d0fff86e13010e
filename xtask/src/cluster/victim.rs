//! One process of the cluster that is killed while the job runs.

use std::fs;
use std::str::FromStr;

use crate::sys;

/// Which one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// mpirun, in the first node.
    Mpirun,
    /// The coordinator of the job.
    Coordinator,
    /// The agent of a node, whichever is found first.
    Agent,
    /// The guardian of a rank.
    Guardian(u32),
    /// The program of a rank, which its guardian has started.
    Rank(u32),
}

impl FromStr for Victim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of = |number: &str| number.parse().map_err(|_| format!("`{number}` is not a rank"));
        match text.split_once(':') {
            Some(("rank", number)) => of(number).map(Victim::Rank),
            Some(("guardian", number)) => of(number).map(Victim::Guardian),
            None if text == "mpirun" => Ok(Victim::Mpirun),
            None if text == "coordinator" => Ok(Victim::Coordinator),
            None if text == "agent" => Ok(Victim::Agent),
            _ => Err("choose mpirun, coordinator, agent, rank:N or guardian:N".into()),
        }
    }
}

impl Victim {
    /// Sends it SIGKILL; false if there is no such process (any more).
    pub fn kill(self) -> bool {
        let pid = match self {
            Victim::Mpirun => find(|pid| is(pid, "mpirun", "")),
            Victim::Coordinator => find(|pid| is(pid, "rustbtl", "coordinator")),
            // A guardian starts it as /proc/self/exe.
            Victim::Agent => find(|pid| is(pid, "rustbtl", "agent") || is(pid, "exe", "agent")),
            Victim::Guardian(rank) => guardian(rank),
            Victim::Rank(rank) => {
                guardian(rank).and_then(|guardian| find(|pid| parent(pid) == Some(guardian)))
            }
        };
        if let Some(pid) = pid {
            sys::kill(pid, libc::SIGKILL);
        }
        pid.is_some()
    }
}

fn guardian(rank: u32) -> Option<libc::pid_t> {
    let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
    let has = |pid: libc::pid_t| {
        let all = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        all.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    find(|pid| is(pid, "rustbtl", "guardian") && has(pid))
}

/// The process with the lowest number of which this is true.
fn find(wanted: impl Fn(libc::pid_t) -> bool) -> Option<libc::pid_t> {
    let folders = fs::read_dir("/proc").ok()?.flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| wanted(pid)).min()
}

/// Is it this program, with this first word?
fn is(pid: libc::pid_t, program: &str, word: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0');
    let name = words.next().and_then(|path| path.rsplit('/').next());
    name == Some(program) && (word.is_empty() || words.next() == Some(word))
}

fn parent(pid: libc::pid_t) -> Option<libc::pid_t> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, also spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_are_named_in_words() {
        assert_eq!("rank:3".parse(), Ok(Victim::Rank(3)));
        assert_eq!("guardian:0".parse(), Ok(Victim::Guardian(0)));
        assert_eq!("agent".parse(), Ok(Victim::Agent));
        for bad in ["", "rank", "rank:x", "orted:1", "agents"] {
            assert!(bad.parse::<Victim>().is_err(), "{bad}");
        }
    }

    #[test]
    fn this_process_is_found_by_its_parent() {
        let me = std::process::id() as libc::pid_t;
        let mother = parent(me).unwrap();
        assert!(find(|pid| parent(pid) == Some(mother)).is_some());
    }
}
