//! Pages of another process: which there are, reading, writing.
//!
//! Source: FACTS-image §3 (pagemap: present or swapped, and not of a file).

use crate::error::ProcessImageError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Entries of pagemap that are read at once.
const ENTRIES: u64 = 1 << 16;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Memory of another process.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    pagemap: File,
    memory: File,
}

impl Memory {
    /// Of this process.
    pub fn of(pid: u32) -> Result<Self, ProcessImageError> {
        let open = |name| {
            let path = format!("/proc/{pid}/{name}");
            File::open(&path).map_err(ProcessImageError::system(format!(
                "{path} (the same user must be allowed to read it: see kernel.yama.ptrace_scope)"
            )))
        };
        Ok(Self { pid, pagemap: open("pagemap")?, memory: open("mem")? })
    }

    /// Runs of its own pages in a range of private memory.
    pub fn own_pages(
        &self,
        (start, end): (u64, u64),
    ) -> Result<Vec<(u64, u64)>, ProcessImageError> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut at = start;
        let mut buffer = Vec::new();
        while at < end {
            let count = ((end - at) / PAGE).min(ENTRIES);
            buffer.resize(count as usize * 8, 0);
            self.pagemap
                .read_exact_at(&mut buffer, at / PAGE * 8)
                .map_err(ProcessImageError::system(format!("/proc/{}/pagemap", self.pid)))?;
            for entry in buffer.as_chunks::<8>().0 {
                let entry = u64::from_le_bytes(*entry);
                if entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0 {
                    match runs.last_mut() {
                        Some(last) if last.1 == at => last.1 = at + PAGE,
                        _ => runs.push((at, at + PAGE)),
                    }
                }
                at += PAGE;
            }
        }
        Ok(runs)
    }

    /// Reads; what cannot be read because a file has ended there is zero.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let at = address + done as u64;
            match transfer_in(self.pid, &mut into[done..], at) {
                Ok(count) if count > 0 => done += count,
                // Not readable, for the process itself: the file in /proc reads it all the same.
                _ => done += self.read_page(at, &mut into[done..])?,
            }
        }
        Ok(())
    }

    fn read_page(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(PAGE as usize);
        let buffer = &mut into[..count];
        if let Err(error) = self.memory.read_exact_at(buffer, at) {
            if error.raw_os_error() == Some(libc::ESRCH) {
                return Err(error);
            }
            buffer.fill(0);
        }
        Ok(count)
    }
}

/// process_vm_readv(2) of one piece.
fn transfer_in(pid: u32, local: &mut [u8], address: u64) -> io::Result<usize> {
    let own = [local.as_mut_ptr().addr(), local.len()];
    let other = [address as usize, local.len()];
    let a = [pid as usize, own.as_ptr().addr(), 1, other.as_ptr().addr(), 1, 0];
    // SAFETY: the kernel writes into `local` only, which is borrowed mutably.
    unsafe { crate::raw::call(libc::SYS_process_vm_readv, a) }.map_err(io::Error::from)
}

/// process_vm_writev(2) of one piece.
fn transfer_out(pid: u32, local: &[u8], address: u64) -> io::Result<usize> {
    let own = [local.as_ptr().addr(), local.len()];
    let other = [address as usize, local.len()];
    let a = [pid as usize, own.as_ptr().addr(), 1, other.as_ptr().addr(), 1, 0];
    // SAFETY: the kernel reads `local`, and writes memory of a process that runs no code of ours.
    unsafe { crate::raw::call(libc::SYS_process_vm_writev, a) }.map_err(io::Error::from)
}

/// Writes all of it into a process.
pub fn write(pid: u32, address: u64, from: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < from.len() {
        let at = address + done as u64;
        match transfer_out(pid, &from[done..], at)? {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            count => done += count,
        }
    }
    Ok(())
}

/// Reads all of it from a process.
pub fn read(pid: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let at = address + done as u64;
        match transfer_in(pid, &mut into[done..], at)? {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            count => done += count,
        }
    }
    Ok(())
}

/// Is every byte 0?
pub fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<64>();
    let zero = |chunk: &[u8; 64]| chunk.iter().fold(0, |sum, byte| sum | byte) == 0;
    words.iter().all(zero) && rest.iter().all(|byte| *byte == 0)
}
