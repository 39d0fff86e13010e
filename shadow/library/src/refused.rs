//! What a shadow cannot make again is refused where it is created, with a text, once for each.

use crate::abi::Pointer;
use crate::operations::set_errno;
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_shadow::Errno;

/// Say once that something is refused.
fn say(said: &AtomicBool, what: &str, instead: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        eprintln!("rustbtl: shadow verbs: {what} cannot be checkpointed and is refused. {instead}");
    }
}

macro_rules! refused {
    ($($(#[$doc:meta])* $name:ident: $what:literal, $instead:literal;)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// None is needed: nothing is looked at.
        pub unsafe extern "C" fn $name(_: Pointer, _: Pointer) -> Pointer {
            static SAID: AtomicBool = AtomicBool::new(false);
            say(&SAID, $what, $instead);
            set_errno(Errno::UNSUPPORTED);
            core::ptr::null_mut()
        }
    )+ };
}

refused! {
    /// `ibv_alloc_mw`.
    alloc_mw: "a memory window (ibv_alloc_mw)", "Use the keys of regions.";
    /// `ibv_create_qp_ex`.
    create_qp_ex:
        "an extended queue pair (ibv_create_qp_ex, ibv_wr_*, XRC)",
        "Use ibv_create_qp and ibv_post_send.";
    /// `ibv_open_qp`.
    open_qp: "a shared queue pair (ibv_open_qp, XRC)", "Use RC.";
    /// `ibv_create_srq_ex`.
    create_srq_ex: "an extended shared receive queue (XRC, tag matching)", "Use ibv_create_srq.";
    /// `ibv_open_xrcd`.
    open_xrcd: "an XRC domain (ibv_open_xrcd)", "Use RC.";
    /// `ibv_alloc_dm`.
    alloc_dm: "memory of a device (ibv_alloc_dm)", "Use memory of the process.";
    /// `ibv_create_wq`.
    create_wq: "a work queue (ibv_create_wq)", "Use queue pairs.";
    /// `ibv_alloc_td`.
    alloc_td: "a thread domain (ibv_alloc_td)", "Do without.";
    /// `ibv_alloc_parent_domain`.
    alloc_parent_domain: "a parent domain (ibv_alloc_parent_domain)", "Use ibv_alloc_pd.";
    /// `ibv_reg_dmabuf_mr`.
    dmabuf: "memory of another device (ibv_reg_dmabuf_mr)", "Use memory of the process.";
    /// `ibv_rereg_mr`.
    rereg: "changing a region (ibv_rereg_mr)", "Register another one.";
    /// `ibv_attach_mcast`.
    mcast: "a multicast group (ibv_attach_mcast)", "Send to each.";
    /// `ibv_import_device` and others.
    import: "an object of another process (ibv_import_*)", "Open the device.";
    /// `mlx5dv_*`.
    mlx5dv: "the interface of one vendor (mlx5dv)", "With UCX: UCX_TLS=rc_v,ud_v.";
    /// `ibv_create_qp` of another type.
    qp_type: "a queue pair that is neither RC nor UD", "Use one of these.";
}

/// An operation of a request.
pub fn operation(opcode: u32) -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    say(&SAID, &format!("a request with operation {opcode}"), "Use sends, RDMA and atomics.");
    Errno::UNSUPPORTED
}

/// Refuse, with its text.
pub fn refuse(what: unsafe extern "C" fn(Pointer, Pointer) -> Pointer) -> Errno {
    let null = core::ptr::null_mut();
    // SAFETY: it looks at nothing.
    unsafe { what(null, null) };
    Errno::UNSUPPORTED
}
