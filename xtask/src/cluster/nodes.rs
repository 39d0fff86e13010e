//! Emulated nodes: each has a network, a host name, mounts and IPC objects of its own.

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;

use super::network;
use super::options::ClusterOptions;
use super::stage::Stage;
use crate::error::{Context, Result};
use crate::sys;

/// Kinds of namespace that a node has, in the order in which they are entered.
const KINDS: [&str; 4] = ["net", "uts", "ipc", "mnt"];
const NEW: libc::c_int =
    libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNS;

/// An emulated node. It exists while its namespaces are open somewhere.
pub struct Node {
    /// Host name.
    pub name: String,
    /// Its namespaces, in the order of [`KINDS`].
    pub namespaces: Vec<OwnedFd>,
}

/// The namespaces that this process is in.
fn current() -> Result<Vec<OwnedFd>> {
    let open = |kind: &str| {
        let file = format!("/proc/self/ns/{kind}");
        File::open(&file).map(OwnedFd::from).context(|| file)
    };
    KINDS.into_iter().map(open).collect()
}

/// Moves this process to the node.
pub fn enter(namespaces: &[OwnedFd]) -> std::io::Result<()> {
    namespaces.iter().try_for_each(sys::enter)
}

/// Does something in the node.
pub fn within<T>(node: &Node, what: impl FnOnce() -> T) -> Result<T> {
    let home = current()?;
    let folder = env::current_dir().context(|| "the current folder".into())?;
    enter(&node.namespaces).context(|| format!("entering node {}", node.name))?;
    let done = what();
    enter(&home).context(|| "coming back from a node".into())?;
    env::set_current_dir(&folder).context(|| folder.display().to_string())?;
    Ok(done)
}

/// Makes all nodes and connects them. The caller ends up in the namespaces where it was.
pub fn make(options: &ClusterOptions, stage: &Stage) -> Result<Vec<Node>> {
    let home = current()?;
    let folder = env::current_dir().context(|| "the current folder".into())?;
    let mut nodes = Vec::new();
    for index in 0..options.all_nodes() {
        let name = format!("n{index}");
        sys::unshare(NEW).context(|| format!("making the namespaces of node {name}"))?;
        sys::set_host_name(&name).context(|| format!("naming node {name}"))?;
        stage.furnish_node(options)?;
        let namespaces = current()?;
        enter(&home).context(|| "coming back from a node".into())?;
        // Entering a mount namespace leads to its root.
        env::set_current_dir(&folder).context(|| folder.display().to_string())?;
        nodes.push(Node { name, namespaces });
    }
    network::connect(&nodes, options.link)?;
    Ok(nodes)
}
