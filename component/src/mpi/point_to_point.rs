//! Sending and receiving: what the functions that C calls do once their arguments are checked.

use crate::determinants::set_order::ATTENTION;
use crate::engine::deferred_receives;
use crate::engine::late_sends;
use crate::engine::shared::Entered;
use crate::engine::shared::shared;
use crate::ffi::operation::Op;
use crate::ffi::table::{ANY, DONE, LOG_FULL, PENDING};
use crate::progress::wait;
use core::sync::atomic::Ordering;
use rustbtl_fragments::engine::{Mode, ReceiveOutcome, SendError, SendOutcome, Source, TagMatch};
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
    let process = &mut *entered;
    if ATTENTION.load(Ordering::Relaxed) != 0 {
        process.act(tag);
    }
    let bytes = op.bytes();
    let begin = process.clock.begin();
    let sent = process.engine.send_fast_path(&mut process.host, comm, to, tag, &mut op, bytes);
    process.clock.end(begin);
    sent
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
    let mut process = shared.enter();
    process.host.call();
    if ATTENTION.load(Ordering::Relaxed) != 0 {
        process.act(tag);
    }
    process.host.allow_copy_later(!synchronous);
    let bytes = op.bytes();
    let mode = if synchronous { Mode::Synchronous } else { Mode::Standard };
    let sent = process.timed(|engine, host| engine.send(host, comm, to, tag, mode, op, bytes, op));
    let complete = match sent {
        Ok(SendOutcome::Complete) => process.host.settle(op),
        Ok(SendOutcome::Pending(id)) => {
            op.set_id(id.0);
            process.detach_send(op)
        }
        Err(_) => false,
    };
    let to_another_node = process.host.transports.holds() && !op.on_stack();
    let gathered = complete && to_another_node && process.host.gather(op);
    if !gathered {
        process.host.push_now();
    }
    if to_another_node {
        process.host.sent();
    }
    late_sends::tell(&process);
    let code = match sent {
        Ok(_) if complete && !gathered => DONE,
        Ok(_) => PENDING,
        Err(SendError::Log(full)) => {
            process.host.tell_log_full(full.bytes);
            LOG_FULL
        }
    };
    shared.deliver(process);
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

/// Post a receive. The code is that of glue.h.
#[inline(never)]
pub(crate) fn post(
    mut process: Entered,
    mut op: Op,
    envelope: (CommId, Source, TagMatch),
    plain_tag: i32,
) -> i32 {
    let shared = shared();
    if ATTENTION.load(Ordering::Relaxed) != 0 {
        return receive_with_attention(process, op, envelope, plain_tag);
    }
    let (comm, from, tag) = envelope;
    let outcome = process.timed(|engine, host| engine.receive(host, comm, from, tag, op, op));
    process.host.push();
    let code = received(outcome, &mut op);
    // Callbacks of other requests do not come out of it either, but of who waits.
    if op.on_stack() || shared.threads {
        shared.deliver(process);
    }
    code
}

/// While outcomes are forced, or questions have found nothing of late.
#[cold]
#[inline(never)]
fn receive_with_attention(
    mut process: Entered,
    mut op: Op,
    (comm, from, tags): (CommId, Source, TagMatch),
    tag: i32,
) -> i32 {
    process.act(tag);
    process.post_late();
    let outcome = process.timed(|engine, host| engine.receive(host, comm, from, tags, op, op));
    process.attend();
    process.host.push();
    let code = received(outcome, &mut op);
    shared().deliver(process);
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
