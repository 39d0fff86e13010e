//! The functions that C calls: null checks, a typed call, a code (see `glue-c/include/glue.h`).

use crate::determinants::set_order::{SLOW_PATH, WINDOWS};
use crate::engine::shared::is_installed;
use crate::engine::shared::shared;
use crate::ffi::operation::Op;
use crate::ffi::table::*;
use crate::lifecycle::start;
use crate::lifecycle::start::Started;
use crate::lifecycle::{finish, report, summary};
use crate::mpi::point_to_point::{
    post, receive, received_slow_path, send, send_now, source, tag_match, wait_for,
};
use crate::mpi::{files, outcomes, point_to_point, windows};
use crate::progress::wait;
use crate::sync::checkpoint_requests::CheckpointRequest;
use crate::sync::checkpoint_signals;
use crate::sync::waiting::WAITING;
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use rustbtl_fragments::ids::*;
use std::sync::Mutex;

/// What start-up leaves for later; never touched on the way of a message.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

fn with_started<T>(call: impl FnOnce(&mut Started) -> T) -> Option<T> {
    STARTED.lock().ok()?.as_mut().map(call)
}

/// Choose the set, open the transports.
///
/// # Safety
/// The arguments are as glue.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_start(
    glue: *const Glue,
    config: *const Config,
    job: *const JobInfo,
) -> i32 {
    // SAFETY: null or valid for the call.
    let Some(glue) = (unsafe { glue.as_ref() }) else { return FAILED };
    // SAFETY: null or valid for the call.
    let Some(config) = (unsafe { config.as_ref() }) else { return FAILED };
    // SAFETY: null or valid for the call.
    let Some(job) = (unsafe { job.as_ref() }) else { return FAILED };
    // SAFETY: the caller's promise.
    let started = unsafe { start::start(*glue, config, job) };
    match STARTED.lock() {
        Ok(mut slot) => *slot = Some(started),
        Err(_) => return FAILED,
    }
    DONE
}

/// The own endpoint; lives as long as the process.
///
/// # Safety
/// `bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_endpoint(bytes: *mut usize) -> *const u8 {
    let endpoint = with_started(|started| started.endpoint.clone()).unwrap_or_default().leak();
    // SAFETY: null or writable.
    if let Some(bytes) = unsafe { bytes.as_mut() } {
        *bytes = endpoint.len();
    }
    endpoint.as_ptr()
}

/// Attach to the node's segment.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_connect() -> i32 {
    with_started(Started::connect).map_or(FAILED, |()| DONE)
}

/// Flush what was accepted, write the report, close the connections.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_finish() {
    if is_installed() {
        let directory = with_started(|started| started.report.clone()).flatten();
        finish::finish(shared(), directory.as_deref());
    }
}

/// Print the sums over all ranks at rank 0.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_summary(comm: u32) {
    // The report must not count the summary's own messages.
    if let Some(directory) = with_started(|started| started.report.clone()).flatten() {
        report::write(&mut shared().enter(), &directory);
    }
    summary::summary(shared(), comm);
}

/// A communicator of the group that `Glue::resolve` knows by `handle`: the remote one of an
/// intercommunicator, which has a local one of `local_size` as well (0 otherwise).
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_comm_add(
    context: u32,
    rank: u32,
    size: u32,
    handle: *mut c_void,
    local_size: u32,
) -> u32 {
    let mut driver = shared().enter();
    let context = driver.host.instance_of(context, size, handle as u64, local_size);
    let id = driver.engine.add_comm(context, CommRank(rank), size, handle as u64);
    shared().deliver(driver);
    id.0
}

/// It is freed.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_comm_del(comm: u32) {
    let mut driver = shared().enter();
    driver.post_late();
    driver.engine.del_comm(CommId(comm));
    shared().deliver(driver);
}

/// Send. See glue.h for the codes.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_send(
    operation: *mut Operation,
    comm: u32,
    to: i32,
    tag: i32,
    synchronous: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return FAILED };
    send(op, CommId(comm), CommRank(to as u32), tag, synchronous != 0)
}

/// Send a message of contiguous memory in standard mode, if that is done at once. 0: nothing has
/// happened.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_send_now(
    operation: *mut Operation,
    comm: u32,
    to: i32,
    tag: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return 0 };
    i32::from(send_now(op, CommId(comm), CommRank(to as u32), tag))
}

/// Post a receive.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_receive(
    operation: *mut Operation,
    comm: u32,
    from: i32,
    tag: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return FAILED };
    receive(op, CommId(comm), from, tag)
}

/// Post a receive that is part of a request.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_receive_later(
    operation: *mut Operation,
    comm: u32,
    from: i32,
    tag: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(mut op) = (unsafe { Op::new(operation) }) else { return FAILED };
    let envelope @ (comm, source, matches) = (CommId(comm), source(from), tag_match(tag));
    let mut entered = shared().enter();
    let driver = &mut *entered;
    // It does not poll for its message: to read where the sender is writing would slow both down.
    // Who waits finds all of a window's messages behind each other.
    let attention = SLOW_PATH.load(Ordering::Relaxed) != 0;
    if attention && driver.put_off(op, envelope, tag) {
        return PENDING;
    }
    if attention || driver.clock.on || !driver.engine.receive_uniform(comm, source, matches, op, op)
    {
        return post(entered, op, envelope, tag);
    }
    op.set_id(ReceiveId::NONE.0);
    driver.host.push();
    if shared().threads {
        shared().deliver(entered);
    }
    PENDING
}

/// Receive a message that a probe has claimed.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_receive_claimed(operation: *mut Operation, message: u64) -> i32 {
    // SAFETY: the caller's promise.
    let Some(mut op) = (unsafe { Op::new(operation) }) else { return FAILED };
    let shared = shared();
    let mut driver = shared.enter();
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        driver.act(ANY);
    }
    let message = MessageId(message);
    let outcome = driver.timed(|engine, host| engine.receive_claimed(host, message, op, op));
    driver.host.push();
    let code = outcome.map_or(FAILED, |outcome| received_slow_path(&mut driver, outcome, &mut op));
    shared.deliver(driver);
    code
}

/// 1: the receive is gone and will not complete.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_cancel(operation: *mut Operation) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return 0 };
    let mut driver = shared().enter();
    driver.post_late();
    let receive = driver.receive_id(op);
    i32::from(driver.engine.cancel_receive(receive))
}

/// The program has freed the request of a send that is not complete.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_release(operation: *mut Operation) {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return };
    let shared = shared();
    let mut driver = shared.enter();
    driver.host.release(op);
    shared.deliver(driver);
}

/// What a collective of ours waits for inside of a call is complete if a replay only holds it.
///
/// # Safety
/// Null, or an operation as glue.h describes it; nothing of the engine is held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_complete_held(operation: *mut Operation) {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return };
    if SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0 {
        shared().complete_held(op);
    }
}

/// Does a replay of windows hold what the program waits for?
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_holds() -> i32 {
    let windows = SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0;
    i32::from(windows && shared().enter().host.windows.holds)
}

/// Wait until it does not.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_wait_while_held() {
    if SLOW_PATH.load(Ordering::Relaxed) & WINDOWS != 0 {
        wait::wait_while_held(shared());
    }
}

/// Wait for an operation on the stack.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_wait(operation: *mut Operation) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return FAILED };
    wait_for(op)
}

/// Is there a message that a receive would match? See glue.h for the codes.
///
/// # Safety
/// `found` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_probe(
    comm: u32,
    from: i32,
    tag: i32,
    how: u32,
    found: *mut Envelope,
) -> i32 {
    let asked = (comm, from, tag);
    let (comm, from, tag) = (CommId(comm), source(from), tag_match(tag));
    let mut driver = shared().enter();
    driver.post_late();
    if driver.host.record.is_on() {
        // SAFETY: the caller's promise.
        let code = unsafe { outcomes::probe(&mut driver, asked, (from, tag), how, found) };
        shared().deliver(driver);
        return code;
    }
    let envelope = if how & outcomes::PROBE_CLAIM != 0 {
        driver.engine.claim(comm, from, tag)
    } else {
        driver.engine.probe(comm, from, tag).map(|status| (MessageId(0), status))
    };
    drop(driver);
    let Some((message, status)) = envelope else { return outcomes::PROBE_NOT_YET };
    // SAFETY: null or writable.
    if let Some(found) = unsafe { found.as_mut() } {
        *found = Envelope {
            message: message.0,
            bytes: status.bytes,
            source: status.source.0 as i32,
            tag: status.tag,
        };
    }
    outcomes::PROBE_FOUND
}

/// Move things on; how many things happened.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_progress() -> i32 {
    if !is_installed() {
        return 0;
    }
    let shared = shared();
    // With threads: whoever has the lock moves things on.
    let Some(mut driver) = shared.try_enter() else { return 0 };
    driver.post_late();
    let happened = driver.poll();
    // Open MPI's own waiting loops (MPI_Wait, collectives, probes) yield, and so do we in ours.
    let wants_pause = happened == 0 && driver.idle.shares_processors(&shared.glue);
    let pause = if wants_pause { driver.pause() } else { None };
    shared.deliver(driver);
    if happened == 0 {
        WAITING.end_foreign_round();
    }
    if let Some(pause) = pause {
        pause.sleep();
        WAITING.end_round();
    }
    happened as i32
}

/// A fruitless round of a waiting loop.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_idle() {
    wait::idle(shared());
}

/// A call that does not wait has found nothing.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_found_nothing() {
    wait::found_nothing(shared());
}

/// A call that does not wait has found nothing, and outcomes are not recorded yet.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_note_poll() {
    shared().enter().host.polls();
}

/// Value of a performance variable.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_pvar(which: u32) -> u64 {
    if !is_installed() {
        return 0;
    }
    let driver = shared().enter();
    report::counters(&driver)[..PVARS].get(which as usize).map_or(0, |(_, value)| *value)
}

/// The program requests a checkpoint (`glue-c/api/`). `checkpoint`: its number, 0 if there is none.
///
/// # Safety
/// `checkpoint` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_request_checkpoint(
    all: i32,
    wait: i32,
    then_exit: i32,
    checkpoint: *mut u64,
) -> i32 {
    let request = CheckpointRequest { all: all != 0, wait: wait != 0, then_exit: then_exit != 0 };
    let outcome = checkpoint_signals::request_checkpoint(request);
    // SAFETY: null or writable.
    if let Some(checkpoint) = unsafe { checkpoint.as_mut() } {
        *checkpoint = outcome.as_ref().map_or(0, |id| id.0);
    }
    if let Err(problem) = &outcome
        && is_installed()
    {
        shared().glue.show("no-checkpoint", &[problem]);
    }
    outcome.map_or(FAILED, |_| DONE)
}

/// How often this process was restored.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_restarts() -> u32 {
    checkpoint_signals::restarts()
}

/// The program makes a window of one-sided communication, or uses one. See glue.h.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window(how: i32, comm: *mut c_void, size: u32) {
    windows::seen(how, comm as u64, size);
}

/// The program does something with a file that cannot be repeated. See glue.h.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_file(how: i32, ranks: u32, file: *mut c_void) {
    files::seen(how, ranks, file.addr());
}

/// A file is opened by a communicator's ranks. See glue.h.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_file_opens(comm: *mut c_void, size: u32) -> i64 {
    files::opens(comm as u64, size)
}

/// It was. See glue.h.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_file_opened(before: i64, file: *mut c_void) {
    files::opened(before, file.addr());
}

/// It is closed.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_file_closed(file: *mut c_void) {
    files::closed(file.addr());
}

/// MPI_File_delete begins (not 0), or has ended.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_file_deletes(begins: i32) {
    files::deletes(begins != 0);
}

/// A process with a guardian waits for the others in MPI_Finalize; `Glue::fenced` follows.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_fence() {
    point_to_point::end_sends();
    checkpoint_signals::fence();
}
