//! The process that was typed: makes init, passes signals on, gives its exit code back.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};

use super::init;
use super::memory_limit;
use super::options::ClusterOptions;
use crate::error::{Context, Result, fail, failure, say};
use crate::sys::{self, Side, Signals};

/// Namespaces that a cluster has of its own, so that nothing of it outlives init.
const PRIVATE: libc::c_int = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC;

/// Signals that end a cluster.
pub const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Runs the job under a new init and returns its exit code.
pub fn run(options: &ClusterOptions) -> Result<i32> {
    let watched: Vec<_> = ENDING.into_iter().chain([libc::SIGCHLD]).collect();
    let signals = Signals::take(&watched).context(|| "reading signals".into())?;
    let (gate, opener) = io::pipe().context(|| "making a pipe".into())?;
    let (side, in_user_namespace) = fork_init()?;
    match side {
        Side::Child => {
            drop(opener);
            sys::exit_now(child(gate, options, &signals.mask_before()))
        }
        Side::Parent(init) => {
            drop(gate);
            let opened = open_gate(init, in_user_namespace, opener);
            if opened.is_err() {
                sys::kill(init, libc::SIGKILL);
            }
            let code = watch(init, &signals)?;
            memory_limit::sweep();
            opened.map(|()| code)
        }
    }
}

/// Real root needs no user namespace; everybody else, and root in a container that has lost its
/// power over namespaces, gets one.
fn fork_init() -> Result<(Side, bool)> {
    if sys::euid() == 0
        && let Ok(side) = sys::fork_into(PRIVATE)
    {
        return Ok((side, false));
    }
    match sys::fork_into(PRIVATE | libc::CLONE_NEWUSER) {
        Ok(side) => Ok((side, true)),
        Err(cause) => Err(failure!(
            "making namespaces for the emulated nodes: {cause}.\nThis kernel or container does \
             not let user {} make them: run as root, or allow user namespaces (sysctl \
             user.max_user_namespaces, kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0; in Docker: --privileged)",
            sys::euid()
        )),
    }
}

/// In init: waits until the supervisor has mapped our user, then does the work.
fn child(mut gate: PipeReader, options: &ClusterOptions, mask: &libc::sigset_t) -> i32 {
    // The order closes the race: a supervisor that died before this line never opens the gate.
    let armed = sys::die_with_parent();
    let mut go = [0];
    if armed.is_err() || gate.read_exact(&mut go).is_err() {
        return super::EMULATION_FAILED.into();
    }
    init::main(options, mask).unwrap_or_else(|failure| {
        say!("cluster: {failure}");
        super::EMULATION_FAILED.into()
    })
}

/// Becomes root inside, stays itself outside; then lets init go on.
fn open_gate(init: libc::pid_t, in_user_namespace: bool, mut opener: PipeWriter) -> Result<()> {
    if in_user_namespace {
        let maps = [
            ("setgroups", "deny".to_string()),
            ("uid_map", format!("0 {} 1", sys::euid())),
            ("gid_map", format!("0 {} 1", sys::egid())),
        ];
        for (file, text) in maps {
            let file = format!("/proc/{init}/{file}");
            fs::write(&file, text).context(|| {
                format!("mapping the user into the new namespace ({file}; try as root)")
            })?;
        }
    }
    opener.write_all(&[1]).context(|| "starting the cluster's first process".into())
}

/// Passes signals on to init until it has ended.
fn watch(init: libc::pid_t, signals: &Signals) -> Result<i32> {
    loop {
        let signal = signals.next(None).context(|| "reading signals".into())?;
        if let Some(signal) = signal
            && signal.number != libc::SIGCHLD
            && !signal.from_terminal
        {
            sys::kill(init, signal.number);
        }
        match sys::reap(init).context(|| "waiting for the cluster".into())? {
            Some((_, status)) if libc::WIFSIGNALED(status) => {
                fail!("the cluster's first process was killed by signal {}", status & 0x7f)
            }
            Some((_, status)) => return Ok(sys::exit_code(status)),
            None => (),
        }
    }
}
