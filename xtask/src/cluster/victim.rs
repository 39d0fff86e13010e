//! One process of the cluster that is killed while the job runs.

use std::str::FromStr;

use super::processes::{self, find, is, parent};
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
        self.signal(libc::SIGKILL)
    }

    /// Sends it this signal; false if there is no such process (any more).
    pub fn signal(self, number: libc::c_int) -> bool {
        let pid = self.find();
        if let Some(pid) = pid {
            sys::kill(pid, number);
        }
        pid.is_some()
    }

    /// Its process, if there is one.
    pub fn find(self) -> Option<libc::pid_t> {
        match self {
            Victim::Mpirun => find(|pid| is(pid, "mpirun", "") || is(pid, "prterun", "")),
            Victim::Coordinator => find(|pid| is(pid, "rustbtl", "coordinator")),
            // A guardian starts it as /proc/self/exe.
            Victim::Agent => find(|pid| is(pid, "rustbtl", "agent") || is(pid, "exe", "agent")),
            Victim::Guardian(rank) => guardian(rank),
            Victim::Rank(rank) => {
                guardian(rank).and_then(|guardian| find(|pid| parent(pid) == Some(guardian)))
            }
        }
    }
}

fn guardian(rank: u32) -> Option<libc::pid_t> {
    find(|pid| is(pid, "rustbtl", "guardian") && processes::rank(pid) == Some(rank))
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
}
