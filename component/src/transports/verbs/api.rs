//! The verbs that this transport uses, as a trait: a dozen and a half calls on one adapter.
//!
//! Two implementations: `sys` over libibverbs, which is opened at run time, and `fake`, one world
//! with many nodes for tests. The transport is generic over them, without indirect calls. Handles
//! are small and copied; who makes an object also destroys it, except after a restore from an
//! image: then the old objects belong to nobody and must not be touched (docs/adr/0039).
//!
//! Only what is used is here: RC queue pairs with one shared receive queue, SEND with immediate
//! data, RDMA READ. Constants are those of the InfiniBand specification, release 1.4, chapters 10
//! and 11, and of `infiniband/verbs.h`.

use core::ops::Range;
use std::os::fd::RawFd;

/// The peer may read this memory by RDMA.
pub const REMOTE_READ: u32 = 4;
/// The adapter may write to this memory (receives, and RDMA READ).
pub const LOCAL_WRITE: u32 = 1;
/// `rnr_retry`: for ever.
pub const RNR_RETRY_FOR_EVER: u8 = 7;

/// Why a verb failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerbsError {
    /// The call returned this errno.
    #[error("{what} on {on} failed: {}", crate::os::errno_text(*code))]
    Call {
        /// Name of the verb.
        what: &'static str,
        /// Adapter, port, queue pair.
        on: String,
        /// The errno.
        code: i32,
    },
    /// libibverbs cannot be used.
    #[error("{0}")]
    Library(String),
}

impl VerbsError {
    /// A call that failed.
    pub fn call(what: &'static str, on: impl Into<String>, code: i32) -> Self {
        Self::Call { what, on: on.into(), code }
    }
}

/// What is below the transport header of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LinkLayer {
    /// Addresses are LIDs.
    InfiniBand = 1,
    /// RoCE: addresses are GIDs.
    Ethernet = 2,
}

/// State of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// Frames can be sent.
    pub is_active: bool,
    /// See there.
    pub link_layer: LinkLayer,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The largest packet that it sends: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Entries of the table of GIDs.
    pub gids: u32,
}

/// A global identifier.
pub type Gid = [u8; 16];

/// An entry of the table of GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// It is one of RoCE, version 2: routable, over UDP.
    pub is_roce_v2: bool,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Posted and not yet known to be complete.
    pub sends: u32,
    /// Payload that may be taken at the call itself. The adapter may not have that.
    pub inline_bytes: u32,
}

/// A transition of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    /// RESET to INIT.
    Init {
        /// Of the adapter.
        port: u8,
        /// `REMOTE_READ` or 0.
        access: u32,
    },
    /// INIT to RTR.
    ReadyToReceive(Destination),
    /// RTR to RTS.
    ReadyToSend {
        /// Number of the first packet.
        psn: u32,
        /// 4.096 us times two to this power without an acknowledgement: send again.
        timeout: u8,
        /// How often.
        retries: u8,
        /// How often if the receiver has no buffer; 7: for ever.
        rnr_retries: u8,
        /// RDMA READs that may be under way at a time; no more than the peer answers.
        reads: u8,
    },
    /// Any state to ERR: everything posted is flushed.
    Error,
}

/// The other end of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Its number there.
    pub qp: u32,
    /// Number of its first packet.
    pub psn: u32,
    /// Largest packet on this way, as in [`Port`].
    pub mtu: u8,
    /// Its port.
    pub lid: u16,
    /// Its port. `None`: the LID alone is the address.
    pub gid: Option<Gid>,
    /// Of the own port.
    pub port: u8,
    /// Of the own GID in its table.
    pub gid_index: u8,
    /// RDMA READs of the peer that are answered at a time.
    pub reads: u8,
}

/// A piece of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its first byte.
    pub start: u64,
    /// Bytes.
    pub len: u32,
    /// Key of its region.
    pub lkey: u32,
}

/// What a posted work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// SEND, with immediate data.
    Send {
        /// Handed to the receiver beside the message.
        immediate: u32,
    },
    /// Read the peer's memory.
    Read {
        /// There.
        start: u64,
        /// Of its region.
        rkey: u32,
    },
}

/// A work request for the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWork {
    /// Comes back in the completion.
    pub id: u64,
    /// See there.
    pub work: Work,
    /// From where, or to where.
    pub piece: Piece,
    /// Report its completion. (Errors are always reported.)
    pub signaled: bool,
    /// The bytes are taken at once: the memory may be used again, and need not be registered.
    pub inline: bool,
}

/// A work request for the receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveWork {
    /// Comes back in the completion.
    pub id: u64,
    /// Where to.
    pub piece: Piece,
}

/// How a work request ended: `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub u32);

impl Status {
    /// It is done.
    pub const SUCCESS: Self = Self(0);
    /// Own key or range is wrong.
    pub const LOCAL_PROTECTION: Self = Self(4);
    /// The queue pair had an error before.
    pub const FLUSHED: Self = Self(5);
    /// The peer had no buffer that was long enough, or knows no such operation.
    pub const REMOTE_INVALID_REQUEST: Self = Self(9);
    /// The peer's key or range is wrong.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// No acknowledgement came.
    pub const RETRIES_EXCEEDED: Self = Self(12);
    /// The peer never had a buffer.
    pub const RNR_RETRIES_EXCEEDED: Self = Self(13);

    /// For messages to the user.
    pub fn text(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::LOCAL_PROTECTION => "local protection error",
            Self::FLUSHED => "flushed after an error",
            Self::REMOTE_INVALID_REQUEST => "invalid request at the peer",
            Self::REMOTE_ACCESS => "access refused by the peer",
            Self::RETRIES_EXCEEDED => "no acknowledgement (retries exceeded)",
            Self::RNR_RETRIES_EXCEEDED => "the peer has no receive buffers (RNR retries exceeded)",
            _ => "error of the adapter",
        }
    }
}

/// The end of a work request. With an error only `id`, `status` and `qp` mean something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Of the work request.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes received.
    pub bytes: u32,
    /// What the sender gave; 0: nothing.
    pub immediate: u32,
    /// Number of the queue pair here.
    pub qp: u32,
}

impl Completion {
    /// To fill an array with.
    pub const NONE: Self = Self { id: 0, status: Status::SUCCESS, bytes: 0, immediate: 0, qp: 0 };
}

/// Something happened to the adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// The port works (again).
    PortActive(u8),
    /// The port is down.
    PortDown(u8),
    /// The adapter is gone or will not do any more.
    DeviceFatal,
    /// This queue pair, which is in the error state, takes no more from the shared receive queue.
    LastReceive(u32),
    /// Something that needs no action.
    Other(u32),
}

/// Calls on adapters. See the module's documentation.
pub trait Verbs {
    /// An open adapter, with a protection domain.
    type Device: Copy;
    /// Registered memory.
    type Region: Copy;
    /// A completion queue.
    type Cq: Copy;
    /// A shared receive queue.
    type Srq: Copy;
    /// A queue pair.
    type Qp: Copy;

    /// Names of the adapters of this node, those first that are near the processors that this
    /// thread may run on.
    ///
    /// # Errors
    /// As the library says.
    fn devices(&self) -> Result<Vec<String>, VerbsError>;

    /// Open one.
    ///
    /// # Errors
    /// As the library says.
    fn open(&self, name: &str) -> Result<Self::Device, VerbsError>;

    /// State of a port, counted from 1.
    ///
    /// # Errors
    /// There is no such port, or as the library says.
    fn port(&self, device: Self::Device, port: u8) -> Result<Port, VerbsError>;

    /// An entry of a port's table of GIDs.
    ///
    /// # Errors
    /// It is empty.
    fn gid(&self, device: Self::Device, port: u8, index: u32) -> Result<GidEntry, VerbsError>;

    /// RDMA READs that a queue pair answers, and may have under way, at a time. 0: none, as memory
    /// that is registered would not stay what it is where this process is copied (`fork`).
    fn reads_at_once(&self, device: Self::Device) -> u8;

    /// Let the adapter use this memory.
    ///
    /// # Errors
    /// As the library says: often the limit of locked memory.
    ///
    /// # Safety
    /// The memory stays mapped until the region is deregistered.
    unsafe fn register(
        &self,
        device: Self::Device,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Self::Region, VerbsError>;

    /// Keys of a region, for own work requests and for the peer's.
    fn keys(&self, region: Self::Region) -> (u32, u32);

    /// The adapter does not use the memory any more. No work request with it may be under way.
    fn deregister(&self, region: Self::Region);

    /// A completion queue for so many completions.
    ///
    /// # Errors
    /// As the library says.
    fn create_cq(&self, device: Self::Device, entries: u32) -> Result<Self::Cq, VerbsError>;

    /// A shared receive queue for so many receives.
    ///
    /// # Errors
    /// As the library says.
    fn create_srq(&self, device: Self::Device, receives: u32) -> Result<Self::Srq, VerbsError>;

    /// A queue pair of type RC, and how many bytes it takes inline. Its completion queues are that
    /// of sends and that of receives.
    ///
    /// # Errors
    /// As the library says.
    fn create_qp(
        &self,
        device: Self::Device,
        queues: (Self::Cq, Self::Cq),
        srq: Self::Srq,
        sizes: QpSizes,
    ) -> Result<(Self::Qp, u32), VerbsError>;

    /// Its number.
    fn qp_number(&self, qp: Self::Qp) -> u32;

    /// Change its state.
    ///
    /// # Errors
    /// As the library says.
    fn modify(&self, qp: Self::Qp, to: Transition) -> Result<(), VerbsError>;

    /// Post a send.
    ///
    /// # Errors
    /// The errno: the queue is full, or the queue pair is in no state for it. Nothing is posted.
    ///
    /// # Safety
    /// The memory belongs to the adapter until the completion (unless it is inline).
    unsafe fn post_send(&self, qp: Self::Qp, work: &SendWork) -> Result<(), i32>;

    /// Post receives, all of them or none.
    ///
    /// # Errors
    /// The errno.
    ///
    /// # Safety
    /// The memory belongs to the adapter until the completion.
    unsafe fn post_receives(&self, srq: Self::Srq, work: &[ReceiveWork]) -> Result<(), i32>;

    /// Take completions; how many.
    ///
    /// # Errors
    /// The errno: the queue is of no use any more.
    fn poll(&self, cq: Self::Cq, into: &mut [Completion]) -> Result<usize, i32>;

    /// What happened to the adapter, if anything. A system call.
    fn async_event(&self, device: Self::Device) -> Option<AsyncEvent>;

    /// The queue pair is over. What was posted to it is forgotten.
    fn destroy_qp(&self, qp: Self::Qp);

    /// No queue pair uses it any more.
    fn destroy_srq(&self, srq: Self::Srq);

    /// No queue pair uses it any more.
    fn destroy_cq(&self, cq: Self::Cq);

    /// Everything of it is destroyed.
    fn close(&self, device: Self::Device);

    /// Descriptors of an adapter, which are in no image.
    fn descriptors(&self, device: Self::Device) -> Vec<RawFd>;

    /// Memory of adapters that is mapped here, which is in no image.
    fn mapped(&self) -> Vec<Range<usize>>;
}
