//! The private directory of a job on a node, and how a guardian reaches the node's agent.
//!
//! ```text
//! TMP/rustbtl-JOB/        mode 0700, owner checked
//!   lock                  held while the agent is started or ends
//!   agent                 the agent's socket
//!   shared-RESTART/       where restored processes find memory that they share; locked by each
//!                         guardian that may need it
//! ```
//! Nobody outside the job can guess its name, so nobody is there first. Who removes the directory
//! holds the lock; who gets the lock of a directory that was removed starts over. So a guardian
//! always reaches an agent that serves it, not one that ends.

mod lock_holder;

use crate::os;
use crate::settings::{self, FailureTimeout, Settings};
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// How folders of restarts begin.
const SHARED: &str = "shared-";

/// The directory; the lock is free.
pub struct NodeDirectory {
    path: PathBuf,
    /// Keeps paths to sockets short: they have room for 107 bytes only.
    handle: File,
    /// The socket that was made here, if one was.
    own: Cell<Option<u64>>,
}

/// A folder for one restart, removed with this value.
#[derive(Debug)]
pub struct SharedFolder {
    path: PathBuf,
    #[allow(dead_code, reason = "closing it frees the lock")]
    lock: File,
}

impl SharedFolder {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        // Another guardian of the node may have done it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Held until it is dropped.
pub struct Locked(#[allow(dead_code, reason = "closing it frees the lock")] File);

impl NodeDirectory {
    /// Where it is for this job.
    pub fn path_for(tmp: &Path, job: &str) -> PathBuf {
        tmp.join(format!("rustbtl-{job}"))
    }

    /// Finds or makes it, and locks it. A guardian that has the lock and stays suspended is ended:
    /// it is looked at so often.
    pub fn enter(path: &Path, look: Duration) -> io::Result<(Self, Locked)> {
        for _ in 0..1000 {
            os::private_directory(path)?;
            let Some(handle) = unless_removed(open_directory(path))? else { continue };
            let lock_path = path.join("lock");
            let mut options = File::options();
            options.create(true).truncate(false).write(true).mode(0o600);
            options.custom_flags(libc::O_NOFOLLOW);
            let Some(lock) = unless_removed(options.open(&lock_path))? else { continue };
            lock_holder::lock(&lock, look, lock_holder::is_this_program)?;
            let Some(now) = unless_removed(fs::symlink_metadata(&lock_path))? else { continue };
            if now.ino() == lock.metadata()?.ino() {
                return Ok((Self::at(path, handle), Locked(lock)));
            }
        }
        Err(io::Error::other("it is removed again and again"))
    }

    /// The directory, whose lock the guardian that starts this agent holds.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::at(path, open_directory(path)?))
    }

    /// The folder of a restart; whoever comes first makes it.
    pub fn shared_folder(path: &Path, restart: &str) -> io::Result<SharedFolder> {
        let (_, _locked) = Self::enter(path, FailureTimeout::read(None).silence())?;
        let path = path.join(format!("{SHARED}{restart}"));
        os::private_directory(&path)?;
        let lock = open_directory(&path)?;
        os::lock_shared(&lock)?;
        Ok(SharedFolder { path, lock })
    }

    /// Removes folders of restarts that nobody needs; false: somebody needs one.
    fn remove_shared(&self) -> bool {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_shared =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(SHARED);
        entries.filter(is_shared).all(|entry| {
            let unused = open_directory(&entry.path()).and_then(|lock| os::lock(&lock, false));
            if unused.as_ref().is_ok_and(|free| *free) {
                let _ = fs::remove_dir_all(entry.path());
            }
            unused.unwrap_or(true)
        })
    }

    fn at(path: &Path, handle: File) -> Self {
        Self { path: path.to_owned(), handle, own: Cell::new(None) }
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/agent", self.handle.as_raw_fd()))
    }

    /// A connection to the agent, if one is there. The other end is this user's.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.socket())?;
        if os::peer_uid(&stream)? != os::euid() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is somebody else's"));
        }
        Ok(stream)
    }

    /// Makes the agent's socket.
    pub fn listen(&self) -> io::Result<UnixListener> {
        match fs::remove_file(self.socket()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(self.socket())?;
        self.own.set(Some(fs::symlink_metadata(self.socket())?.ino()));
        Ok(listener)
    }

    /// Removes it, unless somebody holds the lock (false): then a guardian is about to connect; or
    /// restores a rank. The files of an agent that was started in the meantime stay.
    pub fn leave(&self) -> io::Result<bool> {
        let lock = File::options().write(true).open(self.path.join("lock"))?;
        if !os::lock(&lock, false)? {
            return Ok(false);
        }
        let now = fs::symlink_metadata(self.path.join("agent")).map(|found| found.ino()).ok();
        if now != self.own.get() {
            return Ok(true);
        }
        if !self.remove_shared() {
            return Ok(false);
        }
        for name in ["agent", "lock"] {
            let _ = fs::remove_file(self.path.join(name));
        }
        let _ = fs::remove_dir(&self.path);
        Ok(true)
    }
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags).open(path)
}

/// `None` if it was removed in between.
fn unless_removed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// A connection to the node's agent, which is started if it is not there.
pub fn reach_agent(settings: &Settings) -> Result<UnixStream, String> {
    let path = NodeDirectory::path_for(&settings.tmp, &settings.job);
    let shown = path.display();
    let look = settings.failure_timeout.silence();
    let (directory, _lock) =
        NodeDirectory::enter(&path, look).map_err(|error| format!("using {shown}: {error}"))?;
    if let Ok(stream) = directory.connect() {
        return Ok(stream);
    }
    start_agent(settings, &path).map_err(|error| format!("starting the agent: {error}"))?;
    directory.connect().map_err(|error| format!("connecting to the agent in {shown}: {error}"))
}

/// Returns when it listens.
fn start_agent(settings: &Settings, path: &Path) -> io::Result<()> {
    let mut agent = os::this_program();
    agent.arg("agent").arg(path).args(&settings.local);
    agent
        .current_dir("/")
        .env_clear()
        .envs(std::env::var_os(os::NODE).map(|node| (os::NODE, node)));
    let hosts: Vec<String> = settings.coordinator.iter().map(ToString::to_string).collect();
    agent.env(settings::JOB, &settings.job).env(settings::SECRET, settings::hex(&settings.secret));
    agent.env(settings::COORDINATOR, hosts.join(" "));
    agent.env(settings::FAILURE_TIMEOUT, settings.failure_timeout.text());
    // What Open MPI reads from here must end with the program, not with the agent.
    agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = agent.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LOOK: Duration = Duration::from_secs(60);

    #[test]
    fn a_guardian_that_waits_for_the_lock_of_a_removed_directory_starts_over() {
        let path = std::env::temp_dir().join(format!("rustbtl-node-{}", std::process::id()));
        let (first, lock) = NodeDirectory::enter(&path, LOOK).unwrap();
        assert!(!first.leave().unwrap(), "it is locked");
        let other = {
            let path = path.clone();
            thread::spawn(move || {
                NodeDirectory::enter(&path, LOOK).map(|(d, _)| d.listen().map(drop))
            })
        };
        thread::sleep(Duration::from_millis(50));
        fs::remove_file(path.join("lock")).unwrap();
        fs::remove_dir(&path).unwrap();
        drop(lock);
        other.join().unwrap().unwrap().unwrap();
        let (second, lock) = NodeDirectory::enter(&path, LOOK).unwrap();
        let _listener = second.listen().unwrap();
        drop(lock);
        assert!(second.leave().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn an_agent_stays_while_a_guardian_restores_and_removes_what_a_killed_one_has_left() {
        let path = std::env::temp_dir().join(format!("rustbtl-meet-{}", std::process::id()));
        let needed = NodeDirectory::shared_folder(&path, "checkpoint-1-0").unwrap();
        let same = NodeDirectory::shared_folder(&path, "checkpoint-1-0").unwrap();
        assert_eq!(needed.path(), same.path());
        fs::write(needed.path().join("note"), "").unwrap();
        let directory = NodeDirectory::open(&path).unwrap();
        assert!(!directory.leave().unwrap(), "they are needed");
        // As a guardian that is killed: nothing is dropped, but its descriptors are closed.
        let [mut needed, mut same] = [needed, same].map(std::mem::ManuallyDrop::new);
        for killed in [&mut needed, &mut same] {
            killed.lock = File::open("/dev/null").unwrap();
        }
        assert!(directory.leave().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_long_path_is_no_hindrance() {
        let base = std::env::temp_dir().join(format!("rustbtl-long-{}", std::process::id()));
        let path = base.join("x".repeat(120));
        fs::create_dir(&base).unwrap();
        let (directory, _lock) = NodeDirectory::enter(&path, LOOK).unwrap();
        let _listener = directory.listen().unwrap();
        directory.connect().unwrap();
        fs::remove_dir_all(&base).unwrap();
    }
}
