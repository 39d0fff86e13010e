//! Signals to parts of a running job, as an administrator or a batch system sends them:
//! `SIGNAL/WHO`, or `SIGNAL/WHO+WHO` for two at once, one after the other. And what is no signal,
//! but comes as suddenly: `OOM` (the kernel has no more memory for it), `INTRUDER` (an
//! unauthenticated peer).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::faults::{Fault, Moment, moment_of_event};
use super::nodes::{self, Node};
use super::victim::Victim;
use super::{intruder, memory_limit, network, processes};
use crate::error::{Result, failure};
use crate::sys;

/// How long a process is suspended by `PAUSE`.
const PAUSE: Duration = Duration::from_secs(2);
/// What is no signal, by numbers that none has.
const OUT_OF_MEMORY: libc::c_int = -1;
const INTRUDER: libc::c_int = -2;
const PAUSED: libc::c_int = -3;
const SIGNALS: [(&str, libc::c_int); 9] = [
    ("TERM", libc::SIGTERM),
    ("INT", libc::SIGINT),
    ("HUP", libc::SIGHUP),
    ("KILL", libc::SIGKILL),
    ("PAUSE", PAUSED),
    ("STOP", libc::SIGSTOP),
    ("CONT", libc::SIGCONT),
    ("OOM", OUT_OF_MEMORY),
    ("INTRUDER", INTRUDER),
];

/// Who gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// mpirun.
    Mpirun,
    /// The job's coordinator.
    Coordinator,
    /// Every process of this node.
    Node(u32),
    /// mpirun's daemon on this node, and nobody else.
    Daemon(u32),
    /// The agent of this node.
    Agent(u32),
    /// Slurm's daemon on this node, and nobody else.
    Slurmd(u32),
    /// The guardian of this rank.
    Guardian(u32),
    /// The program of this rank.
    Rank(u32),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let form = "choose mpirun, coordinator, node:I, daemon:I, agent:I, slurmd:I, guardian:R or \
                    rank:R";
        let Some((what, number)) = text.split_once(':') else {
            return match text {
                "mpirun" => Ok(Self::Mpirun),
                "coordinator" => Ok(Self::Coordinator),
                _ => Err(form.into()),
            };
        };
        let number = number.parse().map_err(|_| format!("`{number}` is no number"))?;
        match what {
            "node" => Ok(Self::Node(number)),
            "daemon" => Ok(Self::Daemon(number)),
            "agent" => Ok(Self::Agent(number)),
            "slurmd" => Ok(Self::Slurmd(number)),
            "guardian" => Ok(Self::Guardian(number)),
            "rank" => Ok(Self::Rank(number)),
            _ => Err(form.into()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mpirun => f.write_str("mpirun"),
            Self::Coordinator => f.write_str("the coordinator"),
            Self::Node(node) => write!(f, "all of node n{node}"),
            Self::Daemon(node) => write!(f, "the daemon of node n{node}"),
            Self::Agent(node) => write!(f, "the agent of node n{node}"),
            Self::Slurmd(node) => write!(f, "the slurmd of node n{node}"),
            Self::Guardian(rank) => write!(f, "the guardian of rank {rank}"),
            Self::Rank(rank) => write!(f, "rank {rank}"),
        }
    }
}

/// A signal, and who gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    number: libc::c_int,
    to: [Option<Target>; 2],
}

impl FromStr for Sent {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, who) = text.split_once('/').ok_or("give it as SIGNAL/WHO")?;
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        let names = || SIGNALS.map(|(name, _)| name).join(", ");
        let &(_, number) = known.ok_or_else(|| format!("choose a signal of {}", names()))?;
        let (first, second) = match who.split_once('+') {
            Some((first, second)) => (first, Some(second)),
            None => (who, None),
        };
        let to = [Some(first.parse()?), second.map(str::parse).transpose()?];
        let is_node = |target: &Target| matches!(target, Target::Node(_));
        if number == INTRUDER && !to.iter().flatten().all(is_node) {
            return Err("INTRUDER comes to a node:I".into());
        }
        Ok(Self { number, to })
    }
}

impl Sent {
    /// What follows after a while: who was suspended goes on.
    pub fn then(self) -> Option<(Duration, Sent)> {
        let cont = Sent { number: libc::SIGCONT, ..self };
        (self.number == PAUSED).then_some((PAUSE, cont))
    }

    /// Does it let suspended processes go on?
    pub fn continues(self) -> bool {
        self.number == libc::SIGCONT
    }

    /// The first one that is not in a cluster of so many nodes and ranks.
    pub fn stranger(self, nodes: u32, ranks: u32) -> Option<Target> {
        let is_strange = |target: &Target| match *target {
            Target::Mpirun | Target::Coordinator => false,
            Target::Node(node)
            | Target::Daemon(node)
            | Target::Agent(node)
            | Target::Slurmd(node) => node >= nodes,
            Target::Guardian(rank) | Target::Rank(rank) => rank >= ranks,
        };
        self.to.into_iter().flatten().find(is_strange)
    }

    /// Sends it; returns what was done, in words. `program`: the process of a rank.
    pub fn send(
        self,
        nodes: &[Node],
        program: impl Fn(u32) -> Option<libc::pid_t>,
    ) -> Result<String> {
        let name = SIGNALS.iter().find(|(_, number)| *number == self.number);
        let name = name.map_or("?", |(name, _)| name);
        let mut done = Vec::new();
        for target in self.to.into_iter().flatten() {
            let pids = processes_of(target, nodes, &program)?;
            if let (INTRUDER, Target::Node(number)) = (self.number, target) {
                done.push(let_intruder_come(number, nodes, &pids)?);
                continue;
            }
            for &pid in &pids {
                match self.number {
                    OUT_OF_MEMORY => drop(memory_limit::exhaust(pid)),
                    PAUSED => sys::kill(pid, libc::SIGSTOP),
                    signal => sys::kill(pid, signal),
                }
            }
            done.push(match pids.len() {
                0 => format!("there is no {target} to send {name} to"),
                1 => format!("sent {name} to {target} (process {})", pids[0]),
                many => format!("sent {name} to {target} ({many} processes)"),
            });
        }
        Ok(done.join(", "))
    }
}

fn let_intruder_come(number: u32, nodes: &[Node], pids: &[libc::pid_t]) -> Result<String> {
    let node = nodes.get(number as usize).ok_or_else(|| failure!("there is no node n{number}"))?;
    let is_of_open_mpi = |pid: libc::pid_t| {
        ["mpirun", "orted", "prted", "prterun"].iter().any(|name| processes::is(pid, name, ""))
    };
    let ours: Vec<_> = pids.iter().copied().filter(|&pid| !is_of_open_mpi(pid)).collect();
    let address = network::ipv4(number).parse().map_err(|_| failure!("no address"))?;
    let (open, taken) = nodes::within(node, || intruder::come(&ours, address, &node.name))?;
    Ok(format!("{open} connections of an intruder to node n{number}, who has taken {taken} names"))
}

fn processes_of(
    target: Target,
    nodes: &[Node],
    program: impl Fn(u32) -> Option<libc::pid_t>,
) -> Result<Vec<libc::pid_t>> {
    let on = |node: u32| {
        let node = nodes.get(node as usize).ok_or_else(|| failure!("there is no node n{node}"))?;
        Ok(processes::in_network(&node.namespaces[0]))
    };
    let is = processes::is;
    Ok(match target {
        Target::Mpirun => Victim::Mpirun.find().into_iter().collect(),
        Target::Coordinator => Victim::Coordinator.find().into_iter().collect(),
        Target::Node(node) => on(node)?,
        Target::Daemon(node) => {
            let is_daemon = |pid: &libc::pid_t| is(*pid, "orted", "") || is(*pid, "prted", "");
            let daemons: Vec<_> = on(node)?.into_iter().filter(is_daemon).collect();
            // Under Slurm a prted waits for another one, its child, which does all the work.
            let starts = |pid| daemons.iter().any(|&other| processes::parent(other) == Some(pid));
            daemons.iter().copied().filter(|&pid| !starts(pid)).take(1).collect()
        }
        Target::Agent(node) => {
            // A guardian starts it as /proc/self/exe.
            let is_agent =
                |pid: &libc::pid_t| is(*pid, "rustbtl", "agent") || is(*pid, "exe", "agent");
            on(node)?.into_iter().filter(is_agent).take(1).collect()
        }
        Target::Slurmd(node) => {
            let is_slurmd = |pid: &libc::pid_t| is(*pid, "slurmd", "-D");
            on(node)?.into_iter().filter(is_slurmd).take(1).collect()
        }
        Target::Guardian(rank) => Victim::Guardian(rank).find().into_iter().collect(),
        Target::Rank(rank) => program(rank).into_iter().collect(),
    })
}

/// `EVENT@K=SIGNAL/WHO`: when an event is logged for the K-th time, somebody gets a signal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SignalAtEvent(pub Moment, pub Fault);

impl FromStr for SignalAtEvent {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (moment, sent) = text.split_once('=').ok_or("give it as EVENT@COUNT=SIGNAL/WHO")?;
        Ok(Self(moment_of_event(moment)?, Fault::Signal(sent.parse()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::job_events::Nth;

    #[test]
    fn signals_are_named_with_who_gets_them() {
        let one: Sent = "TERM/daemon:1".parse().unwrap();
        assert_eq!(one, Sent { number: libc::SIGTERM, to: [Some(Target::Daemon(1)), None] });
        assert_eq!(one.then(), None);
        let two: Sent = "PAUSE/agent:2+rank:0".parse().unwrap();
        assert_eq!(two.to, [Some(Target::Agent(2)), Some(Target::Rank(0))]);
        let (_, next) = two.then().unwrap();
        assert!(next.continues() && !two.continues());
        assert_eq!("STOP/coordinator".parse::<Sent>().unwrap().then(), None);
        for bad in ["", "TERM", "TERM/", "TERM/n1", "QUIT/mpirun", "INT/rank:x", "INT/mpirun+"] {
            assert!(bad.parse::<Sent>().is_err(), "{bad}");
        }
        assert!("INTRUDER/node:1".parse::<Sent>().is_ok() && "OOM/agent:1".parse::<Sent>().is_ok());
        assert!("INTRUDER/rank:1".parse::<Sent>().is_err());
        let at: SignalAtEvent = "ready@1=HUP/node:3".parse().unwrap();
        assert_eq!(at.0, Moment::Event(None, Nth("ready", 1)));
        assert!("never@1=HUP/node:3".parse::<SignalAtEvent>().is_err());
    }

    #[test]
    fn who_is_not_there_is_named() {
        let of = |text: &str| text.parse::<Sent>().unwrap().stranger(3, 4);
        assert_eq!(of("TERM/mpirun+node:2"), None);
        assert_eq!(of("TERM/rank:3+daemon:3"), Some(Target::Daemon(3)));
        assert_eq!(of("TERM/guardian:4"), Some(Target::Guardian(4)));
    }
}
