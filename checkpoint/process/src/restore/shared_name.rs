//! Names of shared memory. Where memory had a name at a checkpoint, a process may open it by that
//! afterwards: it must find what is restored, not what the lost processes have left there.
//!
//! 1. Memory has its name again before any restored process runs (`ToNode::AllRestored`).
//! 2. What has the name now is removed if no process maps it: two nodes may have had the same
//!    name, and their processes be on one node now; and memory may be another program's, which
//!    still runs. If it is that memory, and the process has written to it, processes that are to
//!    be restored together with it do not count: they are being ended.
//! 3. The folders of the path belong to this user or to root, and nobody else can remove what is in
//!    them.

use super::folders;
use crate::proc_files::{self, MapLine};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// A process that is being ended may still map what has the name.
const ENDING_MAX: Duration = Duration::from_secs(1);
const ENDING_STEP: Duration = Duration::from_millis(20);
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Memory without the name that it had: who opens that finds something else, or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotNamed {
    /// The name.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// A name that memory had.
#[derive(Debug)]
pub struct SharedName<'a> {
    /// Where.
    pub path: &'a Path,
    /// Device and inode of what had it, if the process has written to it (2).
    pub known: Option<(u64, u64)>,
    /// See `RestoreOptions`.
    pub together: Option<&'static str>,
}

impl SharedName<'_> {
    /// New memory under this name (1); its folder is made where nodes have folders of their own.
    pub fn memory(&self) -> Result<File, String> {
        let (Some(name), Some(folder)) = (self.path.file_name(), self.path.parent()) else {
            return Err("it is no path of a file".into());
        };
        let folder = open_folder(folder)?;
        self.remove_old(&folder, name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = fs::openat(&folder, name, flags, Mode::from_raw_mode(0o600));
        made.map(File::from).map_err(|error| format!("it cannot be made: {error}"))
    }

    /// It was not given.
    pub fn not_given(&self, reason: String) -> NotNamed {
        NotNamed { path: self.path.to_owned(), reason }
    }

    /// Removes what has the name.
    fn remove_old(&self, folder: &OwnedFd, name: &OsStr) -> Result<(), String> {
        let until = Instant::now() + ENDING_MAX;
        let old = loop {
            let old = match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(()),
                found => found.map_err(|error| format!("what has it now: {error}"))?,
            };
            let together = self.together.filter(|_| self.known == Some(identity(&old)));
            if !is_mapped(identity(&old), together) {
                break old;
            }
            if Instant::now() >= until {
                return Err("another process of this node uses a file of this name".into());
            }
            std::thread::sleep(ENDING_STEP);
        };
        let own = rustix::process::geteuid().as_raw();
        if FileType::from_raw_mode(old.st_mode) != FileType::RegularFile || old.st_uid != own {
            return Err("something has this name that is no file of this user".into());
        }
        match fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(format!("what has it now cannot be removed: {error}")),
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Opens a folder from the root on (3); makes those that are not there (`folders`).
fn open_folder(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut so_far = PathBuf::new();
    let mut folder = None;
    for part in path.components() {
        so_far.push(part);
        let failed = |error: Errno| format!("{}: {error}", so_far.display());
        let open = |at: &OwnedFd, name: &OsStr| fs::openat(at, name, flags, Mode::empty());
        let opened = match (part, &folder) {
            (Component::RootDir, None) => fs::open("/", flags, Mode::empty()),
            (Component::Normal(name), Some(above)) => match open(above, name) {
                Err(Errno::NOENT) if folders::is_of_a_node(&so_far) => {
                    match fs::mkdirat(above, name, Mode::from_raw_mode(0o700)) {
                        Ok(()) | Err(Errno::EXIST) => open(above, name),
                        Err(error) => Err(error),
                    }
                }
                opened => opened,
            },
            _ => Err(Errno::INVAL),
        };
        let opened = opened.map_err(failed)?;
        let stat = fs::fstat(&opened).map_err(failed)?;
        let own = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
        let all_remove = stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0;
        if !own || all_remove {
            return Err(format!("others can change what is in {}", so_far.display()));
        }
        folder = Some(opened);
    }
    folder.ok_or_else(|| "it is no path of a file".into())
}

/// Does a process that this user may look at map it, but those with this variable?
fn is_mapped(identity: (u64, u64), but: Option<&str>) -> bool {
    let is_process = |entry: &std::fs::DirEntry| {
        entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit)
    };
    let maps_it = |process: &Path| {
        let text = std::fs::read(process.join("maps")).unwrap_or_default();
        let mut lines = proc_files::lines(&text).filter_map(MapLine::parse);
        lines.any(|map| (map.device, map.inode) == identity)
    };
    let is_left_out = |process: &Path| {
        but.is_some_and(|variable| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            let mut all = environment.split(|byte| *byte == 0);
            let name = |one: &[u8]| one.split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
            all.any(|one| name(one).as_deref() == Some(variable.as_bytes()))
        })
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = processes.filter(is_process).map(|entry| entry.path());
    processes.any(|process| maps_it(&process) && !is_left_out(&process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = Path::new("/dev/shm").join(format!("rustbtl-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn restored(path: &Path, known: Option<(u64, u64)>) -> Result<File, String> {
        let mut memory = SharedName { path, known, together: Some("PATH") }.memory()?;
        memory.write_all(b"restored").unwrap();
        Ok(memory)
    }

    #[test]
    fn what_lost_processes_have_left_is_replaced_also_in_a_folder_that_is_gone() {
        let scratch = Scratch::new("name-replaced");
        let path = scratch.0.join("job/7/memory");
        let first = restored(&path, None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
        let folder = std::fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!(folder.mode() & 0o777, 0o700);
        std::fs::write(&path, "old").unwrap();
        let second = restored(&path, None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
        assert_ne!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
    }

    #[test]
    fn what_another_process_maps_keeps_its_name_unless_it_is_that_memory() {
        let scratch = Scratch::new("name-used");
        let path = scratch.0.join("memory");
        std::fs::write(&path, [7; 4096]).unwrap();
        let used = File::open(&path).unwrap();
        // SAFETY: a mapping of one page, which nobody writes to.
        let page = unsafe {
            let shared = libc::MAP_SHARED;
            libc::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ, shared, used.as_raw_fd(), 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let (device, inode) = (used.metadata().unwrap().dev(), used.metadata().unwrap().ino());
        for known in [None, Some((device, inode + 1))] {
            assert!(restored(&path, known).unwrap_err().contains("another process"));
        }
        assert_eq!(std::fs::read(&path).unwrap()[0], 7);
        let of_others = SharedName { path: &path, known: Some((device, inode)), together: None };
        assert!(of_others.memory().unwrap_err().contains("another process"));
        assert_eq!(std::fs::read(&path).unwrap()[0], 7);
        // This process has PATH.
        restored(&path, Some((device, inode))).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
        // SAFETY: mapped above.
        unsafe { libc::munmap(page, 4096) };
    }

    #[test]
    fn no_link_is_followed_and_no_folder_of_others_is_used() {
        let scratch = Scratch::new("name-links");
        let (target, path) = (scratch.0.join("target"), scratch.0.join("memory"));
        std::fs::write(&target, "mine").unwrap();
        symlink(&target, &path).unwrap();
        assert!(restored(&path, None).unwrap_err().contains("no file of this user"));
        symlink(&scratch.0, scratch.0.join("folder")).unwrap();
        assert!(restored(&scratch.0.join("folder/target"), None).is_err());
        let open = scratch.0.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(restored(&open.join("memory"), None).unwrap_err().contains("others"));
        for nonsense in ["", "/", "memory", "/dev/../dev/shm/memory"] {
            assert!(restored(Path::new(nonsense), None).is_err(), "{nonsense}");
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    }
}
