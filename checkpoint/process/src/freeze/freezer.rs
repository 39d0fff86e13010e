//! The freeze itself: the order of steps, and the two ways out of it.
//!
//! Source: FACTS-image §6. Invariants 1 and 5 of `freeze.rs`.

use super::changes::Changes;
use super::describe::{self, Subject};
use super::descriptors::{self, ScratchBuffers};
use super::failure::{FreezeFailure, Name};
use super::huge_pages;
use super::kernel_state::{self, KernelState};
use super::memory_copies::MemoryCopies;
use super::save_point::{self, Context};
use super::suspend::{
    ENDED, FREE, Notes, RELEASED, RESTORED, SLOTS_MAX, SUSPENDED, Slot, ThreadTable,
};
use super::tid_remap::TidRemap;
use super::{
    Continued, Copying, FreezeError, FreezeOptions, FrozenChild, Outcome, Restored, Snapshot,
    Timings,
};
use crate::mmap_vec::{Description, MmapVec};
use crate::proc_files::{self, Path, Piece};
use crate::raw::{self, Errno};
use crate::restore_args::{RESTORE_ARGS_BYTES, RestoreArgs};
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_checkpoint::image::record::FileUndo;
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes snapshots of this process. One per process; belongs to the checkpoint thread.
pub struct Freezer {
    table: &'static ThreadTable,
    /// Slots in use.
    count: usize,
    /// Number of the last freeze.
    gate: u32,
    generation: u32,
    rseq_offset: Option<isize>,
    kernel_state: Box<KernelState>,
    description: Description,
    scratch: ScratchBuffers,
    maps: MmapVec<u8>,
    copies: MemoryCopies,
    restore_args: MmapVec<u8>,
    tid_remap: TidRemap,
    changes: Changes,
    /// It belongs to its thread.
    thread: PhantomData<*mut ()>,
}

impl core::fmt::Debug for Freezer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Freezer").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// One freeze, on the stack of `freeze`; both ways out find it there.
struct ActiveFreeze<'a, 'b> {
    freezer: &'a mut Freezer,
    options: &'a mut FreezeOptions<'b>,
    context: Context,
    timings: Timings,
    outcome: Result<FreezeExit, FreezeFailure>,
}

/// How the freeze ended.
#[derive(Clone, Copy)]
enum FreezeExit {
    Child(u32),
    Paused,
    Restored,
}

/// A step took until now.
fn since(start: &mut u64) -> u64 {
    let now = raw::now_us();
    let took = now - *start;
    *start = now;
    took
}

impl Freezer {
    /// Prepares; to be called in the checkpoint thread, which must not be the main thread and
    /// must block all signals.
    pub fn new() -> Result<Self, FreezeError> {
        let no_memory = |errno: Errno| FreezeError::System { what: "memory", errno: errno.0 };
        let mut restore_args = MmapVec::new(RESTORE_ARGS_BYTES).map_err(no_memory)?;
        restore_args.append(&[0; 64]);
        let parts = (
            KernelState::new(),
            Description::new(1 << 18),
            ScratchBuffers::new(),
            MmapVec::new(1 << 17),
        );
        let table = ThreadTable::new().map_err(|errno| {
            if errno.0 == libc::EBUSY {
                let what = "a second Freezer".into();
                return FreezeError::Refused { what, reason: "a process has one" };
            }
            no_memory(errno)
        })?;
        Ok(Self {
            table,
            count: 0,
            gate: 0,
            generation: 0,
            rseq_offset: rseq_offset(),
            kernel_state: Box::new(parts.0.map_err(no_memory)?),
            description: parts.1.map_err(no_memory)?,
            scratch: parts.2.map_err(no_memory)?,
            maps: parts.3.map_err(no_memory)?,
            copies: MemoryCopies::new().map_err(no_memory)?,
            restore_args,
            tid_remap: TidRemap::new().map_err(no_memory)?,
            changes: Changes::new().map_err(no_memory)?,
            thread: PhantomData,
        })
    }

    /// Requests huge pages for large private memory that was touched as a whole (MADV_COLLAPSE):
    /// the clone of the next freeze, and so its pause, gets shorter, at the price of a copy beside
    /// the program. The kernel waits for all processors on the way: where one of them is kept busy
    /// by others, that took more than half a minute. So nobody must wait for it.
    pub fn make_huge_pages(&mut self) {
        // Advice only: what cannot be collapsed stays as it is.
        let _ = huge_pages::collapse(&mut self.maps);
    }

    /// Does the kernel note what is written since the last snapshot? If not, although
    /// [`FreezeOptions::track_changes`] asks for it, it cannot.
    pub fn tracks_changes(&self) -> bool {
        self.changes.is_on()
    }

    /// Takes a snapshot of the process. Returns in this process, and once more in each process that
    /// is restored from the image.
    pub fn freeze(&mut self, options: &mut FreezeOptions<'_>) -> Result<Outcome, FreezeError> {
        self.prepare().map_err(FreezeError::from)?;
        self.changes.prepare(options.track_changes && options.copying != Copying::Pause);
        let mut active = ActiveFreeze {
            freezer: self,
            options,
            context: Context { stack: 0, restored, argument: 0 },
            timings: Timings::default(),
            outcome: Err(FreezeFailure::Hook("nothing has happened")),
        };
        let address = (&raw mut active).addr() as u64;
        active.context.argument = address;
        let context = &raw mut active.context;
        // Both functions reach it by its address.
        let _ = (&raw mut active).expose_provenance();
        // SAFETY: context and `active` outlive the call, and are not touched by this function until
        // it returns: in this process from `freeze_body`, in a restored one from `restored`.
        unsafe { save_point::save(context, freeze_body, address) };
        let ActiveFreeze { timings, outcome, .. } = active;
        match outcome {
            Ok(FreezeExit::Child(pid)) => {
                self.changes.finish(&mut self.description);
                let child = Some(FrozenChild { pid });
                let description = self.description.items().to_vec();
                Ok(Outcome::Continued(Continued { child, description, timings }))
            }
            Ok(FreezeExit::Paused) => {
                let description = self.description.items().to_vec();
                Ok(Outcome::Continued(Continued { child: None, description, timings }))
            }
            Ok(FreezeExit::Restored) => Ok(Outcome::Restored(self.read_restore_args())),
            Err(failure) => Err(failure.into()),
        }
    }

    /// What can be done before threads are suspended.
    fn prepare(&mut self) -> Result<(), FreezeFailure> {
        let own = raw::plain(libc::SYS_gettid, [0; 4]);
        if own == raw::plain(libc::SYS_getpid, [0; 4]) {
            return Err(FreezeFailure::Hook("the main thread cannot be the checkpoint thread"));
        }
        self.tid_remap
            .find_entries()
            .map_err(FreezeFailure::system("room for entries of global offset tables"))?;
        self.copies.find_not_forked(&mut self.scratch.text)?;
        self.wait_until(20_000, |state| state == RELEASED, "has not left the last freeze")?;
        for slot in &self.table.slots[..self.count] {
            slot.state.store(FREE, Ordering::Release);
        }
        self.count = 0;
        self.gate = self.gate.wrapping_add(1).max(1);
        self.table.gate.store(self.gate, Ordering::Release);
        ThreadTable::install().map_err(FreezeFailure::system("installing the signal handler"))
    }

    /// Releases all threads.
    fn release(&self) {
        self.table.gate.store(0, Ordering::Release);
        raw::wake(&self.table.gate);
    }

    /// Suspends all other threads: searches for new ones until there are none.
    fn suspend(&mut self, timeout_ms: u32) -> Result<(), FreezeFailure> {
        let own = raw::plain(libc::SYS_gettid, [0; 4]).unwrap_or_default() as u32;
        loop {
            let known = self.count;
            let (table, gate, text) = (self.table, self.gate, &mut self.scratch.text);
            let mut count = known;
            let list = proc_files::numbers_in(b"/proc/self/task\0", text, |tid| {
                let slots = &table.slots[..known];
                let seen = slots.iter().any(|slot| slot.notes().tid == tid);
                if tid != own && !seen && count < SLOTS_MAX {
                    table.slots[count].note(Notes { tid, gate, ..Notes::default() });
                    count += 1;
                }
            });
            list.map_err(FreezeFailure::system("listing threads"))?;
            self.count = count;
            if count == known {
                return Ok(());
            }
            if count == SLOTS_MAX {
                return Err(FreezeFailure::Hook(
                    "the program has more threads than can be suspended",
                ));
            }
            for index in known..count {
                self.suspend_one(index)?;
            }
            let reason = "did not stop in time; is it in an uninterruptible system call?";
            self.wait_until(timeout_ms, |state| state == SUSPENDED, reason)?;
        }
    }

    fn suspend_one(&mut self, index: usize) -> Result<(), FreezeFailure> {
        let slot = &self.table.slots[index];
        let mut notes = slot.notes();
        let tid = Piece::Number(notes.tid.into());
        let path = Path::of(&[Piece::Text("/proc/self/task/"), tid, Piece::Text("/syscall")]);
        let text = &mut self.scratch.text;
        notes.call = -1;
        if proc_files::read_file(path.with_nul(), text).is_ok() {
            // "number six-arguments sp pc", or "running".
            let mut words = text.items();
            let mut fields = [&[][..]; 9];
            for field in &mut fields {
                (*field, words) = proc_files::word(words);
            }
            if let (Some(call), Some(sp), Some(pc)) = (
                proc_files::decimal(fields[0]),
                proc_files::number(fields[7], 16),
                proc_files::number(fields[8], 16),
            ) {
                (notes.call, notes.call_sp, notes.call_pc) = (call as i64, sp, pc);
            }
        }
        slot.note(notes);
        match self.table.send_signal(index) {
            Ok(()) => Ok(()),
            Err(Errno(libc::ESRCH)) => {
                slot.state.store(ENDED, Ordering::Release);
                Ok(())
            }
            Err(errno) => Err(FreezeFailure::System("sending a signal to a thread", errno)),
        }
    }

    /// Waits until all slots are in the state, or their threads have ended.
    fn wait_until(
        &self,
        timeout_ms: u32,
        arrived: impl Fn(u32) -> bool,
        reason: &'static str,
    ) -> Result<(), FreezeFailure> {
        let end = raw::now_us() + u64::from(timeout_ms) * 1000;
        let mut wait_ms = 1;
        loop {
            let before = self.table.transitions.load(Ordering::Acquire);
            let slots = &self.table.slots[..self.count];
            let missing = slots.iter().find(|slot| {
                let state = slot.state.load(Ordering::Acquire);
                !arrived(state) && state != ENDED
            });
            let Some(missing) = missing else { return Ok(()) };
            raw::wait_while(&self.table.transitions, before, Some(wait_ms));
            if self.table.transitions.load(Ordering::Acquire) != before {
                continue;
            }
            wait_ms = (wait_ms * 2).min(50);
            let tid = missing.notes().tid;
            let pid = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default();
            // The new id of a thread that has not been restored yet is not known.
            let not_restored =
                missing.state.load(Ordering::Acquire) == SUSPENDED && arrived(RESTORED);
            let alive = raw::plain(libc::SYS_tgkill, [pid, tid as usize, 0, 0]);
            if !not_restored && alive == Err(Errno(libc::ESRCH)) {
                missing.state.store(ENDED, Ordering::Release);
            } else if raw::now_us() > end {
                return Err(FreezeFailure::Thread(tid, reason));
            }
        }
    }

    /// What the restorer has written for this process.
    fn read_restore_args(&mut self) -> Restored {
        let Ok(restore_args) = RestoreArgs::decode(self.restore_args.items()) else {
            return Restored {
                muted: Vec::new(),
                same_ids: false,
                generation: self.generation,
                payload: Vec::new(),
            };
        };
        let pairs = restore_args.muted[..restore_args.muted_count].iter();
        // SAFETY: the restorer has opened the far ends for us; nobody else has them.
        let owned = |far: i32| unsafe { OwnedFd::from_raw_fd(far) };
        Restored {
            muted: pairs.map(|(fd, far)| (*fd, owned(*far))).collect(),
            same_ids: restore_args.same_ids,
            generation: restore_args.generation,
            payload: restore_args.payload.to_vec(),
        }
    }
}

impl ActiveFreeze<'_, '_> {
    /// All that happens while threads are suspended, in the process that is checkpointed.
    fn take_snapshot(&mut self) -> Result<FreezeExit, FreezeFailure> {
        let mut at = raw::now_us();
        let freezer = &mut *self.freezer;
        freezer.suspend(self.options.suspend_timeout_ms)?;
        self.timings.threads = freezer.count as u32;
        self.timings.suspend_us = since(&mut at);
        if let Some(hook) = &mut self.options.after_suspended {
            hook().map_err(FreezeFailure::Hook)?;
        }
        self.timings.hook_us = since(&mut at);
        let fork = self.options.copying != Copying::Pause;
        freezer.describe(self.options, &self.context)?;
        self.timings.describe_us = since(&mut at);
        // Before the list of mappings is read, since it changes them.
        advise(self.options.dead, libc::MADV_WIPEONFORK);
        let watched = freezer.changes.watch_all(&mut freezer.maps);
        let copied = watched.and_then(|()| freezer.copy(self.options, fork));
        self.timings.copy_us = since(&mut at);
        let result = copied.and_then(|()| {
            // Invariant 3 of `changes.rs`: nothing but the clone comes behind it.
            freezer.changes.protect();
            if fork { clone_frozen() } else { Ok(None) }
        });
        let result = match result {
            Ok(Some(pid)) => Ok(FreezeExit::Child(pid)),
            Ok(None) => self.paused(),
            Err(FreezeFailure::System(_, Errno(libc::ENOMEM | libc::EAGAIN)))
                if self.options.copying == Copying::ForkOrPause
                    && self.options.while_paused.is_some() =>
            {
                self.freezer.copies.free();
                // Memory of this process that is watched would be refused.
                self.freezer.changes.end();
                let options = &*self.options;
                let described = self.freezer.describe(options, &self.context);
                let copied = described.and_then(|()| self.freezer.copy(options, false));
                copied.and_then(|()| self.paused())
            }
            Err(failure) => Err(failure),
        };
        advise(self.options.dead, libc::MADV_KEEPONFORK);
        self.timings.clone_us = since(&mut at);
        self.freezer.copies.free();
        if let Some(hook) = &mut self.options.before_release {
            hook();
        }
        result
    }

    fn paused(&mut self) -> Result<FreezeExit, FreezeFailure> {
        let Some(write) = &mut self.options.while_paused else {
            return Err(FreezeFailure::Hook(
                "the process cannot be cloned, and there is no `while_paused`",
            ));
        };
        let pid = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default() as u32;
        write(&Snapshot { pid, description: self.freezer.description.items() });
        Ok(FreezeExit::Paused)
    }
}

impl Freezer {
    fn describe(
        &mut self,
        options: &FreezeOptions<'_>,
        context: &Context,
    ) -> Result<(), FreezeFailure> {
        self.description.clear();
        self.kernel_state.save(&mut self.scratch.text)?;
        for slot in &self.table.slots[..self.count] {
            if slot.state.load(Ordering::Acquire) == SUSPENDED {
                let mut notes = slot.notes();
                let status = kernel_state::thread_status(notes.tid, &mut self.scratch.text);
                notes.pending = status.map_or(0, |(_, pending)| pending);
                slot.note(notes);
            }
        }
        let restore_args = self.restore_args.range();
        let subject = Subject {
            slots: &self.table.slots[..self.count],
            context,
            context_address: (&raw const *context).addr() as u64,
            restore_args: restore_args.start..restore_args.start + RESTORE_ARGS_BYTES,
            rseq_offset: self.rseq_offset,
            generation: self.generation,
        };
        describe::describe(
            &subject,
            &self.kernel_state,
            &mut self.description,
            &mut self.scratch.text,
        )?;
        if let Some((folder, epoch)) = options.file_undo {
            FileUndo { folder, epoch }.encode(&mut self.description);
        }
        let own = self.changes.descriptor();
        descriptors::describe(options, own, &mut self.description, &mut self.scratch)
    }

    fn copy(&mut self, options: &FreezeOptions<'_>, fork: bool) -> Result<(), FreezeFailure> {
        let read = |maps: &mut MmapVec<u8>| {
            proc_files::read_file(b"/proc/self/maps\0", maps)
                .map_err(FreezeFailure::system("reading /proc/self/maps"))
        };
        read(&mut self.maps)?;
        let known = self.scratch.known.items();
        self.copies.copy_all(self.maps.items(), known, options, &mut self.description, fork)?;
        // The copies have changed the map, and so would vectors that grow: from here on none does.
        let copies = self.copies.ranges();
        let more = 2 * self.maps.items().len() + 256 * copies.len() + (64 << 10);
        self.maps.make_room(more).map_err(FreezeFailure::system("room for /proc/self/maps"))?;
        let excluded = 64 * (copies.len() + options.exclude.len());
        let reserved = self.description.make_room(2 * more + excluded);
        reserved.map_err(FreezeFailure::system("room for the description"))?;
        read(&mut self.maps)?;
        describe::describe_memory(options, copies, self.maps.items(), &mut self.description);
        self.description.finish().map_err(FreezeFailure::system("room for the description"))
    }

    /// All that happens while threads are suspended, in the restored process.
    fn resume_after_restore(&mut self) -> Result<(), FreezeFailure> {
        self.copies.forget();
        self.changes.forget();
        self.wait_until(20_000, |state| state == RESTORED, "was not restored in time")?;
        // The restorer has written them into the memory of the vector.
        self.restore_args.clear();
        let full = self.restore_args.fill(RESTORE_ARGS_BYTES, |buffer| Ok(buffer.len()));
        full.map_err(FreezeFailure::system("reading the restore arguments"))?;
        let damaged =
            |_| FreezeFailure::Refused(Name::of(&[b"the restore arguments"]), "they are damaged");
        let restore_args = RestoreArgs::decode(self.restore_args.items()).map_err(damaged)?;
        self.generation = restore_args.generation;
        IS_RESTORED.store(true, Ordering::Release);
        let restorer = restore_args.restorer.clone();
        let bytes = (restorer.end - restorer.start) as usize;
        // SAFETY: every thread has left the restorer: the others are RESTORED, and this one is
        // here.
        let _ =
            unsafe { raw::call(libc::SYS_munmap, [restorer.start as usize, bytes, 0, 0, 0, 0]) };
        let slots = &self.table.slots[..self.count];
        // Ids are the same, or `old_tid` has what they were.
        let new_tid = |old: u32| {
            let of = slots.iter().map(|slot| slot.notes()).find(|notes| notes.old_tid == old);
            of.map_or(old, |notes| notes.tid)
        };
        self.kernel_state.restore(new_tid);
        let own = describe::own_notes().map_err(FreezeFailure::system("gettid"))?;
        let threads = slots.iter().filter(|slot| slot.state.load(Ordering::Acquire) == RESTORED);
        let threads = threads.map(Slot::notes).chain([own]);
        self.tid_remap.install(threads, restore_args.same_ids);
        for slot in slots {
            let notes = slot.notes();
            kernel_state::send_to_thread(notes.tid, notes.pending);
        }
        self.kernel_state.send_pending();
        Ok(())
    }
}

/// In the images of a restored process, too.
static IS_RESTORED: AtomicBool = AtomicBool::new(false);

/// Was this process restored from an image, ever? Known before any of its threads runs again.
pub fn is_restored() -> bool {
    IS_RESTORED.load(Ordering::Acquire)
}

/// Runs below the save point, in the process that is checkpointed.
extern "C" fn freeze_body(active: u64) -> u64 {
    // SAFETY: `freeze` passes the address of its `ActiveFreeze` and waits.
    let active = unsafe {
        &mut *core::ptr::with_exposed_provenance_mut::<ActiveFreeze<'_, '_>>(active as usize)
    };
    let start = raw::now_us();
    let outcome = active.take_snapshot();
    active.freezer.release();
    active.timings.pause_us = raw::now_us() - start;
    active.outcome = outcome;
    0
}

/// Runs at the save point, in the restored process.
extern "C" fn restored(active: u64) -> u64 {
    // SAFETY: it lies where it lay; the function that used it does not exist any more.
    let active = unsafe {
        &mut *core::ptr::with_exposed_provenance_mut::<ActiveFreeze<'_, '_>>(active as usize)
    };
    active.outcome = active.freezer.resume_after_restore().map(|()| FreezeExit::Restored);
    if active.outcome.is_ok()
        && let Some(hook) = &mut active.options.after_restored
        && let Err(reason) = hook()
    {
        active.outcome = Err(FreezeFailure::Hook(reason));
    }
    // The image has it as the child had it.
    advise(active.options.dead, libc::MADV_KEEPONFORK);
    if active.outcome.is_err() {
        // A process that is half restored must not continue.
        let _ = raw::plain(libc::SYS_exit_group, [116, 0, 0, 0]);
    }
    active.freezer.release();
    0
}

/// Advice about memory; where the kernel does not take it, the contents are in the image.
fn advise(ranges: &[Range<usize>], advice: i32) {
    for range in ranges {
        let a = [range.start, range.end - range.start, advice as usize, 0];
        let _ = raw::plain(libc::SYS_madvise, a);
    }
}

/// Clones the frozen child: invariant 3 of `freeze.rs`.
fn clone_frozen() -> Result<Option<u32>, FreezeFailure> {
    let parent = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default();
    // No signal at its end: neither SIGCHLD nor wait(-1) of the program knows of it.
    // SAFETY: a copy of this thread alone, which only runs `be_frozen`, on its copy of the stack.
    let pid = unsafe { raw::call(libc::SYS_clone, [0; 6]) };
    match pid.map_err(FreezeFailure::system("cloning the process"))? {
        0 => be_frozen(parent),
        pid => Ok(Some(pid as u32)),
    }
}

fn be_frozen(parent: usize) -> ! {
    let kill = libc::SIGKILL as usize;
    let _ = raw::plain(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, kill, 0, 0]);
    let _ = raw::plain(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0]);
    while raw::plain(libc::SYS_getppid, [0; 4]) == Ok(parent) {
        let _ = raw::plain(libc::SYS_pause, [0; 4]);
    }
    loop {
        let _ = raw::plain(libc::SYS_exit_group, [0; 4]);
    }
}

/// Distance of the C library's rseq area from fs, where it has one (glibc 2.35).
fn rseq_offset() -> Option<isize> {
    // SAFETY: looks up a name.
    let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()) };
    // SAFETY: as above.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if size.is_null() || offset.is_null() {
        return None;
    }
    // SAFETY: the C library declares it as `const unsigned int`.
    let size = unsafe { *size.cast::<u32>() };
    // SAFETY: the C library declares it as `const ptrdiff_t`.
    let offset = unsafe { *offset.cast::<isize>() };
    (size > 0).then_some(offset)
}
