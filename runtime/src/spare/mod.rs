//! `rustbtl spare`: waits on a node of the allocation on which no rank runs, until a node is lost.
//! Then guardians of the ranks that were lost are started here.
//!
//! ```text
//! orted ── starts ──> spare ── starts ──> guardian ── program
//!                      ^  what it prints, how it ends
//!                      └── TCP, after mutual proof of the secret ── stand-in <── guardian of
//!                                                                   another rank, elsewhere
//! ```
//! To orted and mpirun the stand-in is a part of the guardian that has started it: so mpirun waits
//! for the rank, its signals reach it, and what it prints goes that guardian's way.
//!
//! 1. A rank that was started here ends with the connection of its stand-in, and with this process.
//! 2. This process ends with its orted, and when the coordinator needs it no more.

pub(crate) mod hosted;
pub(crate) mod proxy;

pub use crate::spare::proxy::{KILLED, Proxy};

use crate::auth::{Host, Progress, Stranger};
use crate::link::Link;
use crate::local;
use crate::local::Local;
use crate::node;
use crate::os;
use crate::os::Poll;
use crate::settings::{NoSettings, Settings};
use crate::spare::hosted::Hosted;
use rustbtl_coordination::control::{FromNode, ToNode};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a stranger may take to prove that it belongs to the job.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
/// Strangers at a time; further ones wait in the kernel's queue.
const STRANGERS_MAX: usize = 16;
/// How often a lost agent is replaced.
const AGENTS_MAX: u32 = 5;
/// An agent also goes when its coordinator has gone; the orted of such a job ends soon, too.
const ORTED_ENDS: Duration = Duration::from_secs(2);

struct Spare {
    settings: Settings,
    orted: OwnedFd,
    listener: TcpListener,
    agent: Link,
    agents_left: u32,
    strangers: Vec<Stranger>,
    hosted: Hosted,
    /// Held as long as anything of the job may be here.
    local: Option<Local>,
}

/// Why there is nothing more to do.
enum Over {
    /// The job needs this node no more.
    Dismissed,
    /// Nothing of the job may stay.
    Orphaned,
}

/// Runs until there is nothing more to do.
///
/// # Errors
/// The environment is not that of a job, or nobody could ever reach this process.
pub fn run() -> Result<(), String> {
    rustbtl_process::scheduling::be_prompt();
    let orted = os::pidfd(os::parent()).map_err(|error| format!("watching orted: {error}"))?;
    let settings = Settings::read(|name| match name {
        // There is none; whom the guardians are for is said to them.
        "OMPI_COMM_WORLD_RANK" => Some("0".into()),
        _ => std::env::var_os(name),
    });
    let settings = settings.map_err(|reason| match reason {
        NoSettings::Unasked => "only orted starts this".to_owned(),
        NoSettings::Bad(variable) => format!("the variable {variable} makes no sense"),
    })?;
    let listening = |error| format!("listening: {error}");
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
        .map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    let local = settings.local.as_deref().map(Local::enter).transpose()?;
    let port = listener.local_addr().map_err(listening)?.port();
    let agent = reach_agent(&settings, port)?;
    let (agents_left, strangers, hosted) =
        (AGENTS_MAX, Vec::new(), Hosted::new(settings.local.clone()));
    let mut spare =
        Spare { settings, orted, listener, agent, agents_left, strangers, hosted, local };
    let over = spare.serve(port);
    spare.hosted.end_all();
    if let (Over::Orphaned, Some(local)) = (over, &spare.local) {
        local::remove(local.path());
    }
    Ok(())
}

fn reach_agent(settings: &Settings, port: u16) -> Result<Link, String> {
    let stream = node::reach_agent(settings)?;
    let mut agent = Link::new(stream).map_err(|error| error.to_string())?;
    let said = agent.send(&FromNode::SpareNode { port, addresses: String::new() });
    said.map(|()| agent).map_err(|error| error.to_string())
}

impl Spare {
    fn serve(&mut self, port: u16) -> Over {
        loop {
            let mut poll = Poll::default();
            let orphaned = poll.add(self.orted.as_raw_fd(), false);
            let agent = poll.add(self.agent.fd(), self.agent.wants_to_write());
            let room = self.strangers.len() < STRANGERS_MAX;
            let come = room.then(|| poll.add(self.listener.as_raw_fd(), false));
            for stranger in &self.strangers {
                poll.add(stranger.stream().as_raw_fd(), false);
            }
            let until = self.strangers.iter().map(|stranger| stranger.until).min();
            if poll.wait(until).is_err() || poll.is_ready(orphaned) {
                return Over::Orphaned;
            }
            if poll.is_ready(agent)
                && let Some(over) = self.hear_agent(port)
            {
                return over;
            }
            self.drive_strangers();
            if come.is_some_and(|place| poll.is_ready(place))
                && let Ok((stream, _)) = self.listener.accept()
            {
                self.strangers.extend(Stranger::new(Host::Spare, stream, STRANGER_PATIENCE));
            }
        }
    }

    fn drive_strangers(&mut self) {
        let now = Instant::now();
        for mut stranger in core::mem::take(&mut self.strangers) {
            match stranger.drive(&self.settings.secret) {
                Progress::Proved => self.hosted.serve(stranger.into_stream()),
                Progress::Waiting if stranger.until > now => self.strangers.push(stranger),
                Progress::Waiting | Progress::Refused(_) => {}
            }
        }
    }

    fn hear_agent(&mut self, port: u16) -> Option<Over> {
        let open = self.agent.flush().is_ok() & self.agent.read().is_ok();
        let sane = loop {
            match self.agent.next_message::<ToNode>() {
                Ok(Some(ToNode::DismissSpare {})) => return Some(Over::Dismissed),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if open && sane { None } else { self.lost_agent(port) }
    }

    fn lost_agent(&mut self, port: u16) -> Option<Over> {
        let mut poll = Poll::default();
        let orphaned = poll.add(self.orted.as_raw_fd(), false);
        let waited = poll.wait(Some(Instant::now() + ORTED_ENDS));
        if waited.is_err() || poll.is_ready(orphaned) || self.agents_left == 0 {
            return Some(Over::Orphaned);
        }
        self.agents_left -= 1;
        match reach_agent(&self.settings, port) {
            Ok(agent) => {
                self.agent = agent;
                None
            }
            Err(_) => Some(Over::Orphaned),
        }
    }
}
