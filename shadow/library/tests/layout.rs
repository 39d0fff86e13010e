//! The types and numbers of `abi.rs`, here and in rustbtl_shadow, are those of the headers of
//! libibverbs: a C compiler says so. Where the headers are absent nothing is proved.

use rustbtl_shadow::abi::*;
use rustbtl_verbs::abi::*;
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Stdio};

macro_rules! layout {
    (
        $out:ident,
        $($whole:ident $rust:ident = $c:literal { $($field:ident $(= $name:literal)?),* };)+
    ) => { $(
        layout!(@size $whole $out $rust $c);
        $(
            let names = [stringify!($field) $(, $name)?];
            let what = format!("offsetof({}, {})", $c, names[names.len() - 1]);
            same(&mut $out, &what, offset_of!($rust, $field));
        )*
    )+ };
    (@size whole $out:ident $rust:ident $c:literal) => {
        same(&mut $out, concat!("sizeof(", $c, ")"), size_of::<$rust>());
    };
    (@size begin $out:ident $rust:ident $c:literal) => {};
}

macro_rules! numbers {
    ($out:ident, $($name:ident)+) => {
        $(same(&mut $out, stringify!($name), number::$name as usize);)+
    };
}

fn same(out: &mut String, what: &str, value: usize) {
    out.push_str(&format!("_Static_assert({what} == {value}, \"{what} is not {value}\");\n"));
}

fn source() -> String {
    let mut out = "#include <infiniband/verbs.h>\n#include <stddef.h>\n".to_owned();
    layout! { out,
        begin Device = "struct ibv_device" { name };
        whole ContextOps = "struct ibv_context_ops" {
            alloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv
        };
        whole Context = "struct ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
        };
        begin VerbsContext = "struct verbs_context" {
            query_port, alloc_dm, alloc_parent_domain, alloc_td, create_wq, create_cq_ex,
            query_device_ex, open_qp, create_qp_ex, create_srq_ex, open_xrcd, sz, context
        };
        whole Pd = "struct ibv_pd" { context, handle };
        whole Mr = "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey };
        whole Channel = "struct ibv_comp_channel" { context, fd, refcnt };
        whole Cq = "struct ibv_cq" { context, channel, cq_context, handle, cqe };
        whole Srq = "struct ibv_srq" { context, srq_context, pd, handle };
        whole Ah = "struct ibv_ah" { context, pd, handle };
        whole Qp = "struct ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type
        };
        whole QpCap = "struct ibv_qp_cap" { max_send_wr, max_recv_wr, max_inline_data };
        whole QpInitAttr = "struct ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
        };
        whole SrqAttr = "struct ibv_srq_attr" { max_wr, max_sge, srq_limit };
        whole SrqInitAttr = "struct ibv_srq_init_attr" { srq_context, attr };
        whole PortAttr = "struct ibv_port_attr" {
            gid_tbl_len, pkey_tbl_len, lid, flags, port_cap_flags2
        };
        whole DeviceAttr = "struct ibv_device_attr" {
            max_qp, max_qp_wr, max_cqe, max_srq_wr, max_srq_sge, max_pkeys, phys_port_cnt
        };
        whole GidEntry = "struct ibv_gid_entry" { gid, gid_index, port_num, gid_type };
        whole AhAttr = "struct ibv_ah_attr" {
            dgid = "grh.dgid", flow_label = "grh.flow_label", sgid_index = "grh.sgid_index",
            hop_limit = "grh.hop_limit", traffic_class = "grh.traffic_class",
            dlid, sl, src_path_bits, static_rate, is_global, port_num
        };
        whole QpAttr = "struct ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        };
        whole Sge = "struct ibv_sge" { addr, length, lkey };
        whole SendWr = "struct ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr
        };
        begin Rdma = "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" { remote_addr, rkey };
        begin Atomic = "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
            remote_addr, compare_add, swap, rkey
        };
        begin Ud = "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" { ah, remote_qpn, remote_qkey };
        whole RecvWr = "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge };
        whole Completion = "struct ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits
        };
        whole AsyncEvent = "struct ibv_async_event" { element, event_type };
    }
    numbers! { out,
        IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM
        IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_SEND_SIGNALED
        IBV_SEND_INLINE IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR
        IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_QPT_RC IBV_QPT_UD IBV_QPS_RESET IBV_QPS_INIT
        IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_AV
        IBV_QP_ALT_PATH IBV_QP_CAP IBV_QP_DEST_QPN IBV_SRQ_MAX_WR IBV_SRQ_LIMIT
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE
    }
    for (name, value) in [
        ("IBV_EVENT_CQ_ERR", 0),
        ("IBV_EVENT_QP_FATAL", 1),
        ("IBV_EVENT_PATH_MIG_ERR", 7),
        ("IBV_EVENT_SRQ_ERR", 14),
        ("IBV_EVENT_SRQ_LIMIT_REACHED", 15),
        ("IBV_EVENT_QP_LAST_WQE_REACHED", 16),
    ] {
        same(&mut out, name, value);
    }
    out
}

#[test]
fn types_are_those_of_the_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("skipped: no headers of libibverbs");
        return;
    }
    for (source, is_right) in [(source(), true), (source().replace(" == 128,", " == 129,"), false)]
    {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut child = Command::new(compiler)
            .args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a C compiler");
        let mut input = child.stdin.take().expect("its input");
        input.write_all(source.as_bytes()).expect("all is read");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_right, "{said}");
    }
}
