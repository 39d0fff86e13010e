//! Other processes: their memory, and who we are.

use crate::os::{OsError, errno};

/// What the kernel says of the node where this process is now. Not by uname(3): a process that was
/// restored is told there where it was (`mpi/node_identity`).
pub fn names() -> libc::utsname {
    // SAFETY: bytes, of which all may be zero.
    let mut names: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: writable; the C library's structure is the kernel's.
    unsafe { libc::syscall(libc::SYS_uname, &raw mut names) };
    names
}

/// Its name.
pub fn host_name() -> String {
    let name = names().nodename.map(|byte| byte as u8);
    let text = name.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Effective user id.
pub fn uid() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

/// Bytes of one request: the kernel moves at most 2 GiB − 4 KiB per call, and would stop there.
const BYTES_PER_CALL: usize = 1 << 30;

/// Read `len` bytes at address `from` of process `pid` into `into`.
///
/// # Safety
/// `into` is writable for `len` bytes and nobody else uses them.
pub unsafe fn read_memory(pid: i32, from: u64, into: *mut u8, len: usize) -> Result<(), OsError> {
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(BYTES_PER_CALL);
        // SAFETY: done < len: inside the target.
        let target = unsafe { into.add(done) };
        let local = libc::iovec { iov_base: target.cast(), iov_len: bytes };
        let at = from.wrapping_add(done as u64) as usize;
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes };
        // SAFETY: `local` describes writable memory of ours; the remote side is checked by the
        // kernel.
        let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match got {
            1.. => done += got as usize,
            0 => return Err(OsError::with_code("process_vm_readv", on(pid), libc::EFAULT)),
            _ if errno() == libc::EINTR => {}
            _ => return Err(OsError::last("process_vm_readv", on(pid))),
        }
    }
    Ok(())
}

/// Write `len` bytes from `from` to address `to` of process `pid`.
///
/// # Safety
/// `from` is readable for `len` bytes.
pub unsafe fn write_memory(pid: i32, to: u64, from: *const u8, len: usize) -> Result<(), OsError> {
    let mut done = 0;
    while done < len {
        let bytes = (len - done).min(BYTES_PER_CALL);
        // SAFETY: done < len: inside the source.
        let source = unsafe { from.add(done) };
        let local = libc::iovec { iov_base: source.cast_mut().cast(), iov_len: bytes };
        let at = to.wrapping_add(done as u64) as usize;
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes };
        // SAFETY: `local` describes readable memory of ours, which the call only reads.
        let put = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
        match put {
            1.. => done += put as usize,
            0 => return Err(OsError::with_code("process_vm_writev", on(pid), libc::EFAULT)),
            _ if errno() == libc::EINTR => {}
            _ => return Err(OsError::last("process_vm_writev", on(pid))),
        }
    }
    Ok(())
}

fn on(pid: i32) -> String {
    format!("memory of process {pid}")
}

/// Have the calling thread run on any processor of the node: the rank's own is busy.
pub fn leave_processor() {
    // SAFETY: all-zero is a valid set.
    let mut any: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    for processor in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: inside the set.
        unsafe { libc::CPU_SET(processor, &mut any) };
    }
    // SAFETY: this thread and a valid set; processors that we may not use are left out by the
    // kernel. If it refuses, the thread stays where it is.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &any) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_can_be_read_and_written_across() {
        let pid = std::process::id() as i32;
        let source: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let mut target = vec![0; source.len()];
        let address = source.as_ptr() as u64;
        // SAFETY: target has this length and is ours.
        let read = unsafe { read_memory(pid, address, target.as_mut_ptr(), source.len()) };
        assert_eq!(read, Ok(()));
        assert_eq!(source, target);
        let word = 77u64.to_ne_bytes();
        let to = target.as_mut_ptr() as u64;
        // SAFETY: word is readable, and the target is ours and long enough.
        let written = unsafe { write_memory(pid, to, word.as_ptr(), 8) };
        assert_eq!(written, Ok(()));
        assert_eq!(target[..8], word);
    }

    #[test]
    fn unmapped_memory_is_an_error_not_a_crash() {
        let pid = std::process::id() as i32;
        let mut target = [0; 8];
        // SAFETY: target has 8 bytes.
        let read = unsafe { read_memory(pid, 8, target.as_mut_ptr(), 8) };
        assert_eq!(read.unwrap_err().code, libc::EFAULT);
    }
}
