//! Recovery of a rank whose program has failed: its guardian reports that to the coordinator, and
//! restarts the program from its image if it is ordered to. It also waits for the guardians and
//! proxies of ranks of lost nodes (`adopted`).
//!
//! 1. The guardian is the process that orted waits for: it ends when its rank has ended and is not
//!    restarted, and not before the guardians that it has started.
//! 2. Without a coordinator, or if it does not decide in time, the guardian ends as its program
//!    did.

use crate::guardian::decision::{DECISION_MAX, Decision};
use crate::guardian::images::{ImageStore, RestartInfo, file_name};
use crate::guardian::output::Ends;
use crate::guardian::{Guardian, failpoints, output};
use crate::link::Link;
use crate::os;
use crate::os::Pid;
use crate::settings;
use crate::settings::{Printed, Settings};
use rustbtl_coordination::control::FromNode;
use rustbtl_fragments::ids::Incarnation;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a killed program may take to end.
const KILL_MAX: Duration = Duration::from_secs(30);

/// The program was ended by a signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// As waitpid returns it.
    pub status: i32,
    /// The coordinator's, what is done about it.
    pub decision: Decision,
}

impl Failure {
    fn of(status: i32) -> Self {
        Self { status, decision: Decision::awaited(Instant::now()) }
    }

    /// There was no decision in time.
    pub fn is_expired(&mut self) -> bool {
        self.decision.is_over(Instant::now())
    }
}

/// Was this guardian started by another one, or by a spare node?
pub(super) fn is_adopted() -> bool {
    std::env::var_os(settings::INCARNATION).is_some()
}

/// How the program is made again.
pub(super) fn restart_info(settings: &Settings) -> RestartInfo {
    RestartInfo { incarnation: settings.incarnation, alone: settings.alone }
}

/// Restores the program from its image in the folder of a checkpoint.
pub(super) fn restore(
    store: &dyn ImageStore,
    settings: &Settings,
    checkpoint: &Path,
    socket: OwnedFd,
    ends: Ends,
) -> Result<Pid, String> {
    failpoints::at(failpoints::RESTORE, settings.rank);
    let image = checkpoint.join(file_name(settings.rank));
    let standard = ends.numbers();
    let restored = store.restore(&image, restart_info(settings), socket.as_raw_fd(), standard);
    // Otherwise the end of the output would never be seen.
    drop(ends);
    restored.map_err(|problem| {
        format!(
            "rank {} cannot be restored from {} on node {}: {problem}",
            settings.rank,
            image.display(),
            os::hostname()
        )
    })
}

impl Guardian {
    /// Of the program that runs, or ran last.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.rank.incarnation().max(self.settings.incarnation)
    }

    /// May the coordinator restart a program that has ended like this?
    pub(super) fn may_be_restarted(&self, status: i32) -> bool {
        // A restarted program is protected even before it has registered again.
        let restarted = self.settings.incarnation > Incarnation(0);
        let protected = self.rank.is_protected() || restarted && !self.rank.has_sent_hello();
        libc::WIFSIGNALED(status) && !self.ending && protected
    }

    /// Reports the failure to the coordinator, which decides.
    pub(super) fn report_failure(&mut self, status: i32) {
        self.failure = Some(Failure::of(status));
        let rank = self.settings.rank;
        let incarnation = self.incarnation();
        tracing::warn!("rank {rank}: its program failed with status {status} in {incarnation:?}");
        self.send(&FromNode::RankFailed { rank, status, incarnation });
        if matches!(self.agent, crate::guardian::AgentLink::None) {
            self.refuse_restart();
        }
    }

    /// The program has failed, and this is all that is done about it.
    pub(super) fn report_undecided(&self, failure: &Failure) {
        if failure.decision.is_missing() {
            let (rank, node) = (self.settings.rank, os::hostname());
            report!(
                "rank {rank} on node {node}: its program has failed, and the job's coordinator has \
                 not decided within {} s whether it is restarted: it is not",
                DECISION_MAX.as_secs()
            );
        }
    }

    /// The program is not restarted: the guardian ends as it did.
    pub(super) fn refuse_restart(&mut self) {
        if let Some(failure) = &mut self.failure {
            failure.decision.give_up();
        }
    }

    /// Rolls the rank back to a checkpoint, whether its program has ended or not.
    pub(super) fn roll_back(&mut self, checkpoint: &str, restart: RestartInfo) {
        if self.ended.is_some() || self.ending {
            return;
        }
        let is_made = self.settings.restore.is_some() && self.rank.program().is_some();
        if is_made && restart.incarnation == self.settings.incarnation {
            // Ordered twice; others may run already, since this one is made.
            return self.report_restored();
        }
        let status = self.kill_program();
        self.suspended = false;
        // The output so far is not lost, and not printed twice.
        if let Some(output) = &mut self.rank.output {
            output.drain();
            let bytes = output.positions();
            // For an adopted rank these replace the positions that it was adopted with.
            self.settings.printed = self.settings.printed.map(|_| Printed { bytes, exact: true });
        }
        self.send_output();
        self.rank.output = None;
        self.restarted |= self.settings.restore.is_none();
        let RestartInfo { incarnation, alone } = restart;
        tracing::info!("rank {}: restart from {checkpoint} in {incarnation:?}", self.settings.rank);
        (self.settings.incarnation, self.settings.alone) = (incarnation, alone);
        let restarted = self.folder(checkpoint).and_then(|checkpoint| {
            self.settings.restore = Some(checkpoint.clone());
            self.restart_from_image(&checkpoint)
        });
        self.report_restored();
        if let Err(reason) = restarted {
            let rank = self.settings.rank;
            self.failure = Some(Failure::of(status.unwrap_or(libc::SIGKILL)));
            self.send(&FromNode::RestoreFailed { rank, incarnation, reason });
        }
    }

    /// The program was made from an image, if it was. It does not run before all are as far.
    pub(super) fn report_restored(&mut self) {
        if self.settings.restore.is_some() && self.rank.program().is_some() {
            let Settings { rank, incarnation, .. } = self.settings;
            self.send(&FromNode::Restored { rank, incarnation });
        }
    }

    /// Kills the program if it runs; returns how it has ended.
    fn kill_program(&mut self) -> Option<i32> {
        let before = self.failure.take().map(|failure| failure.status);
        let Some(program) = self.rank.program() else { return before };
        os::kill(program, libc::SIGKILL);
        let until = Instant::now() + KILL_MAX;
        let mut status = None;
        while status.is_none() && Instant::now() < until {
            status = os::reap(program).ok().flatten();
            if status.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.rank.program_ended(self.settings.rank);
        status.or(before)
    }

    fn restart_from_image(&mut self, checkpoint: &Path) -> Result<(), String> {
        let what = |error: std::io::Error| format!("rank {}: {error}", self.settings.rank);
        let (ours, theirs) = UnixStream::pair().map_err(what)?;
        let link = Link::new(ours).map_err(what)?;
        let (output, mut ends) = output::open(&self.settings);
        if let Some(input) = &mut self.rank.input {
            ends.1 = Some(input.rewind(&crate::guardian::input::mark_of(&self.settings)?)?);
        }
        let theirs = OwnedFd::from(theirs);
        let pid = restore(&*self.store, &self.settings, checkpoint, theirs, ends)?;
        self.rank.restarted(pid, link, output);
        self.rank.begin_restored(restart_info(&self.settings));
        Ok(())
    }

    /// Ends this rank, which was taken for lost and was restarted elsewhere.
    pub(super) fn end_superseded(&mut self, reason: &str) -> ! {
        report!("rank {} on node {}: {reason}", self.settings.rank, os::hostname());
        if is_adopted() {
            // The guardian that has started this one must not take it for a failure.
            self.rank.drop_snapshots(self.settings.rank);
            self.signal(libc::SIGKILL);
            os::exit_now(0);
        }
        self.end_group()
    }

    /// Is it orted, which signals the whole group? The parent of a guardian's orted is anybody: in
    /// mpirun's place the user's shell.
    pub(super) fn is_orted(&self, sender: Pid) -> bool {
        let parent = os::parent();
        sender != 0 && (sender == parent || is_adopted() && sender == os::parent_of(parent))
    }
}
