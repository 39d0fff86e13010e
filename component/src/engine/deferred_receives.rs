//! Receives that are posted late, in a process that was rolled back.
//!
//! MPI does not allow a message to be received into memory that is still to be sent from (MPI-3.1
//! §3.7.2), but programs do: they await the answer in the buffer of the question (ScaLAPACK's
//! BLACS). It goes well, since there is no answer before the question. A process that replays has
//! the answers here already: they would be sent in place of the questions.
//!
//! So until the coordinator says that all replays are over, its nonblocking receives are posted, in
//! their order, when the program waits, tests, probes, or receives: not while it only starts
//! operations. (The process itself may take its replay for complete before others have reached it,
//! docs/adr/0016.) A blocking send that is not complete at once waits, too: its memory is in the
//! log by then, or is copied before anything is received into it (`deferred_copy`), or its receiver
//! replays together with this process, and has not sent an answer either.

use crate::determinants::set_order::{SLOW_PATH, of_program};
use crate::engine::driver_state::{Driver, Wanted};
use crate::engine::shared::Shared;
use crate::ffi::operation::Op;
use core::sync::atomic::Ordering;
use rustbtl_fragments::engine::ReceiveOutcome;
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::ReceiveId;

/// Post what was put off: the program waits.
#[inline]
pub fn post(shared: &'static Shared) {
    if SLOW_PATH.load(Ordering::Relaxed) != 0 {
        let mut driver = shared.enter();
        driver.post_late();
        shared.deliver(driver);
    }
}

impl Driver {
    /// Post this receive of a request later, if that is wanted. `tag` as C has it.
    #[cold]
    #[inline(never)]
    pub fn put_off(&mut self, mut op: Op, wanted: Wanted, tag: i32) -> bool {
        if !self.replaying || !of_program(tag) {
            return false;
        }
        self.act(tag);
        op.set_id(ReceiveId::NONE.0);
        self.deferred.push_back((op, wanted));
        true
    }

    /// Post what was put off. To be called where the program does anything but start operations,
    /// and before any other receive is posted.
    #[inline]
    pub fn post_late(&mut self) {
        if !self.deferred.is_empty() {
            self.post_all_late();
        }
    }

    #[cold]
    #[inline(never)]
    fn post_all_late(&mut self) {
        while let Some((mut op, (comm, from, tags))) = self.deferred.pop_front() {
            match self.timed(|engine, host| engine.receive(host, comm, from, tags, op, op)) {
                ReceiveOutcome::Complete(status) => self.host.complete(op, status),
                ReceiveOutcome::Pending(id) => op.set_id(id.0),
            }
        }
        self.update_slow_path();
        self.host.push();
    }

    /// All replays are over: who has received of an earlier incarnation has reached this process,
    /// so nothing is here any more that is an answer to what is not sent yet. What was put off is
    /// posted when the program waits next.
    pub fn end_deferral(&mut self) {
        if self.replaying {
            self.replaying = false;
            self.update_slow_path();
        }
    }
}
