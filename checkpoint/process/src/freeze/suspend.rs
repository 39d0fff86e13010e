//! Suspending threads: how one stops in our signal handler, and how it is released.
//!
//! Source: FACTS-image §2. The signal is 32, the only one that the C library never lets a thread
//! block. Ours is distinguished from that of `pthread_cancel` by its code and value; the rest is
//! passed to the handler that was there before.
//!
//! A thread's slot goes FREE -> REQUESTED -> SUSPENDED -> RELEASED; in a restored process
//! SUSPENDED -> RESTORED -> RELEASED. A thread that has stored a state stores nothing to the slot
//! afterwards.

use super::save_point;
use crate::processor::LARGE_STATE;
use crate::raw::{self, Errno};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The C library's signal for pthread_cancel.
pub const SIGNAL: i32 = 32;
/// Most threads of a process.
pub const SLOTS_MAX: usize = 4096;

/// No thread.
pub const FREE: u32 = 0;
/// The signal is on its way.
pub const REQUESTED: u32 = 1;
/// In the handler, waiting for the gate.
pub const SUSPENDED: u32 = 2;
/// Out of the handler.
pub const RELEASED: u32 = 3;
/// In the restored process, waiting for the gate.
pub const RESTORED: u32 = 4;
/// The thread had ended before the signal came.
pub const ENDED: u32 = 5;

/// A thread to be suspended. Its notes belong to the checkpoint thread until the state is
/// REQUESTED, then to the thread until it is SUSPENDED (or RESTORED), then nobody changes them.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    /// See the head of this file.
    pub state: AtomicU32,
    notes: UnsafeCell<Notes>,
}

// SAFETY: the state hands the notes from one thread to the other.
unsafe impl Sync for Slot {}

/// What is known of a thread.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Notes {
    /// Its id.
    pub tid: u32,
    /// Its id before the last restore.
    pub old_tid: u32,
    /// The gate that it waits for.
    pub gate: u32,
    /// It has used state that needs permission.
    pub large_state: bool,
    /// Signals that are pending for it alone.
    pub pending: u64,
    /// The frame of its handler.
    pub frame: u64,
    /// Base of its own variables.
    pub fs: u64,
    /// Base of %gs.
    pub gs: u64,
    /// get_robust_list(2).
    pub robust_head: u64,
    /// get_robust_list(2).
    pub robust_bytes: u64,
    /// PR_GET_TID_ADDRESS.
    pub tid_address: u64,
    /// The system call that it was in, or -1.
    pub call: i64,
    /// Where it would continue.
    pub call_pc: u64,
    /// With which stack pointer.
    pub call_sp: u64,
}

impl Slot {
    /// The notes; only for the thread to which they belong.
    pub fn notes(&self) -> Notes {
        // SAFETY: the state determines whose the notes are (see `Slot`); only that thread is here.
        unsafe { *self.notes.get() }
    }

    /// New notes; only by the thread to which they belong.
    pub fn note(&self, notes: Notes) {
        // SAFETY: as in `notes`.
        unsafe { *self.notes.get() = notes }
    }
}

/// What the suspended threads and the checkpoint thread share.
#[repr(C)]
#[derive(Debug)]
pub struct ThreadTable {
    /// Number of the current freeze; 0: all threads may run.
    pub gate: AtomicU32,
    /// Counts changes of state by threads: the checkpoint thread waits on it.
    pub transitions: AtomicU32,
    /// One per thread.
    pub slots: [Slot; SLOTS_MAX],
}

/// The thread table of this process.
static THREAD_TABLE: AtomicUsize = AtomicUsize::new(0);
/// The handler that was there before ours, if it is a function.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// sigaction as the kernel knows it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct KernelAction {
    /// Function, 0 or 1.
    pub handler: usize,
    /// SA_*.
    pub flags: usize,
    /// Return address of the handler.
    pub restorer: usize,
    /// Blocked meanwhile.
    pub mask: u64,
}

impl KernelAction {
    /// What is done on a signal.
    pub fn of(signal: i32) -> Result<Self, Errno> {
        let mut action = Self::default();
        let a = [signal as usize, 0, 0, 8, 0];
        raw::fill(libc::SYS_rt_sigaction, a, 2, &mut action)?;
        Ok(action)
    }
}

impl ThreadTable {
    /// Makes the table of this process: once.
    pub fn new() -> Result<&'static Self, Errno> {
        let at = raw::map(size_of::<Self>())?;
        let free = THREAD_TABLE.compare_exchange(0, at.addr(), Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: zeroed memory of the right size that is never unmapped; all fields may be zero.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    /// Installs the handler if it is not there; remembers the one that is.
    pub fn install() -> Result<(), Errno> {
        let before = KernelAction::of(SIGNAL)?;
        let ours = on_signal as *const () as usize;
        if before.handler == ours {
            return Ok(());
        }
        let function = if before.handler > 1 { before.handler } else { 0 };
        BEFORE.store(function, Ordering::Release);
        let action = KernelAction {
            handler: ours,
            flags: (libc::SA_RESTART | libc::SA_SIGINFO) as usize | 0x0400_0000,
            restorer: save_point::handler_return as *const () as usize,
            mask: u64::MAX,
        };
        raw::pass(libc::SYS_rt_sigaction, [SIGNAL as usize, 0, 0, 8, 0], 1, &action)?;
        Ok(())
    }

    /// Sends a thread the signal that suspends it.
    pub fn send_signal(&self, index: usize) -> Result<(), Errno> {
        let slot = &self.slots[index];
        let pid = raw::plain(libc::SYS_getpid, [0; 4])?;
        let (tid, value) = (slot.notes().tid as usize, (&raw const *slot).addr());
        slot.state.store(REQUESTED, Ordering::Release);
        raw::queue_signal(pid, tid, SIGNAL, 0, value).map(|_| ())
    }
}

/// The slot that a signal is about, if it is ours.
fn slot_of(info: &libc::siginfo_t) -> Option<&'static Slot> {
    // SAFETY: every sender of signal 32 (tgkill, sigqueue) gives a pid; other codes are not read.
    let pid = if info.si_code == libc::SI_QUEUE { unsafe { info.si_pid() } } else { return None };
    let own = raw::plain(libc::SYS_getpid, [0; 4]).ok()?;
    let table = THREAD_TABLE.load(Ordering::Acquire);
    let first = table + core::mem::offset_of!(ThreadTable, slots);
    // SAFETY: a queued signal has a value.
    let at = unsafe { info.si_value() }.sival_ptr.addr();
    let offset = at.checked_sub(first)?;
    let is_ours = pid as usize == own
        && table != 0
        && offset < SLOTS_MAX * size_of::<Slot>()
        && offset.is_multiple_of(size_of::<Slot>());
    if !is_ours {
        return None;
    }
    // SAFETY: it is one of the table's slots; the table is never unmapped.
    Some(unsafe { &*core::ptr::with_exposed_provenance::<Slot>(at) })
}

/// Handler of [`SIGNAL`].
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives a valid siginfo_t.
    let ours = slot_of(unsafe { &*info });
    let Some(slot) = ours else {
        let before = BEFORE.load(Ordering::Acquire);
        if before != 0 {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);
            // SAFETY: the address was the installed handler of this signal, which takes these.
            let before: Handler = unsafe { core::mem::transmute(before) };
            before(signal, info, context);
        }
        return;
    };
    // SAFETY: the kernel gives a valid context, which belongs to this handler.
    let context = unsafe { &mut *context };
    let mut notes = slot.notes();
    enter(&mut notes, context);
    slot.note(notes);
    wait_at_gate(slot, SUSPENDED);
}

/// Notes what only the thread itself can know.
fn enter(slot: &mut Notes, context: &mut libc::ucontext_t) {
    slot.frame = (&raw const *context).addr() as u64;
    own_registers(slot);
    // Errors leave 0, which means: none.
    let options = [libc::PR_GET_TID_ADDRESS as usize, 0, 0, 0, 0];
    let _ = raw::fill(libc::SYS_prctl, options, 1, &mut slot.tid_address);
    own_robust_list(slot);
    slot.large_state = has_large_state(context);
    rewind(slot, context);
}

/// fs and gs of this thread.
pub fn own_registers(slot: &mut Notes) {
    const ARCH_GET_FS: usize = 0x1003;
    const ARCH_GET_GS: usize = 0x1004;
    let _ = raw::fill(libc::SYS_arch_prctl, [ARCH_GET_FS, 0, 0, 0, 0], 1, &mut slot.fs);
    let _ = raw::fill(libc::SYS_arch_prctl, [ARCH_GET_GS, 0, 0, 0, 0], 1, &mut slot.gs);
}

/// The list of locks that the kernel frees when this thread ends.
pub fn own_robust_list(slot: &mut Notes) {
    let bytes_at = (&raw mut slot.robust_bytes).addr();
    let a = [0, 0, bytes_at, 0, 0];
    let _ = raw::fill(libc::SYS_get_robust_list, a, 1, &mut slot.robust_head);
}

/// Was the frame saved with state that needs permission? (`fx_sw_bytes` of the kernel's ABI.)
fn has_large_state(context: &libc::ucontext_t) -> bool {
    let state = context.uc_mcontext.fpregs.cast::<u8>();
    if state.is_null() {
        return false;
    }
    // SAFETY: the frame holds at least the 512 bytes of FXSAVE.
    let state = unsafe { &*state.cast::<[u32; 128]>() };
    let words = &state[464 / 4..];
    let features = u64::from(words[2]) | u64::from(words[3]) << 32;
    words[0] == 0x4650_5853 && features & LARGE_STATE != 0
}

/// Invariant 2 of `freeze.rs`: the thread repeats the interrupted call.
fn rewind(slot: &Notes, context: &mut libc::ucontext_t) {
    let registers = &mut context.uc_mcontext.gregs;
    let at = |index: libc::c_int| index as usize;
    let pc = registers[at(libc::REG_RIP)] as u64;
    if registers[at(libc::REG_RAX)] != -i64::from(libc::EINTR) || pc < 4096 {
        return;
    }
    let mut code = [0u8; 7];
    let from = core::ptr::with_exposed_provenance::<u8>(pc as usize - code.len());
    // SAFETY: the thread has executed the instruction that ends at `pc`. The five bytes before it
    // are of the same page or of the one before, which holds the function's beginning.
    let before: &[u8; 7] = unsafe { &*from.cast() };
    code.copy_from_slice(before);
    if code[5..] != [0x0f, 0x05] {
        return;
    }
    let same_place = slot.call_pc == pc && slot.call_sp == registers[at(libc::REG_RSP)] as u64;
    let number = if slot.call >= 0 && same_place {
        slot.call
    } else if code[0] == 0xb8 {
        i64::from(u32::from_le_bytes([code[1], code[2], code[3], code[4]]))
    } else {
        return;
    };
    // The rest of a sleep is where the caller wanted to have it.
    let (request, rest, flags) = match number {
        libc::SYS_nanosleep => (libc::REG_RDI, libc::REG_RSI, 0),
        libc::SYS_clock_nanosleep => (libc::REG_RDX, libc::REG_R10, registers[at(libc::REG_RSI)]),
        _ => (libc::REG_RDI, libc::REG_RDI, 1),
    };
    if flags & 1 == 0 && registers[at(rest)] != 0 {
        registers[at(request)] = registers[at(rest)];
    }
    registers[at(libc::REG_RAX)] = number;
    registers[at(libc::REG_RIP)] -= 2;
}

fn wait_at_gate(slot: &Slot, state: u32) {
    let table = THREAD_TABLE.load(Ordering::Acquire);
    // SAFETY: a slot exists only in a table, which is never unmapped.
    let table = unsafe { &*core::ptr::with_exposed_provenance::<ThreadTable>(table) };
    let gate = slot.notes().gate;
    slot.state.store(state, Ordering::Release);
    table.transitions.fetch_add(1, Ordering::AcqRel);
    raw::wake(&table.transitions);
    while table.gate.load(Ordering::Acquire) == gate {
        raw::wait_while(&table.gate, gate, None);
    }
    slot.state.store(RELEASED, Ordering::Release);
    table.transitions.fetch_add(1, Ordering::AcqRel);
    raw::wake(&table.transitions);
}

/// Where a thread of a restored process begins, entered by the restorer.
pub extern "C" fn enter_restored(slot: u64) -> ! {
    // SAFETY: the argument is the address of the slot with which this thread was suspended.
    let slot = unsafe { &*core::ptr::with_exposed_provenance::<Slot>(slot as usize) };
    let mut notes = slot.notes();
    if let Ok(tid) = raw::plain(libc::SYS_gettid, [0; 4]) {
        (notes.old_tid, notes.tid) = (notes.tid, tid as u32);
    }
    slot.note(notes);
    wait_at_gate(slot, RESTORED);
    // SAFETY: the frame is that of the handler in which this thread was suspended.
    unsafe { save_point::leave_handler(notes.frame) }
}
