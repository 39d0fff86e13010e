//! System calls on the program's files, for who is called in its place: none of them touches errno,
//! goes through a global offset table or allocates.

use core::ffi::{CStr, c_int};
use libc::stat;

/// Longest path, and what links in /proc add to it.
pub const PATH_BYTES: usize = 4096 + 64;

/// A path, absolute as far as it could be made so.
#[derive(Clone, Copy)]
pub struct Path {
    bytes: [u8; 2 * PATH_BYTES],
    length: usize,
}

/// A system call that gives a number; below 0: an error.
fn call(number: libc::c_long, a: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the callers below pass what the call may read or write, and nothing else.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

const HERE: usize = libc::AT_FDCWD as usize;

impl Path {
    const fn empty() -> Self {
        Self { bytes: [0; 2 * PATH_BYTES], length: 0 }
    }

    fn push(&mut self, text: &[u8]) {
        let room = self.bytes.len() - 1 - self.length;
        let text = &text[..text.len().min(room)];
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
        self.bytes[self.length] = 0;
    }

    /// These parts, one behind the other.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut path = Self::empty();
        parts.iter().for_each(|part| path.push(part));
        path
    }

    /// Without the 0 behind it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn address(&self) -> usize {
        self.bytes.as_ptr().addr()
    }

    /// A path as it was given with a folder's descriptor.
    pub fn given(folder: c_int, path: &CStr) -> Option<Self> {
        let text = path.to_bytes();
        if text.first() == Some(&b'/') {
            return Some(Self::of(&[text]));
        }
        let mut base = if folder == libc::AT_FDCWD {
            let mut here = Self::empty();
            let a = [here.bytes.as_mut_ptr().addr(), PATH_BYTES, 0, 0, 0];
            here.length = usize::try_from(call(libc::SYS_getcwd, a)).ok()?.checked_sub(1)?;
            here
        } else {
            Self::of_descriptor(folder)?
        };
        base.push(b"/");
        base.push(text);
        Some(base)
    }

    /// The same name in its folder without symbolic links, as far as that is there.
    pub fn in_real_folder(self) -> Self {
        let Some(end) = self.bytes().iter().rposition(|byte| *byte == b'/') else { return self };
        let (folder, name) = (Self::of(&[&self.bytes()[..end + 1]]), &self.bytes()[end + 1..]);
        if matches!(name, b"" | b"." | b"..") {
            return self;
        }
        let Some(fd) = folder.open(libc::O_PATH | libc::O_DIRECTORY) else { return self };
        let real = Self::of_descriptor(fd);
        close(fd);
        let Some(real) = real else { return self };
        let slash: &[u8] = if real.bytes() == b"/" { b"" } else { b"/" };
        Self::of(&[real.bytes(), slash, name])
    }

    /// Where an open file is.
    pub fn of_descriptor(fd: c_int) -> Option<Self> {
        let link = Self::of_link(fd);
        let mut path = Self::empty();
        let a = [HERE, link.address(), path.bytes.as_mut_ptr().addr(), PATH_BYTES, 0];
        path.length = usize::try_from(call(libc::SYS_readlinkat, a)).ok()?;
        Some(path)
    }

    /// Its link in /proc.
    pub fn of_link(fd: c_int) -> Self {
        let mut digits = [0; 10];
        let (mut at, mut rest) = (digits.len(), fd.unsigned_abs());
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 || at == 0 {
                break;
            }
        }
        Self::of(&[b"/proc/self/fd/", &digits[at..]])
    }

    /// What has this name: the file itself, or what a symbolic link leads to.
    pub fn stat(&self, follow: bool) -> Result<stat, i32> {
        // SAFETY: all of its fields are numbers.
        let mut found: stat = unsafe { core::mem::zeroed() };
        let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW as usize };
        let a = [HERE, self.address(), (&raw mut found).addr(), flags, 0];
        let result = call(libc::SYS_newfstatat, a);
        if result < 0 { Err(-result as i32) } else { Ok(found) }
    }

    /// How many bytes it has: of a file on the network what its server says, not what was known of
    /// it before.
    pub fn size_now(&self) -> Option<u64> {
        // SAFETY: all of its fields are numbers.
        let mut found: libc::statx = unsafe { core::mem::zeroed() };
        let flags = (libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_FORCE_SYNC) as usize;
        let size = libc::STATX_SIZE as usize;
        let a = [HERE, self.address(), flags, size, (&raw mut found).addr()];
        (call(libc::SYS_statx, a) == 0).then_some(found.stx_size)
    }

    /// Opens it, not to be inherited.
    pub fn open(&self, flags: c_int) -> Option<c_int> {
        let a = [HERE, self.address(), (flags | libc::O_CLOEXEC) as usize, 0o600, 0];
        c_int::try_from(call(libc::SYS_openat, a)).ok().filter(|fd| *fd >= 0)
    }

    /// A second name for it.
    pub fn link(&self, to: &Self) -> bool {
        call(libc::SYS_linkat, [HERE, self.address(), HERE, to.address(), 0]) == 0
    }
}

/// Of an open file.
pub fn fstat(fd: c_int) -> Option<stat> {
    // SAFETY: all of its fields are numbers.
    let mut found: stat = unsafe { core::mem::zeroed() };
    let a = [fd as usize, (&raw mut found).addr(), 0, 0, 0];
    (call(libc::SYS_fstat, a) == 0).then_some(found)
}

/// Is it a file with content?
pub fn is_regular(stat: &stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// O_* of an open file.
pub fn flags_of(fd: c_int) -> c_int {
    call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0]) as c_int
}

/// Its offset.
pub fn offset_of(fd: c_int) -> u64 {
    let offset = call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0]);
    u64::try_from(offset).unwrap_or(0)
}

/// ftruncate(2).
pub fn set_size(fd: c_int, size: u64) -> bool {
    call(libc::SYS_ftruncate, [fd as usize, size as usize, 0, 0, 0]) == 0
}

/// Time of day in nanoseconds, as the kernel has it.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    call(libc::SYS_clock_gettime, [libc::CLOCK_REALTIME as usize, (&raw mut now).addr(), 0, 0, 0]);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// With errno as it was before.
pub fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's.
    let before = unsafe { errno.read() };
    let result = call();
    // SAFETY: this thread's.
    unsafe { errno.write(before) };
    result
}

/// As many bytes from there as there are, at most; gives how many.
pub fn read_at(fd: c_int, to: &mut [u8], at: u64) -> usize {
    let a = [fd as usize, to.as_mut_ptr().addr(), to.len(), at as usize, 0];
    usize::try_from(call(libc::SYS_pread64, a)).unwrap_or(0)
}

/// close(2).
pub fn close(fd: c_int) {
    call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
}

/// Copies a file of so many bytes; false: not all of it.
pub fn copy(from: c_int, to: c_int, bytes: u64) -> bool {
    let mut left = bytes;
    while left > 0 {
        let a = [to as usize, from as usize, 0, left.min(1 << 30) as usize, 0];
        match call(libc::SYS_sendfile, a) {
            count @ 1.. => left -= count as u64,
            result if -result as i32 == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_and_found_by_descriptor() {
        let path = Path::given(libc::AT_FDCWD, c"Cargo.toml").unwrap();
        assert!(path.bytes().starts_with(b"/") && path.bytes().ends_with(b"/Cargo.toml"));
        let fd = path.open(libc::O_RDONLY).unwrap();
        let found = Path::of_descriptor(fd).unwrap();
        assert_eq!(found.stat(true).unwrap().st_ino, fstat(fd).unwrap().st_ino);
        assert!(is_regular(&fstat(fd).unwrap()) && offset_of(fd) == 0);
        assert_eq!(flags_of(fd) & libc::O_ACCMODE, libc::O_RDONLY);
        assert_eq!(path.size_now(), fstat(fd).map(|found| found.st_size as u64));
        assert_eq!(Path::of(&[b"/no/such"]).size_now(), None);
        assert_eq!(Path::of_link(1200).bytes(), b"/proc/self/fd/1200");
        close(fd);
        let dotted = Path::of(&[b"/proc/./self/../self/status"]).in_real_folder();
        let own = format!("/proc/{}/status", std::process::id());
        assert_eq!(dotted.bytes(), own.as_bytes());
        assert_eq!(Path::of(&[b"/a"]).in_real_folder().bytes(), b"/a");
        assert_eq!(Path::of(&[b"/no/such/file"]).in_real_folder().bytes(), b"/no/such/file");
        assert_eq!(Path::of(&[b"/no/such"]).stat(true).err(), Some(libc::ENOENT));
    }
}
