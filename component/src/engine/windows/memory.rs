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

/// Memory of a neighbour, or the own. The machine has checked addresses against the window's
/// memory, as its owner has published it.
pub struct PeerMemory(Option<(i32, Glue)>);

impl PeerMemory {
    /// Of the process with this id.
    pub fn of(pid: i32, glue: Glue) -> Self {
        Self(Some((pid, glue)))
    }

    /// Of this process.
    pub fn own() -> Self {
        Self(None)
    }
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

impl Memory for PeerMemory {
    fn read(&self, address: u64, into: &mut [u8]) {
        let Some((pid, glue)) = &self.0 else { return ProcessMemory.read(address, into) };
        // SAFETY: `into` is writable and borrowed.
        let done = unsafe { read_memory(*pid, address, into.as_mut_ptr(), into.len()) };
        if let Err(error) = done {
            failed(glue, &error);
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) {
        let Some((pid, glue)) = &self.0 else { return ProcessMemory.write(address, from) };
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
