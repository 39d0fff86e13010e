//! What a member of a communicator does, step by step, as far as it can.

use crate::plan::{CHUNKS, LINES, Plan, Step, Who};

/// Memory or messages, and the call's data.
pub trait Host {
    /// How many steps this member has finished (K1). Where data travels as messages: as many as
    /// the caller.
    fn finished(&self, member: u32) -> u64;

    /// Put own data into the own slot of the step with this number, then raise its flag. Where
    /// nothing lies in memory: nothing.
    fn put(&mut self, plan: &Plan, step: &Step, number: u64);

    /// Own data of this step has been put. Send it to those readers that do not find it there, if
    /// there are any. False: nobody knows yet whether there are: ask again (K6).
    fn deliver(&mut self, plan: &Plan, step: &Step, number: u64) -> bool;

    /// Has this member raised its flag for this step, so that its slot may be read (K2)?
    fn is_up(&mut self, plan: &Plan, step: &Step, number: u64, writer: u32) -> bool;

    /// Read the slots of all writers.
    fn take(&mut self, plan: &Plan, step: &Step, number: u64);

    /// So many steps are finished.
    fn finish(&mut self, steps: u64);
}

/// What has been done of the own part of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    Nothing,
    Put,
    Sent,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Member {
    me: u32,
    size: u32,
    /// Of the step that is taken, in the communicator's life.
    number: u64,
    /// The same within the call.
    at: u64,
    own: Own,
    /// Those before this one have raised their flags.
    seen: u32,
    /// So many steps everybody has finished, as far as is known.
    finished: u64,
}

impl Member {
    /// Of a communicator that has just been made.
    pub fn new(me: u32, size: u32) -> Self {
        Self { me, size, number: 0, at: 0, own: Own::Nothing, seen: 0, finished: 0 }
    }

    /// Own rank.
    pub fn me(&self) -> u32 {
        self.me
    }

    /// Members.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The step that is taken, or the next one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// True: the call is over. False: somebody is awaited; call it again.
    #[inline]
    pub fn advance<H: Host>(&mut self, plan: &Plan, host: &mut H) -> bool {
        while self.at < plan.steps() {
            let step = plan.step(self.at);
            if self.own != Own::Sent {
                if step.writers.has(self.me) && !self.write(plan, &step, host) {
                    return false;
                }
                self.own = Own::Sent;
                self.seen = 0;
            }
            if step.readers.has(self.me) {
                while self.seen < self.size {
                    let writer = self.seen;
                    let awaited = writer != self.me && step.writers.has(writer);
                    if awaited && !host.is_up(plan, &step, self.number, writer) {
                        return false;
                    }
                    self.seen += 1;
                }
                host.take(plan, &step, self.number);
                if step.writers == Who::All {
                    // Who has put something in this step has finished all before it.
                    self.finished = self.finished.max(self.number);
                }
            }
            self.number += 1;
            self.at += 1;
            self.own = Own::Nothing;
            host.finish(self.number);
        }
        self.at = 0;
        true
    }

    /// The own part. False: something is awaited.
    #[inline]
    fn write<H: Host>(&mut self, plan: &Plan, step: &Step, host: &mut H) -> bool {
        if self.own == Own::Nothing {
            if !self.may_write(step, host) {
                return false;
            }
            host.put(plan, step, self.number);
            self.own = Own::Put;
        }
        host.deliver(plan, step, self.number)
    }

    /// K1
    #[inline]
    fn may_write<H: Host>(&mut self, step: &Step, host: &H) -> bool {
        let slots = if step.line { LINES } else { CHUNKS };
        self.finished.saturating_add(slots) > self.number || self.have_finished(slots, host)
    }

    #[cold]
    fn have_finished<H: Host>(&mut self, slots: u64, host: &H) -> bool {
        let others = (0..self.size).filter(|&member| member != self.me);
        self.finished = others.map(|member| host.finished(member)).min().unwrap_or(u64::MAX);
        self.finished.saturating_add(slots) > self.number
    }
}
