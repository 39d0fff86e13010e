//! What a guardian knows of its rank, and what they say to each other.

use crate::guardian::images;
use crate::guardian::images::Job;
use crate::guardian::output::Output;
use crate::guardian::output_offsets::Mark;
use crate::link::Link;
use crate::os;
use crate::os::Pid;
use crate::settings::Settings;
use crate::store;
use rustbtl_coordination::control::{
    CheckpointId, FromNode, FromRank, ReplayBlocker, SnapshotMemory, ToRank,
};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Folders that are remembered: to discard the lines in them.
const FOLDERS_MAX: usize = 256;

/// A rank.
pub struct Rank {
    /// Its program: our child; `None`: it has ended.
    program: Option<Pid>,
    /// `None`: it has closed it, or sent nonsense.
    link: Option<Link>,
    hello: Option<FromRank>,
    ready: bool,
    finishing: bool,
    may_finish: bool,
    /// It has repeated what was lost.
    caught_up: bool,
    /// Why its set cannot go back alone.
    not_recording: BTreeMap<ReplayBlocker, FromRank>,
    /// Lines that its program has asked for, without an answer yet.
    asked: BTreeMap<u32, FromRank>,
    /// The line that it takes part in, until it is complete or aborted.
    line: Option<CheckpointId>,
    /// The youngest line that is complete or aborted.
    over: CheckpointId,
    /// A picture of a line that was not ordered here yet: another rank's token was faster.
    early: Option<(CheckpointId, FromRank)>,
    folders: BTreeMap<CheckpointId, PathBuf>,
    images: VecDeque<Job>,
    /// Folders of images that are being written.
    writing: BTreeMap<CheckpointId, PathBuf>,
    /// Frozen children whose image is being written.
    frozen: BTreeMap<CheckpointId, OwnedFd>,
    /// What it prints; `None`: that goes to orted by itself.
    pub output: Option<Output>,
    /// Where the output was when the program stood still.
    mark: Option<(CheckpointId, Mark)>,
}

impl Rank {
    /// A program that has just been started.
    pub fn new(program: Pid, link: Link, output: Option<Output>) -> Self {
        Self {
            program: Some(program),
            link: Some(link),
            hello: None,
            ready: false,
            finishing: false,
            may_finish: false,
            caught_up: false,
            not_recording: BTreeMap::new(),
            asked: BTreeMap::new(),
            line: None,
            over: CheckpointId(0),
            early: None,
            folders: BTreeMap::new(),
            images: VecDeque::new(),
            writing: BTreeMap::new(),
            frozen: BTreeMap::new(),
            output,
            mark: None,
        }
    }

    /// The program has been made anew from an image: what it said before counts no more.
    pub fn reborn(&mut self, program: Pid, link: Link, output: Option<Output>) {
        let folders = core::mem::take(&mut self.folders);
        let writing = core::mem::take(&mut self.writing);
        let over = self.over;
        *self = Self { folders, writing, over, ..Self::new(program, link, output) };
    }

    /// Its program, while it lives.
    pub fn program(&self) -> Option<Pid> {
        self.program
    }

    /// The program has ended.
    pub fn is_dead(&mut self, rank: PeerId) {
        self.program = None;
        self.give_up(rank);
    }

    /// Is it past MPI_Finalize?
    pub fn has_finished(&self) -> bool {
        self.may_finish
    }

    /// Can it be started again in the middle of the job?
    pub fn is_protected(&self) -> bool {
        self.hello.is_some() && !self.may_finish
    }

    /// Has this life of it said who it is?
    pub fn has_said_hello(&self) -> bool {
        self.hello.is_some()
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

    /// To the program, from the guardian itself.
    pub fn say(&mut self, message: &ToRank) {
        self.send(message);
    }

    /// What a coordinator that knows nothing has to know.
    pub fn said(&self) -> Vec<FromRank> {
        let mut all: Vec<FromRank> = self.hello.clone().into_iter().collect();
        all.extend(self.not_recording.values().cloned());
        all.extend(self.ready.then_some(FromRank::Ready {}));
        all.extend(self.caught_up.then_some(FromRank::ReplayComplete {}));
        all.extend(self.asked.values().cloned());
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
                self.introduce(settings);
            }
            FromRank::Ready {} => self.ready = true,
            FromRank::ReplayComplete {} => self.caught_up = true,
            FromRank::ReplayPending { .. } => self.caught_up = false,
            FromRank::NotReplayable { blocker: hinders, .. } => {
                self.not_recording.insert(*hinders, message.clone());
            }
            FromRank::Finishing {} => {
                self.finishing = true;
                if alone {
                    self.stay_alone();
                }
            }
            FromRank::RequestCheckpoint { number, .. } if alone => {
                let problem = "no coordinator can be reached, see the message above".into();
                self.send(&ToRank::CheckpointRequestResult { number: *number, checkpoint: CheckpointId(0), problem });
            }
            FromRank::RequestCheckpoint { number, .. } => {
                self.asked.insert(*number, message.clone());
            }
            FromRank::Suspended { checkpoint: line } => {
                let line = *line;
                self.mark = self.output.as_mut().map(|output| (line, output.mark()));
                self.send(&ToRank::OutputDrained { checkpoint: line });
                return None;
            }
            FromRank::Frozen { .. } => return self.frozen(message, mine),
            _ => {}
        }
        Some(FromNode::Rank { rank: mine, message })
    }

    /// Where the rank finds the coordinator itself.
    pub fn introduce(&mut self, settings: &Settings) {
        if self.hello.is_some() {
            let addresses: Vec<String> =
                settings.coordinator.iter().map(ToString::to_string).collect();
            let secret = settings.secret.to_vec();
            self.send(&ToRank::Coordinator { addresses: addresses.join(" "), secret });
        }
    }

    fn frozen(&mut self, message: FromRank, rank: PeerId) -> Option<FromNode> {
        let line = match message {
            FromRank::Frozen { checkpoint: line, .. } => line,
            message => return Some(FromNode::Rank { rank, message }),
        };
        let wanted = line > self.over;
        let folder = self.folders.get(&line).filter(|_| wanted).cloned();
        if wanted && folder.is_none() {
            self.early = Some((line, message));
            return None;
        }
        let FromRank::Frozen { snapshot: picture, description, coordination_ns, pause_ns, .. } = message
        else {
            return None;
        };
        let child = match picture {
            SnapshotMemory::Child(pid) => os::pidfd(pid).ok(),
            SnapshotMemory::InPause => None,
        };
        let Some(directory) = folder else {
            // Aborted meanwhile: nobody wants the picture any more.
            if let Some(child) = &child {
                os::kill_pidfd(child);
            }
            self.send(&ToRank::Release { checkpoint: line });
            let reason = "the line was given up while the picture was taken".into();
            return Some(FromNode::StoreFailed { rank, checkpoint: line, reason });
        };
        if let Some(child) = child.as_ref().and_then(|child| child.try_clone().ok()) {
            self.frozen.insert(line, child);
        }
        self.writing.insert(line, directory.clone());
        let mark = self.mark.take().filter(|(of, _)| *of == line).map(|(_, mark)| mark);
        let output = mark.or_else(|| self.output.as_mut().map(Output::mark));
        let Some(program) = self.program else {
            let reason = "the program has ended".into();
            return Some(FromNode::StoreFailed { rank, checkpoint: line, reason });
        };
        let limited = false;
        let job =
            Job { rank, line, program, picture, child, description, output, directory, limited };
        self.images.push_back(job);
        Some(FromNode::Frozen { rank, checkpoint: line, coordination_ns, pause_ns })
    }

    /// The picture that came too early is not wanted any more.
    fn forget_early(&mut self) {
        let Some((line, message)) = self.early.take_if(|(line, _)| *line <= self.over) else {
            return;
        };
        if let FromRank::Frozen { snapshot: SnapshotMemory::Child(pid), .. } = message
            && let Ok(child) = os::pidfd(pid)
        {
            os::kill_pidfd(&child);
        }
        self.send(&ToRank::Release { checkpoint: line });
    }

    /// The next image to write.
    pub fn next_image(&mut self) -> Option<Job> {
        self.images.pop_front()
    }

    /// The image is read and written, or not. One that nobody wants any more goes.
    pub fn release(&mut self, line: CheckpointId, rank: PeerId) {
        self.frozen.remove(&line);
        if let Some(folder) = self.writing.remove(&line)
            && !self.folders.contains_key(&line)
        {
            images::discard(&folder, rank);
        }
        self.send(&ToRank::Release { checkpoint: line });
    }

    /// From the coordinator.
    pub fn order(&mut self, message: ToRank) {
        match &message {
            ToRank::StopOutgoing { checkpoint: line } | ToRank::Begin { checkpoint: line, .. } => self.line = Some(*line),
            ToRank::Abort { checkpoint: line, .. } | ToRank::CheckpointComplete { checkpoint: line, .. } => {
                self.over = self.over.max(*line);
                self.line = self.line.filter(|open| open != line);
                self.forget_early();
            }
            ToRank::MayFinish {} => self.may_finish = true,
            ToRank::CheckpointRequestResult { number, .. } => drop(self.asked.remove(number)),
            _ => {}
        }
        self.send(&message);
    }

    /// Where the image of a line goes.
    /// If the rank has its picture already: what the coordinator has to hear of it.
    pub fn prepare(
        &mut self,
        line: CheckpointId,
        folder: PathBuf,
        rank: PeerId,
    ) -> Option<FromNode> {
        self.folders.insert(line, folder);
        while self.folders.len() > FOLDERS_MAX {
            self.folders.pop_first();
        }
        let (_, message) = self.early.take_if(|(early, _)| *early == line)?;
        self.frozen(message, rank)
    }

    /// A line is not wanted any more.
    pub fn discard(&mut self, line: CheckpointId, rank: PeerId) {
        if let Some(folder) = self.folders.remove(&line) {
            images::discard(&folder, rank);
        }
    }

    /// Until somebody coordinates again: the open line will not be.
    pub fn nobody_coordinates(&mut self, reason: &str) {
        if let Some(line) = self.line.take() {
            self.over = self.over.max(line);
            self.send(&ToRank::Abort { checkpoint: line, reason: reason.to_owned() });
        }
        if let Some((line, _)) = &self.early {
            self.over = self.over.max(*line);
            self.forget_early();
        }
    }

    /// Nobody will ever coordinate again.
    pub fn stay_alone(&mut self) {
        self.nobody_coordinates("there is no coordinator");
        for number in core::mem::take(&mut self.asked).into_keys() {
            let problem = "the job's coordinator has ended, and there is no other".into();
            self.send(&ToRank::CheckpointRequestResult { number, checkpoint: CheckpointId(0), problem });
        }
        // Nobody keeps determinants, so nothing has to wait for them.
        let incarnation = self.incarnation();
        self.send(&ToRank::Stable { incarnation, upto: u64::MAX });
        if self.finishing && !self.may_finish {
            self.may_finish = true;
            self.send(&ToRank::MayFinish {});
        }
    }

    /// The program has ended or must end: nobody needs its pictures, nor half of an image.
    pub fn give_up(&mut self, rank: PeerId) {
        self.frozen.values().for_each(os::kill_pidfd);
        self.frozen.clear();
        let writing = core::mem::take(&mut self.writing);
        writing.values().for_each(|folder| images::discard(folder, rank));
    }
}

/// The line that the job was restarted from, by the name of its folder.
fn line_of(settings: &Settings) -> Option<CheckpointId> {
    store::line_number(settings.restore.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_fragments::ids::SetId;

    const LINE: CheckpointId = CheckpointId(4);

    fn rank() -> (Rank, std::os::unix::net::UnixStream) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        (Rank::new(1, Link::new(ours).unwrap(), None), theirs)
    }

    fn picture() -> FromRank {
        FromRank::Frozen {
            checkpoint: LINE,
            snapshot: SnapshotMemory::InPause,
            description: vec![1],
            coordination_ns: 0,
            pause_ns: 0,
        }
    }

    #[test]
    fn a_picture_that_is_faster_than_its_order_waits_for_it() {
        let (mut rank, _theirs) = rank();
        assert_eq!(rank.frozen(picture(), PeerId(2)), None);
        assert!(rank.next_image().is_none());
        let told = rank.prepare(LINE, "/x".into(), PeerId(2));
        assert!(matches!(told, Some(FromNode::Frozen { checkpoint: LINE, .. })));
        assert_eq!(rank.next_image().unwrap().directory, PathBuf::from("/x"));
        assert_eq!(rank.prepare(CheckpointId(5), "/y".into(), PeerId(2)), None);
    }

    #[test]
    fn of_an_image_that_is_being_written_when_the_program_ends_nothing_stays() {
        let (mut rank, _theirs) = rank();
        let folder = std::env::temp_dir().join(format!("rbt-rank-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        rank.prepare(LINE, folder.clone(), PeerId(2));
        assert!(rank.frozen(picture(), PeerId(2)).is_some());
        for file in ["rank-2.img.tmp", "rank-2.img.tmp.tmp", "rank-2.out"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        rank.give_up(PeerId(2));
        assert!(!folder.exists());
    }

    #[test]
    fn a_picture_of_a_line_that_is_aborted_before_its_order_is_released() {
        let (mut rank, _theirs) = rank();
        assert_eq!(rank.frozen(picture(), PeerId(2)), None);
        rank.order(ToRank::Abort { checkpoint: LINE, reason: String::new() });
        assert!(rank.early.is_none());
        assert_eq!(rank.prepare(LINE, "/x".into(), PeerId(2)), None);
        // One that comes after the end of its line is refused.
        let told = rank.frozen(picture(), PeerId(2));
        assert!(matches!(told, Some(FromNode::StoreFailed { checkpoint: LINE, .. })));
        assert!(rank.next_image().is_none());
    }

    /// What is lost on the way is asked for again by the coordinator.
    #[test]
    fn questions_about_a_fallen_set_and_what_was_carried_are_passed_on_and_not_kept() {
        let settings = Settings {
            job: String::new(),
            secret: Default::default(),
            coordinator: Vec::new(),
            restore: None,
            incarnation: Incarnation(0),
            alone: false,
            folder: None,
            local: None,
            printed: None,
            prints: false,
            rank: PeerId(2),
            size: 4,
            tmp: PathBuf::new(),
        };
        let (mut rank, theirs) = rank();
        let mut program = Link::new(theirs).unwrap();
        let (set, before, incarnation) = (SetId(1), Incarnation(1), Incarnation(0));
        rank.order(ToRank::Fence { set, before });
        program.read().unwrap();
        assert_eq!(program.next_message().unwrap(), Some(ToRank::Fence { set, before }));
        let carried = FromRank::Piggybacked { incarnation, at: 3, bytes: vec![7] };
        let fenced = FromRank::Fenced { set, before, incarnation, recorded: 4 };
        let said = [carried, fenced];
        said.iter().for_each(|message| program.send(message).unwrap());
        let of = |message| FromNode::Rank { rank: PeerId(2), message };
        assert_eq!(rank.hear(&settings, false), said.map(of));
        assert_eq!(rank.said(), []);
    }
}
