//! Making the tree: debootstrap, which checks the signature of the archive and the sums of all
//! packages.
//!
//! ```text
//! CACHE/debian/SUITE-KEY    the tree; the key is of everything that it is made of
//! ```
//! It is never changed: who enters it gets a layer of his own above it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::error::{Context, Result, fail};
use crate::tree::{cache, hex, mirror};
use crate::{run, setup, sys};

/// Debian 13.
const SUITE: &str = "trixie";
/// The keys of Debian's archive.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The Open MPI that it must have.
const OPENMPI: &str = "5.0.7";

/// What is in it beside the base system.
const PACKAGES: [&str; 13] = [
    "openmpi-bin",
    "libopenmpi-dev",
    // libltdl-dev, which libopenmpi-dev needs, asks for it in a way that debootstrap misses.
    "automake",
    "binutils",
    "gcc",
    "iproute2",
    "libc6-dev",
    "libevent-dev",
    "procps",
    // Jobs under Slurm.
    "munge",
    "slurm-client",
    "slurmctld",
    "slurmd",
];

/// Debian packages that only this needs.
const TOOLS: [(&str, &str); 2] = [
    ("debootstrap", "a tree of another release's packages"),
    ("debian-archive-keyring", "the keys of Debian's archive"),
];

fn place() -> Result<PathBuf> {
    let recipe = [&[SUITE, OPENMPI], PACKAGES.as_slice()].concat().join(" ");
    let key = &hex(&Sha256::digest(recipe))[..16];
    Ok(cache()?.join("debian").join(format!("{SUITE}-{key}")))
}

/// The tree, if it has been made.
pub fn made() -> Option<PathBuf> {
    place().ok().filter(|tree| tree.is_dir())
}

/// The tree; it is made if it is not there yet.
pub fn make() -> Result<PathBuf> {
    let tree = place()?;
    if tree.is_dir() {
        return Ok(tree);
    }
    if sys::euid() != 0 {
        fail!("a tree of Debian's packages can only be made as root; then everybody can use it");
    }
    setup::install(&TOOLS)?;
    let all = tree.parent().unwrap_or(&tree);
    fs::create_dir_all(all).context(|| all.display().to_string())?;
    let lock = all.join(".lock");
    let file = File::create(&lock).context(|| lock.display().to_string())?;
    sys::lock(&file).context(|| format!("locking {}", lock.display()))?;
    if !tree.is_dir() {
        let start = Instant::now();
        let unfinished = tree.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        bootstrap(&unfinished)?;
        fs::rename(&unfinished, &tree).context(|| tree.display().to_string())?;
        eprintln!("debian-tree: {} took {:.0} s", tree.display(), start.elapsed().as_secs_f64());
    }
    Ok(tree)
}

fn bootstrap(to: &Path) -> Result<()> {
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--keyring={KEYRING}")]);
    debootstrap.arg(format!("--include={}", PACKAGES.join(",")));
    debootstrap.arg(SUITE).arg(to).arg(mirror());
    // What is half written when the machine stops has another name.
    debootstrap.env("DPKG_FORCE", "unsafe-io");
    for name in ["LD_LIBRARY_PATH", "TMPDIR"] {
        debootstrap.env_remove(name);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let path = env::join_paths(env::split_paths(&path).chain(system));
    debootstrap.env("PATH", path.unwrap_or_default());
    eprintln!("debian-tree: making {} (some minutes)", to.display());
    let output = run::output(&mut debootstrap);
    output.context(|| format!("see also {}/debootstrap/debootstrap.log", to.display()))?;
    for folder in ["var/cache/apt/archives", "var/lib/apt/lists", "usr/share/locale"] {
        let folder = to.join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    }
    let mut query = Command::new("chroot");
    query.arg(to).args(["dpkg-query", "-W", "-f", "${Version}", "libopenmpi-dev"]);
    let version = run::output(&mut query)?;
    if version.split('-').next() != Some(OPENMPI) {
        fail!("{SUITE} has Open MPI {version}; rustbtl knows {OPENMPI} of it");
    }
    Ok(())
}
