//! Plain data with the layout that libibverbs gives it, so that a library can hand on what it got.
//! Structures with pointers are the library's own.

#![allow(missing_docs, reason = "fields and numbers are named as in C")]

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
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

/// `union ibv_gid`, of which one member is a u64.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Numbers of `infiniband/verbs.h`.
pub mod number {
    pub const IBV_WR_RDMA_WRITE: u32 = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const IBV_WR_SEND: u32 = 2;
    pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
    pub const IBV_WR_RDMA_READ: u32 = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const IBV_SEND_SIGNALED: u32 = 2;
    pub const IBV_SEND_INLINE: u32 = 8;
    pub const IBV_WC_SUCCESS: u32 = 0;
    pub const IBV_WC_LOC_LEN_ERR: u32 = 1;
    pub const IBV_WC_LOC_PROT_ERR: u32 = 4;
    pub const IBV_WC_WR_FLUSH_ERR: u32 = 5;
    pub const IBV_WC_RECV: u32 = 128;
    pub const IBV_WC_RECV_RDMA_WITH_IMM: u32 = 129;
    pub const IBV_QPT_RC: u32 = 2;
    pub const IBV_QPT_UD: u32 = 4;
    pub const IBV_QPS_RESET: u32 = 0;
    pub const IBV_QPS_INIT: u32 = 1;
    pub const IBV_QPS_RTR: u32 = 2;
    pub const IBV_QPS_RTS: u32 = 3;
    pub const IBV_QPS_ERR: u32 = 6;
    pub const IBV_QP_STATE: u32 = 1 << 0;
    pub const IBV_QP_ACCESS_FLAGS: u32 = 1 << 3;
    pub const IBV_QP_AV: u32 = 1 << 7;
    pub const IBV_QP_ALT_PATH: u32 = 1 << 14;
    pub const IBV_QP_CAP: u32 = 1 << 19;
    pub const IBV_QP_DEST_QPN: u32 = 1 << 20;
    pub const IBV_SRQ_MAX_WR: u32 = 1 << 0;
    pub const IBV_SRQ_LIMIT: u32 = 1 << 1;
    pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
    pub const IBV_ACCESS_REMOTE_WRITE: u32 = 2;
}
