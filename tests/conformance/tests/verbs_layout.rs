//! The types and numbers that `transports/verbs/sys/abi.rs` writes out are those of the headers of
//! libibverbs: a C compiler says so. Where the headers are absent nothing is proved.

use rustbtl_component::transports::verbs::api;
use rustbtl_component::transports::verbs::sys::abi::*;
use std::io::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

/// Assertions in C: offsets, and sizes of what is written out as a whole.
macro_rules! layout {
    (
        $out:ident,
        $($whole:ident $rust:ident = $c:literal { $($field:ident $(= $name:literal)?),* };)+
    ) => {
        $(
            layout!(@size $whole $out $rust $c);
            $(
                let names = [stringify!($field) $(, $name)?];
                let what = format!("offsetof(struct {}, {})", $c, names[names.len() - 1]);
                same(&mut $out, &what, offset_of!($rust, $field));
            )*
        )+
    };
    (@size whole $out:ident $rust:ident $c:literal) => {
        same(&mut $out, concat!("sizeof(struct ", $c, ")"), size_of::<$rust>());
    };
    (@size begin $out:ident $rust:ident $c:literal) => {};
}

/// Numbers of the headers.
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
        whole ContextOps = "ibv_context_ops" { poll_cq, post_srq_recv, post_send };
        begin Context = "ibv_context" { device, ops, cmd_fd, async_fd };
        begin Cq = "ibv_cq" { context };
        begin Srq = "ibv_srq" { context };
        begin Qp = "ibv_qp" { context, qp_num };
        whole Mr = "ibv_mr" { context, lkey, rkey };
        whole PortAttr = "ibv_port_attr" {
            state, active_mtu, gid_tbl_len, lid, link_layer, flags, port_cap_flags2
        };
        whole DeviceAttr = "ibv_device_attr" {
            fw_ver, node_guid, max_mr_size, vendor_id, max_qp, device_cap_flags, max_mr,
            max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom
        };
        whole GidEntry = "ibv_gid_entry" { gid, gid_index, port_num, gid_type, ndev_ifindex };
        whole QpCap = "ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
        };
        whole QpInitAttr = "ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
        };
        whole SrqInitAttr = "ibv_srq_init_attr" {
            srq_context, max_wr = "attr.max_wr", max_sge = "attr.max_sge",
            srq_limit = "attr.srq_limit"
        };
        whole AhAttr = "ibv_ah_attr" {
            dgid = "grh.dgid", flow_label = "grh.flow_label", sgid_index = "grh.sgid_index",
            hop_limit = "grh.hop_limit", traffic_class = "grh.traffic_class",
            dlid, sl, src_path_bits, static_rate, is_global, port_num
        };
        whole QpAttr = "ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        };
        whole Sge = "ibv_sge" { addr, length, lkey };
        whole SendWr = "ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
            remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey"
        };
        whole RecvWr = "ibv_recv_wr" { wr_id, next, sg_list, num_sge };
        whole Wc = "ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits
        };
        whole AsyncEvent = "ibv_async_event" { element, event_type };
    }
    numbers! { out,
        IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ IBV_SEND_SIGNALED IBV_SEND_INLINE IBV_WC_WITH_IMM
        IBV_QPT_RC IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR IBV_QP_STATE
        IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT
        IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC
        IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_DEST_QPN
        IBV_PORT_ACTIVE IBV_LINK_LAYER_ETHERNET IBV_GID_TYPE_ROCE_V2 IBV_EVENT_DEVICE_FATAL
        IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_QP_LAST_WQE_REACHED IBV_FORK_UNNEEDED
    }
    for (name, value) in [
        ("IBV_ACCESS_LOCAL_WRITE", api::LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_READ", api::REMOTE_READ),
        ("IBV_WC_SUCCESS", api::Status::SUCCESS.0),
        ("IBV_WC_LOC_PROT_ERR", api::Status::LOCAL_PROTECTION.0),
        ("IBV_WC_WR_FLUSH_ERR", api::Status::FLUSHED.0),
        ("IBV_WC_REM_INV_REQ_ERR", api::Status::REMOTE_INVALID_REQUEST.0),
        ("IBV_WC_REM_ACCESS_ERR", api::Status::REMOTE_ACCESS.0),
        ("IBV_WC_RETRY_EXC_ERR", api::Status::RETRIES_EXCEEDED.0),
        ("IBV_WC_RNR_RETRY_EXC_ERR", api::Status::RNR_RETRIES_EXCEEDED.0),
    ] {
        same(&mut out, name, value as usize);
    }
    out
}

/// What a C compiler says of it.
fn compile(source: &str) -> Result<(), String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut child = Command::new(compiler)
        .args(["-std=c11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler starts");
    child.stdin.take().expect("piped").write_all(source.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(errors) }
}

#[test]
fn types_and_numbers_are_those_of_the_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped, nothing proved: no infiniband/verbs.h (apt-get install libibverbs-dev)");
        return;
    }
    let source = source();
    compile(&source).unwrap_or_else(|errors| panic!("{errors}"));
    // It says so if one is another.
    let planted = source.replacen("rkey) == 48", "rkey) == 52", 1);
    assert_ne!(planted, source);
    assert!(compile(&planted).is_err(), "a wrong offset was not found");
}
