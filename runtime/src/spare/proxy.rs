//! `rustbtl proxy`: stands for a rank on a spare node, as a child of the guardian that has adopted
//! it. It prints what the rank prints, and ends as the rank ends.
//!
//! Its standard input is a socket to that guardian, on which it reports why the rank cannot be
//! reached any more. The rank has not ended then.

use crate::agent::stream::BlockingStream;
use crate::auth;
use crate::auth::Host;
use crate::guardian::SIGNALS;
use crate::guardian::images::RestartInfo;
use crate::os;
use crate::os::{Poll, Signals};
use crate::settings;
use crate::settings::{Printed, Settings};
use clap::Args;
use rustbtl_coordination::control::{FromSpare, ToSpare};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use std::env;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::time::Duration;

/// Exit code: the spare node can be reached, but the rank's guardian was killed there.
pub const KILLED: i32 = 2;
/// For one address of the spare node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// Which rank is restarted where.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Proxy {
    rank: u32,
    incarnation: u16,
    #[arg(action = clap::ArgAction::Set)]
    alone: bool,
    out: u64,
    err: u64,
    #[arg(action = clap::ArgAction::Set)]
    exact: bool,
    /// Of the checkpoint, as the coordinator names it.
    directory: String,
    /// Of the spare node.
    addresses: Vec<SocketAddr>,
}

impl Proxy {
    /// Of this rank, on the spare node with these addresses.
    ///
    /// # Errors
    /// One of them is no address.
    pub fn new(
        rank: PeerId,
        restart: RestartInfo,
        printed: Printed,
        directory: String,
        addresses: &str,
    ) -> Result<Self, String> {
        let known = addresses.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>();
        let addresses = known.map_err(|_| format!("{addresses:?} is no address"))?;
        let (rank, incarnation, alone) = (rank.0, restart.incarnation.0, restart.alone);
        let Printed { bytes: [out, err], exact } = printed;
        Ok(Self { rank, incarnation, alone, out, err, exact, directory, addresses })
    }

    /// Adds the arguments of the command line.
    pub fn arguments(&self, command: &mut Command) {
        command.arg("proxy").arg(self.rank.to_string()).arg(self.incarnation.to_string());
        command.arg(self.alone.to_string());
        command.arg(self.out.to_string()).arg(self.err.to_string());
        command.arg(self.exact.to_string());
        command.arg(&self.directory).args(self.addresses.iter().map(ToString::to_string));
    }

    /// Runs the proxy, and ends as the rank ends.
    ///
    /// # Errors
    /// It was not started by a guardian.
    pub fn run(&self) -> Result<(), String> {
        let guardian = os::parent();
        let alone = |error| format!("only a guardian starts this: {error}");
        os::die_with_parent(libc::SIGKILL).map_err(alone)?;
        if os::parent() != guardian {
            return Ok(());
        }
        let settings = Settings::read(|name| env::var_os(name));
        let secret = settings.map_err(|_| format!("{} makes no sense", settings::SECRET))?.secret;
        let signals = Signals::take(&SIGNALS).map_err(alone)?;
        match self.serve(&secret, &signals) {
            Ok(status) => os::end_as(status),
            Err((code, reason)) => {
                let input = std::io::stdin();
                let copy = input.as_fd().try_clone_to_owned().map_err(alone)?;
                let _ = File::from(copy).write_all(reason.as_bytes());
                os::exit_now(code)
            }
        }
    }

    /// How it has ended; the error: it has not, with the exit code and the reason.
    fn serve(&self, secret: &auth::Secret, signals: &Signals) -> Result<i32, (i32, String)> {
        match self.follow(secret, signals) {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(killed)) => Err((KILLED, killed)),
            Err(reason) => Err((1, reason)),
        }
    }

    /// The same; the inner error: its guardian was killed.
    fn follow(
        &self,
        secret: &auth::Secret,
        signals: &Signals,
    ) -> Result<Result<i32, String>, String> {
        let spare = auth::connect(Host::Spare, &self.addresses, secret, CONNECT_TIMEOUT)?;
        os::enable_keepalive(spare.socket()).map_err(|error| error.to_string())?;
        let mut spare =
            BlockingStream::with_timeout(spare, None).map_err(|error| error.to_string())?;
        spare.send(&ToSpare::Start {
            rank: PeerId(self.rank),
            directory: self.directory.clone(),
            incarnation: Incarnation(self.incarnation),
            alone: self.alone,
            out: self.out,
            err: self.err,
            exact: self.exact,
        })?;
        loop {
            let mut poll = Poll::default();
            let signalled = poll.add(signals.fd(), false);
            let from_spare = poll.add(spare.fd(), false);
            poll.wait(None).map_err(|error| error.to_string())?;
            if poll.is_ready(signalled) {
                while let Some(signal) = signals.next() {
                    if signal.number != libc::SIGCHLD {
                        spare.send(&ToSpare::Signal { number: signal.number })?;
                    }
                }
            }
            if poll.is_ready(from_spare) {
                spare.read()?;
            }
            while let Some(message) = spare.next()? {
                match message {
                    FromSpare::Output { stream, bytes } => print(stream, &bytes),
                    FromSpare::Ended { status } => return Ok(Ok(status)),
                    FromSpare::Killed { reason } => return Ok(Err(reason)),
                    FromSpare::Refused { reason } => return Err(reason),
                }
            }
        }
    }
}

/// A failure is ignored: nobody may read it any more.
fn print(stream: u8, bytes: &[u8]) {
    // SAFETY: standard descriptors are open as long as this process lives.
    let to = unsafe { BorrowedFd::borrow_raw(if stream == 2 { 2 } else { 1 }) };
    if let Ok(copy) = to.try_clone_to_owned() {
        let _ = File::from(copy).write_all(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        proxy: Proxy,
    }

    #[test]
    fn it_parses_the_arguments_that_the_guardian_gives() {
        let proxy = Proxy {
            rank: 3,
            incarnation: 2,
            alone: true,
            out: 1 << 40,
            err: 0,
            exact: true,
            directory: "checkpoint-7".into(),
            addresses: vec!["10.0.0.1:77".parse().unwrap(), "[fd00::1]:77".parse().unwrap()],
        };
        let mut command = Command::new("rustbtl");
        proxy.arguments(&mut command);
        assert_eq!(CommandLine::parse_from(command.get_args()).proxy, proxy);
    }
}
