//! Posts: each is translated, handed to the adapter, and recorded.

use crate::abi::{Completion, QpAttr, Sge, number::*};
use crate::host::*;
use crate::names::{NO_KEY, Name, number_of};
use crate::objects::{AhId, QpId, Shadow, SrqId};
use crate::queues::{ReceiveQueue, Record, Sent};

/// Whose receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Of a queue pair.
    Qp(QpId),
    /// A shared one.
    Srq(SrqId),
}

impl<H: Host> Shadow<H> {
    /// Post one send request of the program.
    ///
    /// # Errors
    /// [`Errno::FULL`] if the queue is full, [`Errno::UNSUPPORTED`] for operations that the shadow
    /// does not know, else what the adapter says. Nothing is posted then.
    pub fn post_send(&mut self, id: QpId, send: &Send<'_, AhId>) -> Outcome<()> {
        let qp = self.qps.get(id.0).ok_or(Errno::INVALID)?;
        if qp.sends.is_full() {
            return Err(Errno::FULL);
        }
        let (real, peer, is_connected) = (qp.real, qp.peer, qp.wish.kind == IBV_QPT_RC);
        let is_signalled = qp.wish.signal_all || send.flags & IBV_SEND_SIGNALED != 0;
        let number = qp.sends.next();
        let bytes = || send.sges.iter().map(|sge| sge.length).fold(0, u32::saturating_add);
        let receives = match send.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => Some(bytes()),
            // Its data do not go to the receive.
            IBV_WR_RDMA_WRITE_WITH_IMM => Some(0),
            IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_READ
            | IBV_WR_ATOMIC_CMP_AND_SWP
            | IBV_WR_ATOMIC_FETCH_AND_ADD => None,
            _ => return Err(Errno::UNSUPPORTED),
        };
        let target = match send.target {
            Target::Receive => Target::Receive,
            Target::Memory { address, key } => {
                Target::Memory { address, key: self.real_key(peer, key) }
            }
            Target::Atomic { address, key, compare_add, swap } => {
                Target::Atomic { address, key: self.real_key(peer, key), compare_add, swap }
            }
            Target::Datagram { ah, qpn, qkey } => {
                Target::Datagram { ah: self.real_ah(ah, qpn)?, qpn: self.real_qpn(qpn), qkey }
            }
        };
        let is_inline = send.flags & IBV_SEND_INLINE != 0;
        let sges = translated(&mut self.scratch, send.sges, |key| {
            // The key of inline data is not looked at.
            if is_inline { key } else { self.regions.real_local(key) }
        });
        let id_of_adapter = Record::Send(id.0, number).id();
        let translated = Send {
            id: id_of_adapter,
            opcode: send.opcode,
            flags: send.flags,
            imm: send.imm,
            sges,
            target,
        };
        self.host.post_send(real, &translated)?;
        // Datagrams are not counted: one that nobody waits for is dropped.
        let receives = receives.filter(|_| is_connected);
        let sent = Sent { id: send.id, is_signalled, receives, is_marker: false };
        if let Some(qp) = self.qps.get_mut(id.0) {
            qp.sends.push(sent);
        }
        Ok(())
    }

    /// The real key for a virtual one of the process that a queue pair is connected to.
    fn real_key(&mut self, peer: u32, key: u32) -> u32 {
        match self.job.process_of(peer) {
            Some(process) => self.find(Name::Key { process, key }).map_or(NO_KEY, number_of),
            None => key,
        }
    }

    /// Post one receive of the program. The oldest captured message, if there is one, goes there at
    /// once.
    ///
    /// # Errors
    /// [`Errno::FULL`] if the queue is full, else what the adapter says. Nothing is posted then.
    pub fn post_receive(&mut self, owner: Owner, id: u64, sges: &[Sge]) -> Outcome<()> {
        let queue = self.receives(owner).ok_or(Errno::INVALID)?;
        if queue.held >= queue.depth {
            return Err(Errno::FULL);
        }
        if let Some(captured) = queue.captured.pop_front() {
            self.deliver(captured.completion, &captured.bytes, id, sges);
            return Ok(());
        }
        let slot = queue.slot();
        let receive = &mut queue.slots[slot as usize];
        receive.sges.clear();
        receive.sges.extend_from_slice(sges);
        let posted = self.post_real_receive(owner, slot);
        if let Some(queue) = self.receives(owner) {
            match posted {
                Ok(()) => queue.is_posted(slot, id, None),
                Err(_) => queue.give_back(slot),
            }
        }
        posted
    }

    /// Hand the elements of a slot to the adapter.
    pub(crate) fn post_real_receive(&mut self, owner: Owner, slot: u32) -> Outcome<()> {
        let Self { qps, srqs, regions, scratch, host, .. } = self;
        match owner {
            Owner::Qp(id) => {
                let qp = qps.get(id.0).ok_or(Errno::INVALID)?;
                let sges = &qp.receives.slots[slot as usize].sges;
                let sges = translated(scratch, sges, |key| regions.real_local(key));
                host.post_receive(qp.real, Record::Receive(id.0, slot).id(), sges)
            }
            Owner::Srq(id) => {
                let srq = srqs.get(id.0).ok_or(Errno::INVALID)?;
                let sges = &srq.receives.slots[slot as usize].sges;
                let sges = translated(scratch, sges, |key| regions.real_local(key));
                host.post_srq_receive(srq.real, Record::SharedReceive(id.0, slot).id(), sges)
            }
        }
    }

    pub(crate) fn receives(&mut self, owner: Owner) -> Option<&mut ReceiveQueue<H::Handle>> {
        match owner {
            Owner::Qp(id) => Some(&mut self.qps.get_mut(id.0)?.receives),
            Owner::Srq(id) => Some(&mut self.srqs.get_mut(id.0)?.receives),
        }
    }

    /// A captured message meets its receive: what the adapter would have done.
    fn deliver(&mut self, mut completion: Completion, bytes: &[u8], id: u64, sges: &[Sge]) {
        completion.wr_id = id;
        let mut rest = bytes;
        for sge in sges {
            let now = rest.len().min(sge.length as usize);
            if now == 0 {
                break;
            }
            let Some(address) = self.regions.memory_of(sge) else {
                completion.status = IBV_WC_LOC_PROT_ERR;
                break;
            };
            self.host.write(address, &rest[..now]);
            rest = &rest[now..];
        }
        if !rest.is_empty() && completion.status == IBV_WC_SUCCESS {
            completion.status = IBV_WC_LOC_LEN_ERR;
        }
        let Some(&qp) = self.qpns.get(&completion.qp_num) else { return };
        if completion.status != IBV_WC_SUCCESS {
            self.break_connection(qp);
        }
        let Some(cq) = self.qps.get(qp.0).map(|qp| qp.wish.recv_cq) else { return };
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        queue.private.push_back(completion);
        if let Some(channel) = queue.channel.filter(|_| queue.armed.take().is_some()) {
            self.host.raise(channel, cq);
        }
    }

    /// A receive that does not fit ends the connection. (Its sender has been told of success: the
    /// one thing that a captured message cannot undo.)
    fn break_connection(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id.0) else { return };
        qp.is_broken = true;
        let attr = QpAttr { qp_state: IBV_QPS_ERR, ..QpAttr::default() };
        // One that is in the error state already says no.
        let _ = self.host.modify_qp(qp.real, &attr, IBV_QP_STATE);
    }
}

/// Elements with real keys.
fn translated<'a>(scratch: &'a mut Vec<Sge>, sges: &[Sge], key: impl Fn(u32) -> u32) -> &'a [Sge] {
    scratch.clear();
    scratch.extend(sges.iter().map(|sge| Sge { lkey: key(sge.lkey), ..*sge }));
    scratch
}
