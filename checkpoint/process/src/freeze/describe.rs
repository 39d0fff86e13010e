//! The process and its threads, as records.

use super::FreezeOptions;
use super::failure::FreezeFailure;
use super::kernel_state::KernelState;
use super::save_point;
use super::suspend::{ENDED, Notes, Slot, own_registers, own_robust_list};
use crate::mmap_vec::{Description, MmapVec};
use crate::processor::{self, LARGE_STATE};
use crate::raw::{self, Errno};
use rustbtl_checkpoint::image::record::{Excluded, Maps, Process, Thread, WorkingDirectory};

/// Below its frame a restored thread has this much that it must not touch.
const FRAME_GAP: u64 = 256;
/// Signature of the C library's restartable sequences.
const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// Bytes that the C library registers for them.
const RSEQ_BYTES: u32 = 32;

/// What is to be described.
pub struct Subject<'a> {
    /// Slots of the suspended threads.
    pub slots: &'a [Slot],
    /// Where the checkpoint thread resumes.
    pub context: &'a save_point::Context,
    /// Address of that.
    pub context_address: u64,
    /// Where the restorer writes its arguments for the process.
    pub restore_args: core::ops::Range<usize>,
    /// Offset of the C library's rseq area from fs.
    pub rseq_offset: Option<isize>,
    /// How often the process has been restored.
    pub generation: u32,
}

/// Writes the records of the process and its threads.
pub fn describe(
    subject: &Subject<'_>,
    kernel_state: &KernelState,
    description: &mut Description,
    text: &mut MmapVec<u8>,
) -> Result<(), FreezeFailure> {
    process(subject, kernel_state, description)
        .map_err(FreezeFailure::system("describing the process"))?;
    WorkingDirectory { path: kernel_state.folder() }.encode(description);
    for slot in subject.slots {
        if slot.state.load(core::sync::atomic::Ordering::Acquire) != ENDED {
            let notes = slot.notes();
            let stack = ((notes.frame - FRAME_GAP) & !15) - 8;
            thread(
                subject,
                &notes,
                (0, (&raw const *slot).addr() as u64, stack),
                description,
                text,
            )?;
        }
    }
    let own = own_notes().map_err(FreezeFailure::system("gettid"))?;
    let stack = ((subject.context.stack - FRAME_GAP) & !15) - 8;
    thread(subject, &own, (1, subject.context_address, stack), description, text)
}

/// Writes what is left out, and the map of everything.
pub fn describe_memory(
    options: &FreezeOptions<'_>,
    copies: &[(usize, usize)],
    maps: &[u8],
    description: &mut Description,
) {
    let excluded = options.exclude.iter().map(|range| (range.start, range.end));
    for (start, end) in excluded.chain(copies.iter().copied()) {
        Excluded { start: start as u64, end: end as u64 }.encode(description);
    }
    Maps { text: maps }.encode(description);
}

fn process(
    subject: &Subject<'_>,
    kernel_state: &KernelState,
    description: &mut Description,
) -> Result<(), Errno> {
    const ARCH_GET_XCOMP_PERM: usize = 0x1022;
    let mut permitted = 0u64;
    // Kernels before 5.16 do not know it; then there is nothing to permit.
    let a = [ARCH_GET_XCOMP_PERM, 0, 0, 0, 0];
    let _ = raw::fill(libc::SYS_arch_prctl, a, 1, &mut permitted);
    Process {
        pid: raw::plain(libc::SYS_getpid, [0; 4])? as u32,
        generation: subject.generation,
        page_bytes: 4096,
        umask: kernel_state.umask(),
        personality: kernel_state.personality(),
        brk: raw::plain(libc::SYS_brk, [0; 4])? as u64,
        state_permitted: permitted & LARGE_STATE,
        state_enabled: processor::enabled_state(),
        resume_entry: save_point::resume as *const () as u64,
        resume_context: subject.context_address,
        thread_entry: super::suspend::enter_restored as *const () as u64,
        restore_args: subject.restore_args.start as u64,
        restore_args_bytes: (subject.restore_args.end - subject.restore_args.start) as u64,
    }
    .encode(description);
    Ok(())
}

/// What is known of this thread.
pub fn own_notes() -> Result<Notes, Errno> {
    let tid = raw::plain(libc::SYS_gettid, [0; 4])? as u32;
    let mut slot = Notes { tid, ..Notes::default() };
    own_registers(&mut slot);
    own_robust_list(&mut slot);
    let a = [libc::PR_GET_TID_ADDRESS as usize, 0, 0, 0, 0];
    let _ = raw::fill(libc::SYS_prctl, a, 1, &mut slot.tid_address);
    Ok(slot)
}

fn thread(
    subject: &Subject<'_>,
    slot: &Notes,
    (role, argument, stack): (u8, u64, u64),
    description: &mut Description,
    text: &mut MmapVec<u8>,
) -> Result<(), FreezeFailure> {
    let (name, _) = super::kernel_state::thread_status(slot.tid, text)
        .map_err(FreezeFailure::system("reading /proc/self/task"))?;
    let mut affinity = [0u8; 128];
    let a = [slot.tid as usize, affinity.len(), 0, 0, 0];
    let _ = raw::fill(libc::SYS_sched_getaffinity, a, 2, &mut affinity);
    let tid = slot.tid as usize;
    let policy = raw::plain(libc::SYS_sched_getscheduler, [tid, 0, 0, 0]).unwrap_or(0);
    let mut priority = 0i32;
    let _ = raw::fill(libc::SYS_sched_getparam, [tid, 0, 0, 0, 0], 1, &mut priority);
    // getpriority(2) of the kernel gives 20 - nice.
    let nice = raw::plain(libc::SYS_getpriority, [0, tid, 0, 0]).map_or(20, |n| 40 - n.min(40));
    let rseq = subject.rseq_offset.map_or(0, |offset| registered_rseq(slot.fs, offset));
    Thread {
        tid: slot.tid,
        role,
        large_state: slot.large_state,
        slot: argument,
        stack,
        fs: slot.fs,
        gs: slot.gs,
        robust_head: slot.robust_head,
        robust_bytes: slot.robust_bytes,
        tid_address: slot.tid_address,
        rseq,
        rseq_bytes: RSEQ_BYTES,
        rseq_signature: RSEQ_SIGNATURE,
        name,
        schedule: (policy & 0xff) as u32 | (priority as u32 & 0xff) << 8 | (nice as u32) << 16,
        affinity,
    }
    .encode(description);
    Ok(())
}

/// Address of a thread's rseq area, 0 if the C library has not registered it.
fn registered_rseq(fs: u64, offset: isize) -> u64 {
    let area = fs.wrapping_add_signed(offset as i64);
    let cpu =
        core::ptr::with_exposed_provenance::<core::sync::atomic::AtomicI32>(area as usize + 4);
    // SAFETY: the C library promises that every thread has the area at that distance from fs.
    let cpu = unsafe { &*cpu }.load(core::sync::atomic::Ordering::Relaxed);
    if fs != 0 && cpu >= 0 { area } else { 0 }
}
