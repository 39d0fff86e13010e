//! The process's memory, as operations of other processes touch it.

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
