//! What libibverbs and its callers share: types and numbers of `infiniband/verbs.h`, as far as
//! they are used here.
//!
//! Written out, not generated: neither headers nor libclang are needed to build the component
//! (docs/adr/0039). In tests/conformance/tests/verbs_layout.rs a C compiler compares every size,
//! offset and number with the headers, where these exist. The library has kept this ABI since 2009
//! (IBVERBS_1.1); structures that it makes are only read up to the last field that is named.

#![allow(missing_docs, reason = "fields are named as in C")]

use core::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    _opaque: [u8; 0],
}

/// Slots of `struct ibv_context_ops` that are not called.
type Unused = *const c_void;

/// `struct ibv_context_ops`.
#[repr(C)]
pub struct ContextOps {
    _before_poll: [Unused; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    _before_post_srq: [Unused; 8],
    pub post_srq_recv: unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _before_post_send: [Unused; 4],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    _after: [Unused; 6],
}

/// The beginning of `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// The beginning of `struct ibv_srq`.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    _qp_context: *mut c_void,
    _pd: *mut Pd,
    _queues: [*mut c_void; 3],
    _handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Default)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `union ibv_gid`, of which one member is a u64.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
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
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Default)]
pub struct AhAttr {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    /// What is not read.
    pub rest: [u32; 18],
}

impl Default for DeviceAttr {
    fn default() -> Self {
        // SAFETY: numbers, for which zero is a value.
        unsafe { core::mem::zeroed() }
    }
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the RDMA member of its union.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Big endian.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// Of other operations.
    pub rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big endian.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_async_event`; `element` is a pointer, or the number of a port.
#[repr(C)]
pub struct AsyncEvent {
    pub element: *mut c_void,
    pub event_type: u32,
}

/// Numbers of `infiniband/verbs.h`.
pub mod number {
    pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
    pub const IBV_WR_RDMA_READ: u32 = 4;
    pub const IBV_SEND_SIGNALED: u32 = 2;
    pub const IBV_SEND_INLINE: u32 = 8;
    pub const IBV_WC_WITH_IMM: u32 = 2;
    pub const IBV_QPT_RC: u32 = 2;
    pub const IBV_QPS_INIT: u32 = 1;
    pub const IBV_QPS_RTR: u32 = 2;
    pub const IBV_QPS_RTS: u32 = 3;
    pub const IBV_QPS_ERR: u32 = 6;
    pub const IBV_QP_STATE: u32 = 1 << 0;
    pub const IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
    pub const IBV_QP_PKEY_INDEX: u32 = 1 << 4;
    pub const IBV_QP_PORT: u32 = 1 << 5;
    pub const IBV_QP_AV: u32 = 1 << 7;
    pub const IBV_QP_PATH_MTU: u32 = 1 << 8;
    pub const IBV_QP_TIMEOUT: u32 = 1 << 9;
    pub const IBV_QP_RETRY_CNT: u32 = 1 << 10;
    pub const IBV_QP_RNR_RETRY: u32 = 1 << 11;
    pub const IBV_QP_RQ_PSN: u32 = 1 << 12;
    pub const IBV_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const IBV_QP_MIN_RNR_TIMER: u32 = 1 << 15;
    pub const IBV_QP_SQ_PSN: u32 = 1 << 16;
    pub const IBV_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const IBV_QP_DEST_QPN: u32 = 1 << 20;
    pub const IBV_PORT_ACTIVE: u32 = 4;
    pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
    pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
    pub const IBV_EVENT_DEVICE_FATAL: u32 = 8;
    pub const IBV_EVENT_PORT_ACTIVE: u32 = 9;
    pub const IBV_EVENT_PORT_ERR: u32 = 10;
    pub const IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
    pub const IBV_FORK_UNNEEDED: i32 = 2;
}

/// A function of the library: its name, its type.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// Functions of libibverbs.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            /// `ibv_is_fork_initialized`, since rdma-core 35.
            pub is_fork_initialized: Option<unsafe extern "C" fn() -> c_int>,
        }

        impl Functions {
            /// Find all of them.
            ///
            /// # Errors
            /// The name of one that is missing.
            pub fn find(
                symbol: impl Fn(&core::ffi::CStr) -> *mut c_void,
            ) -> Result<Self, &'static str> {
                $(
                    let $name = symbol($symbol);
                    if $name.is_null() {
                        return Err(stringify!($name));
                    }
                )+
                let is_fork_initialized = symbol(c"ibv_is_fork_initialized");
                Ok(Self {
                    is_fork_initialized: (!is_fork_initialized.is_null()).then(|| {
                        type Call = unsafe extern "C" fn() -> c_int;
                        // SAFETY: as below.
                        unsafe { core::mem::transmute::<*mut c_void, Call>(is_fork_initialized) }
                    }),
                    $(
                        $name: {
                            type Call = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                            // SAFETY: the library exports a function of this type by this name.
                            unsafe { core::mem::transmute::<*mut c_void, Call>($name) }
                        },
                    )+
                })
            }
        }
    };
}

functions! {
    get_device_list: c"ibv_get_device_list", fn(*mut c_int) -> *mut *mut Device;
    free_device_list: c"ibv_free_device_list", fn(*mut *mut Device);
    get_device_name: c"ibv_get_device_name", fn(*mut Device) -> *const c_char;
    open_device: c"ibv_open_device", fn(*mut Device) -> *mut Context;
    close_device: c"ibv_close_device", fn(*mut Context) -> c_int;
    query_device: c"ibv_query_device", fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: c"ibv_query_port", fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_ex:
        c"_ibv_query_gid_ex", fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    alloc_pd: c"ibv_alloc_pd", fn(*mut Context) -> *mut Pd;
    dealloc_pd: c"ibv_dealloc_pd", fn(*mut Pd) -> c_int;
    reg_mr: c"ibv_reg_mr", fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: c"ibv_dereg_mr", fn(*mut Mr) -> c_int;
    create_cq:
        c"ibv_create_cq",
        fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
    destroy_cq: c"ibv_destroy_cq", fn(*mut Cq) -> c_int;
    create_srq: c"ibv_create_srq", fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq: c"ibv_destroy_srq", fn(*mut Srq) -> c_int;
    create_qp: c"ibv_create_qp", fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: c"ibv_modify_qp", fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp", fn(*mut Qp) -> c_int;
    get_async_event: c"ibv_get_async_event", fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: c"ibv_ack_async_event", fn(*mut AsyncEvent);
}
