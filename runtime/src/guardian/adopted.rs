//! Ranks whose node is lost, and that go on under a guardian which somebody waits for: the guardian
//! of another rank. It has started theirs, or, if they are on a spare node, a stand-in for it.

use super::Guardian;
use crate::os;
use crate::settings::{self, Printed};
use crate::spare::StandIn;
use rustbtl_coordination::control::FromNode;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

/// What a stand-in says at most about its end.
const REASON_BYTES_MAX: u64 = 1000;

/// The guardian or the stand-in of a rank.
pub(super) struct Adopted {
    child: Child,
    rank: PeerId,
    incarnation: Incarnation,
    /// Of a stand-in: why its rank cannot be reached any more, if that is its end.
    lost: Option<UnixStream>,
}

impl Adopted {
    /// The rank did not end: it cannot be reached.
    fn why_lost(&mut self) -> Option<String> {
        let mut reason = String::new();
        let lost = self.lost.take()?;
        lost.set_nonblocking(true).ok()?;
        // Whoever else is in the group may hold the other end; what was said is here.
        let _ = lost.take(REASON_BYTES_MAX).read_to_string(&mut reason);
        (!reason.is_empty()).then_some(reason)
    }
}

impl Guardian {
    /// Start a guardian for a rank whose node is lost.
    pub(super) fn adopt(
        &mut self,
        rank: PeerId,
        line: &str,
        incarnation: Incarnation,
        printed: Printed,
    ) {
        let line = match self.folder(line) {
            Ok(line) => line,
            Err(reason) => return self.tell(&FromNode::NotRestored { rank, reason }),
        };
        let mut guardian = os::this_program();
        guardian.arg("guardian").arg(crate::command::PLACEHOLDER).stdin(Stdio::null());
        guardian.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        guardian.env(settings::RESTORE, line);
        guardian.env(settings::INCARNATION, incarnation.to_string());
        guardian.env(settings::PRINTED, printed.to_string());
        match guardian.spawn() {
            Ok(child) => self.take_up(Adopted { child, rank, incarnation, lost: None }),
            Err(error) => {
                let node = os::hostname();
                let reason = format!("starting a guardian for rank {rank} on node {node}: {error}");
                self.tell(&FromNode::NotRestored { rank, reason });
            }
        }
    }

    /// Have it started on a spare node.
    pub(super) fn adopt_at(
        &mut self,
        rank: PeerId,
        incarnation: Incarnation,
        stand_in: Result<StandIn, String>,
    ) {
        self.abandon(rank);
        let started = stand_in.and_then(|stand_in| start(&stand_in));
        match started {
            Ok((child, lost)) => {
                self.take_up(Adopted { child, rank, incarnation, lost: Some(lost) });
            }
            Err(reason) => self.unhosted(rank, incarnation, reason),
        }
    }

    fn take_up(&mut self, adopted: Adopted) {
        // What both print goes the same way.
        self.own_way = None;
        self.adopted.push(adopted);
    }

    /// It goes on elsewhere; its node may be lost without a word.
    pub(super) fn abandon(&mut self, rank: PeerId) {
        self.adopted.retain_mut(|adopted| {
            let earlier = adopted.rank == rank && adopted.lost.is_some();
            if earlier {
                let _ = adopted.child.kill();
                let _ = adopted.child.wait();
            }
            !earlier
        });
    }

    fn unhosted(&mut self, rank: PeerId, incarnation: Incarnation, reason: String) {
        let host = self.settings.rank;
        self.tell(&FromNode::Unhosted { host, rank, incarnation, reason });
    }

    /// How all have ended, the own program and those of adopted guardians: once all have, or one
    /// has failed. A failure does not wait for anybody: orted has to know at once.
    pub(super) fn status_of_all(&mut self) -> Option<i32> {
        let mut failed = self.ended.filter(|status| *status != 0);
        let mut unhosted = Vec::new();
        self.adopted.retain_mut(|adopted| match adopted.child.try_wait() {
            Ok(Some(status)) => {
                if let Some(reason) = adopted.why_lost() {
                    unhosted.push((adopted.rank, adopted.incarnation, reason));
                } else {
                    failed = failed.or((!status.success()).then_some(status.into_raw()));
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        for (rank, incarnation, reason) in unhosted {
            self.unhosted(rank, incarnation, reason);
        }
        if failed.is_some() {
            self.signal(libc::SIGKILL);
        }
        failed.or(self.ended.filter(|_| self.adopted.is_empty()))
    }
}

fn start(stand_in: &StandIn) -> Result<(Child, UnixStream), String> {
    let what = |error: std::io::Error| format!("starting a stand-in: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(what)?;
    let mut command = os::this_program();
    stand_in.words(&mut command);
    let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(what)?;
    Ok((child, ours))
}
