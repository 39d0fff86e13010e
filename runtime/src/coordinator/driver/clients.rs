//! Connections of the `rustbtl` command: who may connect, and what is answered.

use crate::coordinator::driver::event_loop::{Agent, Coordinator, STATUS_PATIENCE};
use crate::link::Link;
use crate::os;
use rustbtl_coordination::control::{Reply, Request};
use serde_json::json;
use std::time::Instant;

impl Coordinator {
    pub(crate) fn accept_commands(&mut self) {
        while let Ok((stream, _)) = self.commands.accept() {
            // The directory lets nobody else in; root may look at everything.
            let theirs = os::peer_uid(&stream).is_ok_and(|uid| uid == os::euid() || uid == 0);
            if let (true, Ok(link)) = (theirs, Link::new(stream)) {
                let id = self.number();
                self.clients.insert(id, link);
            }
        }
    }

    pub(crate) fn handle_client(&mut self, id: u64) {
        let Some(link) = self.clients.get_mut(&id) else { return };
        let mut open = link.flush().is_ok() & link.read().is_ok();
        loop {
            let Some(link) = self.clients.get_mut(&id) else { return };
            match link.next_message::<Request>() {
                Ok(Some(request)) => self.handle_request(id, &request),
                Ok(None) => break,
                Err(_) => {
                    open = false;
                    break;
                }
            }
        }
        if !open {
            self.clients.remove(&id);
            self.status_waiters.retain(|(client, _)| *client != id);
            self.job.client_gone(id);
        }
    }

    pub(crate) fn handle_request(&mut self, id: u64, request: &Request) {
        match *request {
            Request::Status {} => {
                self.job.ask_for_logs();
                self.status_waiters.push((id, Instant::now() + STATUS_PATIENCE));
            }
            Request::Checkpoint { all, wait, then_exit } => {
                self.events.write(json!({
                    "event": "checkpoint_requested", "all": all, "then_exit": then_exit
                }));
                self.job.checkpoint(self.now(), id, all, wait, then_exit);
            }
        }
        self.carry_out();
    }

    /// Answers clients that have waited long enough, or for whom all is known.
    pub(crate) fn answer_status(&mut self) {
        let (now, known) = (Instant::now(), self.job.all_logs_known());
        let done: Vec<u64> = self
            .status_waiters
            .extract_if(.., |(_, until)| known || *until <= now)
            .map(|(client, _)| client)
            .collect();
        if done.is_empty() {
            return;
        }
        let node = |agent: &Agent| (agent.node.clone(), agent.pid, agent.last_heard.elapsed());
        let nodes: Vec<_> = self.agents.values().map(node).collect();
        let json = self.job.status(self.now(), &nodes).to_string();
        for client in done {
            self.reply(client, &Reply::Status { json: json.clone() });
        }
    }

    pub(crate) fn reply(&mut self, client: u64, reply: &Reply) {
        if let Some(link) = self.clients.get_mut(&client)
            && link.send(reply).is_err()
        {
            self.clients.remove(&client);
        }
    }
}
