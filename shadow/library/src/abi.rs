//! Structures of libibverbs that hold pointers. Those without are `rustbtl_shadow::abi`.
//! tests/layout.rs has a C compiler compare them with the headers, where these exist.

#![allow(missing_docs, reason = "fields are named as in C")]

use core::ffi::{c_char, c_int, c_void};
use rustbtl_shadow::abi::*;

pub type Pointer = *mut c_void;

/// `struct ibv_device`, up to its name.
#[repr(C)]
pub struct Device {
    _ops: [Pointer; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
}

pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Completion) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int;
pub type QueryDeviceEx =
    unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttr, usize) -> c_int;
pub type Refuse = unsafe extern "C" fn(Pointer, Pointer) -> Pointer;

/// `struct ibv_context_ops`: those that are called inline.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ContextOps {
    _before_mw: [Pointer; 7],
    pub alloc_mw: Option<Refuse>,
    _mw: [Pointer; 3],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    _before_post_srq: [Pointer; 7],
    pub post_srq_recv: Option<PostSrqRecv>,
    _before_post_send: [Pointer; 4],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    _after: [Pointer; 5],
}

impl ContextOps {
    /// None of them.
    pub const fn none() -> Self {
        const NULL: Pointer = core::ptr::null_mut();
        Self {
            _before_mw: [NULL; 7],
            alloc_mw: None,
            _mw: [NULL; 3],
            poll_cq: None,
            req_notify_cq: None,
            _before_post_srq: [NULL; 7],
            post_srq_recv: None,
            _before_post_send: [NULL; 4],
            post_send: None,
            post_recv: None,
            _after: [NULL; 5],
        }
    }
}

/// `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: Pointer,
}

/// `struct verbs_context`: extensions that are called inline, if they are there.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: Option<QueryPort>,
    _before_dm: [Pointer; 7],
    pub alloc_dm: Option<Refuse>,
    _before_parent: [Pointer; 5],
    pub alloc_parent_domain: Option<Refuse>,
    _before_td: Pointer,
    pub alloc_td: Option<Refuse>,
    _before_wq: [Pointer; 6],
    pub create_wq: Option<Refuse>,
    _before_cq_ex: Pointer,
    pub create_cq_ex: Option<Refuse>,
    _priv: Pointer,
    pub query_device_ex: Option<QueryDeviceEx>,
    _flow: [Pointer; 4],
    pub open_qp: Option<Refuse>,
    pub create_qp_ex: Option<Refuse>,
    _get_srq_num: Pointer,
    pub create_srq_ex: Option<Refuse>,
    pub open_xrcd: Option<Refuse>,
    _close_xrcd: Pointer,
    _placeholder3: u64,
    pub sz: usize,
    pub context: Context,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: Pointer,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct Channel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `pthread_mutex_t`, `pthread_cond_t` and counters, which only libibverbs itself uses.
type Private = [u64; 12];

/// `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut Channel,
    pub cq_context: Pointer,
    pub handle: u32,
    pub cqe: c_int,
    pub private: Private,
}

/// `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: Pointer,
    pub pd: *mut Pd,
    pub handle: u32,
    pub private: Private,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: Pointer,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub private: Private,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: Pointer,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: Pointer,
    pub attr: SrqAttr,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttr {
    _before_tables: [u32; 3],
    pub gid_tbl_len: c_int,
    _before_lid: [u32; 4],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    _after: [u8; 11],
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    _guids: [u64; 4],
    _vendor: [u32; 3],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    _before_cqe: [c_int; 4],
    pub max_cqe: c_int,
    _before_srq: [c_int; 20],
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// The target of a `struct ibv_send_wr`: a union.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Wr {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ud {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: u32,
    pub wr: Wr,
    pub rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub struct AsyncEvent {
    pub element: Pointer,
    pub event_type: c_int,
}
