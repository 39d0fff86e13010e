//! A node's own /tmp. What stands in /tmp when the cluster begins is the same on all nodes, as the
//! checkout and the user's folders are; what is made there later is the node's own and is gone when
//! the node fails.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::options::ClusterOptions;
use super::stage;
use crate::error::{Context, Result};
use crate::sys;

/// The folder.
const TMP: &str = "/tmp";

/// Makes the folders in /tmp that parameters name, so that all nodes share them and what they hold
/// outlives the cluster.
pub fn make_named(options: &ClusterOptions) -> Result<()> {
    let is_folder = |key: &str| ["_dir", "_report"].iter().any(|end| key.ends_with(end));
    let values = options.mca().filter(|(key, _)| is_folder(key)).map(|(_, value)| value);
    for folder in values.map(Path::new).filter(|path| path.starts_with(TMP)) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.context(|| format!("making {}", folder.display()))?;
    }
    Ok(())
}

/// Covers /tmp in a new node.
pub fn cover() -> Result<()> {
    let outer = outer().context(|| format!("opening {TMP}"))?;
    let outer_path = PathBuf::from(format!("/proc/self/fd/{}", outer.as_raw_fd()));
    let entries = fs::read_dir(&outer_path).context(|| format!("reading {TMP}"))?;
    let names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    stage::mount_tmpfs(Path::new(TMP), "mode=1777")?;
    for name in names {
        let (from, to) = (outer_path.join(&name), Path::new(TMP).join(&name));
        match share(&from, &to) {
            // Somebody else has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            shared => shared.context(|| format!("sharing {} with a node", to.display()))?,
        }
    }
    Ok(())
}

/// Gives a node that has failed another one: what it alone had is gone. Nothing is removed file by
/// file, since what is shared is below the same folder.
pub fn renew() -> Result<()> {
    sys::detach(TMP).context(|| format!("uncovering {TMP}"))?;
    cover()
}

fn outer() -> io::Result<OwnedFd> {
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    File::options().read(true).custom_flags(flags).open(TMP).map(OwnedFd::from)
}

fn share(from: &Path, to: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
    } else {
        File::create_new(to)?;
    }
    sys::bind(from, to)
}
