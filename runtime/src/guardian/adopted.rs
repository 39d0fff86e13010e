//! Ranks whose node is lost, and that go on under a guardian which somebody waits for: the guardian
//! of another rank. It has started theirs, or, if they are on a spare node, a stand-in for it.

use crate::guardian::Guardian;
use crate::guardian::exit_report;
use crate::guardian::exit_report::{Awaited, Word};
use crate::guardian::images::Life;
use crate::os;
use crate::settings;
use crate::settings::Printed;
use crate::spare;
use crate::spare::Proxy;
use rustbtl_coordination::control::FromNode;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// What a stand-in says at most about its end.
const REASON_BYTES_MAX: u64 = 1000;

/// The guardian or the stand-in of a rank.
pub(super) struct Adopted {
    child: Child,
    rank: PeerId,
    incarnation: Incarnation,
    kind: Kind,
}

enum Kind {
    /// A guardian beside this one.
    Guardian(Awaited),
    /// A stand-in, and what it says before it ends: why its rank cannot be reached any more.
    Proxy(UnixStream),
}

/// A rank that did not end.
enum Left {
    /// Nobody looks after it. `reachable`: only its guardian has gone, not the way to its node.
    Unhosted { reachable: bool, reason: String },
    /// It was not made.
    NotRestored(String),
}

impl Adopted {
    /// The rank did not end with this status of its guardian or stand-in.
    fn left(&mut self, status: ExitStatus) -> Option<Left> {
        match &mut self.kind {
            Kind::Guardian(awaited) => match awaited.word(status) {
                Word::Ended => None,
                Word::Killed => {
                    let (rank, node) = (self.rank, os::hostname());
                    let reason = format!("the guardian of rank {rank} on node {node} was killed");
                    Some(Left::Unhosted { reachable: true, reason })
                }
                Word::NotRestored(reason) => Some(Left::NotRestored(reason)),
            },
            Kind::Proxy(lost) => {
                let mut reason = String::new();
                lost.set_nonblocking(true).ok()?;
                // Whoever else is in the group may hold the other end; what was said is here.
                let _ = lost.take(REASON_BYTES_MAX).read_to_string(&mut reason);
                let reachable = status.code() == Some(spare::KILLED);
                (!reason.is_empty()).then_some(Left::Unhosted { reachable, reason })
            }
        }
    }
}

impl Guardian {
    /// Start a guardian for a rank whose node is lost.
    pub(super) fn adopt(&mut self, rank: PeerId, line: &str, life: Life, printed: Printed) {
        let Life { incarnation, alone } = life;
        let line = match self.folder(line) {
            Ok(line) => line,
            Err(reason) => {
                return self.tell(&FromNode::RestoreFailed { rank, incarnation, reason });
            }
        };
        let mut guardian = os::this_program();
        guardian.arg("guardian").arg(crate::command::PLACEHOLDER);
        guardian.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        guardian.env(settings::RESTORE, line);
        guardian.env(settings::INCARNATION, incarnation.to_string());
        guardian.env(settings::ALONE, u8::from(alone).to_string());
        guardian.env(settings::PRINTED, printed.to_string());
        let started = exit_report::awaited()
            .and_then(|(awaited, stdin)| Ok((guardian.stdin(stdin).spawn()?, awaited)));
        match started {
            Ok((child, awaited)) => {
                self.take_up(Adopted { child, rank, incarnation, kind: Kind::Guardian(awaited) });
            }
            Err(error) => {
                let node = os::hostname();
                let reason = format!("starting a guardian for rank {rank} on node {node}: {error}");
                self.tell(&FromNode::RestoreFailed { rank, incarnation, reason });
            }
        }
    }

    /// Have it started on a spare node.
    pub(super) fn adopt_at(
        &mut self,
        rank: PeerId,
        incarnation: Incarnation,
        proxy: Result<Proxy, String>,
    ) {
        self.abandon(rank);
        let started = proxy.and_then(|proxy| start(&proxy));
        match started {
            Ok((child, lost)) => {
                self.take_up(Adopted { child, rank, incarnation, kind: Kind::Proxy(lost) });
            }
            Err(reason) => {
                self.has_left(rank, incarnation, Left::Unhosted { reachable: false, reason });
            }
        }
    }

    fn take_up(&mut self, adopted: Adopted) {
        if !self.settings.prints {
            // What both print goes the same way.
            self.own_way = None;
        }
        self.adopted.push(adopted);
    }

    /// It goes on elsewhere; its node may be lost without a word.
    pub(super) fn abandon(&mut self, rank: PeerId) {
        self.adopted.retain_mut(|adopted| {
            let earlier = adopted.rank == rank && matches!(adopted.kind, Kind::Proxy(_));
            if earlier {
                let _ = adopted.child.kill();
                let _ = adopted.child.wait();
            }
            !earlier
        });
    }

    fn has_left(&mut self, rank: PeerId, incarnation: Incarnation, left: Left) {
        let host = self.settings.rank;
        self.tell(&match left {
            Left::Unhosted { reachable, reason } => {
                FromNode::ProxyFailed { host, rank, incarnation, reachable, reason }
            }
            Left::NotRestored(reason) => FromNode::RestoreFailed { rank, incarnation, reason },
        });
    }

    /// How all have ended, the own program and those of adopted guardians: once all have, or one
    /// has failed. A failure does not wait for anybody: orted has to know at once.
    pub(super) fn status_of_all(&mut self) -> Option<i32> {
        let mut failed = self.ended.filter(|status| *status != 0);
        let mut left = Vec::new();
        let ending = self.ending;
        self.adopted.retain_mut(|adopted| match adopted.child.try_wait() {
            Ok(Some(status)) => {
                match adopted.left(status).filter(|_| !ending) {
                    Some(why) => left.push((adopted.rank, adopted.incarnation, why)),
                    None => failed = failed.or((!status.success()).then_some(status.into_raw())),
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        for (rank, incarnation, why) in left {
            self.has_left(rank, incarnation, why);
        }
        if failed.is_some() {
            self.signal(libc::SIGKILL);
        }
        failed.or(self.ended.filter(|_| self.adopted.is_empty()))
    }
}

fn start(proxy: &Proxy) -> Result<(Child, UnixStream), String> {
    let what = |error: std::io::Error| format!("starting a stand-in: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(what)?;
    let mut command = os::this_program();
    proxy.words(&mut command);
    let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(what)?;
    Ok((child, ours))
}
