//! How the rank's output leaves its guardian, where that takes more than a pipe: by messages to the
//! coordinator, if the rank has lost its orted, and at the program's end.

use crate::guardian::output::{Output, Piece};
use crate::guardian::{Agent, Guardian, News};
use crate::os::Poll;
use rustbtl_coordination::control::FromNode;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How often an agent is looked for that a thread looks for, once the program has ended.
const SOUGHT_AGAIN: Duration = Duration::from_millis(20);

impl Guardian {
    /// The program's output goes on as long as somebody holds it open, as without a guardian; that
    /// of a program that has failed ends with it, because orted has to know at once.
    pub(crate) fn last_output(
        &mut self,
        news: &mpsc::Receiver<News>,
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
            let places = output.poll(&mut poll);
            // It says what mpirun has got.
            let agent = match &self.agent {
                Agent::There(link) => Some(poll.add(link.fd(), link.wants_to_write())),
                _ => None,
            };
            let sought = matches!(self.agent, Agent::Sought);
            poll.wait(sought.then(|| Instant::now() + SOUGHT_AGAIN))?;
            if poll.is_ready(orphaned) {
                return Ok(());
            }
            if let Some(output) = &mut self.rank.output {
                output.attend(&poll, &places);
            }
            self.send_output();
            if agent.is_some_and(|place| poll.is_ready(place)) {
                self.hear_agent();
            }
            while let Ok(news) = news.try_recv() {
                self.hear_news(news);
            }
        }
        Ok(())
    }

    /// What the coordinator is to hand on to mpirun.
    pub(crate) fn send_output(&mut self) {
        let (rank, incarnation) = (self.settings.rank, self.incarnation());
        while let Some(piece) = self.rank.output.as_mut().and_then(Output::next_piece) {
            let Piece { stream, position, bytes } = piece;
            self.tell(&FromNode::Output { rank, incarnation, stream, position, bytes });
        }
    }

    /// To a coordinator that has nothing yet.
    pub(crate) fn send_output_anew(&mut self) {
        if let Some(output) = &mut self.rank.output {
            output.send_anew();
        }
        self.send_output();
    }

    /// mpirun has it.
    pub(crate) fn taken(&mut self, stream: u8, position: u64) {
        if let Some(output) = &mut self.rank.output {
            output.taken(stream, position);
        }
    }

    /// There will be no coordinator.
    pub(crate) fn print_here(&mut self) {
        if let Some(output) = &mut self.rank.output {
            output.stay_here();
        }
    }

    /// With this node what it knows of the output is lost: somebody else has to know it.
    pub(crate) fn tell_printed(&mut self) {
        let printed = self.rank.output.as_ref().filter(|output| !output.is_away());
        let printed = printed.map(Output::handed_on);
        if self.local.is_some() && printed.is_some_and(|printed| printed != self.printed) {
            self.printed = printed.unwrap_or_default();
            let (rank, [out, err]) = (self.settings.rank, self.printed);
            self.tell(&FromNode::OutputOffsets { rank, out, err });
        }
    }
}
