//! `rustbtl spare`: waits on a node of the allocation on which no rank runs, until a node is lost.
//! Then guardians of the lost ranks are started here.
//!
//! ```text
//! orted ── starts ──> spare ── starts ──> guardian ── program
//!                      ^  its output, how it ends
//!                      └── TCP, after mutual authentication ── proxy <── guardian of another
//!                                                                        rank, elsewhere
//! ```
//! For orted and mpirun the proxy is a part of the guardian that has started it: so mpirun waits
//! for the rank, its signals reach the rank, and the rank's output takes that guardian's path.
//!
//! 1. A rank that was started here ends with the connection of its proxy, and with this process.
//! 2. This process ends with its orted, and when the coordinator dismisses it.

pub(crate) mod guardians;
pub(crate) mod proxy;

pub use crate::spare::proxy::{KILLED, Proxy};

use crate::auth::Host;
use crate::half_open::{HalfOpenPeers, Outcome};
use crate::link::Link;
use crate::listen::{Listeners, hosts_towards};
use crate::local;
use crate::local::Local;
use crate::node;
use crate::os;
use crate::os::Poll;
use crate::settings::{NoSettings, Settings};
use crate::spare::guardians::SpareGuardians;
use rustbtl_coordination::control::{FromNode, ToNode};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Unauthenticated peers at a time.
const UNAUTHENTICATED_MAX: usize = 16;
/// How often a lost agent is replaced.
const AGENTS_MAX: u32 = 5;
/// An agent also ends when its coordinator has ended; the orted of such a job ends soon, too.
const ORTED_ENDS: Duration = Duration::from_secs(2);

struct Spare {
    settings: Settings,
    orted: OwnedFd,
    listeners: Listeners,
    agent: Link,
    agents_left: u32,
    unauthenticated: HalfOpenPeers,
    guardians: SpareGuardians,
    /// Held as long as anything of the job may be on this node.
    local: Option<Local>,
}

/// Why this process ends.
enum SpareEnd {
    /// The coordinator dismisses it.
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
        // This process has no rank; each guardian is given its own.
        "OMPI_COMM_WORLD_RANK" => Some("0".into()),
        _ => std::env::var_os(name),
    });
    let settings = settings.map_err(|reason| match reason {
        NoSettings::NotRequested => "only orted starts this".to_owned(),
        NoSettings::Invalid(variable) => format!("the variable {variable} makes no sense"),
        NoSettings::Secret(reason) => reason,
    })?;
    let listening = |error| format!("listening: {error}");
    let listeners = Listeners::open(&hosts_towards(&settings.coordinator), 0).map_err(listening)?;
    let local = settings.local.as_deref().map(Local::enter).transpose()?;
    let port = listeners.port();
    let agent = reach_agent(&settings, port)?;
    let guardians = SpareGuardians::new(settings.local.clone());
    let mut spare = Spare {
        settings,
        orted,
        listeners,
        agent,
        agents_left: AGENTS_MAX,
        unauthenticated: HalfOpenPeers::new(Host::Spare, UNAUTHENTICATED_MAX),
        guardians,
        local,
    };
    let end = spare.serve(port);
    spare.guardians.end_all();
    if let (SpareEnd::Orphaned, Some(local)) = (end, &spare.local) {
        local::remove(local.path());
    }
    Ok(())
}

fn reach_agent(settings: &Settings, port: u16) -> Result<Link, String> {
    let stream = node::reach_agent(settings)?;
    let mut agent = Link::new(stream).map_err(|error| error.to_string())?;
    let sent = agent.send(&FromNode::SpareNode { port, addresses: String::new() });
    sent.map(|()| agent).map_err(|error| error.to_string())
}

impl Spare {
    fn serve(&mut self, port: u16) -> SpareEnd {
        loop {
            let mut poll = Poll::default();
            let orphaned = poll.add(self.orted.as_raw_fd(), false);
            let agent = poll.add(self.agent.fd(), self.agent.wants_to_write());
            let come = self.listeners.poll(&mut poll);
            self.unauthenticated.poll(&mut poll);
            if poll.wait(self.unauthenticated.deadline()).is_err() || poll.is_ready(orphaned) {
                return SpareEnd::Orphaned;
            }
            if poll.is_ready(agent)
                && let Some(end) = self.handle_agent(port)
            {
                return end;
            }
            if come.iter().any(|&slot| poll.is_ready(slot)) {
                self.unauthenticated.accept(&self.listeners);
            }
            for outcome in self.unauthenticated.advance(&self.settings.secret) {
                if let Outcome::Authenticated(stream) = outcome {
                    self.guardians.serve(stream);
                }
            }
        }
    }

    fn handle_agent(&mut self, port: u16) -> Option<SpareEnd> {
        let open = self.agent.flush().is_ok() & self.agent.read().is_ok();
        let sane = loop {
            match self.agent.next_message::<ToNode>() {
                Ok(Some(ToNode::DismissSpare {})) => return Some(SpareEnd::Dismissed),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if open && sane { None } else { self.lost_agent(port) }
    }

    fn lost_agent(&mut self, port: u16) -> Option<SpareEnd> {
        let mut poll = Poll::default();
        let orphaned = poll.add(self.orted.as_raw_fd(), false);
        let waited = poll.wait(Some(Instant::now() + ORTED_ENDS));
        if waited.is_err() || poll.is_ready(orphaned) || self.agents_left == 0 {
            return Some(SpareEnd::Orphaned);
        }
        self.agents_left -= 1;
        match reach_agent(&self.settings, port) {
            Ok(agent) => {
                self.agent = agent;
                None
            }
            Err(_) => Some(SpareEnd::Orphaned),
        }
    }
}
