//! How the rank's output leaves its guardian where a pipe is not enough: by messages to the
//! coordinator, if the rank has lost its orted, and at the program's end.

use crate::guardian::output::{Output, Piece};
use crate::guardian::{AgentLink, Guardian, ThreadReport};
use crate::os::Poll;
use rustbtl_coordination::control::FromNode;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// After the program's end: interval at which a thread that connects to the agent is polled.
const CONNECT_POLL: Duration = Duration::from_millis(20);

impl Guardian {
    /// Forwards the program's output until nobody holds it open any more, as without a guardian.
    /// That of a failed program ends at once, because orted has to know.
    pub(crate) fn last_output(
        &mut self,
        reports: &mpsc::Receiver<ThreadReport>,
        orted: &OwnedFd,
        to_the_end: bool,
    ) -> io::Result<()> {
        if let Some(output) = &mut self.rank.output {
            output.drain();
        }
        self.send_output();
        while let Some(output) = self.rank.output.as_ref().filter(|out| !out.is_done(to_the_end)) {
            let mut poll = Poll::default();
            let orphaned = poll.add(orted.as_raw_fd(), false);
            let slots = output.poll(&mut poll);
            // It sends what mpirun has acknowledged.
            let agent = match &self.agent {
                AgentLink::Connected(link) => Some(poll.add(link.fd(), link.wants_to_write())),
                _ => None,
            };
            let connecting = matches!(self.agent, AgentLink::Connecting);
            poll.wait(connecting.then(|| Instant::now() + CONNECT_POLL))?;
            if poll.is_ready(orphaned) {
                return Ok(());
            }
            if let Some(output) = &mut self.rank.output {
                output.handle_ready(&poll, &slots);
            }
            self.send_output();
            if agent.is_some_and(|slot| poll.is_ready(slot)) {
                self.handle_agent();
            }
            while let Ok(report) = reports.try_recv() {
                self.handle_report(report);
            }
        }
        Ok(())
    }

    /// Sends what the coordinator is to relay to mpirun.
    pub(crate) fn send_output(&mut self) {
        let (rank, incarnation) = (self.settings.rank, self.incarnation());
        while let Some(piece) = self.rank.output.as_mut().and_then(Output::next_piece) {
            let Piece { stream, position, bytes } = piece;
            self.send(&FromNode::Output { rank, incarnation, stream, position, bytes });
        }
    }

    /// Sends everything again, to a coordinator that has nothing yet.
    pub(crate) fn resend_output(&mut self) {
        if let Some(output) = &mut self.rank.output {
            output.resend();
        }
        self.send_output();
    }

    /// mpirun has a stream up to this position.
    pub(crate) fn output_accepted(&mut self, stream: u8, position: u64) {
        if let Some(output) = &mut self.rank.output {
            output.accepted(stream, position);
        }
    }

    /// There will be no coordinator.
    pub(crate) fn stop_output_relay(&mut self) {
        if let Some(output) = &mut self.rank.output {
            output.stop_relay();
        }
    }

    /// Reports the positions to the coordinator: with this node its ledger would be lost.
    pub(crate) fn report_output_offsets(&mut self) {
        let output = self.rank.output.as_ref().filter(|output| !output.is_relayed());
        let forwarded = output.map(Output::forwarded);
        if self.local.is_some() && forwarded.is_some_and(|now| now != self.reported_output) {
            self.reported_output = forwarded.unwrap_or_default();
            let (rank, [out, err]) = (self.settings.rank, self.reported_output);
            self.send(&FromNode::OutputOffsets { rank, out, err });
        }
    }
}
