//! Ranks of lost nodes that the guardian of another rank has adopted, because mpirun waits for it.
//! It has started their guardians, or, if they run on a spare node, their proxies.

use crate::guardian::Guardian;
use crate::guardian::exit_report;
use crate::guardian::exit_report::{ExitReport, ExitReportReader};
use crate::guardian::images::RestartInfo;
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

/// Longest reason that a proxy gives for its end.
const REASON_BYTES_MAX: u64 = 1000;

/// The guardian or the proxy of a rank.
pub(super) struct Adopted {
    child: Child,
    rank: PeerId,
    incarnation: Incarnation,
    via: AdoptedBy,
}

enum AdoptedBy {
    /// A guardian beside this one.
    Guardian(ExitReportReader),
    /// A proxy, and the socket on which it reports why its rank cannot be reached any more.
    Proxy(UnixStream),
}

/// Why a rank that has not ended is lost.
enum Loss {
    /// It has no guardian or proxy. `reachable`: its node can be reached, only its guardian failed.
    ProxyFailed { reachable: bool, reason: String },
    /// It was not restored.
    NotRestored(String),
}

impl Adopted {
    /// Its guardian or proxy has ended with this status: Some if the rank has not.
    fn loss(&mut self, status: ExitStatus) -> Option<Loss> {
        match &mut self.via {
            AdoptedBy::Guardian(reader) => match reader.read(status) {
                ExitReport::Ended => None,
                ExitReport::Killed => {
                    let (rank, node) = (self.rank, os::hostname());
                    let reason = format!("the guardian of rank {rank} on node {node} was killed");
                    Some(Loss::ProxyFailed { reachable: true, reason })
                }
                ExitReport::NotRestored(reason) => Some(Loss::NotRestored(reason)),
            },
            AdoptedBy::Proxy(socket) => {
                let mut reason = String::new();
                socket.set_nonblocking(true).ok()?;
                // Other processes may hold the other end, but what was sent is here.
                let _ = socket.take(REASON_BYTES_MAX).read_to_string(&mut reason);
                let reachable = status.code() == Some(spare::KILLED);
                (!reason.is_empty()).then_some(Loss::ProxyFailed { reachable, reason })
            }
        }
    }
}

impl Guardian {
    /// Start a guardian for a rank whose node is lost.
    pub(super) fn adopt(
        &mut self,
        rank: PeerId,
        checkpoint: &str,
        restart: RestartInfo,
        printed: Printed,
    ) {
        let RestartInfo { incarnation, alone } = restart;
        let checkpoint = match self.folder(checkpoint) {
            Ok(checkpoint) => checkpoint,
            Err(reason) => {
                return self.send(&FromNode::RestoreFailed { rank, incarnation, reason });
            }
        };
        let mut guardian = os::this_program();
        guardian.arg("guardian").arg(crate::command::PLACEHOLDER);
        guardian.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        guardian.env(settings::RESTORE, checkpoint);
        guardian.env(settings::INCARNATION, incarnation.to_string());
        guardian.env(settings::ALONE, u8::from(alone).to_string());
        guardian.env(settings::PRINTED, printed.to_string());
        let started = exit_report::channel()
            .and_then(|(reader, stdin)| Ok((guardian.stdin(stdin).spawn()?, reader)));
        match started {
            Ok((child, reader)) => {
                self.add_adopted(Adopted {
                    child,
                    rank,
                    incarnation,
                    via: AdoptedBy::Guardian(reader),
                });
            }
            Err(error) => {
                let node = os::hostname();
                let reason = format!("starting a guardian for rank {rank} on node {node}: {error}");
                self.send(&FromNode::RestoreFailed { rank, incarnation, reason });
            }
        }
    }

    /// Starts a proxy, which has the rank restarted on a spare node.
    pub(super) fn adopt_on_spare(
        &mut self,
        rank: PeerId,
        incarnation: Incarnation,
        proxy: Result<Proxy, String>,
    ) {
        self.abandon(rank);
        let started = proxy.and_then(|proxy| start(&proxy));
        match started {
            Ok((child, socket)) => {
                self.add_adopted(Adopted {
                    child,
                    rank,
                    incarnation,
                    via: AdoptedBy::Proxy(socket),
                });
            }
            Err(reason) => {
                self.report_loss(rank, incarnation, Loss::ProxyFailed { reachable: false, reason });
            }
        }
    }

    fn add_adopted(&mut self, adopted: Adopted) {
        if !self.settings.prints {
            // The output of both ranks goes to the same orted.
            self.via_daemon = None;
        }
        self.adopted.push(adopted);
    }

    /// Ends the rank's proxy: it is restarted elsewhere, though its node may have failed unnoticed.
    pub(super) fn abandon(&mut self, rank: PeerId) {
        self.adopted.retain_mut(|adopted| {
            let earlier = adopted.rank == rank && matches!(adopted.via, AdoptedBy::Proxy(_));
            if earlier {
                let _ = adopted.child.kill();
                let _ = adopted.child.wait();
            }
            !earlier
        });
    }

    fn report_loss(&mut self, rank: PeerId, incarnation: Incarnation, loss: Loss) {
        let host = self.settings.rank;
        self.send(&match loss {
            Loss::ProxyFailed { reachable, reason } => {
                FromNode::ProxyFailed { host, rank, incarnation, reachable, reason }
            }
            Loss::NotRestored(reason) => FromNode::RestoreFailed { rank, incarnation, reason },
        });
    }

    /// How the own program and the adopted ranks have ended, once all have, or one has failed. A
    /// failure is returned at once: orted has to know.
    pub(super) fn status_of_all(&mut self) -> Option<i32> {
        let mut failed = self.ended.filter(|status| *status != 0);
        let mut losses = Vec::new();
        let ending = self.ending;
        self.adopted.retain_mut(|adopted| match adopted.child.try_wait() {
            Ok(Some(status)) => {
                match adopted.loss(status).filter(|_| !ending) {
                    Some(loss) => losses.push((adopted.rank, adopted.incarnation, loss)),
                    None => failed = failed.or((!status.success()).then_some(status.into_raw())),
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        for (rank, incarnation, loss) in losses {
            self.report_loss(rank, incarnation, loss);
        }
        if failed.is_some() {
            self.signal(libc::SIGKILL);
        }
        failed.or(self.ended.filter(|_| self.adopted.is_empty()))
    }
}

fn start(proxy: &Proxy) -> Result<(Child, UnixStream), String> {
    let what = |error: std::io::Error| format!("starting a proxy: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(what)?;
    let mut command = os::this_program();
    proxy.arguments(&mut command);
    let child = command.stdin(OwnedFd::from(theirs)).spawn().map_err(what)?;
    Ok((child, ours))
}
