//! A memory barrier on every running thread of this process: membarrier(2), or where the kernel
//! has none (or a filter refuses it) a change of a page's protection, which makes the kernel
//! interrupt each processor that runs one of our threads.

use crate::os::page_bytes;
use std::io;
use std::sync::Mutex;

const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// See the module's documentation.
#[derive(Debug)]
pub enum Barrier {
    /// The system call works.
    Membarrier,
    /// Address of a page of ours.
    Page(Mutex<usize>),
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

impl Barrier {
    /// Find out what works.
    pub fn new() -> io::Result<Self> {
        if membarrier(CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(CMD_PRIVATE_EXPEDITED) {
            return Ok(Self::Membarrier);
        }
        Self::page()
    }

    fn page() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let page =
            unsafe { libc::mmap(core::ptr::null_mut(), page_bytes(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::Page(Mutex::new(page as usize)))
    }

    /// Every thread of this process that runs now passes a full barrier before this returns.
    pub fn all_threads(&self) {
        match self {
            Self::Membarrier => {
                // After a restore the new process has to register first.
                if !membarrier(CMD_PRIVATE_EXPEDITED) {
                    membarrier(CMD_REGISTER_PRIVATE_EXPEDITED);
                    membarrier(CMD_PRIVATE_EXPEDITED);
                }
            }
            Self::Page(page) => {
                let page = page.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let start = *page as *mut u8;
                let set = |protection| {
                    // SAFETY: our own page; nobody else knows it.
                    unsafe { libc::mprotect(start.cast(), page_bytes(), protection) }
                };
                set(libc::PROT_READ | libc::PROT_WRITE);
                // SAFETY: our own page, writable: it must be present for the next step to
                // concern other processors.
                unsafe { start.write_volatile(1) };
                set(libc::PROT_READ);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_can_be_called_again_and_again() {
        for barrier in [Barrier::new().unwrap(), Barrier::page().unwrap()] {
            for _ in 0..3 {
                barrier.all_threads();
            }
        }
    }
}
