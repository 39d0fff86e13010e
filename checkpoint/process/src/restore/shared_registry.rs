//! Where processes of a node that shared memory find it when they are restored.
//!
//! The first process makes the memory and holds it open; it needs no name. In the folder of the
//! registry is a small file for each object, which names that process: `PID START NUMBER DEVICE
//! INODE`. The others open its descriptor through /proc, which needs the right to read its memory.
//! The lock on the small file is the lock on the object.

use super::SharedRegistry;
use crate::error::ProcessImageError;
use crate::proc_files;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Longest note that is read.
const NOTE_BYTES_MAX: u64 = 256;

/// An object's small file, locked.
pub struct RegistryEntry {
    note: File,
    path: PathBuf,
}

/// The process that has an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder {
    pid: u32,
    /// When it was started: process ids are reused.
    start: u64,
    number: RawFd,
    device: u64,
    inode: u64,
}

impl RegistryEntry {
    /// Locks the object with this name; waits while another process fills it.
    pub fn lock(registry: &SharedRegistry, object: &str) -> Result<Self, ProcessImageError> {
        let path = registry.folder.join(format!("{}-{object}", registry.key));
        let shown = path.display().to_string();
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let note = options.open(&path).map_err(ProcessImageError::system(shown.clone()))?;
        // SAFETY: our own descriptor; the lock ends with it.
        if unsafe { libc::flock(note.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(ProcessImageError::last(format!("locking {shown}")));
        }
        Ok(Self { note, path })
    }

    /// The object. The first process makes it, and holds it open until all have it.
    pub fn object(
        &self,
        make: impl FnOnce() -> Result<File, ProcessImageError>,
    ) -> Result<File, ProcessImageError> {
        let shown = || self.path.display().to_string();
        let mut text = String::new();
        let read = (&self.note).take(NOTE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(ProcessImageError::system(shown()))?;
        // A holder that has ended belongs to a restart that has failed: nobody has its object.
        if let Some(holder) = Holder::parse(&text).filter(Holder::is_alive) {
            return holder.open();
        }
        let object = make()?;
        let note = Holder::of(&object).map_err(ProcessImageError::system(shown()))?;
        let write = || {
            let mut file = &self.note;
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(note.text().as_bytes())
        };
        write().map_err(ProcessImageError::system(shown()))?;
        Ok(object)
    }
}

impl Holder {
    /// This process, with this object.
    fn of(object: &File) -> std::io::Result<Self> {
        let pid = std::process::id();
        let (device, inode) = (object.metadata()?.dev(), object.metadata()?.ino());
        let start = start_of(pid).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(Self { pid, start, number: object.as_raw_fd(), device, inode })
    }

    fn text(self) -> String {
        let Self { pid, start, number, device, inode } = self;
        format!("{pid} {start} {number} {device} {inode}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let mut next = || words.next();
        let holder = Self {
            pid: next()?.parse().ok()?,
            start: next()?.parse().ok()?,
            number: next()?.parse().ok()?,
            device: next()?.parse().ok()?,
            inode: next()?.parse().ok()?,
        };
        next().is_none().then_some(holder)
    }

    fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    /// Opens its object, and checks that it is one.
    fn open(&self) -> Result<File, ProcessImageError> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.number);
        let shown = format!("{path} (shared memory that this process has restored)");
        let failed = || ProcessImageError::system(shown.clone());
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed())?;
        let found = file.metadata().map_err(failed())?;
        if (found.dev(), found.ino()) != (self.device, self.inode) {
            let reason = "it has closed it: restart the job once more";
            return Err(ProcessImageError::Refused { what: shown, reason });
        }
        Ok(file)
    }
}

/// When a process was started, in ticks since the machine was (field 22 of /proc/PID/stat); `None`
/// if it has ended, even if nobody has waited for it.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let mut words = stat.get(after_name..)?.split(|byte| *byte == b' ');
    if matches!(words.next(), Some(b"Z" | b"X")) {
        return None;
    }
    // The state, just taken, was field 3.
    proc_files::decimal(words.nth(22 - 4)?)
}

/// Memory that others find by no name; this one is seen in /proc/PID/maps.
pub fn memory(shown: &CStr) -> Result<File, ProcessImageError> {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(shown.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(ProcessImageError::last("memfd_create for shared memory"));
    }
    // SAFETY: just created, nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Result<File, ProcessImageError> {
        memory(c"rustbtl-test")
    }

    fn registry(name: &str) -> SharedRegistry {
        let folder = std::env::temp_dir().join(format!("rustbtl-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        SharedRegistry { folder, key: "restart".into() }
    }

    #[test]
    fn the_second_finds_what_the_first_has_made_and_it_has_no_name() {
        let registry = registry("meet");
        let object = |name| RegistryEntry::lock(&registry, name).unwrap().object(new).unwrap();
        let [first, second, other] = ["o", "o", "p"].map(object);
        let identity =
            |file: &File| (file.metadata().unwrap().dev(), file.metadata().unwrap().ino());
        assert_eq!(identity(&first), identity(&second));
        assert_ne!(identity(&first), identity(&other));
        assert_eq!(second.metadata().unwrap().nlink(), 0);
        fs::remove_dir_all(&registry.folder).unwrap();
    }

    #[test]
    fn what_a_failed_restart_has_left_is_not_taken() {
        let registry = registry("left");
        let path = registry.folder.join("restart-o");
        let own = Holder::of(&new().unwrap()).unwrap();
        for gone in [Holder { start: own.start + 1, ..own }, Holder { pid: u32::MAX, ..own }] {
            fs::write(&path, gone.text()).unwrap();
            assert!(RegistryEntry::lock(&registry, "o").unwrap().object(new).is_ok());
            assert_ne!(fs::read_to_string(&path).unwrap(), gone.text());
        }
        for nonsense in ["", "1 2 3", "1 2 3 4\n", "1 2 3 4 5 6\n", "a b c d e\n", "1 2 3 4 5"] {
            assert_eq!(Holder::parse(nonsense), None, "{nonsense:?}");
        }
        fs::remove_dir_all(&registry.folder).unwrap();
    }

    #[test]
    fn an_object_that_its_holder_has_closed_is_refused() {
        let registry = registry("closed");
        let object = || RegistryEntry::lock(&registry, "o").unwrap().object(new);
        drop(object().unwrap());
        let Err(error) = object() else { panic!("it is there") };
        assert!(error.to_string().contains("/proc/"), "{error}");
        fs::remove_dir_all(&registry.folder).unwrap();
    }
}
