//! A rank whose program was ended by a signal is not lost: its guardian tells the coordinator, and
//! makes the program anew from its image if that is what it says. It also waits for others, which
//! look after ranks whose node is lost (`adopted`).
//!
//! 1. The guardian stays what orted knows: it ends when its rank has ended for good, and not before
//!    the guardians that it has started.
//! 2. Without a coordinator, or if it does not decide in time, the rank ends as it has ended.

use crate::guardian::images::{ImageStore, Life, file_name};
use crate::guardian::output::Ends;
use crate::guardian::{Guardian, output};
use crate::link::Link;
use crate::os;
use crate::os::Pid;
use crate::settings;
use crate::settings::{Printed, Settings};
use rustbtl_coordination::control::{FromNode, ToRank};
use rustbtl_fragments::ids::Incarnation;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the decision about a fallen rank may take.
const DECISION: Duration = Duration::from_secs(30);
/// How long a killed program may take to go.
const KILLED: Duration = Duration::from_secs(30);

/// The program was ended by a signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fallen {
    /// As waitpid tells it.
    pub status: i32,
    /// When the decision is not awaited any more.
    pub until: Instant,
}

impl Fallen {
    /// Nobody has decided in time.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Has another guardian started this one, or a spare node?
pub(super) fn is_adopted() -> bool {
    std::env::var_os(settings::INCARNATION).is_some()
}

/// Make the program from its image in the folder `line`.
pub(super) fn restore(
    store: &dyn ImageStore,
    settings: &Settings,
    line: &Path,
    socket: OwnedFd,
    ends: Ends,
) -> Result<Pid, String> {
    let image = line.join(file_name(settings.rank));
    let standard = ends.numbers();
    let life = Life { incarnation: settings.incarnation, alone: settings.alone };
    let restored = store.restore(&image, life, socket.as_raw_fd(), standard);
    // Or the end of the output would never be seen.
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
    /// That the program runs in, or ran in.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.rank.incarnation().max(self.settings.incarnation)
    }

    /// Is it worth asking the coordinator about a program that has ended like this?
    pub(super) fn may_come_back(&self, status: i32) -> bool {
        // One that goes on alone from an image was protected before it says so again.
        let returned = self.settings.incarnation > Incarnation(0);
        let protected = self.rank.is_protected() || returned && !self.rank.has_said_hello();
        libc::WIFSIGNALED(status) && !self.ending && protected
    }

    /// Ask it.
    pub(super) fn fall(&mut self, status: i32) {
        self.fallen = Some(Fallen { status, until: Instant::now() + DECISION });
        let rank = self.settings.rank;
        let incarnation = self.incarnation();
        tracing::warn!("rank {rank}: its program failed with status {status} in {incarnation:?}");
        self.tell(&FromNode::RankFailed { rank, status, incarnation });
        if matches!(self.agent, crate::guardian::Agent::None) {
            self.give_up();
        }
    }

    /// It is not started again.
    pub(super) fn give_up(&mut self) {
        if let Some(fallen) = &mut self.fallen {
            fallen.until = Instant::now();
        }
    }

    /// Start the rank again, whether its program has ended or not.
    pub(super) fn start_again(&mut self, line: &str, life: Life) {
        if self.ended.is_some() || self.ending {
            return;
        }
        let status = self.kill_program();
        // What was printed is not lost, and not printed again.
        if let Some(output) = &mut self.rank.output {
            output.drain();
            let bytes = output.reached();
            // Of an adopted rank it was said how far it was then.
            self.settings.printed = self.settings.printed.map(|_| Printed { bytes, exact: true });
        }
        self.send_output();
        self.rank.output = None;
        self.made_anew |= self.settings.restore.is_none();
        let Life { incarnation, alone } = life;
        tracing::info!("rank {}: restart from {line} in {incarnation:?}", self.settings.rank);
        (self.settings.incarnation, self.settings.alone) = (incarnation, alone);
        let made = self.folder(line).and_then(|line| {
            self.settings.restore = Some(line.clone());
            self.make_anew(&line)
        });
        if let Err(reason) = made {
            let rank = self.settings.rank;
            let until = Instant::now() + DECISION;
            self.fallen = Some(Fallen { status: status.unwrap_or(libc::SIGKILL), until });
            self.tell(&FromNode::RestoreFailed { rank, incarnation, reason });
        }
    }

    /// How it has ended, if it had not before.
    fn kill_program(&mut self) -> Option<i32> {
        let before = self.fallen.take().map(|fallen| fallen.status);
        let Some(program) = self.rank.program() else { return before };
        os::kill(program, libc::SIGKILL);
        let until = Instant::now() + KILLED;
        let mut status = None;
        while status.is_none() && Instant::now() < until {
            status = os::reap(program).ok().flatten();
            if status.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.rank.is_dead(self.settings.rank);
        status.or(before)
    }

    fn make_anew(&mut self, line: &Path) -> Result<(), String> {
        let what = |error: std::io::Error| format!("rank {}: {error}", self.settings.rank);
        let (ours, theirs) = UnixStream::pair().map_err(what)?;
        let link = Link::new(ours).map_err(what)?;
        let (output, ends) = output::open(&self.settings);
        let theirs = OwnedFd::from(theirs);
        let pid = restore(&*self.store, &self.settings, line, theirs, ends)?;
        self.rank.reborn(pid, link, output);
        let incarnation = self.settings.incarnation;
        self.rank.say(&ToRank::Restarted { incarnation });
        Ok(())
    }

    /// The job goes on without this rank, which was thought to be lost and was started elsewhere.
    pub(super) fn end_here(&mut self, reason: &str) -> ! {
        say!("rank {} on node {}: {reason}", self.settings.rank, os::hostname());
        if is_adopted() {
            // The guardian that has started this one must not take it for a failure.
            self.rank.give_up(self.settings.rank);
            self.signal(libc::SIGKILL);
            os::exit_now(0);
        }
        self.end_group()
    }

    /// Is it the process that gives orders to the group?
    pub(super) fn orted_is(&self, sender: Pid) -> bool {
        sender != 0 && (sender == os::parent() || sender == os::parent_of(os::parent()))
    }
}
