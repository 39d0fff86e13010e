//! The drain: exact, by counting. Nothing is posted twice, nothing is guessed, nothing waits for a
//! time to pass.
//!
//! Each process closes its gate (the program posts nothing more) and says for every connection how
//! many requests it has ever posted that consume a receive. The peer knows how many have come. For
//! those that will find none of the program's receives it posts *captures*, receives into memory
//! of its own. So every request completes by itself. Requests that are not signalled are seen to be
//! over by a *marker* behind them, a signalled write of nothing.
//!
//! A connection whose peer is not ready to receive yet cannot be drained: requests that are under
//! way there wait for a program that waits at its gate. All try again later (`postponed`).

use crate::abi::number::*;
use crate::host::*;
use crate::objects::{CqId, QpId, SPARE, Shadow};
use crate::posting::Owner;
use crate::queues::{Record, Sent};
use std::collections::BTreeMap;

/// The longest datagram, with its global header.
const DATAGRAM_BYTES_MAX: u32 = 4096 + 40;

/// How far a connection is, at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It cannot receive yet.
    No,
    /// It can.
    Yes,
    /// It has failed, and can no more.
    Broken,
}

/// What one end of a connection has posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Its virtual number.
    pub qpn: u32,
    /// The other end's.
    pub peer: u32,
    /// Can it receive?
    pub readiness: Readiness,
    /// Requests that consume a receive, ever since it was connected.
    pub consuming: u64,
    /// Lengths of the last ones of them, as far as they have no completion yet.
    pub under_way: Vec<u32>,
    /// Requests without a completion, of any kind.
    pub sends: u64,
}

/// Those of all processes, by virtual number.
pub type Tallies = BTreeMap<u32, Tally>;

/// A connection for which the drain has to wait until its other end can receive.
pub fn postponed(all: &Tallies) -> Option<u32> {
    let waits = |tally: &&Tally| {
        let peer = all.get(&tally.peer);
        let can_come = peer.is_none_or(|peer| {
            peer.readiness != Readiness::No && peer.peer == tally.qpn
                || peer.readiness == Readiness::Broken
        });
        tally.readiness == Readiness::Yes && tally.sends > 0 && !can_come
    };
    all.values().find(waits).map(|tally| tally.qpn)
}

impl Tally {
    /// The length of the message of this number, from 0. None: it has come long ago.
    fn length(&self, number: u64) -> Option<u32> {
        let known = self.under_way.len() as u64;
        let at = number.checked_sub(self.consuming.checked_sub(known)?)?;
        self.under_way.get(at as usize).copied()
    }
}

impl<H: Host> Shadow<H> {
    /// What this process has posted on its connections. Only while its gate is closed.
    pub fn tallies(&self) -> Vec<Tally> {
        let connected = self.qps.values().filter(|qp| qp.wish.kind == IBV_QPT_RC);
        let tally = |qp: &crate::objects::Qp<H::Handle>| Tally {
            qpn: qp.qpn,
            peer: qp.peer,
            readiness: match qp.state {
                _ if qp.is_broken => Readiness::Broken,
                IBV_QPS_RTR | IBV_QPS_RTS => Readiness::Yes,
                _ => Readiness::No,
            },
            consuming: qp.sends.consuming,
            under_way: qp.sends.lengths(),
            sends: qp.sends.len() as u64,
        };
        connected.map(tally).collect()
    }

    /// Do what can be done now: is all over here? To be called until it is, and again when
    /// others' tallies change.
    ///
    /// # Errors
    /// What the adapter says to a capture or a marker.
    pub fn drain(&mut self, all: &Tallies) -> Outcome<bool> {
        self.drain_queues()?;
        let mut is_over = true;
        for id in self.qps.ids() {
            is_over &= self.drain_sends(QpId(id))?;
            is_over &= self.drain_receives(QpId(id), all)?;
        }
        for id in self.srqs.ids() {
            self.capture_shared(id, all)?;
        }
        Ok(is_over && self.cqs.values().all(|cq| cq.own == 0))
    }

    /// Messages of a connected peer that have not come yet.
    fn awaited(&self, id: QpId, all: &Tallies) -> u64 {
        let Some(qp) = self.qps.get(id.0).filter(|qp| !qp.is_broken) else { return 0 };
        // A peer that has failed, or is gone: what it sent has come, or never will.
        let peer = all.get(&qp.peer).filter(|peer| {
            peer.peer == qp.qpn && peer.readiness == Readiness::Yes && qp.wish.kind == IBV_QPT_RC
        });
        peer.map_or(0, |peer| peer.consuming.saturating_sub(qp.received))
    }

    /// Are the sends of a queue pair over? If nothing will tell, a marker does.
    fn drain_sends(&mut self, id: QpId) -> Outcome<bool> {
        let Some(qp) = self.qps.get(id.0) else { return Ok(true) };
        if qp.sends.is_empty() {
            return Ok(true);
        }
        if qp.wish.kind != IBV_QPT_RC {
            // Datagrams that nobody is told of may be lost.
            return Ok(qp.sends.is_unsignalled());
        }
        let can_send = qp.state == IBV_QPS_RTS && !qp.is_broken;
        if can_send && qp.sends.ends_unsignalled() && !qp.sends.has_marker {
            let (real, cq) = (qp.real, qp.wish.send_cq);
            let marker = Send {
                id: Record::Send(id.0, qp.sends.next()).id(),
                opcode: IBV_WR_RDMA_WRITE,
                flags: IBV_SEND_SIGNALED,
                imm: 0,
                sges: &[],
                target: Target::Memory { address: 0, key: 0 },
            };
            if self.reserve(cq) {
                if let Err(error) = self.host.post_send(real, &marker) {
                    self.give_back(cq);
                    return Err(error);
                }
                let sent = Sent { id: 0, is_signalled: true, receives: None, is_marker: true };
                if let Some(qp) = self.qps.get_mut(id.0) {
                    qp.sends.push(sent);
                }
            }
        }
        Ok(false)
    }

    /// Have all messages of a queue pair come? Captures are posted for those that find no receive.
    fn drain_receives(&mut self, id: QpId, all: &Tallies) -> Outcome<bool> {
        let awaited = self.awaited(id, all);
        let Some(qp) = self.qps.get(id.0) else { return Ok(true) };
        if qp.is_broken && qp.wish.srq.is_none() && qp.receives.held + qp.receives.captures > 0 {
            // They are flushed.
            return Ok(false);
        }
        if qp.wish.srq.is_some() || awaited == 0 {
            return Ok(awaited == 0);
        }
        let (pd, cq, first, peer) = (qp.pd, qp.wish.recv_cq, qp.received, qp.peer);
        let mut posted = (qp.receives.held + qp.receives.captures) as u64;
        while posted < awaited {
            let length = all.get(&peer).and_then(|peer| peer.length(first + posted));
            let Some(length) = length else { break };
            if !self.capture(Owner::Qp(id), pd.0, cq, length)? {
                break;
            }
            posted += 1;
        }
        Ok(false)
    }

    /// The same for receives that are shared. Which message takes which is not known: each capture
    /// has room for the longest.
    fn capture_shared(&mut self, srq: u32, all: &Tallies) -> Outcome<()> {
        let mut awaited = 0;
        let mut longest = 0;
        let mut cq = None;
        // A datagram may take one, too.
        let takes_datagrams = |qp: &crate::objects::Qp<H::Handle>| {
            qp.wish.kind == IBV_QPT_UD && qp.wish.srq.is_some_and(|of| of.0 == srq)
        };
        if self.qps.values().any(takes_datagrams) {
            longest = DATAGRAM_BYTES_MAX;
        }
        for id in self.qps.ids() {
            let Some(qp) = self.qps.get(id).filter(|qp| qp.wish.srq.is_some_and(|of| of.0 == srq))
            else {
                continue;
            };
            let of_this = self.awaited(QpId(id), all);
            if of_this > 0 {
                let lengths = all.get(&qp.peer).map_or(&[][..], |peer| &peer.under_way);
                longest = lengths.iter().copied().fold(longest, u32::max);
                cq = cq.or(Some(qp.wish.recv_cq));
            }
            awaited += of_this;
        }
        let (Some(queue), Some(cq)) = (self.srqs.get(srq), cq) else { return Ok(()) };
        let pd = queue.pd;
        let posted = (queue.receives.held + queue.receives.captures) as u64;
        for _ in posted..awaited {
            if !self.capture(Owner::Srq(crate::objects::SrqId(srq)), pd.0, cq, longest)? {
                break;
            }
        }
        Ok(())
    }

    /// Post one capture. False: not now.
    fn capture(&mut self, owner: Owner, pd: u32, cq: CqId, bytes: u32) -> Outcome<bool> {
        let Some(pd) = self.pds.get(pd).map(|pd| pd.real) else { return Err(Errno::INVALID) };
        let room = self.receives(owner).is_some_and(|queue| queue.captures < SPARE as usize);
        if !room || !self.reserve(cq) {
            return Ok(false);
        }
        let capture = match self.host.capture(pd, bytes) {
            Ok(capture) => capture,
            Err(error) => {
                self.give_back(cq);
                return Err(error);
            }
        };
        let queue = self.receives(owner).ok_or(Errno::INVALID)?;
        let slot = queue.slot();
        // Its key is a real one already, so it is not translated.
        queue.slots[slot as usize].sges.clear();
        let posted = match owner {
            Owner::Qp(id) => {
                let qp = self.qps.get(id.0).ok_or(Errno::INVALID)?;
                let id = Record::Receive(id.0, slot).id();
                self.host.post_receive(qp.real, id, &[capture.sge])
            }
            Owner::Srq(id) => {
                let srq = self.srqs.get(id.0).ok_or(Errno::INVALID)?;
                let id = Record::SharedReceive(id.0, slot).id();
                self.host.post_srq_receive(srq.real, id, &[capture.sge])
            }
        };
        let queue = self.receives(owner).ok_or(Errno::INVALID)?;
        if let Err(error) = posted {
            queue.give_back(slot);
            self.host.captured(capture, 0);
            self.give_back(cq);
            return Err(error);
        }
        queue.is_posted(slot, 0, Some((capture, cq)));
        Ok(true)
    }

    /// Room in a completion queue for one request of the shadow's own.
    fn reserve(&mut self, cq: CqId) -> bool {
        let Some(cq) = self.cqs.get_mut(cq.0).filter(|cq| cq.own < SPARE) else { return false };
        cq.own += 1;
        true
    }

    fn give_back(&mut self, cq: CqId) {
        if let Some(cq) = self.cqs.get_mut(cq.0) {
            cq.own -= 1;
        }
    }
}
