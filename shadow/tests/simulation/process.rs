//! One process's system: the adapter of its node, its memory, the directory.

use crate::world::World;
use rustbtl_shadow::abi::{AhAttr, Completion, QpAttr, Sge, SrqAttr};
use rustbtl_shadow::*;
use std::cell::RefCell;
use std::rc::Rc;

/// A bug that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Names of the epoch before are found.
    OldNames,
    /// What was published is never replaced: real names of before are used.
    NamesOfBefore,
    /// The objects are made again without a drain.
    NoDrain,
    /// Others' tallies are not looked at, so nothing is captured.
    NoTallies,
    /// The program posts while the drain runs.
    OpenGate,
    /// Old objects are destroyed after a restart.
    Destroyed,
    /// A captured message is not what came.
    Torn,
    /// Processes that have shared a GID are thought to be in one place after a restart, too.
    SharedGid,
}

pub struct Process {
    pub world: Rc<RefCell<World>>,
    pub node: usize,
    pub bug: Option<Bug>,
    /// Events that no adapter has.
    pub raised: usize,
    pub captures: usize,
    pub markers: usize,
}

impl Host for Process {
    type Handle = u32;

    fn open(&mut self, _: &str) -> Outcome<u32> {
        Ok(self.world.borrow_mut().open(self.node))
    }
    fn close(&mut self, context: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, context)
    }
    fn ports(&mut self, _: u32) -> Vec<Port> {
        vec![self.world.borrow().port(self.node)]
    }
    fn alloc_pd(&mut self, _: u32) -> Outcome<u32> {
        Ok(self.world.borrow_mut().open(self.node))
    }
    fn dealloc_pd(&mut self, pd: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, pd)
    }
    fn register(&mut self, _: u32, spec: &RegionSpec) -> Outcome<(u32, Keys)> {
        Ok(self.world.borrow_mut().register(self.node, spec))
    }
    fn deregister(&mut self, region: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, region)
    }
    fn create_channel(&mut self, _: u32, _: ChannelId) -> Outcome<u32> {
        Ok(self.world.borrow_mut().open(self.node))
    }
    fn destroy_channel(&mut self, channel: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, channel)
    }
    fn create_cq(
        &mut self,
        _: u32,
        _: Option<u32>,
        _: CqId,
        entries: u32,
        _: u32,
    ) -> Outcome<(u32, u32)> {
        Ok((self.world.borrow_mut().create_cq(self.node, entries), entries))
    }
    fn resize_cq(&mut self, _: u32, _: u32) -> Outcome<u32> {
        Err(Errno::UNSUPPORTED)
    }
    fn destroy_cq(&mut self, cq: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, cq)
    }
    fn create_srq(&mut self, _: u32, _: SrqId, attr: &SrqAttr) -> Outcome<(u32, SrqAttr)> {
        Ok((self.world.borrow_mut().create_srq(self.node, attr), *attr))
    }
    fn modify_srq(&mut self, _: u32, _: &SrqAttr, _: u32) -> Outcome<()> {
        Err(Errno::UNSUPPORTED)
    }
    fn destroy_srq(&mut self, srq: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, srq)
    }
    fn create_ah(&mut self, _: u32, attr: &AhAttr) -> Outcome<u32> {
        Ok(self.world.borrow_mut().create_ah(self.node, attr))
    }
    fn destroy_ah(&mut self, ah: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, ah)
    }
    fn create_qp(
        &mut self,
        _: u32,
        _: QpId,
        spec: &QpSpec<u32>,
    ) -> Outcome<(u32, u32, abi::QpCap)> {
        let (handle, qpn) = self.world.borrow_mut().create_qp(self.node, spec);
        Ok((handle, qpn, spec.cap))
    }
    fn modify_qp(&mut self, qp: u32, attr: &QpAttr, mask: u32) -> Outcome<()> {
        self.world.borrow_mut().modify_qp(self.node, qp, attr, mask);
        Ok(())
    }
    fn destroy_qp(&mut self, qp: u32) -> Outcome<()> {
        self.world.borrow_mut().destroy(self.node, qp)
    }

    fn post_send(&mut self, qp: u32, send: &Send<'_, u32>) -> Outcome<()> {
        self.markers += usize::from(send.target == Target::Memory { address: 0, key: 0 });
        self.world.borrow_mut().post_send(self.node, qp, send)
    }
    fn post_receive(&mut self, qp: u32, id: u64, sges: &[Sge]) -> Outcome<()> {
        self.world.borrow_mut().post_receive(self.node, qp, id, sges)
    }
    fn post_srq_receive(&mut self, srq: u32, id: u64, sges: &[Sge]) -> Outcome<()> {
        self.world.borrow_mut().post_srq(self.node, srq, id, sges)
    }
    fn poll(&mut self, cq: u32, into: &mut [Completion]) -> Outcome<usize> {
        Ok(self.world.borrow_mut().poll(self.node, cq, into))
    }
    fn arm(&mut self, _: u32, _: bool) -> Outcome<()> {
        Ok(())
    }

    fn capture(&mut self, _: u32, bytes: u32) -> Outcome<Capture<u32>> {
        self.captures += 1;
        Ok(self.world.borrow_mut().capture(self.node, bytes))
    }
    fn captured(&mut self, capture: Capture<u32>, bytes: u32) -> Vec<u8> {
        let mut data = self.world.borrow_mut().captured(self.node, capture, bytes);
        if self.bug == Some(Bug::Torn)
            && let Some(last) = data.last_mut()
        {
            *last ^= 1;
        }
        data
    }
    fn write(&mut self, address: u64, bytes: &[u8]) {
        let at = (address & 0xFFFF_FFFF) as usize;
        let memory = &mut self.world.borrow_mut().nodes[self.node].memory;
        memory[at..][..bytes.len()].copy_from_slice(bytes);
    }
    fn raise(&mut self, _: ChannelId, _: CqId) {
        self.raised += 1;
    }

    fn publish(&mut self, epoch: u32, name: Name, value: Value) {
        let directory = &mut self.world.borrow_mut().directory;
        if self.bug == Some(Bug::NamesOfBefore) {
            directory.entry((0, name)).or_insert(value);
        } else {
            directory.insert((epoch, name), value);
        }
    }
    fn find(&mut self, epoch: u32, name: Name) -> Option<Value> {
        let epoch = match self.bug {
            Some(Bug::OldNames) => epoch.saturating_sub(1),
            Some(Bug::NamesOfBefore) => 0,
            Some(Bug::SharedGid) if matches!(name, Name::GidOf { .. }) => return None,
            _ => epoch,
        };
        self.world.borrow().directory.get(&(epoch, name)).copied()
    }
}
