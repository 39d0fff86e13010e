//! Threads of a restored process: what each does before it enters its own code.
//!
//! Source: FACTS-image §1 (rseq, robust list, AMX), §2 (recreating threads; ids). The C library's
//! note of a thread's id is never changed: either the id is the same, or owners of locks stay
//! valid.
//! Mirrors `struct thread` of `glue-c/restorer/restorer.c`.

use super::remote_syscalls::{NewThread, RemoteSyscalls, ThreadData, first_calls};
use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::record::{Process, Thread};
use std::os::fd::RawFd;

/// Bytes of a thread's description, all calls included.
const THREAD_BYTES: u64 = 1536;
/// Head of `struct thread`.
const HEAD_BYTES: u64 = 40;
/// Below the stack pointer with which a thread enters its code, the restorer may use the stack.
const CALLS_MAX: usize = 12;

/// Memory for the descriptions of so many threads, and for the auxiliary vector.
pub fn descriptions_bytes(threads: usize) -> u64 {
    ((threads as u64 + 1) * THREAD_BYTES + 8192).next_multiple_of(4096)
}

/// A thread's description in the restorer's memory.
#[derive(Clone, Copy, Debug)]
pub struct PreparedThread {
    /// Where it lies.
    pub at: u64,
    /// Behind it.
    pub end: u64,
}

impl PreparedThread {
    /// Writes the description of a thread. `socket`: it is the leader, and closes that number last.
    pub fn write(
        remote: &RemoteSyscalls,
        thread: &Thread,
        process: &Process,
        at: u64,
        socket: Option<RawFd>,
    ) -> Result<Self, ProcessImageError> {
        let data_at = at + HEAD_BYTES + CALLS_MAX as u64 * 64;
        let (name_at, affinity_at) = (data_at, data_at + thread.name.len() as u64);
        let priority_at = affinity_at + thread.affinity.len() as u64;
        let calls = first_calls(thread, ThreadData { name_at, affinity_at, priority_at }, socket);
        let is_helper = thread.role == 1;
        let entry = if is_helper { process.resume_entry } else { process.thread_entry };
        let large = u64::from(thread.large_state);
        let mut bytes = Vec::new();
        for word in [thread.stack, entry, thread.slot, large, calls.len() as u64] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for call in &calls {
            bytes.extend_from_slice(&call.bytes());
        }
        bytes.resize((data_at - at) as usize, 0);
        bytes.extend_from_slice(&thread.name);
        bytes.extend_from_slice(&thread.affinity);
        bytes.extend_from_slice(&(thread.schedule >> 8 & 0xff).to_le_bytes());
        remote.write_memory(at, &bytes)?;
        Ok(Self { at, end: at + THREAD_BYTES })
    }

    /// Starts it: with its own id if that is wanted and possible. Gives the one that it has.
    pub fn spawn(
        &self,
        remote: &mut RemoteSyscalls,
        thread: &Thread,
        wanted: Option<u32>,
    ) -> Result<u32, ProcessImageError> {
        // The stack is given by its lowest address and its size.
        let stack_bytes = 2048;
        let stack = ((thread.stack & !15) - stack_bytes, stack_bytes);
        let mut error = std::io::Error::from_raw_os_error(libc::EAGAIN);
        for tid in [wanted, None] {
            let new = NewThread {
                arguments_at: self.end - 256,
                description_at: self.at,
                stack,
                tid_address: thread.tid_address,
                fs: thread.fs,
                tid,
            };
            match remote.spawn_thread(&new)? {
                Ok(tid) => return Ok(tid),
                Err(why) => error = why,
            }
        }
        Err(ProcessImageError::System { what: "starting a thread".into(), error })
    }
}

/// The area of restartable sequences as it is before it is registered.
pub fn clear_rseq(remote: &RemoteSyscalls, thread: &Thread) -> Result<(), ProcessImageError> {
    if thread.rseq == 0 {
        return Ok(());
    }
    // cpu_id_start 0, cpu_id -1 (not registered), rseq_cs 0.
    let mut bytes = [0; 16];
    bytes[4..8].fill(0xff);
    remote.write_memory(thread.rseq, &bytes)
}
