//! Names of shared memory. Where memory had a name at a checkpoint, a process may open it by that
//! afterwards: it must find what is restored, not what the lost processes have left there.
//!
//! 1. Memory has its name again before any restored process runs (`ToNode::AllRestored`).
//! 2. What has the name now is removed only in the file system where that memory was, if the image
//!    has all of it, the process has written to it, and none but processes that are restored
//!    together with it map it: they are being ended. It is that memory, or what an earlier restore
//!    from this image has put into its place. All else may be somebody's: memory of another program
//!    that still runs, of ranks of this node that had the same name, a table that is only read.
//! 3. The folders of the path belong to this user or to root, and nobody else can remove what is in
//!    them.

use super::folders;
use crate::proc_files::{self, MapLine};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

const PAGE: u64 = 4096;
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
    /// Bytes from its beginning on of which the image has all that was there.
    pub whole: u64,
    /// The process has written to it.
    pub writes: bool,
    /// Device of what had the name, on this machine.
    pub device: Option<u64>,
    /// See `RestoreOptions`.
    pub together: Option<&'static str>,
}

impl SharedName<'_> {
    /// New memory of so many bytes under this name (1); its folder is made where nodes have folders
    /// of their own.
    pub fn memory(&self, bytes: u64) -> Result<File, String> {
        let (Some(name), Some(folder)) = (self.path.file_name(), self.path.parent()) else {
            return Err("it is no path of a file".into());
        };
        self.must_be_whole(bytes)?;
        let folder = open_folder(folder)?;
        self.remove_old(&folder, name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = fs::openat(&folder, name, flags, Mode::from_raw_mode(0o600));
        made.map(File::from).map_err(|error| format!("it cannot be made: {error}"))
    }

    /// It was not given; `None`: nobody needs to know.
    pub fn not_given(&self, reason: String) -> Option<NotNamed> {
        self.writes.then(|| NotNamed { path: self.path.to_owned(), reason })
    }

    fn must_be_whole(&self, bytes: u64) -> Result<(), String> {
        if bytes.next_multiple_of(PAGE) <= self.whole {
            return Ok(());
        }
        Err("the process had only mapped a part of it".into())
    }

    /// Removes what has the name (2).
    fn remove_old(&self, folder: &OwnedFd, name: &OsStr) -> Result<(), String> {
        let old = match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(|error| format!("what has it now: {error}"))?,
        };
        let own = rustix::process::geteuid().as_raw();
        let is_file = FileType::from_raw_mode(old.st_mode) == FileType::RegularFile;
        let was_here = self.device == Some(old.st_dev);
        if !was_here || !self.writes || !is_file || old.st_uid != own {
            return Err("something else has this name".into());
        }
        self.must_be_whole(old.st_size as u64)?;
        if is_mapped_by_another((old.st_dev, old.st_ino), self.together) {
            return Err("a process that is none of the job's ranks uses it".into());
        }
        match fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(format!("what has it now cannot be removed: {error}")),
        }
    }
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
fn is_mapped_by_another(identity: (u64, u64), but: Option<&str>) -> bool {
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
            let begins = format!("{variable}=");
            environment.split(|byte| *byte == 0).any(|one| one.starts_with(begins.as_bytes()))
        })
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = processes.filter(is_process).map(|entry| entry.path());
    // Of a process that ends between two looks the second finds nothing.
    processes.any(|process| maps_it(&process) && !is_left_out(&process) && maps_it(&process))
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

    /// What this process has written to, 8 KiB of it.
    fn name_of(path: &Path) -> SharedName<'_> {
        let device = std::fs::metadata(path).ok().map(|stat| stat.dev());
        // This process has PATH.
        SharedName { path, whole: 8192, writes: true, device, together: Some("PATH") }
    }

    fn restored(name: &SharedName<'_>) -> Result<(), String> {
        let mut memory = name.memory(5000)?;
        memory.write_all(b"restored").unwrap();
        Ok(())
    }

    #[test]
    fn memory_has_its_name_also_where_its_folder_is_gone() {
        let scratch = Scratch::new("name-replaced");
        let path = scratch.0.join("job/7/memory");
        restored(&name_of(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
        let folder = std::fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!(folder.mode() & 0o777, 0o700);
        std::fs::write(&path, "of the lost processes").unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        restored(&name_of(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
        assert_ne!(std::fs::metadata(&path).unwrap().ino(), before);
        // Once more from the same image: what the first restore has made is lost, too.
        std::fs::write(&path, "of processes that were lost again").unwrap();
        restored(&name_of(&path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"restored");
    }

    #[test]
    fn what_may_be_somebody_elses_keeps_its_name() {
        let scratch = Scratch::new("name-used");
        let path = scratch.0.join("memory");
        std::fs::write(&path, [7; 8192]).unwrap();
        let used = File::open(&path).unwrap();
        // SAFETY: a mapping of one page, which nobody writes to.
        let page = unsafe {
            let shared = libc::MAP_SHARED;
            libc::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ, shared, used.as_raw_fd(), 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let device = name_of(&path).device.unwrap();
        for (name, reason) in [
            (SharedName { device: None, ..name_of(&path) }, "something else"),
            (SharedName { device: Some(device + 1), ..name_of(&path) }, "something else"),
            (SharedName { writes: false, ..name_of(&path) }, "something else"),
            (SharedName { together: None, ..name_of(&path) }, "none of the job's ranks"),
            (SharedName { whole: 4096, ..name_of(&path) }, "a part of it"),
        ] {
            let refused = restored(&name).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
            assert_eq!(name.not_given(refused).is_some(), name.writes);
            assert_eq!(std::fs::read(&path).unwrap()[0], 7);
        }
        // It is larger than what the image has.
        File::options().write(true).open(&path).unwrap().set_len(8193).unwrap();
        assert!(restored(&name_of(&path)).unwrap_err().contains("a part of it"));
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        restored(&name_of(&path)).unwrap();
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
        assert!(restored(&name_of(&path)).unwrap_err().contains("something else"));
        symlink(&scratch.0, scratch.0.join("folder")).unwrap();
        assert!(restored(&name_of(&scratch.0.join("folder/target"))).is_err());
        let open = scratch.0.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(restored(&name_of(&open.join("memory"))).unwrap_err().contains("others"));
        for nonsense in ["", "/", "memory", "/dev/../dev/shm/memory"] {
            assert!(restored(&name_of(Path::new(nonsense))).is_err(), "{nonsense}");
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    }
}
