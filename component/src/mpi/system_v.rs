//! System V semaphores and message queues. What is in them the kernel has, not the processes, and
//! it stays when these end: no image holds it, and a restored process would find what others have
//! left. So there is no checkpoint of a process that has used one, as long as it is there.
//!
//! Nothing in a process shows that it uses one (memory shows in its mappings): its calls are noted.
//! Signal handlers may make them: nothing is allocated and no lock is taken.

use crate::os::library_function::{self, Function, stock};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libc::{sembuf, size_t, ssize_t, timespec};

static SEMOP: Function = Function::of(&[c"semop"]);
static SEMTIMEDOP: Function = Function::of(&[c"semtimedop"]);
static MSGSND: Function = Function::of(&[c"msgsnd"]);
static MSGRCV: Function = Function::of(&[c"msgrcv"]);

/// All of them, and the addresses of ours.
pub(super) fn functions() -> [(&'static Function, usize); 4] {
    [
        (&SEMOP, operate as *const ()),
        (&SEMTIMEDOP, operate_for as *const ()),
        (&MSGSND, send as *const ()),
        (&MSGRCV, receive as *const ()),
    ]
    .map(|(function, own)| (function, own.expose_provenance()))
}

/// In MPI_Init.
pub fn install() {
    library_function::install(&functions());
}

const NOBODY: i32 = -1;

/// Those of one kind that were used.
struct Used {
    ids: [AtomicI32; 64],
    /// There was no place for one.
    is_full: AtomicBool,
}

impl Used {
    const fn none() -> Self {
        Self { ids: [const { AtomicI32::new(NOBODY) }; 64], is_full: AtomicBool::new(false) }
    }

    fn note(&self, id: c_int) {
        let (before, after) = (Ordering::Relaxed, Ordering::Relaxed);
        let is_noted = |place: &AtomicI32| {
            place.load(before) == id || place.compare_exchange(NOBODY, id, after, before).is_ok()
        };
        if id >= 0 && !self.ids.iter().any(is_noted) {
            self.is_full.store(true, Ordering::Relaxed);
        }
    }

    /// One of them that is there; those that are not are forgotten.
    fn one(&self, is_there: impl Fn(c_int) -> bool) -> bool {
        let is_used = |place: &AtomicI32| {
            let id = place.load(Ordering::Relaxed);
            if id != NOBODY && !is_there(id) {
                place.store(NOBODY, Ordering::Relaxed);
                return false;
            }
            id != NOBODY
        };
        // Each is looked at.
        let used = self.ids.iter().filter(|place| is_used(place)).count();
        used > 0 || self.is_full.load(Ordering::Relaxed)
    }
}

static SEMAPHORES: Used = Used::none();
static QUEUES: Used = Used::none();

/// Who may not look at one is not told that it is not there.
fn is_gone() -> bool {
    let errno = std::io::Error::last_os_error().raw_os_error();
    matches!(errno, Some(libc::EINVAL | libc::EIDRM))
}

fn is_semaphore(id: c_int) -> bool {
    // SAFETY: all of its fields are numbers.
    let mut found: libc::semid_ds = unsafe { core::mem::zeroed() };
    // SAFETY: writable.
    unsafe { libc::semctl(id, 0, libc::IPC_STAT, &raw mut found) != -1 || !is_gone() }
}

fn is_queue(id: c_int) -> bool {
    // SAFETY: all of its fields are numbers.
    let mut found: libc::msqid_ds = unsafe { core::mem::zeroed() };
    // SAFETY: writable.
    unsafe { libc::msgctl(id, libc::IPC_STAT, &raw mut found) != -1 || !is_gone() }
}

/// Why there can be no checkpoint of this process.
pub fn in_use() -> Option<&'static str> {
    if SEMAPHORES.one(is_semaphore) {
        return Some(
            "the program uses System V semaphores (semop), whose values are in no image: use POSIX \
             semaphores (sem_open), or remove them (semctl, IPC_RMID)",
        );
    }
    QUEUES.one(is_queue).then_some(
        "the program uses a System V message queue (msgsnd, msgrcv), whose messages are in no \
         image: use MPI, or remove it (msgctl, IPC_RMID)",
    )
}

unsafe extern "C" fn operate(id: c_int, operations: *mut sembuf, count: size_t) -> c_int {
    SEMAPHORES.note(id);
    stock!(SEMOP(id => c_int, operations => *mut sembuf, count => size_t) -> c_int)
}

unsafe extern "C" fn operate_for(
    id: c_int,
    operations: *mut sembuf,
    count: size_t,
    longest: *const timespec,
) -> c_int {
    SEMAPHORES.note(id);
    stock!(SEMTIMEDOP(
        id => c_int, operations => *mut sembuf, count => size_t, longest => *const timespec
    ) -> c_int)
}

unsafe extern "C" fn send(id: c_int, what: *const c_void, bytes: size_t, flags: c_int) -> c_int {
    QUEUES.note(id);
    stock!(MSGSND(
        id => c_int, what => *const c_void, bytes => size_t, flags => c_int
    ) -> c_int)
}

unsafe extern "C" fn receive(
    id: c_int,
    to: *mut c_void,
    bytes: size_t,
    kind: c_long,
    flags: c_int,
) -> ssize_t {
    QUEUES.note(id);
    stock!(MSGRCV(
        id => c_int, to => *mut c_void, bytes => size_t, kind => c_long, flags => c_int
    ) -> ssize_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_counts_until_it_is_removed() {
        let used = Used::none();
        assert!(!used.one(|_| true));
        used.note(7);
        used.note(7);
        used.note(-1);
        assert_eq!(used.ids[1].load(Ordering::Relaxed), NOBODY);
        assert!(used.one(|id| id == 7));
        assert!(!used.one(|_| false) && !used.one(|_| true), "it is forgotten");
        (0..64).for_each(|id| used.note(id));
        assert!(!used.one(|_| false));
        (0..65).for_each(|id| used.note(id));
        assert!(used.one(|_| false), "one of them was not noted");
    }

    #[test]
    fn the_kernel_is_asked_whether_it_is_there() {
        // SAFETY: no memory is passed.
        let semaphores = unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) };
        // SAFETY: no memory is passed.
        let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) };
        assert!(is_semaphore(semaphores) && is_queue(queue));
        install();
        let mut operation = sembuf { sem_num: 0, sem_op: 1, sem_flg: 0 };
        // SAFETY: one operation.
        assert_eq!(unsafe { operate(semaphores, &raw mut operation, 1) }, 0);
        assert!(in_use().is_some_and(|reason| reason.contains("semop")));
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::semctl(semaphores, 0, libc::IPC_RMID) }, 0);
        assert!(in_use().is_none());
        let letter: [c_long; 2] = [1, 0];
        // SAFETY: a letter of eight bytes.
        assert_eq!(unsafe { send(queue, letter.as_ptr().cast(), 8, 0) }, 0);
        assert!(in_use().is_some_and(|reason| reason.contains("msgsnd")));
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::msgctl(queue, libc::IPC_RMID, core::ptr::null_mut()) }, 0);
        assert!(in_use().is_none() && !is_semaphore(semaphores) && !is_queue(queue));
    }
}
