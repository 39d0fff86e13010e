//! How a blocking call waits: look for a while, then give the processor away between looks. A rank
//! that waits must not keep another one of the node from running.

use crate::glue::{DONE, Glue, PENDING};
use crate::operation::Op;
use crate::os;
use crate::process::{Shared, Unposted};
use rustbtl_fragments::engine::{Source, TagMatch};
use rustbtl_fragments::ids::CommId;

/// Looks (of a burst each) between two calls of Open MPI's own progress, which costs much more.
const LOOKS: u32 = 16;
/// The same where processors are shared.
const LOOKS_OVERSUBSCRIBED: u32 = 2;
/// With threads: looks before the thread goes to sleep where the others are.
const LOOKS_THREADS: u32 = 200;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// This node has more ranks than processors.
    pub oversubscribed: bool,
    /// Looks before the first yield.
    pub spin: u32,
    /// The same on an oversubscribed node.
    pub spin_oversubscribed: u32,
}

impl Idle {
    /// Looks before the first yield, and in one go.
    #[inline]
    fn patience(&self, glue: &Glue) -> (u32, u32) {
        // SAFETY: no arguments.
        if self.oversubscribed || unsafe { (glue.yields)() } != 0 {
            (self.spin_oversubscribed, LOOKS_OVERSUBSCRIBED)
        } else {
            (self.spin, LOOKS)
        }
    }
}

/// Wait for an operation on the stack. With threads: `PENDING` if it should wait elsewhere.
#[inline]
pub fn wait(shared: &'static Shared, op: Op) -> i32 {
    if shared.threads {
        return wait_with_threads(shared, op);
    }
    // The short wait: most answers are on their way already.
    let crowded = shared.enter().idle.oversubscribed;
    for _ in 0..if crowded { LOOKS_OVERSUBSCRIBED } else { LOOKS } {
        if op.is_complete() {
            return DONE;
        }
        let mut entered = shared.enter();
        entered.look_for(op);
        shared.deliver(entered);
    }
    wait_long(shared, op)
}

/// A blocking receive looks for its message before it is posted. True: done.
#[inline]
pub fn receive_unposted(
    shared: &'static Shared,
    comm: CommId,
    source: Source,
    tag: TagMatch,
    op: &mut Op,
) -> bool {
    for _ in 0..LOOKS {
        let mut entered = shared.enter();
        let outcome = entered.receive_unposted((comm, source, tag), op, true);
        let crowded = entered.idle.oversubscribed || entered.tcp_is_busy();
        let give_up = outcome == Unposted::Post || crowded;
        shared.deliver(entered);
        if outcome == Unposted::Done || give_up {
            return outcome == Unposted::Done;
        }
    }
    false
}

#[inline(never)]
fn wait_long(shared: &'static Shared, op: Op) -> i32 {
    let (mut patience, looks) = shared.enter().idle.patience(&shared.glue);
    loop {
        for _ in 0..looks {
            if op.is_complete() {
                return DONE;
            }
            let mut entered = shared.enter();
            entered.look_for(op);
            shared.deliver(entered);
        }
        // SAFETY: nothing is borrowed; it comes back into rustbtl_progress.
        unsafe { (shared.glue.progress)() };
        if op.is_complete() {
            return DONE;
        }
        if patience > looks {
            patience -= looks;
        } else {
            os::yield_now();
        }
    }
}

/// One thread at a time looks; who does not get the right to, sleeps until it is woken.
fn wait_with_threads(shared: &'static Shared, op: Op) -> i32 {
    for _ in 0..LOOKS_THREADS {
        if op.is_complete() {
            return DONE;
        }
        let Some(mut entered) = shared.try_enter() else { return PENDING };
        entered.look_for(op);
        shared.deliver(entered);
    }
    PENDING
}

/// A fruitless round of somebody else's waiting loop.
pub fn idle(shared: &'static Shared) {
    let (patience, _) = shared.enter().idle.patience(&shared.glue);
    let mut entered = shared.enter();
    entered.fruitless = entered.fruitless.wrapping_add(1);
    let give_way = entered.fruitless > patience;
    drop(entered);
    if give_way {
        os::yield_now();
    }
}
