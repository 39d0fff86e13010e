//! How the world moves: one work request by one stage at a time.

use super::objects::{Node, PostedSend, State};
use super::{Inside, gid_of, lid_of};
use crate::transports::verbs::api::*;

/// A number that depends on all bytes of a piece of memory.
pub(super) fn digest(start: u64, len: u32) -> u64 {
    // SAFETY: registered memory is mapped, and the world runs in the thread of its owner.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) };
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
    let hash = words.iter().fold(0xCBF2, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, u64::from(byte)))
}

/// How an attempt to deliver a work request went.
enum Attempt {
    Delivered,
    /// Nobody answers.
    Lost,
    NoReceive,
    Failed(Status),
}

impl Inside {
    pub(super) fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// One thing happens, at a queue pair that is drawn.
    pub(super) fn step(&mut self) {
        let busy: Vec<(usize, u32)> = (self.nodes.iter().enumerate())
            .flat_map(|(at, node)| {
                let busy = node
                    .qps
                    .iter()
                    .filter(|(_, qp)| qp.state == State::Rts && !qp.queue.is_empty());
                busy.map(move |(&number, _)| (at, number))
            })
            .collect();
        if busy.is_empty() {
            return;
        }
        let (at, number) = busy[self.draw(busy.len() as u64) as usize];
        let quarter = self.draw(4) < u64::from(self.nature.acknowledge_quarters);
        let qp = &self.nodes[at].qps[&number];
        let delivered = qp.unacknowledged();
        if delivered > 0 && (quarter || delivered == qp.queue.len()) {
            if quarter {
                self.acknowledge(at, number);
            }
            return;
        }
        match self.attempt(at, number, delivered) {
            Attempt::Delivered => {
                let send = self.send(at, number, delivered);
                send.delivered = true;
            }
            Attempt::NoReceive => {
                self.counts.no_receive += 1;
                let limit = self.nodes[at].qps[&number].rnr_retries;
                self.again(at, number, delivered, limit, Status::RNR_RETRIES_EXCEEDED);
            }
            Attempt::Lost => {
                let limit = self.nodes[at].qps[&number].retries;
                let never = RNR_RETRY_FOR_EVER + 1;
                let limit = if limit == RNR_RETRY_FOR_EVER { never } else { limit };
                self.again(at, number, delivered, limit, Status::RETRIES_EXCEEDED);
            }
            Attempt::Failed(status) => self.end_with(at, number, delivered, status),
        }
    }

    fn send(&mut self, at: usize, number: u32, place: usize) -> &mut PostedSend {
        let qp = self.nodes[at].qps.get_mut(&number).expect("it was drawn");
        &mut qp.queue[place]
    }

    /// An attempt was in vain. 7 attempts without a receive buffer are no limit.
    fn again(&mut self, at: usize, number: u32, place: usize, limit: u8, status: Status) {
        if limit == RNR_RETRY_FOR_EVER {
            return;
        }
        let send = self.send(at, number, place);
        send.attempts += 1;
        if send.attempts > limit {
            self.end_with(at, number, place, status);
        }
    }

    /// The oldest delivered work request is complete.
    fn acknowledge(&mut self, at: usize, number: u32) {
        let node = &mut self.nodes[at];
        let Some(qp) = node.qps.get_mut(&number) else { return };
        let (send_cq, send) = (qp.send_cq, qp.queue.pop_front());
        let Some(send) = send else { return };
        release(node, &send);
        if send.work.signaled {
            let id = send.work.id;
            node.complete(send_cq, Completion { id, qp: number, ..Completion::NONE });
        }
    }

    /// The first `place` are complete, the next one has failed, the rest is flushed.
    fn end_with(&mut self, at: usize, number: u32, place: usize, status: Status) {
        for _ in 0..place {
            self.acknowledge(at, number);
        }
        let node = &mut self.nodes[at];
        let Some(qp) = node.qps.get_mut(&number) else { return };
        let send_cq = qp.send_cq;
        if let Some(send) = qp.queue.pop_front() {
            release(node, &send);
            let failed = Completion { id: send.work.id, status, qp: number, ..Completion::NONE };
            node.complete(send_cq, failed);
            self.counts.errors += 1;
        }
        self.fail(at, number);
    }

    /// The queue pair goes to the error state: whatever is posted is flushed. Of delivered ones
    /// nobody knows whether they were.
    pub(super) fn fail(&mut self, at: usize, number: u32) {
        let node = &mut self.nodes[at];
        let Some(qp) = node.qps.get_mut(&number) else { return };
        if qp.state == State::Error {
            return;
        }
        qp.state = State::Error;
        let send_cq = qp.send_cq;
        for send in core::mem::take(&mut qp.queue) {
            release(node, &send);
            let status = Status::FLUSHED;
            let flushed = Completion { id: send.work.id, status, qp: number, ..Completion::NONE };
            node.complete(send_cq, flushed);
        }
        node.events.push_back(AsyncEvent::LastReceive(number));
    }

    fn attempt(&mut self, at: usize, number: u32, place: usize) -> Attempt {
        let qp = &self.nodes[at].qps[&number];
        let send = &qp.queue[place];
        let (work, is_inline, posted) = (send.work, send.taken.is_some(), send.digest);
        let psn = qp.psn;
        let Some(to) = qp.destination else { return Attempt::Lost };
        if !is_inline && !self.is_own(at, work) {
            return Attempt::Failed(Status::LOCAL_PROTECTION);
        }
        let is_read = matches!(work.work, Work::Read { .. });
        if !is_inline && !is_read {
            let now = digest(work.piece.start, work.piece.len);
            assert!(now == posted, "fake verbs: the memory of a posted send was changed");
        }
        let Some((other, theirs)) = self.reached(at, number, to, psn) else {
            return Attempt::Lost;
        };
        match work.work {
            Work::Send { immediate } => self.deliver(at, number, place, (other, theirs), immediate),
            Work::Read { start, rkey } => {
                let len = work.piece.len;
                let qp = &self.nodes[other].qps[&theirs];
                let answers = qp.destination.map_or(0, |destination| destination.reads);
                let asks = self.nodes[at].qps[&number].reads;
                let may = qp.access & REMOTE_READ != 0 && asks > 0 && asks <= answers;
                if !may || self.nodes[other].remote(rkey, start, len, REMOTE_READ).is_none() {
                    self.fail(other, theirs);
                    return Attempt::Failed(Status::REMOTE_ACCESS);
                }
                self.counts.reads += 1;
                self.nodes[other].answered += 1;
                let (from, into) = (start as *const u8, work.piece.start as *mut u8);
                // SAFETY: both ranges are inside of regions, which their owners keep mapped.
                unsafe { core::ptr::copy(from, into, len as usize) };
                Attempt::Delivered
            }
        }
    }

    fn is_own(&mut self, at: usize, work: SendWork) -> bool {
        let access = match work.work {
            Work::Send { .. } => 0,
            Work::Read { .. } => LOCAL_WRITE,
        };
        self.nodes[at].region(work.piece, access).is_some()
    }

    /// The queue pair at the other end, if packets reach it and it takes them.
    fn reached(&self, at: usize, own: u32, to: Destination, psn: u32) -> Option<(usize, u32)> {
        let other = (0..self.nodes.len()).find(|&node| match to.gid {
            Some(gid) => gid == gid_of(node),
            None => to.lid == lid_of(node) && !self.nature.is_ethernet,
        })?;
        let cut = self.cuts.iter().any(|&pair| pair == (at, other) || pair == (other, at));
        if cut || !self.nodes[at].port_up || !self.nodes[other].port_up {
            return None;
        }
        let theirs = self.nodes[other].qps.get(&to.qp)?;
        let back = theirs.destination?;
        let is_mine = back.qp == own && self.points_to(back, at) && back.psn == psn;
        let takes = matches!(theirs.state, State::Rtr | State::Rts);
        (takes && is_mine).then_some((other, to.qp))
    }

    fn points_to(&self, to: Destination, node: usize) -> bool {
        match to.gid {
            Some(gid) => gid == gid_of(node),
            None => to.lid == lid_of(node),
        }
    }

    fn deliver(
        &mut self,
        at: usize,
        number: u32,
        place: usize,
        (other, theirs): (usize, u32),
        immediate: u32,
    ) -> Attempt {
        let qp = &self.nodes[other].qps[&theirs];
        let (srq, cq) = (qp.srq, qp.receive_cq);
        let posted = self.nodes[other].srqs.get_mut(&srq).expect("it outlives its queue pairs");
        let Some(receive) = posted.posted.pop_front() else { return Attempt::NoReceive };
        let piece = receive.work.piece;
        let send = &self.nodes[at].qps[&number].queue[place];
        let (bytes, signaled) = (send.work.piece.len, send.work.signaled);
        let from = match &send.taken {
            Some(taken) => taken.as_ptr(),
            None => send.work.piece.start as *const u8,
        };
        let is_inline = send.taken.is_some();
        let owner = &mut self.nodes[other];
        let region = owner.region(piece, LOCAL_WRITE);
        let fits = region.is_some_and(|region| {
            region.users -= 1;
            true
        });
        if !fits || piece.len < bytes {
            let id = receive.work.id;
            let status = Status::LOCAL_PROTECTION;
            owner.complete(cq, Completion { id, status, qp: theirs, ..Completion::NONE });
            self.fail(other, theirs);
            return Attempt::Failed(Status::REMOTE_INVALID_REQUEST);
        }
        let untouched = digest(piece.start, piece.len) == receive.digest;
        assert!(untouched, "fake verbs: the memory of a posted receive was changed");
        // SAFETY: the sender's bytes are registered or taken, the receiver's are registered.
        unsafe { core::ptr::copy(from, piece.start as *mut u8, bytes as usize) };
        let id = receive.work.id;
        let completion = Completion { id, status: Status::SUCCESS, bytes, immediate, qp: theirs };
        owner.complete(cq, completion);
        self.counts.delivered += 1;
        self.counts.signaled += u64::from(signaled);
        self.counts.inlined += u64::from(is_inline);
        Attempt::Delivered
    }
}

/// The memory of a send is its owner's again.
fn release(node: &mut Node, send: &PostedSend) {
    if send.taken.is_none()
        && let Some(region) = node.regions.get_mut(&send.work.piece.lkey)
    {
        region.users -= 1;
    }
}
