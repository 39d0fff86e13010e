//! In a rank of a protected job: the component's checkpoint thread closes the gate, drains, leaves
//! adapters out of the image, and has all objects made again in a restored process. It knows the
//! others; names that are not known here are asked for over it.
//!
//! The gate is closed and opened by one thread, the checkpoint thread, which keeps the lock in
//! between: also over the image, in which it is held, and over the restore.

use crate::left_out;
use crate::state::{self, State};
use core::cell::RefCell;
use core::ffi::{c_int, c_void};
use rustbtl_shadow::interface::{
    Callbacks, Interface, NAME_BYTES, Sink, VERSION, decode_names, decode_tallies, encode_name,
    encode_tallies, name_bytes,
};
use rustbtl_shadow::{Name, Old, Tallies, Value, postponed};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What the component has given.
static CALLBACKS: OnceLock<Callbacks> = OnceLock::new();
/// The program has opened an adapter.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Names that the coordinator does not know: those of before the component came, and all of the
/// epoch that a restart began.
type Known = BTreeMap<[u8; NAME_BYTES], (u64, Value)>;
static KNOWN: Mutex<Known> = Mutex::new(Known::new());
/// Names that are being made again are collected, not published one by one.
static COLLECTED: Mutex<Option<Vec<u8>>> = Mutex::new(None);

thread_local! {
    static CLOSED: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
    static TOLD: RefCell<Tallies> = const { RefCell::new(Tallies::new()) };
}

/// The table that the component looks for.
#[unsafe(export_name = "rustbtl_verbs_interface")]
pub static INTERFACE: Interface = Interface {
    version: VERSION,
    attach,
    is_used,
    try_close,
    open,
    tallies,
    told,
    is_postponed,
    drain,
    descriptors,
    memory,
    make,
    know,
    connect,
};

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program has opened an adapter.
pub fn opened() {
    IS_USED.store(true, Ordering::Relaxed);
    if let Some(callbacks) = CALLBACKS.get() {
        // SAFETY: the component stays.
        unsafe { (callbacks.opened)() };
    }
}

/// Tell the others what a name stands for.
pub fn publish(epoch: u32, name: Name, value: Value) {
    let mut collected = COLLECTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(collected) = &mut *collected {
        return encode_name(epoch, name, value, collected);
    }
    let (name, generation) = name_bytes(epoch, name);
    let mut known = known();
    match CALLBACKS.get() {
        // SAFETY: bytes that outlive the call.
        Some(to) => unsafe { (to.publish)(name.as_ptr(), NAME_BYTES, generation, value.as_ptr()) },
        None => drop(known.insert(name, (generation, value))),
    }
}

/// Does this thread keep the gate closed? It is the one that answers come to.
fn has_gate() -> bool {
    CLOSED.with(|closed| closed.try_borrow().map_or(true, |closed| closed.is_some()))
}

/// What a name stands for. Who has the gate is told only what is known here: it would wait for its
/// own answer. After a restore all names that there are are known; others are asked for when the
/// program uses them.
pub fn find(epoch: u32, name: Name) -> Option<Value> {
    let (name, generation) = name_bytes(epoch, name);
    if let Some(&(_, value)) = known().get(&name).filter(|&&(of, _)| of == generation) {
        return Some(value);
    }
    let callbacks = CALLBACKS.get().filter(|_| !has_gate())?;
    let mut value = Value::default();
    let (from, to) = (name.as_ptr(), value.as_mut_ptr());
    // SAFETY: bytes that outlive the call, and room for the value.
    unsafe { (callbacks.find)(from, NAME_BYTES, generation, to) }.then_some(value)
}

unsafe extern "C" fn attach(callbacks: Callbacks) -> bool {
    if !state::is_in_job() {
        return false;
    }
    // Who publishes meanwhile does so before or after.
    let mut known = known();
    if CALLBACKS.set(callbacks).is_err() {
        return false;
    }
    for (name, (generation, value)) in core::mem::take(&mut *known) {
        // SAFETY: bytes that outlive the call.
        unsafe {
            (callbacks.publish)(name.as_ptr(), NAME_BYTES, generation, value.as_ptr());
        }
    }
    if IS_USED.load(Ordering::Relaxed) {
        // SAFETY: the component stays.
        unsafe { (callbacks.opened)() };
    }
    drop(known);
    crate::environment::hide();
    true
}

unsafe extern "C" fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

unsafe extern "C" fn try_close() -> bool {
    CLOSED.with_borrow_mut(|closed| {
        if closed.is_none() {
            *closed = state::try_close();
        }
        closed.is_some()
    })
}

unsafe extern "C" fn open() {
    match CLOSED.with_borrow_mut(Option::take) {
        Some(state) => state::open(state),
        None => state::do_not_close(),
    }
}

/// Something with all of the process, whose gate is closed.
fn with<T>(call: impl FnOnce(&mut State) -> T) -> Option<T> {
    CLOSED.with_borrow_mut(|closed| closed.as_mut().map(|state| call(state)))
}

/// Give bytes.
///
/// # Safety
/// A sink, and what it takes for its own.
unsafe fn give(to: *mut c_void, sink: Sink, bytes: &[u8]) {
    // SAFETY: the caller's promise; the bytes outlive the call.
    unsafe { sink(to, bytes.as_ptr(), bytes.len()) }
}

/// Bytes that were given.
///
/// # Safety
/// So many are readable.
unsafe fn given<'a>(bytes: *const u8, count: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(bytes, count) }
}

unsafe extern "C" fn tallies(to: *mut c_void, sink: Sink) {
    let tallies = with(|state| encode_tallies(&state.shadow.tallies())).unwrap_or_default();
    // SAFETY: the caller's.
    unsafe { give(to, sink, &tallies) }
}

unsafe extern "C" fn told(all: *const u8, count: usize) {
    // SAFETY: the caller's.
    let all = decode_tallies(unsafe { given(all, count) });
    let Some(all) = all else { crate::real::give_up("tallies that nobody can have sent") };
    TOLD.set(all);
}

unsafe extern "C" fn is_postponed() -> bool {
    TOLD.with_borrow(|all| postponed(all).is_some())
}

unsafe extern "C" fn drain() -> i32 {
    let drained = with(|state| TOLD.with_borrow(|all| state.shadow.drain(all)));
    match drained {
        Some(Ok(over)) => over.into(),
        Some(Err(errno)) => -errno.0,
        None => -libc::EPERM,
    }
}

unsafe extern "C" fn descriptors(to: *mut c_void, sink: Sink) {
    let all = with(left_out::descriptors).unwrap_or_default();
    let bytes: Vec<u8> = all.into_iter().flat_map(c_int::to_ne_bytes).collect();
    // SAFETY: the caller's.
    unsafe { give(to, sink, &bytes) }
}

unsafe extern "C" fn memory(to: *mut c_void, sink: Sink) {
    let ends = left_out::memory().into_iter().flat_map(|range| [range.start, range.end]);
    let bytes: Vec<u8> = ends.flat_map(usize::to_ne_bytes).collect();
    // SAFETY: the caller's.
    unsafe { give(to, sink, &bytes) }
}

unsafe extern "C" fn make(to: *mut c_void, sink: Sink) -> bool {
    *COLLECTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    let made = with(|state| -> Result<(), String> {
        state.shadow.make(Old::Abandon).map_err(|problem| problem.to_string())?;
        state.watch_contexts();
        Ok(())
    });
    let names = COLLECTED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let made = made.unwrap_or_else(|| Err("the gate was open in the image".to_owned()));
    let bytes = match &made {
        Ok(()) => names.unwrap_or_default(),
        Err(problem) => problem.as_bytes().to_vec(),
    };
    // SAFETY: the caller's.
    unsafe { give(to, sink, &bytes) };
    made.is_ok()
}

unsafe extern "C" fn know(names: *const u8, count: usize) {
    // SAFETY: the caller's.
    let names = decode_names(unsafe { given(names, count) });
    *known() = names.map(|(name, generation, value)| (name, (generation, value))).collect();
}

unsafe extern "C" fn connect(to: *mut c_void, sink: Sink) -> bool {
    let connected = with(|state| state.shadow.connect().map_err(|problem| problem.to_string()));
    match connected {
        Some(Ok(receives)) => {
            // SAFETY: the caller's.
            unsafe { give(to, sink, receives.to_string().as_bytes()) };
            true
        }
        Some(Err(problem)) => {
            // SAFETY: the caller's.
            unsafe { give(to, sink, problem.as_bytes()) };
            false
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn ignore_opened() {}
    unsafe extern "C" fn ignore_name(_: *const u8, _: usize, _: u64, _: *const u8) {}
    unsafe extern "C" fn count(_: *const u8, _: usize, _: u64, _: *mut u8) -> bool {
        ASKED.fetch_add(1, Ordering::Relaxed);
        false
    }

    #[test]
    fn who_has_the_gate_asks_nobody_and_children_do_not_get_the_library() {
        let variables = [
            ("RUSTBTL_VERBS_JOB", "1"),
            ("RUSTBTL_VERBS_PROCESS", "0"),
            ("RUSTBTL_VERBS_PROCESSES", "2"),
        ];
        // SAFETY: no other test of this program reads the environment.
        variables.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
        let callbacks = Callbacks { opened: ignore_opened, publish: ignore_name, find: count };
        // SAFETY: functions that stay.
        assert!(unsafe { attach(callbacks) });
        assert_eq!(std::env::var("RUSTBTL_VERBS_JOB").as_deref(), Ok(""));
        let ask = || find(1, Name::Qp(7));
        assert_eq!((ask(), ASKED.load(Ordering::Relaxed)), (None, 1));
        // SAFETY: by this thread, which opens it again.
        assert!(unsafe { try_close() });
        assert_eq!((ask(), ASKED.load(Ordering::Relaxed)), (None, 1));
        // As in `connect`.
        assert_eq!((with(|_| ask()), ASKED.load(Ordering::Relaxed)), (Some(None), 1));
        let bytes = |name| {
            let mut bytes = Vec::new();
            encode_name(1, name, [9; 16], &mut bytes);
            bytes
        };
        let names = bytes(Name::Qp(7));
        // SAFETY: so many bytes.
        unsafe { know(names.as_ptr(), names.len()) };
        assert_eq!((ask(), ASKED.load(Ordering::Relaxed)), (Some([9; 16]), 1));
        // SAFETY: as above.
        unsafe { open() };
        assert_eq!((find(1, Name::Qp(8)), ASKED.load(Ordering::Relaxed)), (None, 2));
    }
}
