//! What a guardian knows of its rank, and what they say to each other.

use super::images::{self, Job};
use super::output::Output;
use super::positions::Mark;
use crate::link::Link;
use crate::os::{self, Pid};
use crate::settings::Settings;
use rustbtl_coordination::control::{FromNode, FromRank, LineId, Picture, ToRank};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Folders that are remembered: to discard the lines in them.
const FOLDERS_MAX: usize = 256;

/// A rank.
pub struct Rank {
    /// Its program: our child.
    pub program: Pid,
    /// `None`: it has closed it, or sent nonsense.
    link: Option<Link>,
    hello: Option<FromRank>,
    ready: bool,
    finishing: bool,
    may_finish: bool,
    /// The line that it takes part in, until it is complete or aborted.
    line: Option<LineId>,
    folders: BTreeMap<LineId, PathBuf>,
    images: VecDeque<Job>,
    /// Folders of images that are being written.
    writing: BTreeMap<LineId, PathBuf>,
    /// Frozen children whose image is being written.
    frozen: BTreeMap<LineId, OwnedFd>,
    /// What it prints; `None`: that goes to orted by itself.
    pub output: Option<Output>,
    /// Where the output was when the program stood still.
    mark: Option<(LineId, Mark)>,
}

impl Rank {
    /// A program that has just been started.
    pub fn new(program: Pid, link: Link, output: Option<Output>) -> Self {
        Self {
            program,
            link: Some(link),
            hello: None,
            ready: false,
            finishing: false,
            may_finish: false,
            line: None,
            folders: BTreeMap::new(),
            images: VecDeque::new(),
            writing: BTreeMap::new(),
            frozen: BTreeMap::new(),
            output,
            mark: None,
        }
    }

    /// To poll, while it is open.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// As it says itself.
    pub fn incarnation(&self) -> Incarnation {
        match &self.hello {
            Some(FromRank::Hello { incarnation, .. }) => *incarnation,
            _ => Incarnation(0),
        }
    }

    /// What a coordinator that knows nothing has to know.
    pub fn said(&self) -> Vec<FromRank> {
        let mut all: Vec<FromRank> = self.hello.clone().into_iter().collect();
        all.extend(self.ready.then_some(FromRank::Ready {}));
        all.extend(self.finishing.then_some(FromRank::Finishing {}));
        all
    }

    fn send(&mut self, message: &ToRank) {
        if let Some(link) = &mut self.link
            && link.send(message).is_err()
        {
            self.link = None;
        }
    }

    /// Everything that the rank has said since: what the coordinator has to hear of it.
    pub fn hear(&mut self, settings: &Settings, alone: bool) -> Vec<FromNode> {
        let mut messages = Vec::new();
        if let Some(link) = &mut self.link {
            let open = link.flush().is_ok() & link.read().is_ok();
            let sane = loop {
                match link.next_message::<FromRank>() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break true,
                    Err(error) => {
                        say!("rank {} sends {error}", settings.rank);
                        break false;
                    }
                }
            };
            if !open || !sane {
                self.link = None;
            }
        }
        messages.into_iter().filter_map(|message| self.said_now(message, settings, alone)).collect()
    }

    fn said_now(
        &mut self,
        message: FromRank,
        settings: &Settings,
        alone: bool,
    ) -> Option<FromNode> {
        let mine = settings.rank;
        match &message {
            FromRank::Hello { rank, size, .. } => {
                if *rank != mine || *size != settings.size {
                    // A job of its own that the program has started.
                    self.link = None;
                    return None;
                }
                self.hello = Some(message.clone());
                let (job, line) = (settings.job.clone(), line_of(settings));
                self.send(&ToRank::Welcome { job, restarted_from: line });
            }
            FromRank::Ready {} => self.ready = true,
            FromRank::Finishing {} => {
                self.finishing = true;
                if alone {
                    self.stay_alone();
                }
            }
            FromRank::Ask { number, .. } if alone => {
                let problem = "no coordinator can be reached, see the message above".into();
                self.send(&ToRank::Answer { number: *number, line: LineId(0), problem });
            }
            FromRank::Parked { line } => {
                let line = *line;
                self.mark = self.output.as_mut().map(|output| (line, output.mark()));
                self.send(&ToRank::Drained { line });
                return None;
            }
            FromRank::Frozen { .. } => return Some(self.frozen(message, mine)),
            _ => {}
        }
        Some(FromNode::Rank { rank: mine, message })
    }

    fn frozen(&mut self, message: FromRank, rank: PeerId) -> FromNode {
        let FromRank::Frozen { line, picture, description, coordination_ns, pause_ns } = message
        else {
            return FromNode::Rank { rank, message };
        };
        let wanted = self.line == Some(line);
        let folder = self.folders.get(&line).filter(|_| wanted).cloned();
        let child = match picture {
            Picture::Child(pid) => os::pidfd(pid).ok(),
            Picture::InPause => None,
        };
        let Some(directory) = folder else {
            // Aborted meanwhile: nobody wants the picture any more.
            if let Some(child) = &child {
                os::kill_pidfd(child);
            }
            self.send(&ToRank::Release { line });
            let reason = "the line was given up while the picture was taken".into();
            return FromNode::StoreFailed { rank, line, reason };
        };
        if let Some(child) = child.as_ref().and_then(|child| child.try_clone().ok()) {
            self.frozen.insert(line, child);
        }
        self.writing.insert(line, directory.clone());
        let mark = self.mark.take().filter(|(of, _)| *of == line).map(|(_, mark)| mark);
        let output = mark.or_else(|| self.output.as_mut().map(Output::mark));
        let program = self.program;
        let job = Job { rank, line, program, picture, child, description, output, directory };
        self.images.push_back(job);
        FromNode::Frozen { rank, line, coordination_ns, pause_ns }
    }

    /// The next image to write.
    pub fn next_image(&mut self) -> Option<Job> {
        self.images.pop_front()
    }

    /// The image is read and written, or not. One that nobody wants any more goes.
    pub fn release(&mut self, line: LineId, rank: PeerId) {
        self.frozen.remove(&line);
        if let Some(folder) = self.writing.remove(&line)
            && !self.folders.contains_key(&line)
        {
            images::discard(&folder, rank);
        }
        self.send(&ToRank::Release { line });
    }

    /// From the coordinator.
    pub fn order(&mut self, message: ToRank) {
        match &message {
            ToRank::StopOutgoing { line } | ToRank::Begin { line, .. } => self.line = Some(*line),
            ToRank::Abort { line, .. } | ToRank::LineComplete { line, .. }
                if self.line == Some(*line) =>
            {
                self.line = None;
            }
            ToRank::MayFinish {} => self.may_finish = true,
            _ => {}
        }
        self.send(&message);
    }

    /// Where the image of a line goes.
    pub fn prepare(&mut self, line: LineId, folder: PathBuf) {
        self.folders.insert(line, folder);
        while self.folders.len() > FOLDERS_MAX {
            self.folders.pop_first();
        }
    }

    /// A line is not wanted any more.
    pub fn discard(&mut self, line: LineId, rank: PeerId) {
        if let Some(folder) = self.folders.remove(&line) {
            images::discard(&folder, rank);
        }
    }

    /// Until somebody coordinates again: the open line will not be.
    pub fn nobody_coordinates(&mut self, reason: &str) {
        if let Some(line) = self.line.take() {
            self.send(&ToRank::Abort { line, reason: reason.to_owned() });
        }
    }

    /// Nobody will ever coordinate again.
    pub fn stay_alone(&mut self) {
        self.nobody_coordinates("there is no coordinator");
        if self.finishing && !self.may_finish {
            self.may_finish = true;
            self.send(&ToRank::MayFinish {});
        }
    }

    /// The program has ended or must end: nobody needs its pictures.
    pub fn give_up(&mut self) {
        self.frozen.values().for_each(os::kill_pidfd);
        self.frozen.clear();
    }
}

/// The line that the job was restarted from, by the name of its folder.
fn line_of(settings: &Settings) -> Option<LineId> {
    let name = settings.restore.as_ref()?.file_name()?.to_str()?;
    name.strip_prefix("line-")?.parse().ok().map(LineId)
}
