//! Fences, post and start, locks, flushes. Each begins at the machine and waits here: poll, apply,
//! ask (the driver's contract, rule 6).

use crate::determinants::set_order::epoch;
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::shared::shared;
use crate::engine::windows::neighbours::Reach;
use crate::mpi::one_sided::{access, call, code, ranks_of, synchronize};
use crate::progress::wait::wait_until;
use rustbtl_coordination::determinants::{CallKind, NondetCall, Outcome, ReplayDecision};
use rustbtl_fragments::ids::{CommRank, ContextId};
use rustbtl_rma::error::RmaError;
use rustbtl_rma::machine::{FenceAssert, FenceStep, LockMode, Rma, Wait};

/// `rustbtl_window_fence`: count, then `rustbtl_window_fence_counted`.
const COUNT: i32 = 100;
/// All targets, or no target in particular.
const ALL: i32 = -1;

fn poll(driver: &mut Driver, wait: &Wait) -> Option<Result<(), RmaError>> {
    driver.progress_windows();
    let over = driver.host.windows.rma.poll(wait);
    if over.is_some() {
        driver.progress_windows();
    }
    over
}

/// Of so many calls that have nothing to wait for one looks for others all the same: a program that
/// polls, by operations that are done at once, must not keep them waiting.
const LOOKS_EVERY: u32 = 64;
/// So many of them does one count that goes the long way.
const LONG_CALL: u32 = 8;

/// The short way of a synchronization, unless it is the one that looks for others.
#[inline(always)]
fn quickly(call: impl FnOnce(&mut EngineHost) -> bool) -> bool {
    crate::mpi::one_sided::quickly(|host| {
        let calls = host.windows.calls.wrapping_add(1);
        let done = !calls.is_multiple_of(LOOKS_EVERY) && call(host);
        if done {
            host.windows.calls = calls;
        }
        done
    })
}

/// What was begun, and its result if that is known at once.
type Begun = Result<(Option<Result<(), RmaError>>, Wait), RmaError>;

fn finish(begun: Begun) -> i32 {
    match begun {
        Err(error) | Ok((Some(Err(error)), _)) => code(Err(error)),
        Ok((Some(Ok(())), _)) => 0,
        Ok((None, wait)) => code(wait_until(shared(), |driver| poll(driver, &wait))),
    }
}

/// Begin, then wait for the end.
fn wait_for(begin: impl FnOnce(&mut Rma) -> Result<Wait, RmaError>) -> i32 {
    synchronizes(|host| begin(&mut host.windows.rma))
}

/// The same, where neighbours may have to be known.
fn synchronizes(begin: impl FnOnce(&mut EngineHost) -> Result<Wait, RmaError>) -> i32 {
    finish(access(|driver| {
        let wait = begin(&mut driver.host);
        let windows = &mut driver.host.windows;
        windows.rma.send_batches();
        let before = windows.calls / LOOKS_EVERY;
        windows.calls = windows.calls.wrapping_add(LONG_CALL);
        let looks = windows.calls / LOOKS_EVERY != before;
        let wait = wait?;
        Ok((if looks { None } else { poll(driver, &wait) }, wait))
    }))
}

/// The same, where as a rule there is nothing to wait for: others are not looked for then, and what
/// was issued before is not sent. (Nor where a replay has something to wait for: it sends the same
/// messages as before.)
fn begin(begin: impl FnOnce(&mut EngineHost) -> Result<Wait, RmaError>) -> i32 {
    finish(access(|driver| {
        let wait = begin(&mut driver.host)?;
        Ok((poll(driver, &wait), wait))
    }))
}

fn fence_assert(no_precede: i32, no_succeed: i32) -> FenceAssert {
    FenceAssert { no_precede: no_precede != 0, no_succeed: no_succeed != 0 }
}

/// MPI_Win_fence begins. `RUSTBTL_RMA_COUNT`: sum `counts` over all ranks, rank by rank, and go on
/// with the own sum.
///
/// # Safety
/// `counts` has room for a number for each rank of the window.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_fence(
    window: u32,
    no_precede: i32,
    no_succeed: i32,
    counts: *mut u64,
) -> i32 {
    let assert = fence_assert(no_precede, no_succeed);
    let window = ContextId(window);
    let begun = synchronize(|driver| {
        let step = driver.host.windows.rma.fence(window, assert);
        driver.host.publish_exposure(window);
        step
    });
    match begun {
        Err(error) => code(Err(error)),
        Ok(FenceStep::Over) => 0,
        Ok(FenceStep::Count(own)) => {
            // SAFETY: the caller's promise.
            unsafe { core::ptr::copy_nonoverlapping(own.as_ptr(), counts, own.len()) };
            COUNT
        }
    }
}

/// So many accesses of the epoch are for this process: wait for them.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_fence_counted(
    window: u32,
    no_precede: i32,
    no_succeed: i32,
    expected: u64,
) -> i32 {
    let assert = fence_assert(no_precede, no_succeed);
    let window = ContextId(window);
    let begun = synchronize(|driver| driver.host.fence_counted(window, expected, assert));
    match begun {
        Err(error) => code(Err(error)),
        Ok(wait) => code(wait_until(shared(), |driver| {
            let over = poll(driver, &wait);
            if over.is_some() {
                driver.host.publish_exposure(window);
            }
            over
        })),
    }
}

/// MPI_Win_post.
///
/// # Safety
/// `ranks` is readable for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_post(window: u32, ranks: *const u32, count: u32) -> i32 {
    // SAFETY: the caller's promise.
    let origins = unsafe { ranks_of(ranks, count) };
    let window = ContextId(window);
    call(|driver| {
        let posted = driver.host.windows.rma.post(window, &origins);
        driver.host.publish_exposure(window);
        code(posted)
    })
}

/// MPI_Win_start.
///
/// # Safety
/// `ranks` is readable for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_start(window: u32, ranks: *const u32, count: u32) -> i32 {
    // SAFETY: the caller's promise.
    let targets = unsafe { ranks_of(ranks, count) };
    call(|driver| code(driver.host.windows.rma.start(ContextId(window), &targets)))
}

/// MPI_Win_complete.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_complete(window: u32) -> i32 {
    wait_for(|rma| rma.complete(ContextId(window)))
}

/// MPI_Win_wait.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_wait(window: u32) -> i32 {
    wait_for(|rma| rma.wait(ContextId(window)))
}

/// What MPI_Win_test has found.
enum Tested {
    /// A snapshot was taken meanwhile: what was seen before is not to be reported.
    Again,
    Not,
    Over(Result<(), RmaError>),
}

fn test(window: ContextId) -> Result<Tested, RmaError> {
    let shared = shared();
    let question = NondetCall { kind: CallKind::Test, arguments: u64::from(window.0) | 1 << 32 };
    // Not `call`: a question ends no run of questions that found nothing.
    let mut driver = shared.enter();
    driver.post_late();
    let begun = epoch();
    let wait = driver.host.windows.rma.wait(window);
    let decision = match driver.host.record.is_on() && wait.is_ok() {
        true => driver.replay_decision(question),
        false => ReplayDecision::Execute,
    };
    shared.deliver(driver);
    let wait = wait?;
    Ok(match decision {
        ReplayDecision::ReportNothing => Tested::Not,
        ReplayDecision::Await(_) => wait_until(shared, |driver| {
            let over = poll(driver, &wait)?;
            driver.record_outcome(question, Some(Outcome::Done));
            Some(Tested::Over(over))
        }),
        ReplayDecision::Execute => wait_until(shared, |driver| {
            if begun != epoch() {
                return Some(Tested::Again);
            }
            let over = poll(driver, &wait);
            if driver.host.record.is_on() {
                driver.record_outcome(question, over.map(|_| Outcome::Done));
            } else if over.is_none() {
                driver.host.polls();
            }
            Some(over.map_or(Tested::Not, Tested::Over))
        }),
    })
}

/// MPI_Win_test. Its outcome is recorded, and replayed.
///
/// # Safety
/// `flag` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_test(window: u32, flag: *mut i32) -> i32 {
    let over = loop {
        match test(ContextId(window)) {
            Err(error) => return code(Err(error)),
            Ok(Tested::Again) => {}
            Ok(Tested::Not) => break None,
            Ok(Tested::Over(result)) => break Some(result),
        }
    };
    // SAFETY: the caller's promise.
    if let Some(flag) = unsafe { flag.as_mut() } {
        *flag = i32::from(over.is_some());
    }
    code(over.unwrap_or(Ok(())))
}

/// MPI_Win_lock. `granted`: wait until the target has granted it.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_lock(
    window: u32,
    target: u32,
    exclusive: i32,
    no_check: i32,
    granted: i32,
) -> i32 {
    let mode = lock_mode(no_check, granted);
    let (window, target, exclusive) = (ContextId(window), CommRank(target), exclusive != 0);
    let lock_quickly =
        |rma: &mut Rma, reach: &mut Reach<'_>| rma.quick_lock(reach, window, target, exclusive);
    if mode != LockMode::NoCheck && quickly(|host| host.quickly(lock_quickly)) {
        return 0;
    }
    let lock = |host: &mut EngineHost| {
        host.beside(
            |rma, reach| rma.lock_beside(reach, window, target, exclusive, mode),
            |rma| rma.lock(window, target, exclusive, mode),
        )
    };
    // Whether it is granted at once depends on others, what is sent must not.
    if mode == LockMode::Granted { synchronizes(lock) } else { begin(lock) }
}

fn lock_mode(no_check: i32, granted: i32) -> LockMode {
    match (no_check, granted) {
        (0, 0) => LockMode::Deferred,
        (0, _) => LockMode::Granted,
        _ => LockMode::NoCheck,
    }
}

/// MPI_Win_unlock.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_unlock(window: u32, target: u32) -> i32 {
    let (window, target) = (ContextId(window), CommRank(target));
    if quickly(|host| host.quickly(|rma, reach| rma.quick_unlock(reach, window, target))) {
        return 0;
    }
    synchronizes(|host| {
        host.beside(
            |rma, reach| rma.unlock_beside(reach, window, target),
            |rma| rma.unlock(window, target),
        )
    })
}

/// MPI_Win_lock_all.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_lock_all(window: u32, no_check: i32, granted: i32) -> i32 {
    let mode = lock_mode(no_check, granted);
    let lock = |host: &mut EngineHost| host.windows.rma.lock_all(ContextId(window), mode);
    if mode == LockMode::Granted { synchronizes(lock) } else { begin(lock) }
}

/// MPI_Win_unlock_all.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_unlock_all(window: u32) -> i32 {
    let window = ContextId(window);
    synchronizes(|host| {
        host.beside(|rma, reach| rma.unlock_all_beside(reach, window), |rma| rma.unlock_all(window))
    })
}

fn target_of(target: i32) -> Option<CommRank> {
    (target != ALL).then_some(CommRank(target as u32))
}

/// A flush, if there is nothing to wait for.
#[inline(always)]
fn flush_quickly(window: ContextId, target: Option<CommRank>) -> bool {
    quickly(|host| {
        let done = host.windows.rma.quick_flush(window, target);
        if done {
            host.publish_tick();
        }
        done
    })
}

/// MPI_Win_flush; `target` -1: MPI_Win_flush_all.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_flush(window: u32, target: i32) -> i32 {
    let (window, target) = (ContextId(window), target_of(target));
    if flush_quickly(window, target) {
        return 0;
    }
    wait_for(|rma| rma.flush(window, target))
}

/// MPI_Win_flush_local; `target` -1: MPI_Win_flush_local_all.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_flush_local(window: u32, target: i32) -> i32 {
    let (window, target) = (ContextId(window), target_of(target));
    if flush_quickly(window, target) {
        return 0;
    }
    wait_for(|rma| rma.flush_local(window, target))
}

/// MPI_Win_sync: one look at what others have sent. In a replay, until all is here that was here
/// before.
#[unsafe(no_mangle)]
pub extern "C" fn rustbtl_window_sync(window: u32) -> i32 {
    shared().enter().host.polls();
    let result = call(|driver| driver.host.windows.rma.sync(ContextId(window)));
    wait_until(shared(), |driver| {
        driver.progress_windows();
        (!driver.host.windows.holds).then_some(())
    });
    code(result)
}
