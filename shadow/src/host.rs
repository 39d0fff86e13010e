//! What the shadow asks of the system: the real verbs, the program's memory, and the directory that
//! the processes of a job share. The library has libibverbs for it, the simulation a world.

use crate::abi::{AhAttr, Completion, QpAttr, QpCap, Sge, SrqAttr};
use crate::names::{Name, Value};
use crate::objects::{ChannelId, CqId, QpId, SrqId};
use core::fmt::Debug;

/// A number of the operating system, as libibverbs returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// No such object.
    pub const NOT_FOUND: Self = Self(2);
    /// A queue is full.
    pub const FULL: Self = Self(12);
    /// An argument is wrong.
    pub const INVALID: Self = Self(22);
    /// What the shadow does not do.
    pub const UNSUPPORTED: Self = Self(95);
}

/// Outcome of a call.
pub type Outcome<T> = Result<T, Errno>;

/// A port of an open adapter, by its real names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// 0 on RoCE.
    pub lid: u16,
    /// Those that are not zero.
    pub gids: Vec<[u8; 16]>,
}

/// Memory that the program has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Where it is.
    pub start: u64,
    /// How long.
    pub bytes: u64,
    /// The address by which work requests name it, if that is another.
    pub iova: Option<u64>,
    /// Access flags.
    pub access: u32,
}

/// Real keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For this process.
    pub local: u32,
    /// For others.
    pub remote: u32,
}

/// What a queue pair is made of: real objects.
#[derive(Clone, Copy, Debug)]
pub struct QpSpec<T> {
    /// Completions of what it sends.
    pub send_cq: T,
    /// Completions of what it receives.
    pub recv_cq: T,
    /// Receives that it shares with others.
    pub srq: Option<T>,
    /// How many requests at least.
    pub cap: QpCap,
    /// `IBV_QPT_RC` or `IBV_QPT_UD`.
    pub kind: u32,
    /// Every send is signalled.
    pub signal_all: bool,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<A> {
    /// To the peer's next receive.
    Receive,
    /// To memory of the peer.
    Memory {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
    },
    /// To one word of the peer.
    Atomic {
        /// Where.
        address: u64,
        /// The peer's key.
        key: u32,
        /// To compare with, or to add.
        compare_add: u64,
        /// To store.
        swap: u64,
    },
    /// A datagram.
    Datagram {
        /// To this address.
        ah: A,
        /// To this queue pair there.
        qpn: u32,
        /// Its key.
        qkey: u32,
    },
}

/// A send request, of the program (`A`: its address handles) or for the adapter.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a, A> {
    /// Comes back in its completion.
    pub id: u64,
    /// `IBV_WR_…`.
    pub opcode: u32,
    /// `IBV_SEND_…`.
    pub flags: u32,
    /// Big endian.
    pub imm: u32,
    /// What is sent, or where it is stored.
    pub sges: &'a [Sge],
    /// Where it goes.
    pub target: Target<A>,
}

/// Memory of the shadow's own, registered, for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture<T> {
    /// Its region.
    pub region: T,
    /// Where it is.
    pub sge: Sge,
}

/// The system, to a shadow. Posts and polls are hot; nothing else is.
pub trait Host {
    /// A real object.
    type Handle: Copy + Eq + Debug;

    /// Open the adapter of this name.
    fn open(&mut self, name: &str) -> Outcome<Self::Handle>;
    /// Close it.
    fn close(&mut self, context: Self::Handle) -> Outcome<()>;
    /// Its ports.
    fn ports(&mut self, context: Self::Handle) -> Vec<Port>;
    /// `ibv_alloc_pd`.
    fn alloc_pd(&mut self, context: Self::Handle) -> Outcome<Self::Handle>;
    /// `ibv_dealloc_pd`.
    fn dealloc_pd(&mut self, pd: Self::Handle) -> Outcome<()>;
    /// `ibv_reg_mr`, `ibv_reg_mr_iova2`.
    fn register(&mut self, pd: Self::Handle, spec: &RegionSpec) -> Outcome<(Self::Handle, Keys)>;
    /// `ibv_dereg_mr`.
    fn deregister(&mut self, region: Self::Handle) -> Outcome<()>;
    /// `ibv_create_comp_channel`.
    fn create_channel(&mut self, context: Self::Handle, id: ChannelId) -> Outcome<Self::Handle>;
    /// `ibv_destroy_comp_channel`.
    fn destroy_channel(&mut self, channel: Self::Handle) -> Outcome<()>;
    /// `ibv_create_cq`: also how many entries it has.
    fn create_cq(
        &mut self,
        context: Self::Handle,
        channel: Option<Self::Handle>,
        id: CqId,
        entries: u32,
        vector: u32,
    ) -> Outcome<(Self::Handle, u32)>;
    /// `ibv_resize_cq`: how many entries it has now.
    fn resize_cq(&mut self, cq: Self::Handle, entries: u32) -> Outcome<u32>;
    /// `ibv_destroy_cq`.
    fn destroy_cq(&mut self, cq: Self::Handle) -> Outcome<()>;
    /// `ibv_create_srq`: also what it has become.
    fn create_srq(
        &mut self,
        pd: Self::Handle,
        id: SrqId,
        attr: &SrqAttr,
    ) -> Outcome<(Self::Handle, SrqAttr)>;
    /// `ibv_modify_srq`.
    fn modify_srq(&mut self, srq: Self::Handle, attr: &SrqAttr, mask: u32) -> Outcome<()>;
    /// `ibv_destroy_srq`.
    fn destroy_srq(&mut self, srq: Self::Handle) -> Outcome<()>;
    /// `ibv_create_ah`.
    fn create_ah(&mut self, pd: Self::Handle, attr: &AhAttr) -> Outcome<Self::Handle>;
    /// `ibv_destroy_ah`.
    fn destroy_ah(&mut self, ah: Self::Handle) -> Outcome<()>;
    /// `ibv_create_qp`: also its number, and what it can hold.
    fn create_qp(
        &mut self,
        pd: Self::Handle,
        id: QpId,
        spec: &QpSpec<Self::Handle>,
    ) -> Outcome<(Self::Handle, u32, QpCap)>;
    /// `ibv_modify_qp`.
    fn modify_qp(&mut self, qp: Self::Handle, attr: &QpAttr, mask: u32) -> Outcome<()>;
    /// `ibv_destroy_qp`.
    fn destroy_qp(&mut self, qp: Self::Handle) -> Outcome<()>;

    /// `ibv_post_send` of one request.
    fn post_send(&mut self, qp: Self::Handle, send: &Send<'_, Self::Handle>) -> Outcome<()>;
    /// `ibv_post_recv` of one request.
    fn post_receive(&mut self, qp: Self::Handle, id: u64, sges: &[Sge]) -> Outcome<()>;
    /// `ibv_post_srq_recv` of one request.
    fn post_srq_receive(&mut self, srq: Self::Handle, id: u64, sges: &[Sge]) -> Outcome<()>;
    /// `ibv_poll_cq`: how many there were.
    fn poll(&mut self, cq: Self::Handle, into: &mut [Completion]) -> Outcome<usize>;
    /// `ibv_req_notify_cq`.
    fn arm(&mut self, cq: Self::Handle, solicited_only: bool) -> Outcome<()>;

    /// Memory for a message of so many bytes, registered.
    fn capture(&mut self, pd: Self::Handle, bytes: u32) -> Outcome<Capture<Self::Handle>>;
    /// The first `bytes` of it; it is deregistered and given up.
    fn captured(&mut self, capture: Capture<Self::Handle>, bytes: u32) -> Vec<u8>;
    /// Write into memory that the program has registered.
    fn write(&mut self, address: u64, bytes: &[u8]);
    /// Give the program an event of a completion queue that no adapter has.
    fn raise(&mut self, channel: ChannelId, cq: CqId);

    /// Tell the other processes what a name stands for. Who asks later gets it.
    fn publish(&mut self, epoch: u32, name: Name, value: Value);
    /// What a name stands for.
    fn find(&mut self, epoch: u32, name: Name) -> Option<Value>;
}
