//! Queue pairs.

use crate::abi::*;
use crate::operations::*;
use crate::real::real;
use crate::refused;
use crate::state::{enter, hide, id_of, show};
use core::ffi::c_int;
use rustbtl_shadow::abi::{number::*, *};
use rustbtl_shadow::{CqId, Errno, PdId, QpId, QpWish, SrqId};

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().create_qp)(pd, init) };
    }
    // SAFETY: ours.
    let of = PdId(unsafe { id_of(pd) });
    // SAFETY: as above.
    let context = unsafe { (*pd).context };
    // SAFETY: the caller's.
    let init = unsafe { &mut *init };
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        set_errno(Errno::INVALID);
        return core::ptr::null_mut();
    }
    if !matches!(init.qp_type, IBV_QPT_RC | IBV_QPT_UD) {
        set_errno(refused::refuse(refused::qp_type));
        return core::ptr::null_mut();
    }
    let wish = QpWish {
        // SAFETY: a queue of ours.
        send_cq: CqId(unsafe { id_of(init.send_cq) }),
        // SAFETY: as above.
        recv_cq: CqId(unsafe { id_of(init.recv_cq) }),
        // SAFETY: as above, or none.
        srq: (!init.srq.is_null()).then(|| SrqId(unsafe { id_of(init.srq) })),
        cap: init.cap,
        kind: init.qp_type,
        signal_all: init.sq_sig_all != 0,
    };
    let mut state = enter();
    match state.shadow.create_qp(of, wish) {
        Ok((id, qp_num, cap)) => {
            init.cap = cap;
            let seen = Qp {
                context,
                qp_context: init.qp_context,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle: id.0,
                qp_num,
                state: IBV_QPS_RESET,
                qp_type: init.qp_type,
                private: [0; 12],
            };
            let seen = show(seen, id.0);
            state.seen_qps.insert(id.0, seen as usize);
            seen
        }
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(qp) } {
        // SAFETY: as above.
        return unsafe { (real().modify_qp)(qp, attr, mask) };
    }
    // SAFETY: ours.
    let id = QpId(unsafe { id_of(qp) });
    // SAFETY: the caller's.
    let attr = unsafe { &*attr };
    let mut state = enter();
    let done = state.shadow.modify_qp(id, attr, mask as u32);
    if let Some((_, _, now)) = state.shadow.qp(id) {
        // SAFETY: ours.
        unsafe { (*qp).state = now };
    }
    code(done)
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut Qp,
    attr: *mut QpAttr,
    mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(qp) } {
        // SAFETY: as above.
        return unsafe { (real().query_qp)(qp, attr, mask, init) };
    }
    // SAFETY: ours.
    let id = QpId(unsafe { id_of(qp) });
    let state = enter();
    let found = state.shadow.real_qp(id).zip(state.shadow.qp(id));
    let Some((real_one, (peer, cap, _))) = found else { return code(Err(Errno::INVALID)) };
    // SAFETY: a queue pair of this incarnation, writable structures.
    let answer = unsafe { (real().query_qp)(real_one.pointer(), attr, mask, init) };
    if answer == 0 {
        // SAFETY: filled in.
        let attr = unsafe { &mut *attr };
        // SAFETY: as above.
        let init = unsafe { &mut *init };
        (attr.dest_qp_num, attr.cap, init.cap) = (peer, cap, cap);
        // SAFETY: ours.
        let seen = unsafe { &*qp };
        init.qp_context = seen.qp_context;
        (init.send_cq, init.recv_cq, init.srq) = (seen.send_cq, seen.recv_cq, seen.srq);
    }
    answer
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(qp) } {
        // SAFETY: as above.
        return unsafe { (real().destroy_qp)(qp) };
    }
    // SAFETY: ours.
    let id = QpId(unsafe { id_of(qp) });
    let mut state = enter();
    let done = state.shadow.destroy_qp(id);
    if done.is_ok() {
        state.seen_qps.remove(&id.0);
        // SAFETY: ours, and gone for the program.
        unsafe { hide(qp) };
    }
    code(done)
}

/// A function that queue pairs of ours do not have.
macro_rules! not_ours {
    ($(
        $(#[$doc:meta])*
        $name:ident = $call:ident($($argument:ident: $type:ty),*) -> $result:ty: $no:expr;
    )+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As libibverbs says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(qp: *mut Qp $(, $argument: $type)*) -> $result {
            // SAFETY: the caller's.
            if !unsafe { is_of_ours(qp) } {
                // SAFETY: as above.
                return unsafe { (real().$call)(qp $(, $argument)*) };
            }
            $no
        }
    )+ };
}

not_ours! {
    /// Groups are not joined again after a restart.
    ibv_attach_mcast = attach_mcast(gid: *const Gid, lid: u16) -> c_int:
        code(Err(refused::refuse(refused::mcast)));
    /// As above.
    ibv_detach_mcast = detach_mcast(gid: *const Gid, lid: u16) -> c_int:
        code(Err(refused::refuse(refused::mcast)));
    /// Where it is made, it is refused.
    ibv_qp_to_qp_ex = qp_to_qp_ex() -> Pointer: core::ptr::null_mut();
    /// Extensions that the ends of a connection agree on: ours have none.
    ibv_query_ece = query_ece(ece: Pointer) -> c_int: libc::EOPNOTSUPP;
    /// As above.
    ibv_set_ece = set_ece(ece: Pointer) -> c_int: libc::EOPNOTSUPP;
}

/// Are data of writes seen in order? Nobody promises it.
///
/// # Safety
/// Nothing is looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut Qp, _: u32, _: u32) -> c_int {
    0
}
