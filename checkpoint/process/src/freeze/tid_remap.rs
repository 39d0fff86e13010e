//! Threads whose ids have changed: a process that may not choose ids is restored with new ones.
//!
//! Source: FACTS-image §2 ("leave old pd->tid"). The C library continues with the ids that it has
//! noted, so that locks keep their owners. Its system calls about another thread would then name
//! one that does not exist. So in a restored process with new ids the calls of programs and
//! libraries to these functions come here: their entries in the global offset tables, which were
//! found before the freeze, are changed before any thread runs. Neither the program nor the way
//! it is started has to be changed.
//!
//! Not reached: system calls that a program makes itself with an id from before, functions whose
//! address it had looked up (dlsym), and objects that it loads later. What the kernel compares with
//! the owner of a lock stays wrong: robust and priority-inheriting locks (see `DESIGN.md`).
//!
//! Invariants:
//! 1. With the same ids, and for threads that were started after the restore, every function does
//!    what it did.
//! 2. Entries are changed while all other threads wait, and ids are known before.

use super::got::{self, GotEntry, Objects};
use super::suspend::{Notes, SLOTS_MAX};
use crate::mmap_vec::MmapVec;
use crate::raw::{self, Errno};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::{clockid_t, cpu_set_t, pthread_t, sched_param, sigval, size_t};

/// A thread whose id is not the one that the C library has noted.
#[derive(Clone, Copy, Default, Debug)]
struct Id {
    /// As the C library names it: the base of its own variables.
    thread: u64,
    /// Where the C library has noted its id.
    noted_at: u64,
    noted: u32,
    real: u32,
}

/// All of them.
#[repr(C)]
struct Ids {
    count: AtomicUsize,
    all: UnsafeCell<[Id; SLOTS_MAX + 1]>,
}

// SAFETY: the entries are written while all other threads wait; `count` hands them over.
unsafe impl Sync for Ids {}

static IDS: AtomicUsize = AtomicUsize::new(0);

/// The functions, and what takes their place.
const FUNCTIONS: [&CStr; 11] = [
    c"pthread_kill",
    c"pthread_sigqueue",
    c"pthread_cancel",
    c"pthread_setaffinity_np",
    c"pthread_getaffinity_np",
    c"pthread_setschedparam",
    c"pthread_getschedparam",
    c"pthread_setschedprio",
    c"pthread_getcpuclockid",
    c"pthread_setname_np",
    c"pthread_getname_np",
];

/// In the order of [`FUNCTIONS`].
fn own(index: usize) -> usize {
    let all: [*const (); FUNCTIONS.len()] = [
        kill as *const (),
        sigqueue as *const (),
        cancel as *const (),
        set_affinity as *const (),
        get_affinity as *const (),
        set_schedule as *const (),
        get_schedule as *const (),
        set_priority as *const (),
        cpu_clock as *const (),
        set_name as *const (),
        get_name as *const (),
    ];
    all[index].addr()
}

static ORIGINALS: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// What a process that gets new ids needs.
pub struct TidRemap {
    entries: MmapVec<GotEntry>,
    loaded: (u64, u64),
    ids: &'static Ids,
}

impl TidRemap {
    /// Finds the functions. Before any thread is suspended.
    pub fn new() -> Result<Self, Errno> {
        for (name, original) in FUNCTIONS.iter().zip(&ORIGINALS) {
            // SAFETY: looks up a name.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            original.store(found.addr(), Ordering::Release);
        }
        let at = raw::map(size_of::<Ids>())?;
        IDS.store(at.expose_provenance(), Ordering::Release);
        // SAFETY: zeroed memory of the right size that is never unmapped; all fields may be zero.
        let ids = unsafe { &*at.cast::<Ids>() };
        Ok(Self { entries: MmapVec::new(1 << 14)?, loaded: (0, 0), ids })
    }

    /// Finds the entries of the global offset tables, if objects were loaded or unloaded. Before
    /// any thread is suspended: takes the dynamic linker's lock.
    pub fn find_entries(&mut self) -> Result<(), Errno> {
        let loaded = got::loaded();
        if loaded == self.loaded {
            return Ok(());
        }
        // We call the originals; and the library that has them does not go this way itself.
        let mut not_in = [own(0); FUNCTIONS.len() + 1];
        for (address, original) in not_in[1..].iter_mut().zip(&ORIGINALS) {
            *address = original.load(Ordering::Acquire);
        }
        self.entries.clear();
        got::find_entries(&FUNCTIONS, &Objects::but(&not_in), &mut |entry| {
            self.entries.push(entry)
        });
        self.entries.finish()?;
        self.loaded = loaded;
        Ok(())
    }

    /// In the restored process: these are its threads, while all wait.
    pub fn install(&self, threads: impl Iterator<Item = Notes>, same: bool) {
        self.ids.count.store(0, Ordering::Release);
        if same {
            return;
        }
        // SAFETY: the count is 0, so nobody reads them; and all other threads wait.
        let all = unsafe { &mut *self.ids.all.get() };
        let mut count = 0;
        for (notes, id) in threads.filter(|notes| notes.tid_address != 0).zip(all) {
            *id = Id {
                thread: notes.fs,
                noted_at: notes.tid_address,
                noted: word(notes.tid_address).load(Ordering::Relaxed),
                real: notes.tid,
            };
            count += 1;
        }
        self.ids.count.store(count, Ordering::Release);
        for entry in self.entries.items() {
            // SAFETY: ours take what the C library's functions take.
            unsafe { got::replace_entry(entry, own(entry.name)) };
        }
    }
}

fn word(address: u64) -> &'static AtomicU32 {
    // SAFETY: where the C library has a thread's id, as the kernel knows it; to name a
    // thread that has ended and was joined is an error for the C library, too.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU32>(address as usize) }
}

/// The id of a thread, if it is not the one that the C library would use.
fn real(thread: pthread_t) -> Option<usize> {
    let ids = IDS.load(Ordering::Acquire);
    if ids == 0 {
        return None;
    }
    // SAFETY: made by `TidRemap::new` and never unmapped.
    let ids = unsafe { &*core::ptr::with_exposed_provenance::<Ids>(ids) };
    let count = ids.count.load(Ordering::Acquire);
    // SAFETY: those before the count do not change while threads run.
    let all = unsafe { &*ids.all.get() };
    let id = all[..count].iter().find(|id| id.thread == thread)?;
    // Another thread may have been started in the same place.
    (word(id.noted_at).load(Ordering::Relaxed) == id.noted).then_some(id.real as usize)
}

/// Calls the original function with this index.
macro_rules! original {
    ($index:literal, ($($kind:ty),*), ($($value:expr),*)) => {{
        let address = ORIGINALS[$index].load(Ordering::Acquire);
        let function: *const () = core::ptr::with_exposed_provenance(address);
        type Function = extern "C" fn($($kind),*) -> c_int;
        // SAFETY: the address of the C library's function with that name, which takes these.
        let function: Function = unsafe { core::mem::transmute(function) };
        function($($value),*)
    }};
}

/// What these functions return. `ESRCH`: the thread has ended; the C library decides.
fn answer(result: Result<usize, Errno>) -> Option<c_int> {
    match result {
        Ok(_) => Some(0),
        Err(Errno(libc::ESRCH)) => None,
        Err(errno) => Some(errno.0),
    }
}

fn own_pid() -> usize {
    raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default()
}

/// The C library's own signals, which its functions refuse.
fn is_internal(signal: c_int) -> bool {
    (32..34).contains(&signal)
}

extern "C" fn kill(thread: pthread_t, signal: c_int) -> c_int {
    let sent = real(thread)
        .filter(|_| !is_internal(signal))
        .and_then(|tid| answer(raw::plain(libc::SYS_tgkill, [own_pid(), tid, signal as usize, 0])));
    sent.unwrap_or_else(|| original!(0, (pthread_t, c_int), (thread, signal)))
}

extern "C" fn sigqueue(thread: pthread_t, signal: c_int, value: sigval) -> c_int {
    let sent = real(thread).filter(|_| !is_internal(signal)).and_then(|tid| {
        let pid = own_pid();
        let uid = raw::plain(libc::SYS_getuid, [0; 4]).unwrap_or_default() as u32;
        let value = value.sival_ptr.expose_provenance();
        answer(raw::queue_signal(pid, tid, signal, uid, value))
    });
    sent.unwrap_or_else(|| original!(1, (pthread_t, c_int, sigval), (thread, signal, value)))
}

/// The C library marks the thread and, where that is not enough, sends a signal to the old id; so
/// it is sent once more. Where the mark was enough, the C library's handler does nothing.
extern "C" fn cancel(thread: pthread_t) -> c_int {
    let tid = real(thread);
    let result = original!(2, (pthread_t), (thread));
    // SAFETY: no arguments.
    let Some(tid) = tid.filter(|_| thread != unsafe { libc::pthread_self() }) else {
        return result;
    };
    let signal = super::suspend::SIGNAL as usize;
    raw::plain(libc::SYS_tgkill, [own_pid(), tid, signal, 0]).map_or(result, |_| 0)
}

extern "C" fn set_affinity(thread: pthread_t, bytes: size_t, set: *const cpu_set_t) -> c_int {
    let done = real(thread).and_then(|tid| {
        let a = [tid, bytes, set.expose_provenance(), 0, 0, 0];
        // SAFETY: the kernel only reads the caller's set.
        answer(unsafe { raw::call(libc::SYS_sched_setaffinity, a) })
    });
    let kinds = |set| original!(3, (pthread_t, size_t, *const cpu_set_t), (thread, bytes, set));
    done.unwrap_or_else(|| kinds(set))
}

extern "C" fn get_affinity(thread: pthread_t, bytes: size_t, set: *mut cpu_set_t) -> c_int {
    let done = real(thread).and_then(|tid| {
        let a = [tid, bytes.min(i32::MAX as usize), set.expose_provenance(), 0, 0, 0];
        // SAFETY: the kernel writes into the caller's set.
        let result = unsafe { raw::call(libc::SYS_sched_getaffinity, a) };
        if let Ok(written) = result {
            let rest = set.cast::<u8>().wrapping_add(written);
            // SAFETY: the rest of the caller's set.
            unsafe { rest.write_bytes(0, bytes - written) };
        }
        answer(result)
    });
    let kinds = |set| original!(4, (pthread_t, size_t, *mut cpu_set_t), (thread, bytes, set));
    done.unwrap_or_else(|| kinds(set))
}

extern "C" fn set_schedule(thread: pthread_t, policy: c_int, with: *const sched_param) -> c_int {
    let done = real(thread).and_then(|tid| {
        let a = [tid, policy as usize, with.expose_provenance(), 0, 0, 0];
        // SAFETY: the kernel only reads the caller's parameter.
        answer(unsafe { raw::call(libc::SYS_sched_setscheduler, a) })
    });
    let kinds = |with| original!(5, (pthread_t, c_int, *const sched_param), (thread, policy, with));
    done.unwrap_or_else(|| kinds(with))
}

extern "C" fn get_schedule(thread: pthread_t, policy: *mut c_int, to: *mut sched_param) -> c_int {
    let done = real(thread).and_then(|tid| {
        let found = raw::plain(libc::SYS_sched_getscheduler, [tid, 0, 0, 0]);
        let a = [tid, to.expose_provenance(), 0, 0, 0, 0];
        // SAFETY: the kernel writes into the caller's parameter.
        let filled = found.and_then(|_| unsafe { raw::call(libc::SYS_sched_getparam, a) });
        if let (Ok(found), Ok(_)) = (found, filled) {
            // SAFETY: the caller's own word.
            unsafe { policy.write(found as c_int) };
        }
        answer(filled)
    });
    let kinds = |to| original!(6, (pthread_t, *mut c_int, *mut sched_param), (thread, policy, to));
    done.unwrap_or_else(|| kinds(to))
}

extern "C" fn set_priority(thread: pthread_t, priority: c_int) -> c_int {
    let done = real(thread).and_then(|tid| {
        answer(raw::pass(libc::SYS_sched_setparam, [tid, 0, 0, 0, 0], 1, &priority))
    });
    done.unwrap_or_else(|| original!(7, (pthread_t, c_int), (thread, priority)))
}

extern "C" fn cpu_clock(thread: pthread_t, clock: *mut clockid_t) -> c_int {
    /// Of one thread, the time that its scheduler counts.
    const THREAD_SCHEDULED: clockid_t = 4 | 2;
    let Some(tid) = real(thread) else {
        return original!(8, (pthread_t, *mut clockid_t), (thread, clock));
    };
    // SAFETY: the caller's own word.
    unsafe { clock.write(!(tid as clockid_t) << 3 | THREAD_SCHEDULED) };
    0
}

/// The file with a thread's name.
fn name_file(tid: usize, flags: c_int) -> Result<c_int, Errno> {
    use crate::proc_files::{Path, Piece};
    let tid = Piece::Number(tid as u64);
    let path = Path::of(&[Piece::Text("/proc/self/task/"), tid, Piece::Text("/comm")]);
    raw::open(path.with_nul(), flags | libc::O_CLOEXEC)
}

extern "C" fn set_name(thread: pthread_t, name: *const c_char) -> c_int {
    let Some(tid) = real(thread) else {
        return original!(9, (pthread_t, *const c_char), (thread, name));
    };
    // SAFETY: the caller's name ends with 0.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name.len() > 15 {
        return libc::ERANGE;
    }
    let done = name_file(tid, libc::O_RDWR).and_then(|fd| {
        let a = [fd as usize, name.as_ptr().expose_provenance(), name.len(), 0, 0, 0];
        // SAFETY: the kernel only reads the name.
        let done = unsafe { raw::call(libc::SYS_write, a) };
        raw::close(fd);
        done
    });
    done.map_or_else(|errno| errno.0, |_| 0)
}

extern "C" fn get_name(thread: pthread_t, to: *mut c_char, bytes: size_t) -> c_int {
    let Some(tid) = real(thread) else {
        return original!(10, (pthread_t, *mut c_char, size_t), (thread, to, bytes));
    };
    if bytes < 16 {
        return libc::ERANGE;
    }
    let mut name = [0u8; 16];
    let done = name_file(tid, libc::O_RDONLY).and_then(|fd| {
        let done = raw::read(fd, &mut name);
        raw::close(fd);
        done
    });
    let count = match done {
        // The file ends with a newline.
        Ok(count) => count.saturating_sub(1),
        Err(errno) => return errno.0,
    };
    name[count..].fill(0);
    // SAFETY: the caller's buffer has at least 16 bytes.
    unsafe { to.cast::<[u8; 16]>().write(name) };
    0
}
