//! Entering the tree: a layer of memory above it takes what is written, folders of the machine that
//! jobs need are shown in it, and then it is the root of the mount namespace.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result, fail, failure};
use crate::{paths, sys};

/// Folders that exist on every Debian and that nothing here has a use for.
const STORAGES: [&str; 4] = ["/run/lock", "/srv", "/mnt", "/media"];

/// What is the machine's, also inside.
const MACHINES: [&str; 4] = ["/dev", "/proc", "/sys", "/tmp"];

/// Where is built for it: it has another Open MPI.
pub fn target() -> PathBuf {
    paths::target().join("debian-13")
}

/// A folder that can be covered by the layer.
pub fn storage() -> Result<PathBuf> {
    let found = STORAGES.into_iter().map(PathBuf::from).find(|folder| folder.is_dir());
    found.ok_or_else(|| failure!("none of {} exists: make one of them", STORAGES.join(", ")))
}

/// Makes the tree the root of this mount namespace, whose mounts are private. `storage` is covered.
/// The current folder, the checkout, what is built, /tmp, and `more` are where they are outside.
pub fn enter(tree: &Path, storage: &Path, more: &[PathBuf]) -> Result<()> {
    let tree = tree.canonicalize().context(|| tree.display().to_string())?;
    if !tree.join("usr/bin/mpirun").exists() && !tree.join("etc/alternatives/mpirun").exists() {
        fail!("{} is no tree with an Open MPI in it", tree.display());
    }
    let current = env::current_dir().context(|| "the current folder".into())?;
    let home = env::var_os("HOME").map(PathBuf::from);
    let quiet = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount("tmpfs", storage, "tmpfs", quiet, "mode=755")
        .context(|| format!("mounting a tmpfs on {}", storage.display()))?;
    let [upper, work, root] = ["upper", "work", "root"].map(|name| storage.join(name));
    for folder in [&upper, &work, &root] {
        fs::create_dir(folder).context(|| folder.display().to_string())?;
    }
    let data = format!(
        "lowerdir={},upperdir={},workdir={}",
        tree.display(),
        upper.display(),
        work.display()
    );
    if data.matches([',', ':', '\\']).count() > 2 {
        fail!("{}: overlayfs wants no `,`, `:` or `\\` in a path", tree.display());
    }
    sys::mount("overlay", &root, "overlay", 0, &data)
        .or_else(|_| sys::mount("overlay", &root, "overlay", 0, &format!("{data},userxattr")))
        .context(|| format!("mounting a layer above {}", tree.display()))?;
    let machines = MACHINES.into_iter().map(PathBuf::from);
    let ours = [paths::root().to_path_buf(), paths::target(), current.clone()];
    for folder in machines.chain(ours).chain(more.iter().cloned()) {
        show(&folder, &root)?;
    }
    // debootstrap leaves it to an installer.
    let hosts = root.join("etc/hosts");
    if !hosts.exists() {
        let text = "127.0.0.1 localhost\n::1 localhost\n";
        fs::write(&hosts, text).context(|| hosts.display().to_string())?;
    }
    if let Some(home) = home.as_deref().and_then(|home| home.strip_prefix("/").ok()) {
        let home = root.join(home);
        fs::create_dir_all(&home).context(|| home.display().to_string())?;
    }
    env::set_current_dir(&root).context(|| root.display().to_string())?;
    sys::pivot_root().context(|| format!("entering {}", tree.display()))?;
    env::set_current_dir(&current).context(|| current.display().to_string())
}

/// Shows a folder of the machine at its place in the new root.
fn show(folder: &Path, root: &Path) -> Result<()> {
    let Ok(inside) = folder.strip_prefix("/") else { return Ok(()) };
    let place = root.join(inside);
    // One of them may be below another.
    if inside.as_os_str().is_empty() || is_same(folder, &place) || !folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(&place).context(|| place.display().to_string())?;
    let from = folder.to_str().ok_or_else(|| failure!("{} is not UTF-8", folder.display()))?;
    sys::mount(from, &place, "", libc::MS_BIND | libc::MS_REC, "")
        .context(|| format!("showing {} inside", folder.display()))
}

fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
