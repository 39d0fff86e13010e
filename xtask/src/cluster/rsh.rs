//! The remote shell of a cluster: enters a node and runs mpirun's command line there.
//!
//! mpirun calls it as `cargo-xtask-rsh HOST WORDS…`, like rsh or ssh. As with those, the command
//! starts with the environment of a login on the node (here: that of whoever started the cluster),
//! not with the one that mpirun has made for itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::{environment, nodes};
use crate::error::{Context, Failure, Result, fail, failure};

/// The name under which this program is the agent.
pub const NAME: &str = "cargo-xtask-rsh";

/// Runs the agent; comes back only to say why it could not.
pub fn run(arguments: &[OsString]) -> Failure {
    match prepare(arguments) {
        Ok(mut command) => failure!("running the command on the node: {}", command.exec()),
        Err(failure) => failure,
    }
}

fn prepare(arguments: &[OsString]) -> Result<Command> {
    let [me, host, words @ ..] = arguments else {
        fail!("usage: {NAME} HOST COMMAND…");
    };
    let host = host.to_string_lossy();
    let table = Path::new(me).with_file_name("nodes");
    let table =
        fs::read_to_string(&table).context(|| format!("the node table {}", table.display()))?;
    let namespaces = find(&table, &host).ok_or_else(|| failure!("no node named {host}"))?;
    let login = fs::read("/proc/1/environ").context(|| "the user's environment".into())?;
    let open = |fd: &&str| File::open(format!("/proc/1/fd/{fd}")).map(OwnedFd::from);
    let opened = namespaces.iter().map(open).collect::<io::Result<Vec<_>>>();
    let opened = opened.context(|| format!("the namespaces of {host}"))?;
    nodes::enter(&opened).context(|| format!("entering {host}"))?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(words.join(" ".as_ref()));
    command.env_clear().envs(environment::of_user(variables(&login).into_iter()));
    Ok(command)
}

/// Descriptor numbers of the namespaces of `host`.
fn find<'t>(table: &'t str, host: &str) -> Option<Vec<&'t str>> {
    table.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next() == Some(host)).then(|| words.collect())
    })
}

/// The variables in a /proc/PID/environ.
fn variables(block: &[u8]) -> Vec<(OsString, OsString)> {
    block
        .split(|&byte| byte == 0)
        .filter_map(|entry| {
            let equals = entry.iter().position(|&byte| byte == b'=')?;
            let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((part(&entry[..equals]), part(&entry[equals + 1..])))
        })
        .collect()
}

/// True if the program was called under the agent's name.
pub fn is_asked(arguments: &[OsString]) -> bool {
    let name = arguments.first().map(|a| Path::new(a).file_name());
    name.flatten().is_some_and(|n| n.as_bytes() == NAME.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_by_its_whole_name() {
        let table = "n1 3 4\nn11 5 6\n";
        assert_eq!(find(table, "n11"), Some(vec!["5", "6"]));
        assert_eq!(find(table, "n"), None);
    }

    #[test]
    fn values_may_hold_equal_signs_and_be_empty() {
        let found = variables(b"A=1=2\0B=\0\0");
        let text = |n: &str, v: &str| (OsString::from(n), OsString::from(v));
        assert_eq!(found, [text("A", "1=2"), text("B", "")]);
    }
}
