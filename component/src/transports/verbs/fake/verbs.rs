//! The calls.

use super::objects::{Cq, PostedReceive, PostedSend, Qp, Region, Srq, State};
use super::transfer::digest;
use super::{Fake, Handle, Inside, gid_of, lid_of};
use crate::transports::verbs::api::*;
use core::ops::Range;
use std::cell::RefMut;
use std::collections::VecDeque;
use std::os::fd::RawFd;

impl Fake {
    fn own(&self) -> RefMut<'_, Inside> {
        let inside = self.world.change();
        assert_eq!(inside.nodes[self.node].life, self.life, "fake verbs: of before the restart");
        inside
    }

    fn handle(&self, number: u32) -> Handle {
        Handle { number, life: self.life }
    }

    fn number(&self, handle: Handle) -> u32 {
        assert_eq!(handle.life, self.life, "fake verbs: an object of before the restart");
        handle.number
    }
}

fn refused(what: &'static str, code: i32) -> VerbsError {
    VerbsError::call(what, "fake0", code)
}

impl Verbs for Fake {
    type Device = Handle;
    type Region = Handle;
    type Cq = Handle;
    type Srq = Handle;
    type Qp = Handle;

    fn devices(&self) -> Result<Vec<String>, VerbsError> {
        let is_there = !self.own().nodes[self.node].removed;
        Ok(is_there.then(|| "fake0".to_owned()).into_iter().collect())
    }

    fn open(&self, name: &str) -> Result<Handle, VerbsError> {
        let node = &mut self.own().nodes[self.node];
        if name != "fake0" || node.removed {
            return Err(VerbsError::call("ibv_open_device", name, libc::ENODEV));
        }
        node.open += 1;
        Ok(self.handle(0))
    }

    fn port(&self, device: Handle, port: u8) -> Result<Port, VerbsError> {
        self.number(device);
        let inside = self.own();
        if port != 1 {
            return Err(refused("ibv_query_port", libc::EINVAL));
        }
        let link_layer = match inside.nature.is_ethernet {
            true => LinkLayer::Ethernet,
            false => LinkLayer::InfiniBand,
        };
        let is_active = inside.nodes[self.node].port_up;
        let lid = if inside.nature.is_ethernet { 0 } else { lid_of(self.node) };
        Ok(Port { is_active, link_layer, lid, mtu: 5, gids: 1 })
    }

    fn gid(&self, device: Handle, port: u8, index: u32) -> Result<GidEntry, VerbsError> {
        self.number(device);
        if port != 1 || index != 0 {
            return Err(refused("ibv_query_gid_ex", libc::ENODATA));
        }
        let is_roce_v2 = self.own().nature.is_ethernet;
        Ok(GidEntry { gid: gid_of(self.node), is_roce_v2 })
    }

    fn reads_at_once(&self, device: Handle) -> u8 {
        self.number(device);
        self.own().nature.reads
    }

    unsafe fn register(
        &self,
        device: Handle,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Handle, VerbsError> {
        self.number(device);
        let node = &mut self.own().nodes[self.node];
        let (number, rkey) = (node.number(), node.number() ^ 0x5000_0000);
        let (start, len) = (start as u64, len as u64);
        node.regions.insert(number, Region { start, len, rkey, access, users: 0 });
        Ok(self.handle(number))
    }

    fn keys(&self, region: Handle) -> (u32, u32) {
        let number = self.number(region);
        (number, self.own().nodes[self.node].regions[&number].rkey)
    }

    fn deregister(&self, region: Handle) {
        let number = self.number(region);
        let region = self.own().nodes[self.node].regions.remove(&number);
        let users = region.expect("fake verbs: no such region").users;
        assert_eq!(users, 0, "fake verbs: memory deregistered under a work request");
    }

    fn create_cq(&self, device: Handle, entries: u32) -> Result<Handle, VerbsError> {
        self.number(device);
        let node = &mut self.own().nodes[self.node];
        let number = node.number();
        let (capacity, entries) = (entries as usize, VecDeque::new());
        node.cqs.insert(number, Cq { capacity, entries });
        Ok(self.handle(number))
    }

    fn create_srq(&self, device: Handle, receives: u32) -> Result<Handle, VerbsError> {
        self.number(device);
        let node = &mut self.own().nodes[self.node];
        let number = node.number();
        let (capacity, posted) = (receives as usize, VecDeque::new());
        node.srqs.insert(number, Srq { capacity, posted });
        Ok(self.handle(number))
    }

    fn create_qp(
        &self,
        device: Handle,
        (sends, receives): (Handle, Handle),
        srq: Handle,
        sizes: QpSizes,
    ) -> Result<(Handle, u32), VerbsError> {
        self.number(device);
        let mut inside = self.own();
        let inline_bytes = inside.nature.inline_bytes.min(sizes.inline_bytes);
        let node = &mut inside.nodes[self.node];
        if node.removed {
            return Err(refused("ibv_create_qp", libc::ENODEV));
        }
        let number = node.qp_number();
        let qp = Qp {
            state: State::Reset,
            send_cq: self.number(sends),
            receive_cq: self.number(receives),
            srq: self.number(srq),
            sends_max: sizes.sends as usize,
            inline_bytes,
            destination: None,
            psn: 0,
            retries: 0,
            rnr_retries: 0,
            reads: 0,
            access: 0,
            queue: VecDeque::new(),
            unpolled: VecDeque::new(),
        };
        node.qps.insert(number, qp);
        Ok((self.handle(number), inline_bytes))
    }

    fn qp_number(&self, qp: Handle) -> u32 {
        self.number(qp)
    }

    fn modify(&self, qp: Handle, to: Transition) -> Result<(), VerbsError> {
        let number = self.number(qp);
        let mut inside = self.own();
        if to == Transition::Error {
            inside.fail(self.node, number);
            return Ok(());
        }
        let qp = inside.nodes[self.node].qps.get_mut(&number).expect("fake verbs: no such qp");
        let next = match (qp.state, to) {
            (State::Reset, Transition::Init { port: 1, access }) => {
                qp.access = access;
                State::Init
            }
            (State::Init, Transition::ReadyToReceive(destination)) => {
                qp.destination = Some(destination);
                State::Rtr
            }
            (State::Rtr, Transition::ReadyToSend { psn, retries, rnr_retries, reads, .. }) => {
                (qp.psn, qp.retries, qp.rnr_retries) = (psn, retries, rnr_retries);
                qp.reads = reads;
                State::Rts
            }
            _ => return Err(refused("ibv_modify_qp", libc::EINVAL)),
        };
        qp.state = next;
        Ok(())
    }

    unsafe fn post_send(&self, qp: Handle, work: &SendWork) -> Result<(), i32> {
        let number = self.number(qp);
        let mut inside = self.own();
        let node = &mut inside.nodes[self.node];
        let qp = node.qps.get_mut(&number).expect("fake verbs: no such qp");
        if !matches!(qp.state, State::Rts | State::Error) {
            return Err(libc::EINVAL);
        }
        if qp.unpolled.len() >= qp.sends_max {
            return Err(libc::ENOMEM);
        }
        if work.inline && work.piece.len > qp.inline_bytes {
            return Err(libc::EINVAL);
        }
        qp.unpolled.push_back(work.id);
        let (state, send_cq) = (qp.state, qp.send_cq);
        if state == State::Error {
            let (id, status) = (work.id, Status::FLUSHED);
            node.complete(send_cq, Completion { id, status, qp: number, ..Completion::NONE });
            return Ok(());
        }
        let (start, len) = (work.piece.start, work.piece.len);
        let taken = work.inline.then(|| {
            // SAFETY: the caller's promise.
            unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) }.to_vec()
        });
        // A wrong key is found when the work request is executed.
        let region = node.regions.get_mut(&work.piece.lkey);
        let is_known = region.map(|region| region.users += u32::from(!work.inline)).is_some();
        let digest = if is_known && !work.inline { digest(start, len) } else { 0 };
        let send = PostedSend { work: *work, taken, digest, delivered: false, attempts: 0 };
        node.qps.get_mut(&number).expect("as above").queue.push_back(send);
        Ok(())
    }

    unsafe fn post_receives(&self, srq: Handle, work: &[ReceiveWork]) -> Result<(), i32> {
        let number = self.number(srq);
        let node = &mut self.own().nodes[self.node];
        let srq = node.srqs.get_mut(&number).expect("fake verbs: no such srq");
        if srq.posted.len() + work.len() > srq.capacity {
            return Err(libc::ENOMEM);
        }
        for &work in work {
            let region = node.regions.get_mut(&work.piece.lkey).expect("fake verbs: a wrong lkey");
            region.users += 1;
            let digest = digest(work.piece.start, work.piece.len);
            srq.posted.push_back(PostedReceive { work, digest });
        }
        Ok(())
    }

    fn poll(&self, cq: Handle, into: &mut [Completion]) -> Result<usize, i32> {
        let number = self.number(cq);
        let mut inside = self.own();
        for _ in 0..inside.nature.steps_per_poll {
            inside.step();
        }
        let node = &mut inside.nodes[self.node];
        let entries = &mut node.cqs.get_mut(&number).expect("fake verbs: no such cq").entries;
        let mut taken = 0;
        while taken < into.len()
            && let Some(completion) = entries.pop_front()
        {
            into[taken] = completion;
            taken += 1;
            // Places of the send queue are free again up to this one.
            if let Some(qp) = node.qps.get_mut(&completion.qp).filter(|qp| qp.send_cq == number) {
                while qp.unpolled.pop_front().is_some_and(|id| id != completion.id) {}
            }
        }
        if taken > 0 {
            inside.counts.polls.0 += 1;
            inside.counts.polls.1 += taken as u64;
        }
        Ok(taken)
    }

    fn async_event(&self, device: Handle) -> Option<AsyncEvent> {
        self.number(device);
        self.own().nodes[self.node].events.pop_front()
    }

    fn destroy_qp(&self, qp: Handle) {
        let number = self.number(qp);
        let mut inside = self.own();
        // Nothing is reported any more of what it had.
        inside.fail(self.node, number);
        let node = &mut inside.nodes[self.node];
        node.qps.remove(&number).expect("fake verbs: no such qp");
        for cq in node.cqs.values_mut() {
            cq.entries.retain(|completion| completion.qp != number);
        }
        node.events.retain(|event| *event != AsyncEvent::LastReceive(number));
    }

    fn destroy_srq(&self, srq: Handle) {
        let number = self.number(srq);
        let node = &mut self.own().nodes[self.node];
        let used = node.qps.values().any(|qp| qp.srq == number);
        assert!(!used, "fake verbs: a queue pair uses this receive queue");
        let srq = node.srqs.remove(&number).expect("fake verbs: no such srq");
        for receive in srq.posted {
            if let Some(region) = node.regions.get_mut(&receive.work.piece.lkey) {
                region.users -= 1;
            }
        }
    }

    fn destroy_cq(&self, cq: Handle) {
        let number = self.number(cq);
        let node = &mut self.own().nodes[self.node];
        let used = node.qps.values().any(|qp| qp.send_cq == number || qp.receive_cq == number);
        assert!(!used, "fake verbs: a queue pair uses this completion queue");
        node.cqs.remove(&number).expect("fake verbs: no such cq");
    }

    fn close(&self, device: Handle) {
        self.number(device);
        let node = &mut self.own().nodes[self.node];
        node.open -= 1;
        assert!(node.open > 0 || node.live() == 0, "fake verbs: closed with objects left");
    }

    fn descriptors(&self, device: Handle) -> Vec<RawFd> {
        self.number(device);
        Vec::new()
    }

    fn mapped(&self) -> Vec<Range<usize>> {
        Vec::new()
    }
}
