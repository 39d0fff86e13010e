//! One bridge and a pair of virtual cables per node, away from the machine's own network.

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::nodes::Node;
use super::options::NODES_MAX;
use super::partition::{Direction, Partition};
use super::user_link::{self, Cable, LinkFaults};
use crate::error::{Context, Result, fail, failure};
use crate::paths;
use crate::sys;

/// Name of a node's network interface.
pub const INTERFACE: &str = "eth0";

/// Address of node number `node`.
pub fn ipv4(node: u32) -> String {
    format!("10.77.0.{}", node + 1)
}

/// IPv6 address of node number `node`.
pub fn ipv6(node: u32) -> String {
    format!("fd77::{:x}", node + 1)
}

/// Address of the login node of a cluster with Slurm, behind those of all nodes.
pub fn ipv4_of_login() -> String {
    format!("10.77.0.{}", NODES_MAX + 1)
}

/// Puts the bridge into the namespace of the caller and a cable into each node, which may lose and
/// delay what it carries.
pub fn connect(nodes: &[Node], faults: Option<LinkFaults>) -> Result<()> {
    let with_v6 = Path::new("/proc/net/if_inet6").exists();
    let mut bridge = "link add br0 type bridge\nlink set br0 up\n".to_string();
    let mut cables = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        if faults.is_some() {
            cables.push(Cable::make(node, INTERFACE, &format!("port{i}"))?);
        } else {
            let net = node.namespaces[0].as_raw_fd();
            bridge += &format!(
                "link add port{i} type veth peer name {INTERFACE} netns /proc/1/fd/{net}\n"
            );
        }
        bridge += &format!("link set port{i} master br0 up\n");
    }
    ip(None, &bridge).context(|| "making the network of the cluster".into())?;
    for (i, node) in nodes.iter().enumerate() {
        let (v4, v6) = (ipv4(i as u32), ipv6(i as u32));
        let mut script = format!(
            "link set lo up\naddress add {v4}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n"
        );
        if with_v6 {
            script += &format!("address add {v6}/64 dev {INTERFACE} nodad\n");
        }
        let net = node.namespaces[0].as_raw_fd();
        ip(Some(net), &script).context(|| format!("giving {} its address", node.name))?;
    }
    faults.map_or(Ok(()), |faults| user_link::carry(cables, faults))
}

/// The namespace of the caller has the bridge; now it is a node on it.
pub fn connect_login() -> Result<()> {
    let address = ipv4_of_login();
    let script = format!("link set lo up\naddress add {address}/24 dev br0\n");
    ip(None, &script).context(|| "giving the login node its address".into())
}

/// Takes the bridge's end of a node's cable down. Nothing reaches the node and the others any more,
/// and nobody is notified.
pub fn cut(node: u32) -> Result<()> {
    ip(None, &format!("link set port{node} down\n")).context(|| format!("cutting n{node} off"))
}

/// Where nothing is: what is sent there is lost.
const NOBODY: &str = "02:00:00:00:00:01";

/// Begins a cut, or ends it.
pub fn part(nodes: &[Node], partition: Partition, begin: bool) -> Result<()> {
    let Partition { node, direction, .. } = partition;
    let what = || format!("a cut of n{node}");
    if direction == Direction::Off {
        let state = if begin { "down" } else { "up" };
        return ip(None, &format!("link set port{node} {state}\n")).context(what);
    }
    let with_v6 = Path::new("/proc/net/if_inet6").exists();
    // In the neighbour table of one node: where others are.
    let lose = |to: u32| {
        let addresses = [Some(ipv4(to)), with_v6.then(|| ipv6(to))].into_iter().flatten();
        let line = |address: String| match begin {
            true => {
                format!("neigh replace {address} lladdr {NOBODY} dev {INTERFACE} nud permanent\n")
            }
            false => format!("neigh del {address} dev {INTERFACE}\n"),
        };
        addresses.map(line).collect::<String>()
    };
    for at in 0..nodes.len() as u32 {
        let (mute, own) = (direction == Direction::Mute, at == node);
        let script: String = match own {
            true if mute || direction == Direction::From => {
                (0..nodes.len() as u32).filter(|&to| to != at).map(lose).collect()
            }
            false if mute || direction == Direction::To => lose(node),
            _ => continue,
        };
        let done = ip(Some(nodes[at as usize].namespaces[0].as_raw_fd()), &script);
        // A cut that overlapped with this one may have ended with it between two nodes.
        if begin {
            done.context(what)?;
        }
    }
    Ok(())
}

/// Runs a list of `ip` commands, in the network namespace `place` if one is given.
fn ip(place: Option<RawFd>, script: &str) -> Result<()> {
    let program = paths::find_program("ip")
        .ok_or_else(|| failure!("no `ip` program: run `cargo xtask setup`"))?;
    let mut command = Command::new(program);
    command.args(["-force", "-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    if let Some(place) = place {
        // SAFETY: between fork and exec only setns is called, which allocates nothing.
        unsafe { command.pre_exec(move || sys::enter(&place)) };
    }
    let mut child = command.spawn().context(|| "starting ip".into())?;
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(script.as_bytes()).context(|| "talking to ip".into())?;
    drop(stdin);
    let done = child.wait_with_output().context(|| "waiting for ip".into())?;
    if !done.status.success() {
        fail!("ip says: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_from_one() {
        assert_eq!((ipv4(0), ipv6(15)), ("10.77.0.1".into(), "fd77::10".into()));
    }
}
