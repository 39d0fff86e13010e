//! How a guardian reaches its node's agent, and replaces one that is lost, or that somebody has
//! suspended.

use super::{Failure, Guardian, ThreadReport};
use crate::link::Link;
use crate::node;
use crate::os;
use crate::settings::Settings;
use crate::suspended::{self, Looks};
use rustbtl_coordination::control::{FromNode, ToNode};
use std::thread;
use std::time::Instant;

/// How often a lost agent is replaced.
pub(super) const AGENTS_MAX: u32 = 5;

/// The connection to it.
pub(super) enum AgentLink {
    /// A thread connects to it.
    Connecting,
    Connected(Link),
    /// There is none, and there will be none.
    None,
}

/// An agent that stays suspended is ended, and another one takes over: nobody else knows that it is
/// not meant to be.
pub(super) struct AgentWatch {
    /// 0: not known.
    pid: os::Pid,
    looks: Looks,
    next: Instant,
}

impl AgentWatch {
    pub(super) fn new() -> Self {
        Self { pid: 0, looks: Looks::default(), next: Instant::now() }
    }
}

impl Guardian {
    pub(super) fn connect_agent(&mut self) {
        let (settings, reporter) = (self.settings.clone(), self.reporter.clone());
        self.agent = AgentLink::Connecting;
        thread::spawn(move || reporter.report(ThreadReport::Agent(node::reach_agent(&settings))));
    }

    /// Registers with a new agent or coordinator, and repeats the rank's messages.
    pub(super) fn register(&mut self) {
        let Settings { rank, size, .. } = self.settings;
        let pid = std::process::id();
        let incarnation = self.incarnation();
        self.send(&FromNode::Guardian { rank, size, pid, incarnation });
        self.report_restored();
        for message in self.rank.messages_to_repeat() {
            self.send(&FromNode::Rank { rank, message });
        }
        if let Some([out, err]) = self.via_daemon {
            self.send(&FromNode::OutputViaDaemon { rank, out, err });
        }
        if self.local.is_some() {
            let [out, err] = self.reported_output;
            self.send(&FromNode::OutputOffsets { rank, out, err });
        }
        if let Some(Failure { status, .. }) = self.failure {
            self.send(&FromNode::RankFailed { rank, status, incarnation });
        }
        self.rank.send_coordinator(&self.settings);
        self.resend_output();
    }

    /// Sends to the agent, if there is one.
    pub(super) fn send(&mut self, message: &FromNode) {
        if let AgentLink::Connected(link) = &mut self.agent
            && link.send(message).is_err()
        {
            self.lost_agent();
        }
    }

    pub(super) fn handle_agent(&mut self) {
        let AgentLink::Connected(link) = &mut self.agent else { return };
        let open = link.flush().is_ok() & link.read().is_ok();
        let mut messages = Vec::new();
        let sane = loop {
            match link.next_message::<ToNode>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        for message in messages {
            self.handle_order(message);
        }
        if (!open || !sane) && matches!(self.agent, AgentLink::Connected(_)) {
            self.lost_agent();
        }
    }

    /// The agent has failed: the open checkpoint is aborted, and another agent is started.
    pub(super) fn lost_agent(&mut self) {
        self.suspend(false);
        self.rank.abort_checkpoint("the agent of this node has failed");
        if self.agents_left == 0 {
            self.disable_protection(
                "the agent of this node ends again and again: no more checkpoints",
            );
            return;
        }
        self.agents_left -= 1;
        self.connect_agent();
    }

    /// It is watched from now on.
    pub(super) fn watch(&mut self, link: &Link) {
        let pid = os::peer_pid(&link.fd()).unwrap_or(0);
        let next = Instant::now() + self.settings.failure_timeout.silence();
        self.watch = AgentWatch { pid, looks: Looks::default(), next };
    }

    /// When something has to be looked at or decided although nothing happens.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let failure = self.failure.as_ref().map(|failure| failure.decision.next_look());
        let watch = matches!(self.agent, AgentLink::Connected(_)).then_some(self.watch.next);
        failure.into_iter().chain(watch).min()
    }

    /// Is the agent suspended, while this guardian is not?
    pub(super) fn look_at_agent(&mut self) {
        let now = Instant::now();
        if now < self.watch.next || !matches!(self.agent, AgentLink::Connected(_)) {
            return;
        }
        self.watch.next = now + self.settings.failure_timeout.silence();
        let pid = self.watch.pid;
        if self.watch.looks.saw(suspended::is_suspended(pid)) {
            tracing::warn!("the agent {pid} is suspended, and nobody has it go on");
            suspended::end(pid);
        }
    }
}
