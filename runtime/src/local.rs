//! Where a node keeps images without a directory that all nodes share: its own, and replicas of
//! those of other nodes.
//!
//! ```text
//! BASE/rustbtl-UID-NODE.JOB/   mode 0700, owner checked; nobody can guess the job's name
//!   lock                       held by every process of the job on this node
//!   checkpoint-N/rank-R.img …  as in a shared directory
//!   output/rank-R              what was printed
//! ```
//! 1. A folder of this user whose lock nobody holds is a leftover: the next agent removes it.
//! 2. Everything of a job is removed with the last of its guardians, or with its orted.

use crate::os;
use crate::store;
use rustbtl_process::private_files::make_folders;
use rustbtl_process::session_folders::is_session_folder;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const LOCK: &str = "lock";
/// Space that stays free for others.
const RESERVED_BYTES: u64 = 16 << 20;

/// The folder of a job on this node, held.
#[derive(Debug)]
pub struct Local {
    path: PathBuf,
    #[allow(dead_code, reason = "closing it frees the lock")]
    lock: File,
}

/// Where it is, below `base`.
pub fn folder(base: &Path, job: &str) -> PathBuf {
    base.join(format!("{}{job}", prefix()))
}

/// How folders of this user's jobs begin on this node.
fn prefix() -> String {
    let node: String =
        os::hostname().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("rustbtl-{}-{node}.", os::euid())
}

/// Where a node's temporary files are, above the folder that Open MPI has for the job's: that is
/// removed with orted, and nobody could find a leftover in it.
pub fn default_base(tmp: &Path) -> PathBuf {
    let of_open_mpi =
        |path: &Path| is_session_folder(path.file_name().unwrap_or_default().as_encoded_bytes());
    let session = tmp.ancestors().find(|path| of_open_mpi(path));
    session.and_then(Path::parent).unwrap_or(tmp).to_owned()
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path.join(LOCK))
}

/// Is it still the lock of this folder?
fn is_lock_of(lock: &File, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path.join(LOCK)) {
        Ok(now) => Ok(now.ino() == lock.metadata()?.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Local {
    /// Find or make it. What the error says is for users.
    pub fn enter(path: &Path) -> Result<Self, String> {
        let entered = Self::try_enter(path);
        entered.map_err(|error| {
            format!(
                "checkpoints cannot be kept in {}: {error}. Choose a folder of the node with --mca \
                 vprotocol_correlated_local_dir DIR",
                path.display()
            )
        })
    }

    fn try_enter(path: &Path) -> io::Result<Self> {
        let base = path.parent().ok_or_else(|| io::Error::other("it has no parent"))?;
        for _ in 0..1000 {
            make_folders(base)?;
            let lock = match os::private_directory(path).and_then(|()| open_lock(path)) {
                // Somebody removes it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            os::lock_shared(&lock)?;
            if is_lock_of(&lock, path)? {
                return Ok(Self { path: path.to_owned(), lock });
            }
        }
        Err(io::Error::other("it is removed again and again"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Remove what other jobs of this user have left here (1).
    pub fn sweep(&self) {
        let Some(base) = self.path.parent() else { return };
        let prefix = prefix();
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_one = entry.file_name().to_string_lossy().starts_with(&prefix);
            if is_one && path != self.path && os::is_private_directory(&path) {
                let _ = remove_if_unlocked(&path);
            }
        }
    }

    /// The folder of a checkpoint, by what the coordinator calls it.
    pub fn checkpoint(&self, name: &str) -> Option<PathBuf> {
        checkpoint_below(&self.path, name)
    }
}

/// The folder of a checkpoint below the job's on this node, by what the coordinator calls it.
pub fn checkpoint_below(path: &Path, name: &str) -> Option<PathBuf> {
    let number = store::checkpoint_number(Path::new(name))?;
    (name == format!("checkpoint-{number}")).then(|| path.join(name))
}

/// Removes it when no process of the job is left on this node. A guardian that ends frees the lock
/// a moment after its connection to the agent; one that is not connected yet needs the images.
pub fn remove_when_unlocked(path: &Path) {
    for _ in 0..20 {
        if remove_if_unlocked(path).unwrap_or(true) {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// False: a process of the job is left.
fn remove_if_unlocked(path: &Path) -> io::Result<bool> {
    let lock = File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(path.join(LOCK))?;
    if !os::lock(&lock, false)? {
        return Ok(false);
    }
    if is_lock_of(&lock, path)? {
        remove(path);
    }
    Ok(true)
}

/// Remove everything of a job on this node (2).
pub fn remove(path: &Path) {
    // The lock last: a process that is about to enter sees it or makes a new one.
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder {
            let _ = fs::remove_dir_all(entry.path());
        } else if entry.file_name() != LOCK {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_file(path.join(LOCK));
    let _ = fs::remove_dir_all(path);
}

/// Is there room for so much? What the error says is for users.
pub fn check_room(folder: &Path, bytes: u64) -> Result<(), String> {
    let shown = folder.display();
    let room = os::room(folder).map_err(|error| format!("{shown}: {error}"))?;
    if room >= bytes.saturating_add(RESERVED_BYTES) {
        return Ok(());
    }
    Err(format!(
        "{shown} has no room for {} MiB more, {} MiB are free: choose another folder of the node \
         with --mca vprotocol_correlated_local_dir DIR",
        bytes >> 20,
        room >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn base(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rustbtl-local-{name}-{}", std::process::id()))
    }

    #[test]
    fn leftovers_are_removed_and_what_somebody_holds_stays() {
        let base = base("sweep");
        let [mine, running, ended] = ["a", "b", "c"].map(|job| folder(&base, job));
        let own = Local::enter(&mine).unwrap();
        let other = Local::enter(&running).unwrap();
        drop(Local::enter(&ended).unwrap());
        for path in [&mine, &running, &ended] {
            fs::create_dir(path.join("checkpoint-1")).unwrap();
            fs::write(path.join("checkpoint-1/rank-0.img"), "x").unwrap();
        }
        // Somebody else's, which only looks like a leftover.
        let foreign = folder(&base, "d");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join(LOCK), "").unwrap();
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
        own.sweep();
        assert!(foreign.exists(), "it is not this user's alone");
        let there =
            [&mine, &running, &ended].map(|path| path.join("checkpoint-1/rank-0.img").exists());
        assert_eq!(there, [true, true, false]);
        assert!(!ended.exists());
        drop(other);
        remove(&running);
        remove(&mine);
        assert!(!mine.exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_process_that_enters_while_it_is_removed_gets_a_new_one() {
        let base = base("race");
        let path = folder(&base, "a");
        let lock = {
            drop(Local::enter(&path).unwrap());
            open_lock(&path).unwrap()
        };
        assert!(os::lock(&lock, false).unwrap());
        let (sender, entered) = std::sync::mpsc::channel();
        let other = {
            let path = path.clone();
            std::thread::spawn(move || sender.send(Local::enter(&path).map(|local| (local, 0))))
        };
        assert!(entered.recv_timeout(std::time::Duration::from_millis(50)).is_err(), "it waits");
        remove(&path);
        drop(lock);
        let (local, _) = entered.recv().unwrap().unwrap();
        assert!(is_lock_of(&local.lock, &path).unwrap());
        other.join().unwrap().unwrap();
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn names_of_checkpoints_lead_nowhere_else() {
        let below = |name| checkpoint_below(Path::new("/l/j"), name);
        assert_eq!(below("checkpoint-7"), Some("/l/j/checkpoint-7".into()));
        for name in [
            "",
            "checkpoint-",
            "checkpoint-07",
            "checkpoint-+7",
            "../checkpoint-7",
            "x/checkpoint-7",
            "checkpoint-7/",
            "/checkpoint-7",
        ] {
            assert_eq!(below(name), None, "{name}");
        }
    }

    #[test]
    fn the_default_is_not_where_open_mpi_removes_it() {
        let base = |path: &str| default_base(Path::new(path));
        assert_eq!(base("/tmp/ompi.n0.0/pid.7/1"), PathBuf::from("/tmp"));
        assert_eq!(base("/scratch"), PathBuf::from("/scratch"));
    }

    #[test]
    fn what_does_not_fit_is_refused_before_it_is_written() {
        assert!(check_room(&std::env::temp_dir(), 1).is_ok());
        let why = check_room(&std::env::temp_dir(), u64::MAX).unwrap_err();
        assert!(why.contains("vprotocol_correlated_local_dir"), "{why}");
    }
}
