//! Threads of a restored process: what each does before it enters its own code.
//!
//! Source: FACTS-image §1 (rseq, robust list, AMX), §2 (recreating threads; ids). The C library's
//! note of a thread's id is never changed: either the id is the same, or owners of locks stay
//! valid.
//! Mirrors `struct thread` of `glue-c/restorer/restorer.c`.

use super::remote_syscalls::{Call, Hands};
use crate::error::OutsideError;
use rustbtl_checkpoint::image::record::{Process, Thread};
use std::os::fd::RawFd;

/// Bytes of a thread's description, all calls included.
const THREAD_BYTES: u64 = 1536;
/// Head of `struct thread`.
const HEAD_BYTES: u64 = 40;
/// Below the stack pointer with which a thread enters its code, the restorer may use the stack.
const CALLS_MAX: usize = 12;

/// Room for the descriptions of so many threads; the auxiliary vector finds room there, too.
pub fn room(threads: usize) -> u64 {
    ((threads as u64 + 1) * THREAD_BYTES + 8192).next_multiple_of(4096)
}

/// A thread's description in the restorer's memory.
#[derive(Clone, Copy, Debug)]
pub struct Newborn {
    /// Where it lies.
    pub at: u64,
    /// Behind it.
    pub end: u64,
}

impl Newborn {
    /// Writes the description of a thread. `socket`: it is the leader, and closes that number last.
    pub fn write(
        hands: &Hands,
        thread: &Thread,
        process: &Process,
        at: u64,
        socket: Option<RawFd>,
    ) -> Result<Self, OutsideError> {
        let data_at = at + HEAD_BYTES + CALLS_MAX as u64 * 64;
        let calls = calls(thread, data_at, socket);
        let is_helper = thread.role == 1;
        let entry = if is_helper { process.resume_entry } else { process.reborn_entry };
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
        hands.write(at, &bytes)?;
        Ok(Self { at, end: at + THREAD_BYTES })
    }

    /// Starts it: with its own id if that is wanted and possible. Gives the one that it has.
    pub fn spawn(
        &self,
        hands: &mut Hands,
        thread: &Thread,
        wanted: Option<u32>,
    ) -> Result<u32, OutsideError> {
        let at = self.end - 256;
        let tid_at = at + 96;
        let mut error = std::io::Error::from_raw_os_error(libc::EAGAIN);
        for set in [wanted, None] {
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM
                | libc::CLONE_SETTLS
                | libc::CLONE_CHILD_CLEARTID;
            // The stack is given by its lowest address and its size.
            let stack_bytes = 2048;
            let stack = (thread.stack & !15) - stack_bytes;
            let words: [u64; 11] = [
                flags as u64,
                0,
                thread.tid_address,
                0,
                0,
                stack,
                stack_bytes,
                thread.fs,
                if set.is_some() { tid_at } else { 0 },
                u64::from(set.is_some()),
                0,
            ];
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.resize(96, 0);
            bytes.extend_from_slice(&thread.tid.to_le_bytes());
            hands.write(at, &bytes)?;
            let result = hands.spawn(at, 80, self.at)?;
            if result > 0 {
                return Ok(result as u32);
            }
            error = std::io::Error::from_raw_os_error(-result as i32);
        }
        Err(OutsideError::System { what: "starting a thread".into(), error })
    }
}

/// What a thread does by itself, in this order.
fn calls(thread: &Thread, data_at: u64, socket: Option<RawFd>) -> Vec<Call> {
    const ARCH_SET_GS: u64 = 0x1001;
    const ARCH_SET_FS: u64 = 0x1002;
    let (name_at, affinity_at) = (data_at, data_at + 16);
    let priority_at = affinity_at + thread.affinity.len() as u64;
    let mut calls = Vec::new();
    if socket.is_some() {
        let a = [ARCH_SET_FS, thread.fs, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_arch_prctl, a));
        let a = [thread.tid_address, 0, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_set_tid_address, a));
    }
    if thread.gs != 0 {
        calls.push(Call::new(libc::SYS_arch_prctl, [ARCH_SET_GS, thread.gs, 0, 0, 0, 0]));
    }
    if thread.robust_bytes != 0 {
        let a = [thread.robust_head, thread.robust_bytes, 0, 0, 0, 0];
        calls.push(Call::new(libc::SYS_set_robust_list, a));
    }
    if thread.rseq != 0 {
        let (bytes, signature) = (thread.rseq_bytes.into(), thread.rseq_signature.into());
        let a = [thread.rseq, bytes, 0, signature, 0, 0];
        calls.push(Call::may_fail(libc::SYS_rseq, a));
    }
    let a = [libc::PR_SET_NAME as u64, name_at, 0, 0, 0, 0];
    calls.push(Call::may_fail(libc::SYS_prctl, a));
    let a = [0, thread.affinity.len() as u64, affinity_at, 0, 0, 0];
    calls.push(Call::may_fail(libc::SYS_sched_setaffinity, a));
    let (policy, nice) = (u64::from(thread.schedule & 0xff), thread.schedule >> 16);
    if policy != libc::SCHED_OTHER as u64 {
        let a = [0, policy, priority_at, 0, 0, 0];
        calls.push(Call::may_fail(libc::SYS_sched_setscheduler, a));
    }
    if nice != 20 {
        let nice = i64::from(nice) - 20;
        let a = [libc::PRIO_PROCESS as u64, 0, nice as u64, 0, 0, 0];
        calls.push(Call::may_fail(libc::SYS_setpriority, a));
    }
    if let Some(socket) = socket {
        calls.push(Call::may_fail(libc::SYS_close, [socket as u64, 0, 0, 0, 0, 0]));
    }
    calls
}

/// The area of restartable sequences as it is before it is registered.
pub fn clear_rseq(hands: &Hands, thread: &Thread) -> Result<(), OutsideError> {
    if thread.rseq == 0 {
        return Ok(());
    }
    // cpu_id_start 0, cpu_id -1 (not registered), rseq_cs 0.
    let mut bytes = [0; 16];
    bytes[4..8].fill(0xff);
    hands.write(thread.rseq, &bytes)
}
