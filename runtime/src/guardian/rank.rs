//! What a guardian knows of its rank, and the messages between the two.

use crate::guardian::images;
use crate::guardian::images::{ImageTask, RestartInfo};
use crate::guardian::input::Input;
use crate::guardian::output::Output;
use crate::guardian::output_offsets::OutputMark;
use crate::link::Link;
use crate::os;
use crate::os::Pid;
use crate::settings::Settings;
use crate::store;
use rustbtl_coordination::control::{
    CheckpointId, FromNode, FromRank, ReplayBlocker, SnapshotMemory, ToClock, ToRank,
};
use rustbtl_coordination::verbs_drain::{Kept, NOBODY, Names};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Folders that are remembered, to discard checkpoints in them.
const FOLDERS_MAX: usize = 256;

/// A rank.
pub struct GuardedRank {
    /// Its program: our child; `None`: it has ended.
    program: Option<Pid>,
    /// `None`: it has closed it, or violated the protocol.
    link: Option<Link>,
    hello: Option<FromRank>,
    /// It was made from an image, and does not know yet where the others are.
    awaits_endpoints: bool,
    ready: bool,
    finishing: bool,
    may_finish: bool,
    replay_complete: bool,
    /// Why its set cannot be rolled back alone.
    not_replayable: BTreeMap<ReplayBlocker, FromRank>,
    /// Collectives of the program bypass rustbtl.
    bypasses: bool,
    /// What names of its verbs stand for.
    verbs_names: Names,
    /// Its parts in the steps that follow a restart.
    verbs_parts: Kept,
    /// Its replay, or that of another one, has diverged; this program waits for its end.
    diverged: Option<FromRank>,
    /// Checkpoint requests of its program without a result yet.
    requests: BTreeMap<u32, FromRank>,
    /// The checkpoint that it takes part in, until it is complete or aborted.
    open_checkpoint: Option<CheckpointId>,
    /// The youngest checkpoint that is complete or aborted.
    closed_upto: CheckpointId,
    /// A snapshot of a checkpoint that was not ordered here yet: another rank's token was faster.
    early_snapshot: Option<(CheckpointId, FromRank)>,
    folders: BTreeMap<CheckpointId, PathBuf>,
    images: VecDeque<ImageTask>,
    /// Folders of images that are being written.
    writing: BTreeMap<CheckpointId, PathBuf>,
    /// Frozen children whose image is being written.
    frozen: BTreeMap<CheckpointId, OwnedFd>,
    /// Its output; `None`: that goes to orted without this guardian.
    pub output: Option<Output>,
    /// What it reads from its standard input, if that is passed on.
    pub input: Option<Input>,
    /// Position of the output when the program was suspended.
    mark: Option<(CheckpointId, OutputMark)>,
}

impl GuardedRank {
    /// A program that has just been started.
    pub fn new(program: Pid, link: Link, output: Option<Output>, input: Option<Input>) -> Self {
        Self {
            program: Some(program),
            link: Some(link),
            hello: None,
            awaits_endpoints: false,
            ready: false,
            finishing: false,
            may_finish: false,
            replay_complete: false,
            not_replayable: BTreeMap::new(),
            bypasses: false,
            verbs_names: Names::default(),
            verbs_parts: Kept::default(),
            diverged: None,
            requests: BTreeMap::new(),
            open_checkpoint: None,
            closed_upto: CheckpointId(0),
            early_snapshot: None,
            folders: BTreeMap::new(),
            images: VecDeque::new(),
            writing: BTreeMap::new(),
            frozen: BTreeMap::new(),
            output,
            input,
            mark: None,
        }
    }

    /// The program was restarted from an image: messages of the one before count no more.
    pub fn restarted(&mut self, program: Pid, link: Link, output: Option<Output>) {
        let folders = core::mem::take(&mut self.folders);
        let writing = core::mem::take(&mut self.writing);
        let closed_upto = self.closed_upto;
        let input = self.input.take();
        *self = Self { folders, writing, closed_upto, ..Self::new(program, link, output, input) };
    }

    /// It is made from an image, and will run in this incarnation.
    pub fn begin_restored(&mut self, restart: RestartInfo) {
        let RestartInfo { incarnation, alone } = restart;
        self.awaits_endpoints = true;
        self.send(&ToRank::Restarted { incarnation, alone });
    }

    /// Was it made from an image, without having learnt where the others are?
    pub fn awaits_endpoints(&self) -> bool {
        self.awaits_endpoints && self.program.is_some()
    }

    /// Its program, while it runs.
    pub fn program(&self) -> Option<Pid> {
        self.program
    }

    /// The program has ended.
    pub fn program_ended(&mut self, rank: PeerId) {
        self.program = None;
        self.drop_snapshots(rank);
    }

    /// Is it past MPI_Finalize?
    pub fn has_finished(&self) -> bool {
        self.may_finish
    }

    /// Can it be restarted in the middle of the job?
    pub fn is_protected(&self) -> bool {
        self.hello.is_some() && !self.may_finish
    }

    /// Has this incarnation registered?
    pub fn has_sent_hello(&self) -> bool {
        self.hello.is_some()
    }

    /// To poll, while it is open.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// As it has reported itself.
    pub fn incarnation(&self) -> Incarnation {
        match &self.hello {
            Some(FromRank::Hello { incarnation, .. }) => *incarnation,
            _ => Incarnation(0),
        }
    }

    /// Messages that a new coordinator has to receive.
    pub fn messages_to_repeat(&self) -> Vec<FromRank> {
        let mut all: Vec<FromRank> = self.hello.clone().into_iter().collect();
        all.extend(self.not_replayable.values().cloned());
        all.extend(self.bypasses.then_some(FromRank::CollectivesBypass {}));
        let name = |(name, generation, value): (&[u8], u64, &[u8])| FromRank::VerbsName {
            name: name.to_vec(),
            generation,
            value: value.to_vec(),
        };
        all.extend(self.verbs_names.iter().map(name));
        let part = |(checkpoint, step, part): (u64, u32, &[u8])| FromRank::VerbsPart {
            checkpoint: CheckpointId(checkpoint),
            step,
            part: part.to_vec(),
        };
        all.extend(self.verbs_parts.iter().map(part));
        all.extend(self.ready.then_some(FromRank::Ready {}));
        all.extend(self.diverged.clone());
        all.extend(self.replay_complete.then_some(FromRank::ReplayComplete {}));
        all.extend(self.requests.values().cloned());
        all.extend(self.finishing.then_some(FromRank::Finishing {}));
        all
    }

    /// Sends to the program.
    pub fn send(&mut self, message: &ToRank) {
        if let Some(link) = &mut self.link
            && link.send(message).is_err()
        {
            self.link = None;
        }
    }

    /// Receives what the rank has sent; returns what the coordinator is sent of it.
    pub fn receive(&mut self, settings: &Settings, unprotected: bool) -> Vec<FromNode> {
        let mut messages = Vec::new();
        if let Some(link) = &mut self.link {
            let open = link.flush().is_ok() & link.read().is_ok();
            let sane = loop {
                match link.next_message::<FromRank>() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break true,
                    Err(error) => {
                        report!("rank {} sends {error}", settings.rank);
                        break false;
                    }
                }
            };
            if !open || !sane {
                self.link = None;
            }
        }
        let handled =
            messages.into_iter().filter_map(|message| self.handle(message, settings, unprotected));
        handled.collect()
    }

    fn handle(
        &mut self,
        message: FromRank,
        settings: &Settings,
        unprotected: bool,
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
                let (job, restarted_from) = (settings.job.clone(), restarted_from(settings));
                self.send(&ToRank::Welcome { job, restarted_from });
                self.send_coordinator(settings);
            }
            FromRank::Ready {} => self.ready = true,
            FromRank::CollectivesBypass {} => self.bypasses = true,
            FromRank::VerbsName { name, generation, value } => {
                // What is refused here the coordinator refuses, too, and says so.
                let _ = self.verbs_names.publish(name.clone(), *generation, value.clone());
            }
            FromRank::VerbsPart { checkpoint, step, part } => {
                self.verbs_parts.give((checkpoint.0, *step), part);
            }
            FromRank::FindVerbsName { number, .. } if unprotected => {
                self.send(&ToRank::VerbsNameFound { number: *number, value: NOBODY.to_vec() });
                return None;
            }
            FromRank::ReplayComplete {} => self.replay_complete = true,
            FromRank::ReplayPending { .. } => self.replay_complete = false,
            FromRank::NotReplayable { blocker, .. } => {
                self.not_replayable.insert(*blocker, message.clone());
            }
            FromRank::Diverged { rank, problem } => {
                if unprotected {
                    // Nobody rolls it back.
                    report!("rank {rank} did not repeat what it had done: {problem}");
                    self.program.into_iter().for_each(|pid| os::kill(pid, libc::SIGABRT));
                }
                self.diverged = Some(message.clone());
            }
            FromRank::Finishing {} => {
                self.finishing = true;
                if unprotected {
                    self.disable_protection();
                }
            }
            FromRank::RequestCheckpoint { number, .. } if unprotected => {
                let problem = "no coordinator can be reached, see the message above".into();
                self.send(&ToRank::CheckpointRequestResult {
                    number: *number,
                    checkpoint: CheckpointId(0),
                    problem,
                });
            }
            FromRank::RequestCheckpoint { number, .. } => {
                self.requests.insert(*number, message.clone());
            }
            FromRank::Suspended { checkpoint } => {
                let checkpoint = *checkpoint;
                self.mark = self.take_mark(checkpoint).map(|mark| (checkpoint, mark));
                self.send(&ToRank::OutputDrained { checkpoint });
                return None;
            }
            FromRank::Frozen { .. } => return self.frozen(message, mine),
            _ => {}
        }
        Some(FromNode::Rank { rank: mine, message })
    }

    /// Sends the rank the coordinator's addresses.
    pub fn send_coordinator(&mut self, settings: &Settings) {
        if self.hello.is_some() {
            let addresses: Vec<String> =
                settings.coordinator.iter().map(ToString::to_string).collect();
            let secret = settings.secret.to_vec();
            self.send(&ToRank::Coordinator { addresses: addresses.join(" "), secret });
        }
    }

    /// Positions of the standard streams while the program is suspended.
    fn take_mark(&mut self, checkpoint: CheckpointId) -> Option<OutputMark> {
        let mut mark = self.output.as_mut().map(Output::mark)?;
        mark.1 = self.input.as_mut().map(|input| input.mark(checkpoint)).unwrap_or_default();
        Some(mark)
    }

    fn frozen(&mut self, message: FromRank, rank: PeerId) -> Option<FromNode> {
        let checkpoint = match message {
            FromRank::Frozen { checkpoint, .. } => checkpoint,
            message => return Some(FromNode::Rank { rank, message }),
        };
        let wanted = checkpoint > self.closed_upto;
        let folder = self.folders.get(&checkpoint).filter(|_| wanted).cloned();
        if wanted && folder.is_none() {
            self.early_snapshot = Some((checkpoint, message));
            return None;
        }
        let FromRank::Frozen { snapshot, description, coordination_ns, pause_ns, .. } = message
        else {
            return None;
        };
        let child = match snapshot {
            SnapshotMemory::Child(pid) => os::pidfd(pid).ok(),
            SnapshotMemory::InPause => None,
        };
        let Some(directory) = folder else {
            // The checkpoint was aborted meanwhile.
            if let Some(child) = &child {
                os::kill_pidfd(child);
            }
            self.send(&ToRank::Release { checkpoint });
            let reason = "the checkpoint was aborted while the snapshot was taken".into();
            return Some(FromNode::StoreFailed { rank, checkpoint, reason });
        };
        if let Some(child) = child.as_ref().and_then(|child| child.try_clone().ok()) {
            self.frozen.insert(checkpoint, child);
        }
        self.writing.insert(checkpoint, directory.clone());
        let mark = self.mark.take().filter(|(of, _)| *of == checkpoint).map(|(_, mark)| mark);
        let output = mark.or_else(|| self.take_mark(checkpoint));
        let Some(program) = self.program else {
            let reason = "the program has ended".into();
            return Some(FromNode::StoreFailed { rank, checkpoint, reason });
        };
        let limited = false;
        let task = ImageTask {
            rank,
            checkpoint,
            program,
            snapshot,
            child,
            description,
            output,
            directory,
            times: None,
            limited,
        };
        self.images.push_back(task);
        Some(FromNode::Frozen { rank, checkpoint, coordination_ns, pause_ns })
    }

    /// Drops the early snapshot if its checkpoint is closed.
    fn drop_early_snapshot(&mut self) {
        let Some((checkpoint, message)) =
            self.early_snapshot.take_if(|(checkpoint, _)| *checkpoint <= self.closed_upto)
        else {
            return;
        };
        if let FromRank::Frozen { snapshot: SnapshotMemory::Child(pid), .. } = message
            && let Ok(child) = os::pidfd(pid)
        {
            os::kill_pidfd(&child);
        }
        self.send(&ToRank::Release { checkpoint });
    }

    /// The next image to write.
    pub fn next_image(&mut self) -> Option<ImageTask> {
        self.images.pop_front()
    }

    /// The writer of the image is done. An image that was discarded meanwhile is removed.
    pub fn release(&mut self, checkpoint: CheckpointId, rank: PeerId) {
        self.frozen.remove(&checkpoint);
        if let Some(folder) = self.writing.remove(&checkpoint)
            && !self.folders.contains_key(&checkpoint)
        {
            images::discard(&folder, rank);
        }
        self.send(&ToRank::Release { checkpoint });
    }

    /// From the coordinator.
    pub fn handle_order(&mut self, message: ToRank) {
        // Ordered only when all ranks run.
        if matches!(message, ToRank::StopOutgoing { .. } | ToRank::MayFinish {}) {
            self.verbs_parts.forget();
        }
        match &message {
            ToRank::StopOutgoing { checkpoint }
            | ToRank::Begin { checkpoint, .. }
            | ToRank::Clock { message: ToClock::Drain { checkpoint } } => {
                self.open_checkpoint = Some(*checkpoint)
            }
            ToRank::Abort { checkpoint, .. } | ToRank::CheckpointComplete { checkpoint, .. } => {
                self.closed_upto = self.closed_upto.max(*checkpoint);
                self.open_checkpoint = self.open_checkpoint.filter(|open| open != checkpoint);
                self.drop_early_snapshot();
                if let (ToRank::CheckpointComplete { oldest, .. }, Some(input)) =
                    (&message, &mut self.input)
                {
                    input.keep_from(*oldest);
                }
            }
            ToRank::MayFinish {} => self.may_finish = true,
            ToRank::Endpoints { .. } => self.awaits_endpoints = false,
            ToRank::CheckpointRequestResult { number, .. } => drop(self.requests.remove(number)),
            _ => {}
        }
        self.send(&message);
    }

    /// Names the folder for the image of a checkpoint. If the rank's snapshot is there already:
    /// what the coordinator is sent of it.
    pub fn prepare(
        &mut self,
        checkpoint: CheckpointId,
        folder: PathBuf,
        rank: PeerId,
    ) -> Option<FromNode> {
        self.folders.insert(checkpoint, folder);
        while self.folders.len() > FOLDERS_MAX {
            self.folders.pop_first();
        }
        let (_, message) = self.early_snapshot.take_if(|(early, _)| *early == checkpoint)?;
        self.frozen(message, rank)
    }

    /// Discards a checkpoint.
    pub fn discard(&mut self, checkpoint: CheckpointId, rank: PeerId) {
        if let Some(folder) = self.folders.remove(&checkpoint) {
            images::discard(&folder, rank);
        }
    }

    /// Agent or coordinator are lost: the open checkpoint is aborted.
    pub fn abort_checkpoint(&mut self, reason: &str) {
        if let Some(checkpoint) = self.open_checkpoint.take() {
            self.closed_upto = self.closed_upto.max(checkpoint);
            self.send(&ToRank::Abort { checkpoint, reason: reason.to_owned() });
        }
        if let Some((checkpoint, _)) = &self.early_snapshot {
            self.closed_upto = self.closed_upto.max(*checkpoint);
            self.drop_early_snapshot();
        }
    }

    /// There will be no coordinator any more.
    pub fn disable_protection(&mut self) {
        self.abort_checkpoint("there is no coordinator");
        // Nobody will ask for them.
        (self.verbs_names, self.verbs_parts) = Default::default();
        for number in core::mem::take(&mut self.requests).into_keys() {
            let problem = "the job's coordinator has ended, and there is no other".into();
            self.send(&ToRank::CheckpointRequestResult {
                number,
                checkpoint: CheckpointId(0),
                problem,
            });
        }
        // Nobody stores determinants, so nothing may wait for them.
        let incarnation = self.incarnation();
        self.send(&ToRank::Stable { incarnation, upto: u64::MAX });
        if self.finishing && !self.may_finish {
            self.may_finish = true;
            self.send(&ToRank::MayFinish {});
        }
    }

    /// The program has ended or must end: drops its snapshots and incomplete images.
    pub fn drop_snapshots(&mut self, rank: PeerId) {
        self.frozen.values().for_each(os::kill_pidfd);
        self.frozen.clear();
        let writing = core::mem::take(&mut self.writing);
        writing.values().for_each(|folder| images::discard(folder, rank));
    }
}

/// The checkpoint that the job was restarted from, by the name of its folder.
fn restarted_from(settings: &Settings) -> Option<CheckpointId> {
    store::checkpoint_number(settings.restore.as_deref()?)
}

#[cfg(test)]
mod tests;
