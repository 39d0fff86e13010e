//! Completions: each finds the record of its request, and gets the program's names.

use crate::abi::{Completion, number::*};
use crate::host::*;
use crate::objects::{ChannelId, CqId, QpId, Shadow};
use crate::queues::{Captured, Record};

/// Completions that are drained in one call.
const POLLED_AT_ONCE: usize = 32;

impl<H: Host> Shadow<H> {
    /// `ibv_poll_cq`: how many completions there were. Those that were drained come first.
    ///
    /// # Errors
    /// What the adapter says.
    pub fn poll(&mut self, id: CqId, into: &mut [Completion]) -> Outcome<usize> {
        let cq = self.cqs.get_mut(id.0).ok_or(Errno::INVALID)?;
        let real = cq.real;
        let mut filled = 0;
        while filled < into.len() {
            let Some(completion) = cq.private.pop_front() else { break };
            into[filled] = completion;
            filled += 1;
        }
        while filled < into.len() {
            let asked = into.len() - filled;
            let found = self.host.poll(real, &mut into[filled..])?;
            let first = filled;
            for at in first..first + found {
                let mut completion = into[at];
                if self.reconcile(id, &mut completion) {
                    into[filled] = completion;
                    filled += 1;
                }
            }
            if found < asked {
                break;
            }
        }
        Ok(filled)
    }

    /// `ibv_req_notify_cq`.
    ///
    /// # Errors
    /// What the adapter says.
    pub fn arm(&mut self, id: CqId, solicited_only: bool) -> Outcome<()> {
        let cq = self.cqs.get_mut(id.0).ok_or(Errno::INVALID)?;
        self.host.arm(cq.real, solicited_only)?;
        // Asked for all events once, it stays so until there is one.
        cq.armed = Some(solicited_only && cq.armed != Some(false));
        Ok(())
    }

    /// The program gets an event of this queue: it has to arm it for another one.
    pub fn has_event(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.armed = None;
        }
    }

    /// The channel of a queue.
    pub fn channel_of(&self, id: CqId) -> Option<ChannelId> {
        self.cqs.get(id.0)?.channel
    }

    /// Everything that the adapter has goes to private queues: how much it was.
    pub(crate) fn drain_queues(&mut self) -> Outcome<usize> {
        let mut found = 0;
        for id in self.cqs.ids() {
            let Some(real) = self.cqs.get(id).map(|cq| cq.real) else { continue };
            loop {
                let mut into = [Completion::default(); POLLED_AT_ONCE];
                let count = self.host.poll(real, &mut into)?;
                for completion in &mut into[..count] {
                    if self.reconcile(CqId(id), completion)
                        && let Some(cq) = self.cqs.get_mut(id)
                    {
                        cq.private.push_back(*completion);
                    }
                }
                found += count;
                if count < POLLED_AT_ONCE {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Give a completion of the adapter the program's names. False: it is not the program's.
    fn reconcile(&mut self, cq: CqId, completion: &mut Completion) -> bool {
        match Record::of(completion.wr_id) {
            Record::Send(qp, number) => self.sent(cq, QpId(qp), number, completion),
            Record::Receive(qp, slot) => {
                let Some(qp) = self.qps.get_mut(qp) else { return false };
                let Some((id, capture)) = qp.receives.finish(slot) else { return false };
                completion.wr_id = id;
                let found = self.of(qp_id(completion, self, cq));
                self.received(found, None, capture, completion)
            }
            Record::SharedReceive(srq, slot) => {
                let Some(queue) = self.srqs.get_mut(srq) else { return false };
                let Some((id, capture)) = queue.receives.finish(slot) else { return false };
                completion.wr_id = id;
                let found = self.of(qp_id(completion, self, cq));
                self.received(found, Some(srq), capture, completion)
            }
        }
    }

    /// That queue pair, if it exists.
    fn of(&self, id: Option<QpId>) -> Option<QpId> {
        id.filter(|id| self.qps.get(id.0).is_some())
    }

    fn sent(&mut self, cq: CqId, id: QpId, number: u64, completion: &mut Completion) -> bool {
        let Some(qp) = self.qps.get_mut(id.0) else { return false };
        let Some(sent) = qp.sends.finish(number) else { return false };
        completion.wr_id = sent.id;
        completion.qp_num = qp.qpn;
        qp.is_broken |= completion.status != IBV_WC_SUCCESS && qp.wish.kind == IBV_QPT_RC;
        if sent.is_marker
            && let Some(cq) = self.cqs.get_mut(cq.0)
        {
            cq.own -= 1;
        }
        !sent.is_marker
    }

    /// A receive is over.
    fn received(
        &mut self,
        id: Option<QpId>,
        srq: Option<u32>,
        capture: Option<(Capture<H::Handle>, CqId)>,
        completion: &mut Completion,
    ) -> bool {
        let is_success = completion.status == IBV_WC_SUCCESS;
        if let Some(qp) = id.and_then(|id| self.qps.get_mut(id.0)) {
            completion.qp_num = qp.qpn;
            qp.received += u64::from(is_success);
            qp.is_broken |= !is_success && qp.wish.kind == IBV_QPT_RC;
        }
        let Some((capture, cq)) = capture else { return id.is_some() };
        if let Some(cq) = self.cqs.get_mut(cq.0) {
            cq.own -= 1;
        }
        let has_data = is_success && completion.opcode == IBV_WC_RECV;
        let bytes = self.host.captured(capture, if has_data { completion.byte_len } else { 0 });
        let Some(id) = id.filter(|_| is_success) else { return false };
        let queue = match srq {
            Some(srq) => self.srqs.get_mut(srq).map(|srq| &mut srq.receives),
            None => self.qps.get_mut(id.0).map(|qp| &mut qp.receives),
        };
        if let Some(queue) = queue {
            queue.captured.push_back(Captured { completion: *completion, bytes });
        }
        false
    }
}

/// The queue pair that the adapter names.
fn qp_id<H: Host>(completion: &Completion, shadow: &Shadow<H>, cq: CqId) -> Option<QpId> {
    let context = shadow.cqs.get(cq.0)?.context;
    shadow.contexts.get(context.0)?.real_qps.get(&completion.qp_num).copied()
}
