//! Sending and receiving: what the functions that C calls do once their arguments are checked.

use crate::determinants::set_order::SLOW_PATH;
use crate::engine::deferred_receives;
use crate::engine::detached_sends;
use crate::engine::driver_state::Driver;
use crate::engine::shared::EngineGuard;
use crate::engine::shared::shared;
use crate::ffi::operation::Op;
use crate::ffi::table::{ANY, DONE, LOG_FULL, PENDING};
use crate::progress::wait;
use core::sync::atomic::Ordering;
use rustbtl_fragments::engine::{Mode, ReceiveOutcome, SendError, SendOutcome, Source, TagMatch};
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::*;

/// As MPI has it: a rank, or any.
#[inline]
pub(crate) fn source(rank: i32) -> Source {
    if rank == ANY { Source::Any } else { Source::Rank(CommRank(rank as u32)) }
}

/// As MPI has it: a tag, or any.
#[inline]
pub(crate) fn tag_match(tag: i32) -> TagMatch {
    if tag == ANY { TagMatch::Any } else { TagMatch::Is(tag) }
}

/// A standard send that is over at once. False: nothing has happened.
#[inline(always)]
pub(crate) fn send_now(mut op: Op, comm: CommId, to: CommRank, tag: i32) -> bool {
    let mut entered = shared().enter();
    let driver = &mut *entered;
    let slow = SLOW_PATH.load(Ordering::Relaxed) != 0;
    if slow {
        driver.act(tag);
    }
    let bytes = op.bytes();
    let begin = driver.clock.begin();
    let sent = driver.engine.send_fast_path(&mut driver.host, comm, to, tag, &mut op, bytes);
    driver.clock.end(begin);
    if !sent {
        driver.undo_action(tag);
    } else if slow && driver.holds_call(op, tag) {
        drop(entered);
        wait::wait_while_held(shared());
    }
    sent
}

/// The program is in MPI_Finalize and sends nothing more: is there anything that it had sent before
/// a failure, and has not sent again?
pub(crate) fn end_sends() {
    let shared = shared();
    let mut entered = shared.enter();
    let driver = &mut *entered;
    // SAFETY: it only reads the state of MPI.
    if unsafe { (driver.host.glue.stage)() } > 1 {
        driver.engine.end_sends(&mut driver.host);
    }
    shared.deliver(entered);
}

/// Every other send. The code is that of glue.h.
#[inline(never)]
pub(crate) fn send_slow(
    mut op: Op,
    comm: CommId,
    to: CommRank,
    tag: i32,
    synchronous: bool,
) -> i32 {
    let shared = shared();
    let mut driver = shared.enter();
    driver.host.call();
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        driver.act(tag);
    }
    driver.host.allow_copy_later(!synchronous);
    let bytes = op.bytes();
    let mode = if synchronous { Mode::Synchronous } else { Mode::Standard };
    let sent = driver.timed(|engine, host| engine.send(host, comm, to, tag, mode, op, bytes, op));
    let complete = match sent {
        Ok(SendOutcome::Complete) => driver.host.settle(op),
        Ok(SendOutcome::Pending(id)) => {
            op.set_id(id.0);
            driver.detach_send(op)
        }
        Err(_) => false,
    };
    let to_another_node = driver.host.transports.holds() && !op.on_stack();
    let gathered = complete && to_another_node && driver.host.gather(op);
    if !gathered {
        driver.host.push_now();
    }
    if to_another_node {
        driver.host.sent();
    }
    if matches!(sent, Ok(SendOutcome::Pending(_))) && !complete && op.on_stack() && !shared.threads
    {
        detached_sends::begin_wait();
    }
    detached_sends::update(&driver);
    let code = match sent {
        Ok(_) if complete && !gathered => DONE,
        Ok(_) => PENDING,
        Err(SendError::Log(full)) => {
            driver.host.report_log_full(full.bytes);
            LOG_FULL
        }
    };
    let held = driver.holds_call(op, tag);
    shared.deliver(driver);
    if held {
        wait::wait_while_held(shared);
    }
    code
}

/// What became of a receive, for C.
#[inline]
pub(crate) fn received(outcome: ReceiveOutcome, op: &mut Op) -> i32 {
    match outcome {
        ReceiveOutcome::Complete(status) => {
            op.fill(&status);
            DONE
        }
        ReceiveOutcome::Pending(id) => {
            op.set_id(id.0);
            PENDING
        }
    }
}

/// The same, where a replay may hold what is complete.
#[cold]
pub(crate) fn received_slow_path(driver: &mut Driver, outcome: ReceiveOutcome, op: &mut Op) -> i32 {
    match outcome {
        ReceiveOutcome::Complete(status) if driver.host.windows.holds => {
            op.set_id(ReceiveId::NONE.0);
            driver.host.complete(*op, status);
            PENDING
        }
        outcome => received(outcome, op),
    }
}

/// Post a receive. The code is that of glue.h.
#[inline(never)]
pub(crate) fn post(
    mut driver: EngineGuard,
    mut op: Op,
    envelope: (CommId, Source, TagMatch),
    plain_tag: i32,
) -> i32 {
    let shared = shared();
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        return receive_slow_path(driver, op, envelope, plain_tag);
    }
    let (comm, from, tag) = envelope;
    let outcome = driver.timed(|engine, host| engine.receive(host, comm, from, tag, op, op));
    driver.host.push();
    let code = received(outcome, &mut op);
    // Callbacks of other requests do not come out of it either, but of who waits.
    if op.on_stack() || shared.threads {
        shared.deliver(driver);
    }
    code
}

/// While outcomes are forced, or questions have found nothing of late.
#[cold]
#[inline(never)]
fn receive_slow_path(
    mut driver: EngineGuard,
    mut op: Op,
    (comm, from, tags): (CommId, Source, TagMatch),
    tag: i32,
) -> i32 {
    driver.act(tag);
    driver.post_late();
    let outcome = driver.timed(|engine, host| engine.receive(host, comm, from, tags, op, op));
    driver.update_slow_path();
    driver.host.push();
    let code = received_slow_path(&mut driver, outcome, &mut op);
    let held = driver.holds_call(op, tag);
    shared().deliver(driver);
    if held {
        // What came before this action is told already: the program must not go by it now.
        wait::wait_while_held(shared());
    }
    code
}

/// A send. The code is that of glue.h.
#[inline(always)]
pub(crate) fn send(op: Op, comm: CommId, to: CommRank, tag: i32, synchronous: bool) -> i32 {
    if !synchronous && send_now(op, comm, to, tag) {
        return DONE;
    }
    send_slow(op, comm, to, tag, synchronous)
}

/// A receive that the caller waits for. The code is that of glue.h.
#[inline(always)]
pub(crate) fn receive(mut op: Op, comm: CommId, from: i32, tag: i32) -> i32 {
    let envelope = (comm, source(from), tag_match(tag));
    if op.on_stack() && wait::receive_unposted(shared(), envelope, &mut op) {
        return DONE;
    }
    post(shared().enter(), op, envelope, tag)
}

/// Wait for an operation on the stack.
pub(crate) fn wait_for(op: Op) -> i32 {
    let shared = shared();
    deferred_receives::post(shared);
    wait::wait(shared, op)
}
