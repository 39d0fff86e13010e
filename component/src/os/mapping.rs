//! Files in a memory file system, mapped shared.

use crate::os::{OsError, errno, locks, places};
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Memory that is mapped shared, until this is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, shared between processes anyway; whoever accesses it
// orders the accesses.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// A shared mapping of a whole file. The file stays open (for its locks).
#[derive(Debug)]
pub struct Mapping {
    memory: SharedMemory,
    file: OwnedFd,
}

/// What can be wrong with an existing file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// A system call failed.
    Os(OsError),
    /// It belongs to another user.
    Owner(u32),
    /// It is not a plain file that only its owner can use.
    Mode(u32),
    /// It has so many bytes.
    Size(u64),
}

impl From<OsError> for OpenError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

/// Nobody makes it shorter or longer, or takes this back.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Why memory of another process was not mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SealedError {
    /// A system call failed.
    Os(OsError),
    /// It is not what [`SharedMemory::sealed`] makes, or of another size.
    Other,
}

impl From<OsError> for SealedError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

fn c_path(path: &Path) -> Result<CString, OsError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| OsError::with_code("open", path.display().to_string(), libc::EINVAL))
}

fn open(path: &Path, flags: i32) -> Result<OwnedFd, OsError> {
    let name = c_path(path)?;
    let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `name` is a C string.
    let fd: RawFd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
    if fd < 0 {
        return Err(OsError::last("open", path.display().to_string()));
    }
    // SAFETY: just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn allocate(file: &OwnedFd, bytes: usize, on: &impl Fn() -> String) -> Result<(), OsError> {
    loop {
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as i64) };
        match code {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(OsError::with_code("posix_fallocate", on(), code)),
        }
    }
}

/// Where files without a name do not exist: another process may have taken it for a leftover before
/// it was locked.
fn still_named(file: &OwnedFd, on: String) -> Result<(), OsError> {
    match status(file, || on.clone())?.st_nlink {
        0 => Err(OsError::with_code("open", on, libc::ENOENT)),
        _ => Ok(()),
    }
}

/// The path must not exist.
fn give_name(file: &OwnedFd, path: &Path) -> Result<(), OsError> {
    let (from, to) =
        (c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?, c_path(path)?);
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two C strings.
    let failed = unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), flags) } != 0;
    if failed { Err(OsError::last("linkat", path.display().to_string())) } else { Ok(()) }
}

fn status(file: &OwnedFd, on: impl Fn() -> String) -> Result<libc::stat, OsError> {
    // SAFETY: all-zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the descriptor is open and `status` writable.
    let failed = unsafe { libc::fstat(file.as_raw_fd(), &mut status) } != 0;
    if failed { Err(OsError::last("fstat", on())) } else { Ok(status) }
}

/// Opens a file that only this user can have written.
fn open_own(path: &Path) -> Result<(OwnedFd, libc::stat), OpenError> {
    let file = open(path, libc::O_NONBLOCK)?;
    let status = status(&file, || path.display().to_string())?;
    if status.st_uid != crate::os::process::uid() {
        return Err(OpenError::Owner(status.st_uid));
    }
    if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_mode & 0o077 != 0 {
        return Err(OpenError::Mode(status.st_mode));
    }
    Ok((file, status))
}

/// Removes a file of this user if nobody has locked any of it: those who would have used it have
/// been killed. True: it was one.
pub fn remove_leftover(path: &Path) -> bool {
    let unused = open_own(path).is_ok_and(|(file, _)| !locks::any_held_by_another(&file));
    unused && unlink(path) == Ok(true)
}

impl SharedMemory {
    /// Make a new file of this size, without memory until it is touched, and map it. It must not
    /// exist. The file is closed: what is left of it is its name, and the mapping.
    pub fn create(path: &Path, bytes: usize) -> Result<Self, OsError> {
        let on = || format!("{} ({bytes} bytes)", path.display());
        let folder = path.parent().unwrap_or(Path::new("."));
        if free_bytes(folder)? < bytes as u64 {
            return Err(OsError::with_code("ftruncate", on(), libc::ENOSPC));
        }
        let file = open(path, libc::O_CREAT | libc::O_EXCL)?;
        // SAFETY: the descriptor is open.
        let failed = unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0;
        let made = match failed {
            true => Err(OsError::last("ftruncate", on())),
            false => Self::map(&file, bytes, on),
        };
        if made.is_err() {
            let _ = unlink(path);
        }
        made
    }

    /// Map an existing file of this user, which nobody else may use and which has this size.
    pub fn open(path: &Path, bytes: usize) -> Result<Self, OpenError> {
        let (file, status) = open_own(path)?;
        if status.st_size as u64 != bytes as u64 {
            return Err(OpenError::Size(status.st_size as u64));
        }
        Ok(Self::map(&file, bytes, || path.display().to_string())?)
    }

    /// New memory without a name, of a size that nobody changes any more; it is there as long as
    /// somebody has it open or mapped. It is mapped at `place` if that is free.
    pub fn sealed(bytes: usize, place: Option<usize>) -> Result<(Self, OwnedFd), OsError> {
        let on = || format!("memory of {bytes} bytes");
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"rustbtl-window".as_ptr(), flags) };
        if fd < 0 {
            return Err(OsError::last("memfd_create", on()));
        }
        // SAFETY: just opened, owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(fd, bytes as i64) } != 0 {
            return Err(OsError::last("ftruncate", on()));
        }
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(OsError::last("fcntl", on()));
        }
        Ok((Self::map_at(&file, bytes, place, on)?, file))
    }

    /// Such memory of another process of this user, which has it open.
    ///
    /// # Errors
    /// It cannot be opened, or is something else.
    pub fn of_process(pid: i32, descriptor: RawFd, bytes: usize) -> Result<Self, SealedError> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let name = c_path(Path::new(&path))?;
        // Nothing is opened that could have an effect: its kind is known before.
        // SAFETY: a C string.
        let fd = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(OsError::last("open", path).into());
        }
        // SAFETY: just opened, owned by nobody else.
        let found = status(&unsafe { OwnedFd::from_raw_fd(fd) }, || path.clone())?;
        let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG && found.st_nlink == 0;
        if !is_file || found.st_size as u64 != bytes as u64 {
            return Err(SealedError::Other);
        }
        // SAFETY: a C string.
        let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(OsError::last("open", path).into());
        }
        // SAFETY: just opened, owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let opened = status(&file, || path.clone())?;
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        let is_same = (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino);
        if !is_same || seals < 0 || seals & SEALS != SEALS {
            return Err(SealedError::Other);
        }
        Ok(Self::map(&file, bytes, || path.clone())?)
    }

    fn map(file: &OwnedFd, bytes: usize, on: impl Fn() -> String) -> Result<Self, OsError> {
        Self::map_at(file, bytes, None, on)
    }

    fn map_at(
        file: &OwnedFd,
        bytes: usize,
        place: Option<usize>,
        on: impl Fn() -> String,
    ) -> Result<Self, OsError> {
        match places::map(place, bytes, Some(file.as_raw_fd())) {
            Some(start) => Ok(Self { start, bytes }),
            None => Err(OsError::last("mmap", on())),
        }
    }

    /// First byte (page aligned).
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// It stays mapped; for [`Self::of`].
    pub fn into_start(self) -> NonNull<u8> {
        core::mem::ManuallyDrop::new(self).start
    }

    /// What [`Self::into_start`] gave.
    ///
    /// # Safety
    /// It is of this size, and nobody else has it.
    pub unsafe fn of(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size; no references into it outlive self (callers
        // keep the mapping beside what they take from it).
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Mapping {
    /// Make a new file of this size, all of it allocated, and map it. It must not exist. `byte` of
    /// it is locked before it has its name, so that a file that nobody has locked is a leftover.
    pub fn create(path: &Path, bytes: usize, byte: u64) -> Result<Self, OsError> {
        let on = || format!("{} ({bytes} bytes)", path.display());
        let folder = path.parent().unwrap_or(Path::new("."));
        let unnamed = open(folder, libc::O_TMPFILE);
        let named = unnamed.is_err();
        let file = unnamed.or_else(|_| open(path, libc::O_CREAT | libc::O_EXCL))?;
        let made = locks::hold(&file, byte)
            .and_then(|()| allocate(&file, bytes, &on))
            .and_then(|()| if named { still_named(&file, on()) } else { give_name(&file, path) })
            .and_then(|()| Self::map(file, bytes, on));
        if made.is_err() && named {
            let _ = unlink(path);
        }
        made
    }

    /// Map an existing file of this user.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let (file, status) = open_own(path)?;
        Ok(Self::map(file, status.st_size as usize, || path.display().to_string())?)
    }

    fn map(file: OwnedFd, bytes: usize, on: impl Fn() -> String) -> Result<Self, OsError> {
        Ok(Self { memory: SharedMemory::map(&file, bytes, on)?, file })
    }

    /// First byte (page aligned).
    #[inline]
    pub fn start(&self) -> NonNull<u8> {
        self.memory.start
    }

    /// Bytes mapped.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// The file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Make page table entries for a range now rather than by faults later. Only a hint.
    pub fn populate(&self, offset: usize, bytes: usize) {
        const MADV_POPULATE_WRITE: i32 = 23;
        const PAGE: usize = 4096;
        let from = offset & !(PAGE - 1);
        let to = (offset + bytes).min(self.memory.bytes);
        if from >= to {
            return;
        }
        // SAFETY: from < bytes.
        let start = unsafe { self.memory.start.add(from) };
        // SAFETY: the range is inside this mapping; the advice changes no contents. Older kernels
        // refuse it, which does no harm.
        unsafe { libc::madvise(start.as_ptr().cast(), to - from, MADV_POPULATE_WRITE) };
    }
}

/// Remove a file. `Ok(false)`: there was none.
pub fn unlink(path: &Path) -> Result<bool, OsError> {
    let name = c_path(path)?;
    // SAFETY: `name` is a C string.
    if unsafe { libc::unlink(name.as_ptr()) } == 0 {
        return Ok(true);
    }
    match errno() {
        libc::ENOENT => Ok(false),
        code => Err(OsError::with_code("unlink", path.display().to_string(), code)),
    }
}

/// Bytes free for this user in the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64, OsError> {
    let name = c_path(path)?;
    // SAFETY: all-zero is a valid statvfs.
    let mut status: libc::statvfs = unsafe { core::mem::zeroed() };
    // SAFETY: `name` is a C string and `status` writable.
    if unsafe { libc::statvfs(name.as_ptr(), &mut status) } != 0 {
        return Err(OsError::last("statvfs", path.display().to_string()));
    }
    Ok(status.f_bavail * status.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> std::path::PathBuf {
        let random = u64::from_ne_bytes(crate::os::random::bytes().unwrap());
        Path::new("/dev/shm").join(format!("rustbtl-test-{name}-{random:016x}"))
    }

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let path = path("map");
        let one = Mapping::create(&path, 8192, 0).unwrap();
        let two = Mapping::open(&path).unwrap();
        assert_eq!(two.bytes(), 8192);
        // SAFETY: inside the mapping.
        unsafe { one.start().write(42) };
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { two.start().read() }, 42);
        assert_eq!(Mapping::create(&path, 8192, 0).unwrap_err().code, libc::EEXIST);
        assert_eq!(unlink(&path), Ok(true));
        assert_eq!(unlink(&path), Ok(false));
    }

    #[test]
    fn a_link_or_a_foreign_mode_is_refused() {
        let target = path("target");
        let link = path("link");
        let _one = Mapping::create(&target, 4096, 0).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let error = Mapping::open(&link).unwrap_err();
        assert!(matches!(error, OpenError::Os(OsError { code: libc::ELOOP, .. })), "{error:?}");
        unlink(&link).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Mapping::open(&target).unwrap_err(), OpenError::Mode(_)));
        unlink(&target).unwrap();
    }

    #[test]
    fn memory_of_a_window_is_of_its_user_and_size_or_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let path = path("window");
        let one = SharedMemory::create(&path, 8192).unwrap();
        let status = std::fs::metadata(&path).unwrap();
        assert_eq!((status.permissions().mode() & 0o777, status.len()), (0o600, 8192));
        assert!(matches!(SharedMemory::open(&path, 4096), Err(OpenError::Size(8192))));
        let two = SharedMemory::open(&path, 8192).unwrap();
        assert_eq!(SharedMemory::create(&path, 8192).unwrap_err().code, libc::EEXIST);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o606)).unwrap();
        assert!(matches!(SharedMemory::open(&path, 8192), Err(OpenError::Mode(_))));
        unlink(&path).unwrap();
        let gone = SharedMemory::open(&path, 8192);
        assert!(matches!(gone, Err(OpenError::Os(OsError { code: libc::ENOENT, .. }))));
        std::os::unix::fs::symlink("/dev/shm", &path).unwrap();
        assert_eq!(SharedMemory::create(&path, 8192).unwrap_err().code, libc::EEXIST);
        unlink(&path).unwrap();
        let start = two.into_start();
        // SAFETY: inside the mapping of `one`.
        unsafe { one.start().write(42) };
        // SAFETY: it is still mapped.
        assert_eq!(unsafe { start.read() }, 42);
        // SAFETY: of this size, and nobody else's.
        drop(unsafe { SharedMemory::of(start, 8192) });
    }

    #[test]
    fn more_memory_than_there_is_is_refused_and_leaves_no_file() {
        let path = path("much");
        let error = SharedMemory::create(&path, 1 << 60).unwrap_err();
        assert_eq!(error.code, libc::ENOSPC);
        assert!(!path.exists());
    }

    #[test]
    fn what_nobody_has_locked_is_a_leftover_and_nothing_else_is() {
        let path = path("left");
        let one = Mapping::create(&path, 4096, 3).unwrap();
        assert!(!remove_leftover(&path), "it is in use");
        drop(one);
        assert!(path.exists() && remove_leftover(&path) && !path.exists());
        assert!(!remove_leftover(&path));
        std::fs::write(&path, "of another user, or for others to write").unwrap();
        assert!(!remove_leftover(&path));
        unlink(&path).unwrap();
    }
}
