//! Nondeterministic calls, as C makes and records them (see `glue.h`): tests, waits for any or
//! some, probes, cancels. Only while outcomes are recorded or replayed.

use crate::engine::driver_state::Driver;
use crate::engine::shared::shared;
use crate::ffi::operation::Op;
use crate::ffi::table::{Envelope, Operation};
use crate::progress::wait::wait_while_held;
use rustbtl_coordination::determinants::{CallKind, NondetCall, Outcome, ReplayDecision};
use rustbtl_fragments::engine::{Source, TagMatch};
use rustbtl_fragments::host::Status;
use rustbtl_fragments::ids::{CommId, MessageId, ReceiveId};

/// `rustbtl_nondet_call`: execute it, then record its outcome.
const EXECUTE: i32 = 0;
/// Report that nothing is complete.
const REPORT_NOTHING: i32 = 1;
/// Wait for these.
const AWAIT: i32 = 2;

/// `rustbtl_probe`: take it out of matching.
pub const PROBE_CLAIM: u32 = 1;
/// The call blocks: "nothing" is no result.
const PROBE_BLOCKS: u32 = 2;
/// If nothing is here, that is the result.
const PROBE_LAST: u32 = 4;

/// Nothing is here yet.
pub const PROBE_NOT_YET: i32 = 0;
/// Found.
pub const PROBE_FOUND: i32 = 1;
/// It is reported to the program that there is nothing.
const PROBE_NOTHING: i32 = 2;
/// It was found before: probe again until it is here.
const PROBE_WAIT: i32 = 3;

fn question(call: u32, active: u32) -> NondetCall {
    let known = u8::try_from(call).ok().and_then(CallKind::of);
    NondetCall::requests(known.unwrap_or(CallKind::Test), active)
}

/// The program makes a nondeterministic call on `active` requests.
///
/// # Safety
/// `indices` has `room`; `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_nondet_call(
    call: u32,
    active: u32,
    room: u32,
    indices: *mut i32,
    count: *mut i32,
) -> i32 {
    let shared = shared();
    let mut driver = shared.enter();
    if driver.host.windows.holds {
        drop(driver);
        wait_while_held(shared);
        driver = shared.enter();
    }
    let question = question(call, active);
    let code = match driver.replay_decision(question) {
        ReplayDecision::Execute => EXECUTE,
        ReplayDecision::ReportNothing => REPORT_NOTHING,
        ReplayDecision::Await(Outcome::Requests(list)) => {
            if list.len() > room as usize || list.iter().any(|&index| index >= room) {
                let message = format!("{question} gave {list:?}, there are {room} requests");
                driver.host.replay_diverged(&message);
            }
            if !list.is_empty() {
                // SAFETY: no longer than `room`.
                let out = unsafe { core::slice::from_raw_parts_mut(indices, list.len()) };
                out.iter_mut().zip(&list).for_each(|(out, &index)| *out = index as i32);
            }
            // SAFETY: null or writable.
            if let Some(count) = unsafe { count.as_mut() } {
                *count = list.len() as i32;
            }
            AWAIT
        }
        ReplayDecision::Await(_) => AWAIT,
    };
    shared.deliver(driver);
    code
}

/// Its outcome: `count` indices; -1: nothing. 0: it has to be executed again, since a snapshot of
/// the process was taken after it read `epoch`.
///
/// # Safety
/// `indices` is readable for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_record_outcome(
    call: u32,
    active: u32,
    count: i32,
    indices: *const i32,
    epoch: u32,
) -> i32 {
    let question = question(call, active);
    let outcome = match (count, question.kind) {
        (..0, _) => None,
        (_, CallKind::Test | CallKind::TestAll) => Some(Outcome::Done),
        (_, _) => {
            // SAFETY: the caller's promise; not null, as it is not for a test of one or all.
            let indices = unsafe { core::slice::from_raw_parts(indices, count as usize) };
            Some(Outcome::Requests(indices.iter().map(|&index| index as u32).collect()))
        }
    };
    let shared = shared();
    // Snapshots are taken, and processes restored, while nobody else is in here.
    let mut driver = shared.enter();
    let valid = epoch == crate::determinants::set_order::epoch();
    if valid {
        driver.record_outcome(question, outcome);
    }
    shared.deliver(driver);
    i32::from(valid)
}

/// MPI_Cancel of a receive of the program. 1: it is gone and will not complete. (Whether that is
/// recorded is decided in here, where no snapshot is taken.)
///
/// # Safety
/// Null, or an operation as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_cancel_recorded(operation: *mut Operation, complete: i32) -> i32 {
    // SAFETY: the caller's promise.
    let Some(op) = (unsafe { Op::new(operation) }) else { return 0 };
    let shared = shared();
    let mut driver = shared.enter();
    driver.post_late();
    let receive = driver.receive_id(op);
    let gone = cancel(&mut driver, receive, complete != 0);
    shared.deliver(driver);
    i32::from(gone)
}

fn cancel(driver: &mut Driver, receive: ReceiveId, complete: bool) -> bool {
    if !driver.host.record.is_on() {
        return !complete && driver.engine.cancel_receive(receive);
    }
    let question = NondetCall { kind: CallKind::Cancel, arguments: 0 };
    let wanted = match driver.replay_decision(question) {
        ReplayDecision::Execute => !complete,
        ReplayDecision::Await(Outcome::Cancelled(name)) => name.is_some(),
        _ => false,
    };
    let name = driver.engine.receive_name(receive).filter(|_| wanted);
    let gone = name.is_some() && driver.engine.cancel_receive(receive);
    driver.record_outcome(question, Some(Outcome::Cancelled(name.filter(|_| gone))));
    gone
}

/// A probe whose outcome is recorded, or forced.
///
/// # Safety
/// `found` is null or writable.
#[cold]
#[inline(never)]
pub unsafe fn probe(
    driver: &mut Driver,
    (comm, from, tag): (u32, i32, i32),
    (source, matches): (Source, TagMatch),
    how: u32,
    found: *mut Envelope,
) -> i32 {
    if driver.host.windows.holds {
        // Whatever there is, it is not to be known yet.
        return PROBE_WAIT;
    }
    let claims = how & PROBE_CLAIM != 0;
    let comm = CommId(comm);
    let (code, envelope) = if !claims && how & PROBE_BLOCKS != 0 && source != Source::Any {
        // One sender, in order: there is but one answer.
        let here = driver.engine.probe(comm, source, matches);
        (i32::from(here.is_some()), here.map(|status| (MessageId(0), status)))
    } else {
        let call = if claims { CallKind::Claim } else { CallKind::Probe };
        let context = driver.engine.context_of(comm);
        let question = NondetCall::probe(call, context, from, tag);
        recorded_probe(driver, question, (comm, source, matches), how)
    };
    // SAFETY: the caller's promise.
    if let (Some((message, status)), Some(found)) = (envelope, unsafe { found.as_mut() }) {
        *found = Envelope {
            message: message.0,
            bytes: status.bytes,
            source: status.source.0 as i32,
            tag: status.tag,
        };
    }
    code
}

fn recorded_probe(
    driver: &mut Driver,
    question: NondetCall,
    (comm, source, tag): (CommId, Source, TagMatch),
    how: u32,
) -> (i32, Option<(MessageId, Status)>) {
    let claims = how & PROBE_CLAIM != 0;
    match driver.replay_decision(question) {
        ReplayDecision::ReportNothing => (PROBE_NOTHING, None),
        ReplayDecision::Await(Outcome::Message(name)) => {
            let here = if claims {
                driver.engine.claim_named(&name)
            } else {
                driver.engine.probe_named(&name).map(|status| (MessageId(0), status))
            };
            if here.is_none() {
                return (PROBE_WAIT, None);
            }
            driver.record_outcome(question, Some(Outcome::Message(name)));
            (PROBE_FOUND, here)
        }
        ReplayDecision::Await(_) | ReplayDecision::Execute => {
            let Some(name) = driver.engine.probe_name(comm, source, tag) else {
                if how & PROBE_LAST != 0 {
                    driver.record_outcome(question, None);
                }
                return (PROBE_NOT_YET, None);
            };
            let here = if claims {
                driver.engine.claim(comm, source, tag)
            } else {
                driver.engine.probe(comm, source, tag).map(|status| (MessageId(0), status))
            };
            if here.is_some() {
                driver.record_outcome(question, Some(Outcome::Message(name)));
            }
            (i32::from(here.is_some()), here)
        }
    }
}
