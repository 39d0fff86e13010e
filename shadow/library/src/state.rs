//! All of this process, behind one lock that is also the gate: who takes a checkpoint holds it, and
//! the program waits at its next call.

use crate::abi::*;
use crate::channels::{self, Channels};
use crate::directory::Directory;
use crate::names::Names;
use crate::real::give_up;
use crate::system::{Real, System};
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_shadow::{Job, Shadow};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// The folder that the job's processes share. Without it nothing is shadowed.
const FOLDER: &str = "RUSTBTL_VERBS_FOLDER";
/// In place of it: a component in this process knows the others. Empty in children of such a
/// process.
pub const JOB: &str = "RUSTBTL_VERBS_JOB";
/// The number of this process.
const PROCESS: &str = "RUSTBTL_VERBS_PROCESS";
/// How many processes there are.
const PROCESSES: &str = "RUSTBTL_VERBS_PROCESSES";
/// How long a call of the program waits before it asks for the lock again.
const AT_THE_GATE: Duration = Duration::from_micros(100);

/// An object as the program sees it, and its number.
#[repr(C)]
pub struct Object<T> {
    /// The first member: the program's pointer is to it.
    pub seen: T,
    /// Of the shadow's object.
    pub id: u32,
}

/// A context as the program sees it.
#[repr(C)]
pub struct SeenContext {
    /// The program's pointer is to the context at its end.
    pub verbs: VerbsContext,
    /// Of the shadow's object.
    pub id: u32,
}

/// All of this process.
pub struct State {
    /// The objects.
    pub shadow: Shadow<System>,
    /// What the program sees of them, by number: addresses.
    pub seen_cqs: BTreeMap<u32, usize>,
    /// The same of queue pairs.
    pub seen_qps: BTreeMap<u32, usize>,
    /// The same of shared receive queues.
    pub seen_srqs: BTreeMap<u32, usize>,
    /// The same of contexts.
    pub seen_contexts: BTreeMap<u32, usize>,
}

/// The gate is being closed: who posts all the time lets the other go first.
static CLOSING: AtomicBool = AtomicBool::new(false);

/// The number of a variable.
fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// What the environment asks for. None: nothing is shadowed.
fn asked() -> Option<(Names, Job)> {
    let given = |name| std::env::var_os(name).filter(|given| !given.is_empty());
    let folder = given(FOLDER);
    if folder.is_none() && given(JOB).is_none() {
        return None;
    }
    let (process, processes) = (number(PROCESS), number(PROCESSES));
    let job = process.zip(processes).map(|(process, processes)| Job { process, processes });
    match job.filter(|job| job.process < job.processes && job.processes <= 8192) {
        Some(job) => Some(match folder {
            Some(folder) => (Names::Folder(Directory::new(PathBuf::from(folder), job)), job),
            None => (Names::Job, job),
        }),
        None => give_up(&format!(
            "{FOLDER} or {JOB} is set, {PROCESS} and {PROCESSES} are not, or wrong"
        )),
    }
}

/// This process, if it is one that is shadowed.
fn state() -> Option<&'static Mutex<State>> {
    static STATE: OnceLock<Option<Mutex<State>>> = OnceLock::new();
    STATE
        .get_or_init(|| {
            let (directory, job) = asked()?;
            if let Names::Folder(directory) = &directory {
                directory.join();
                crate::checkpoints::start(directory);
            }
            let system = System { channels: Channels::default(), directory };
            Some(Mutex::new(State {
                shadow: Shadow::new(system, job),
                seen_cqs: BTreeMap::new(),
                seen_qps: BTreeMap::new(),
                seen_srqs: BTreeMap::new(),
                seen_contexts: BTreeMap::new(),
            }))
        })
        .as_ref()
}

/// Is this process to be shadowed?
pub fn is_asked() -> bool {
    state().is_some()
}

/// Is it one of a protected job, whose component closes the gate?
pub fn is_in_job() -> bool {
    std::env::var_os(FOLDER).is_none_or(|folder| folder.is_empty()) && is_asked()
}

/// Through the gate. Only where there are objects of the shadow's.
pub fn enter() -> MutexGuard<'static, State> {
    while CLOSING.load(Ordering::Relaxed) {
        std::thread::sleep(AT_THE_GATE);
    }
    lock()
}

fn lock() -> MutexGuard<'static, State> {
    let Some(state) = state() else { give_up("an object of nobody") };
    // A panic aborts the process.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Close the gate: it opens when the guard goes and `opened` was called.
pub fn close() -> MutexGuard<'static, State> {
    CLOSING.store(true, Ordering::Relaxed);
    lock()
}

/// The same, if nobody is inside. The next one who comes waits in any case.
pub fn try_close() -> Option<MutexGuard<'static, State>> {
    let state = state()?;
    CLOSING.store(true, Ordering::Relaxed);
    match state.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Who was about to close the gate does not.
pub fn do_not_close() {
    CLOSING.store(false, Ordering::Relaxed);
}

/// The program may go on.
pub fn open(state: MutexGuard<'static, State>) {
    CLOSING.store(false, Ordering::Relaxed);
    drop(state);
}

impl State {
    /// Asynchronous events of contexts that were opened again are shown by the program's
    /// descriptors.
    pub fn watch_contexts(&self) {
        for (&id, &seen) in &self.seen_contexts {
            let Some(real) = self.shadow.real_context(rustbtl_shadow::ContextId(id)) else {
                continue;
            };
            let fd = async_fd(real);
            // SAFETY: what the program sees lives until it closes the context.
            let front = unsafe { (*(seen as *const Context)).async_fd };
            if channels::add(front, fd).is_err() {
                give_up("no room for the events of an adapter");
            }
        }
    }
}

/// The descriptor of a real context's events. Waiting is done on the program's.
pub fn async_fd(context: Real) -> core::ffi::c_int {
    // SAFETY: a context of this incarnation.
    let fd = unsafe { (*context.pointer::<Context>()).async_fd };
    // SAFETY: a descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    fd
}

/// Put an object where the program finds it.
pub fn show<T>(seen: T, id: u32) -> *mut T {
    Box::into_raw(Box::new(Object { seen, id })).cast()
}

/// Its number.
///
/// # Safety
/// [`show`] has made it.
pub unsafe fn id_of<T>(seen: *mut T) -> u32 {
    // SAFETY: the caller's promise; `seen` is the first member.
    unsafe { (*seen.cast::<Object<T>>()).id }
}

/// The program has destroyed it.
///
/// # Safety
/// [`show`] has made it, and nobody uses it any more.
pub unsafe fn hide<T>(seen: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(seen.cast::<Object<T>>()) });
}
