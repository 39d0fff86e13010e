//! The process's memory, as operations of other processes touch it; and that of neighbours.

use crate::engine::recording::ROLLBACK_MAX;
use crate::ffi::table::Glue;
use crate::os::OsError;
use crate::os::process::{read_memory, write_memory};
use rustbtl_rma::memory::Memory;

/// All of the process. The machine has checked addresses against the window's memory.
#[derive(Debug)]
pub struct ProcessMemory;

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) {
        // SAFETY: inside of the window's memory, which the program keeps valid while the window
        // lives; it may look at it and change it meanwhile, so it is copied and never borrowed.
        unsafe {
            core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len());
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len()) }
    }
}

/// Memory of a neighbour that is mapped here, so far from where its owner has it; 0: the own.
#[derive(Debug)]
pub struct MappedHere(pub u64);

impl Memory for MappedHere {
    #[inline]
    fn read(&self, address: u64, into: &mut [u8]) {
        let from = address.wrapping_add(self.0) as *const u8;
        match <&mut [u8; 8]>::try_from(&mut *into) {
            // A word as one, if it is aligned: as programs expect who look at flags.
            // SAFETY: as `ProcessMemory`.
            Ok(word) => *word = unsafe { from.cast::<u64>().read_unaligned() }.to_ne_bytes(),
            // SAFETY: as `ProcessMemory`.
            Err(_) => unsafe {
                core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
            },
        }
    }

    #[inline]
    fn write(&mut self, address: u64, from: &[u8]) {
        let into = address.wrapping_add(self.0) as *mut u8;
        match <[u8; 8]>::try_from(from) {
            // SAFETY: as `ProcessMemory`.
            Ok(word) => unsafe { into.cast::<u64>().write_unaligned(u64::from_ne_bytes(word)) },
            // SAFETY: as `ProcessMemory`.
            Err(_) => unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) },
        }
    }
}

/// Memory of a neighbour, or the own. The machine has checked addresses against the window's
/// memory, as its owner has published it.
pub enum PeerMemory<'a> {
    /// Of this process.
    Own,
    /// It is mapped here, so far from where its owner has it.
    Mapped(u64),
    /// It is the memory of the process with this id.
    Of(i32, &'a Glue),
}

/// Without the access nothing can go on. A neighbour that has ended takes this process with it: all
/// of the set are rolled back, or the job ends. Nothing may leave until then.
#[cold]
fn failed(glue: &Glue, error: &OsError) -> ! {
    if error.code == libc::ESRCH {
        std::thread::sleep(ROLLBACK_MAX);
    }
    glue.fatal("window-memory", &[&error.to_string()])
}

impl Memory for PeerMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) {
        let (pid, glue) = match self {
            Self::Own => return ProcessMemory.read(address, into),
            Self::Mapped(delta) => return ProcessMemory.read(address.wrapping_add(*delta), into),
            Self::Of(pid, glue) => (pid, glue),
        };
        // SAFETY: `into` is writable and borrowed.
        let done = unsafe { read_memory(*pid, address, into.as_mut_ptr(), into.len()) };
        if let Err(error) = done {
            failed(glue, &error);
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) {
        let (pid, glue) = match self {
            Self::Own => return ProcessMemory.write(address, from),
            Self::Mapped(delta) => return ProcessMemory.write(address.wrapping_add(*delta), from),
            Self::Of(pid, glue) => (pid, glue),
        };
        // SAFETY: `from` is readable.
        let done = unsafe { write_memory(*pid, address, from.as_ptr(), from.len()) };
        if let Err(error) = done {
            failed(glue, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut place = [0u8; 16];
        let address = place.as_mut_ptr() as u64;
        ProcessMemory.write(address + 3, &[1, 2, 3]);
        let mut found = [9; 4];
        ProcessMemory.read(address + 2, &mut found);
        assert_eq!(found, [0, 1, 2, 3]);
    }
}
