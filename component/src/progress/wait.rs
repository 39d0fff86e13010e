//! How a blocking call waits: poll for a while, then give the processor away between polls. A rank
//! that waits must not keep another one of the node from running.

use crate::engine::backoff::Sleep;
use crate::engine::deferred_receives;
use crate::engine::detached_sends;
use crate::engine::driver_state::Unposted;
use crate::engine::shared::{EngineGuard, Shared};
use crate::engine::wait_policy::WaitPolicy;
use crate::ffi::operation::Op;
use crate::ffi::table::{DONE, PENDING};
use crate::os;
use crate::sync::waiting::WAITING;
use rustbtl_fragments::engine::{Source, TagMatch};
use rustbtl_fragments::ids::CommId;

/// Looks (of a burst each) between two calls of Open MPI's own progress, which costs much more.
const PROGRAM_POLLS: u32 = 16;
/// Where processors are shared: turns of one poll each between two of these calls.
const TURNS_OVERSUBSCRIBED: u32 = 32;
/// So many calls in a row may find nothing before others get the processor, where it is shared.
const FRUITLESS_CALLS: u32 = 4;
/// Looks at what others do in memory before anything else is looked at.
const LOOKS_AT_MEMORY_FIRST: u32 = 32;
/// The same where processors are not shared, before messages are looked at.
const LOOKS_AT_MEMORY: u32 = 512;
/// With threads: polls before the thread goes to sleep where the others are.
const LOOKS_THREADS: u32 = 200;

/// Wait for an operation on the stack. With threads: `PENDING` if it should wait elsewhere.
#[inline]
pub fn wait(shared: &'static Shared, op: Op) -> i32 {
    if shared.threads {
        return wait_with_threads(shared, op);
    }
    let code = wait_alone(shared, op);
    if detached_sends::is_waiting() {
        detached_sends::end_wait(&shared.enter());
    }
    code
}

#[inline(always)]
fn wait_alone(shared: &'static Shared, op: Op) -> i32 {
    // The short wait: most answers are on their way already.
    if shared.enter().idle.oversubscribed {
        return wait_crowded(shared, op);
    }
    for _ in 0..PROGRAM_POLLS {
        if op.is_complete() {
            return DONE;
        }
        let mut entered = shared.enter();
        entered.poll_until(op);
        shared.deliver(entered);
    }
    wait_long(shared, op)
}

/// A blocking receive polls for its message before it is posted. True: done. (A call of its own
/// would cost 7 instructions a message.)
#[inline(always)]
pub fn receive_unposted(
    shared: &'static Shared,
    envelope: (CommId, Source, TagMatch),
    op: &mut Op,
) -> bool {
    for _ in 0..PROGRAM_POLLS {
        let mut entered = shared.enter();
        let outcome = entered.receive_unposted(envelope, op);
        let give_up = outcome != Unposted::Nothing
            || entered.idle.oversubscribed
            || entered.network_is_busy();
        shared.deliver(entered);
        if give_up {
            return outcome == Unposted::Done;
        }
    }
    false
}

#[inline(never)]
fn wait_long(shared: &'static Shared, op: Op) -> i32 {
    if shared.enter().idle.is_oversubscribed(&shared.glue) {
        return wait_crowded(shared, op);
    }
    let mut patience = shared.enter().idle.spin;
    WAITING.begin();
    loop {
        for _ in 0..PROGRAM_POLLS {
            if op.is_complete() {
                return DONE;
            }
            let mut entered = shared.enter();
            entered.poll_until(op);
            entered.detach_waiting_send(op);
            shared.deliver(entered);
        }
        // It may end a round that it does not know to be ours.
        WAITING.end_round();
        // SAFETY: nothing is borrowed; it comes back into rustbtl_progress.
        unsafe { (shared.glue.progress)() };
        if op.is_complete() {
            return DONE;
        }
        if patience > PROGRAM_POLLS {
            patience -= PROGRAM_POLLS;
        } else {
            os::yield_now();
        }
        WAITING.end_round();
    }
}

/// Others need the processor, perhaps the one whose message this is: nothing is done in a turn but
/// to look.
#[inline(never)]
fn wait_crowded(shared: &'static Shared, op: Op) -> i32 {
    let patience = shared.enter().idle.spin_oversubscribed;
    let (mut turn, mut turns_since) = (0u32, 0u32);
    loop {
        if op.is_complete() {
            return DONE;
        }
        let mut entered = shared.enter();
        let mut light_turns = 0;
        if entered.poll_once(op) {
            entered.backoff.reset();
        } else {
            light_turns = entered.light_turns();
        }
        entered.detach_waiting_send(op);
        shared.deliver(entered);
        if op.is_complete() {
            return DONE;
        }
        turn = turn.saturating_add(1);
        if turn < patience {
            continue;
        }
        turns_since += 1 + light_turns;
        if turns_since >= TURNS_OVERSUBSCRIBED {
            turns_since = 0;
            // SAFETY: nothing is borrowed; it comes back into rustbtl_progress.
            unsafe { (shared.glue.progress)() };
        }
        let slept = give_way(shared);
        if !slept {
            give_way_lightly(shared, light_turns);
        }
    }
}

/// Yield so often, as long as nothing has come from the node.
#[inline]
fn give_way_lightly(shared: &'static Shared, turns: u32) {
    if turns > 0 {
        WAITING.begin();
        for _ in 0..turns {
            if shared.enter().host.transports.node_has_news() {
                return;
            }
            os::yield_now();
        }
        WAITING.end_round();
    }
}

/// Wait for what no operation shows. `ask` is called with the right to touch the process, at least
/// once, each time after a poll.
pub fn wait_until<T>(
    shared: &'static Shared,
    mut ask: impl FnMut(&mut EngineGuard) -> Option<T>,
) -> T {
    let mut turn = 0u32;
    loop {
        let mut entered = shared.enter();
        entered.post_late();
        let happened = entered.poll() > 0;
        let answer = ask(&mut entered);
        let patience = entered.idle.spin_limit(&shared.glue);
        shared.deliver(entered);
        if let Some(answer) = answer {
            if !happened {
                let_others_run(shared);
            }
            return answer;
        }
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(PROGRAM_POLLS) {
            // SAFETY: nothing is borrowed; it comes back into rustbtl_progress.
            unsafe { (shared.glue.progress)() };
        }
        if !happened && turn >= patience {
            give_way(shared);
        }
    }
}

/// Rule 3 of a replay of windows: the program goes on when all is applied that was before.
pub fn wait_while_held(shared: &'static Shared) {
    if shared.enter().host.windows.holds {
        wait_until(shared, |driver| (!driver.host.windows.holds).then_some(()));
    }
}

/// Wait for what others do in memory. `over`: goes on as far as it can; true at the end. Nothing of
/// the engine is held while it is called.
#[inline]
pub fn wait_for_memory(shared: &'static Shared, mut over: impl FnMut() -> bool) {
    for _ in 0..LOOKS_AT_MEMORY_FIRST {
        if over() {
            return;
        }
    }
    if !shared.threads && !shared.enter().idle.oversubscribed {
        for _ in 0..LOOKS_AT_MEMORY {
            if over() {
                return;
            }
        }
    }
    wait_long_for_memory(shared, &mut over);
}

/// The same where what is awaited may come as messages, too.
#[inline(never)]
pub fn wait_long_for_memory(shared: &'static Shared, over: &mut dyn FnMut() -> bool) {
    let mut turn = 0u32;
    WAITING.begin();
    loop {
        if over() {
            if turn > 0
                && let Some(mut entered) = shared.try_enter()
            {
                // Something has come, if not as a message.
                entered.backoff.reset();
            }
            return;
        }
        let mut happened = false;
        let mut patience = 0;
        if let Some(mut entered) = shared.try_enter() {
            entered.post_late();
            happened = entered.poll() > 0;
            patience = entered.idle.spin_limit(&shared.glue);
            shared.deliver(entered);
        }
        let looks = if patience < LOOKS_AT_MEMORY { 1 } else { PROGRAM_POLLS };
        turn = turn.wrapping_add(1);
        if (1..looks).any(|_| over()) {
            shared.enter().backoff.reset();
            return;
        }
        if turn.is_multiple_of(PROGRAM_POLLS) {
            WAITING.end_round();
            // SAFETY: nothing is borrowed; it comes back into rustbtl_progress.
            unsafe { (shared.glue.progress)() };
        }
        if !happened && turn.saturating_mul(PROGRAM_POLLS) >= patience {
            give_way(shared);
        }
        WAITING.end_round();
    }
}

/// Look for messages once.
pub fn look(shared: &'static Shared) {
    if let Some(mut entered) = shared.try_enter() {
        entered.post_late();
        entered.poll();
        shared.deliver(entered);
    }
}

/// A call has found nothing new and returns. Programs ask in loops: those that they wait for may
/// need this processor.
fn let_others_run(shared: &'static Shared) {
    let mut entered = shared.enter();
    if !entered.idle.shares_processors(&shared.glue) {
        return;
    }
    entered.fruitless = entered.fruitless.wrapping_add(1);
    let gives_way = entered.fruitless > FRUITLESS_CALLS;
    drop(entered);
    if gives_way {
        give_way(shared);
    }
}

/// Let others run. Nothing of the engine is held. True: it has slept.
fn give_way(shared: &'static Shared) -> bool {
    let pause = shared.enter().pause();
    WAITING.begin();
    pause.map_or_else(os::yield_now, Sleep::sleep);
    WAITING.end_round();
    pause.is_some()
}

/// One thread at a time polls; who does not get the right to, sleeps until it is woken.
fn wait_with_threads(shared: &'static Shared, op: Op) -> i32 {
    for _ in 0..LOOKS_THREADS {
        if op.is_complete() {
            return DONE;
        }
        let Some(mut entered) = shared.try_enter() else { return PENDING };
        entered.poll_until(op);
        let oversubscribed = entered.idle.oversubscribed;
        shared.deliver(entered);
        if oversubscribed {
            // Others need the processor, perhaps the one whose message this is.
            break;
        }
    }
    if op.is_complete() { DONE } else { PENDING }
}

/// A fruitless round of somebody else's waiting loop, with a call of Open MPI's own progress in it.
/// Where that yields, this does not: next to threads that never sleep each yield costs a slice of
/// theirs.
pub fn idle(shared: &'static Shared) {
    fruitless(shared, |idle| idle.spin_limit(&shared.glue));
}

/// A call that does not wait has found nothing, after a call of Open MPI's own progress. The
/// program may do something else than ask again, so as with stock it keeps its processor, unless
/// others are known to need it: ranks that share it, or those whose answers frames wait for.
pub fn found_nothing(shared: &'static Shared) {
    fruitless(shared, |idle| {
        if idle.is_oversubscribed(&shared.glue) { idle.spin_oversubscribed } else { u32::MAX }
    });
}

/// `patience`: so many fruitless rounds in a row end with the processor still in hand.
fn fruitless(shared: &'static Shared, patience: impl FnOnce(&WaitPolicy) -> u32) {
    deferred_receives::post(shared);
    let mut entered = shared.enter();
    let patience = patience(&entered.idle);
    entered.fruitless = entered.fruitless.wrapping_add(1);
    let give_way = entered.fruitless > patience && !WaitPolicy::open_mpi_yields(&shared.glue);
    drop(entered);
    WAITING.end_foreign_round();
    if give_way {
        os::yield_now();
        WAITING.end_round();
    }
}
