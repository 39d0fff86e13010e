//! What the headers call inline, through the table of a context: posts, polls, and two queries.

use crate::abi::*;
use crate::real::{extensions, real};
use crate::refused;
use crate::state::{SeenContext, enter, id_of};
use core::ffi::{c_int, c_void};
use rustbtl_shadow::abi::{number::*, *};
use rustbtl_shadow::{AhId, ContextId, CqId, Errno, Owner, QpId, SPARE, Send, SrqId, Target};

/// Our table.
pub fn table() -> ContextOps {
    let mut ops = ContextOps::none();
    ops.alloc_mw = Some(refused::alloc_mw);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops
}

/// A context for the program, over a real one.
///
/// # Safety
/// The real one is open.
pub unsafe fn seen_context(real: *mut Context, id: ContextId, async_fd: c_int) -> Box<SeenContext> {
    // SAFETY: zeroes are null pointers, absent functions and numbers.
    let mut seen: Box<SeenContext> = unsafe { Box::new(core::mem::zeroed()) };
    seen.id = id.0;
    let verbs = &mut seen.verbs;
    verbs.query_port = Some(query_port);
    verbs.query_device_ex = Some(query_device_ex);
    verbs.create_qp_ex = Some(refused::create_qp_ex);
    verbs.open_qp = Some(refused::open_qp);
    verbs.create_srq_ex = Some(refused::create_srq_ex);
    verbs.open_xrcd = Some(refused::open_xrcd);
    verbs.alloc_dm = Some(refused::alloc_dm);
    verbs.create_wq = Some(refused::create_wq);
    verbs.alloc_td = Some(refused::alloc_td);
    verbs.alloc_parent_domain = Some(refused::alloc_parent_domain);
    // Programs ask for it and do without: no text.
    verbs.create_cq_ex = None;
    verbs.sz = size_of::<VerbsContext>();
    // SAFETY: the caller's promise.
    let real = unsafe { &*real };
    let context = &mut verbs.context;
    context.device = real.device;
    context.ops = table();
    context.cmd_fd = real.cmd_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = real.num_comp_vectors;
    context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    context.abi_compat = usize::MAX as Pointer;
    seen
}

/// Is it one of ours?
///
/// # Safety
/// A context of libibverbs, or of ours.
pub unsafe fn is_ours(context: *mut Context) -> bool {
    // SAFETY: the caller's promise.
    let post = unsafe { (*context).ops.post_send };
    post.is_some_and(|post| post as usize == post_send as PostSend as usize)
}

/// Is an object of one of ours?
///
/// # Safety
/// An object of libibverbs or of ours, whose first member is its context.
pub unsafe fn is_of_ours<T>(object: *mut T) -> bool {
    // SAFETY: the caller's promise.
    let context = unsafe { *object.cast::<*mut Context>() };
    // SAFETY: as above.
    unsafe { is_ours(context) }
}

/// The number of one of ours.
///
/// # Safety
/// [`is_ours`] says so.
pub unsafe fn context_id(context: *mut Context) -> ContextId {
    let before =
        core::mem::offset_of!(SeenContext, verbs) + core::mem::offset_of!(VerbsContext, context);
    // SAFETY: it is the end of a `VerbsContext`, which is in a `SeenContext`.
    let seen = unsafe { context.byte_sub(before) }.cast::<SeenContext>();
    // SAFETY: as above.
    ContextId(unsafe { (*seen).id })
}

/// The real one for one of ours, or it itself.
///
/// # Safety
/// A context of libibverbs, or of ours.
pub unsafe fn real_context(context: *mut Context) -> *mut Context {
    // SAFETY: the caller's promise.
    if !unsafe { is_ours(context) } {
        return context;
    }
    // SAFETY: it is ours.
    let id = unsafe { context_id(context) };
    enter().shadow.real_context(id).map_or(context, |real| real.pointer())
}

/// What verbs return: 0, or the number of the error, which is in `errno`, too.
pub fn code(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For functions that return a pointer.
pub fn set_errno(errno: Errno) {
    // SAFETY: no arguments.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    unsafe { place.write(errno.0) };
}

/// The elements of a request.
///
/// # Safety
/// As many as the program says.
unsafe fn elements<'a>(list: *const Sge, count: c_int) -> &'a [Sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if count > 0 && !list.is_null() => unsafe {
            core::slice::from_raw_parts(list, count)
        },
        _ => &[],
    }
}

/// Where a request goes, by its operation.
///
/// # Safety
/// A request of the program's, for a queue pair of this kind.
unsafe fn target_of(wr: &SendWr, kind: u32) -> Result<Target<AhId>, Errno> {
    if kind == IBV_QPT_UD {
        // SAFETY: the member of this kind.
        let Ud { ah, remote_qpn, remote_qkey } = unsafe { wr.wr.ud };
        if ah.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: an address that `ibv_create_ah` gave the program.
        let ah = AhId(unsafe { id_of(ah) });
        return Ok(Target::Datagram { ah, qpn: remote_qpn, qkey: remote_qkey });
    }
    match wr.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => Ok(Target::Receive),
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            // SAFETY: the member of this operation.
            let Rdma { remote_addr, rkey } = unsafe { wr.wr.rdma };
            Ok(Target::Memory { address: remote_addr, key: rkey })
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the member of this operation.
            let Atomic { remote_addr, compare_add, swap, rkey } = unsafe { wr.wr.atomic };
            Ok(Target::Atomic { address: remote_addr, key: rkey, compare_add, swap })
        }
        _ => Err(refused::operation(wr.opcode)),
    }
}

/// `ibv_post_send`.
unsafe extern "C" fn post_send(qp: *mut Qp, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let mut state = enter();
    // SAFETY: a queue pair that `ibv_create_qp` gave the program.
    let id = QpId(unsafe { id_of(qp) });
    // SAFETY: as above.
    let kind = unsafe { (*qp).qp_type };
    // SAFETY: a list of the program's.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: a request of the program's.
        let target = unsafe { target_of(request, kind) };
        let posted = target.and_then(|target| {
            let send = Send {
                id: request.wr_id,
                opcode: request.opcode,
                flags: request.send_flags,
                imm: request.imm_data,
                // SAFETY: as above.
                sges: unsafe { elements(request.sg_list, request.num_sge) },
                target,
            };
            state.shadow.post_send(id, &send)
        });
        if posted.is_err() {
            // SAFETY: the program's, writable.
            unsafe { *bad = wr };
            return code(posted);
        }
        wr = request.next;
    }
    0
}

/// `ibv_post_recv`.
unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: a queue pair that `ibv_create_qp` gave the program.
    let id = QpId(unsafe { id_of(qp) });
    // SAFETY: a list of the program's.
    unsafe { receives(Owner::Qp(id), wr, bad) }
}

/// `ibv_post_srq_recv`.
unsafe extern "C" fn post_srq_recv(srq: *mut Srq, wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    // SAFETY: a queue that `ibv_create_srq` gave the program.
    let id = SrqId(unsafe { id_of(srq) });
    // SAFETY: a list of the program's.
    unsafe { receives(Owner::Srq(id), wr, bad) }
}

/// # Safety
/// A list of the program's.
unsafe fn receives(owner: Owner, mut wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    let mut state = enter();
    // SAFETY: the caller's promise.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let sges = unsafe { elements(request.sg_list, request.num_sge) };
        let posted = state.shadow.post_receive(owner, request.wr_id, sges);
        if posted.is_err() {
            // SAFETY: the program's, writable.
            unsafe { *bad = wr };
            return code(posted);
        }
        wr = request.next;
    }
    0
}

/// `ibv_poll_cq`.
unsafe extern "C" fn poll_cq(cq: *mut Cq, entries: c_int, into: *mut Completion) -> c_int {
    let Ok(entries) = usize::try_from(entries) else { return -1 };
    // SAFETY: a queue that `ibv_create_cq` gave the program.
    let id = CqId(unsafe { id_of(cq) });
    for at in 0..entries {
        // Some programs do not initialise it.
        // SAFETY: the program has room for so many.
        let place = unsafe { into.add(at) };
        // SAFETY: as above.
        unsafe { place.write(Completion::default()) };
    }
    // SAFETY: as above, and initialised.
    let into = unsafe { core::slice::from_raw_parts_mut(into, entries) };
    enter().shadow.poll(id, into).map_or(-1, |count| count as c_int)
}

/// `ibv_req_notify_cq`.
unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: a queue that `ibv_create_cq` gave the program.
    let id = CqId(unsafe { id_of(cq) });
    code(enter().shadow.arm(id, solicited_only != 0))
}

/// `ibv_query_port`, of today's headers.
unsafe extern "C" fn query_port(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    bytes: usize,
) -> c_int {
    // SAFETY: one of ours.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let query = unsafe { extensions(real_one) }.and_then(|extended| {
        // SAFETY: the structure says how much of it there is.
        let size = unsafe { (*extended).sz };
        let is_there = size >= core::mem::offset_of!(VerbsContext, context);
        // SAFETY: as above.
        if is_there { unsafe { (*extended).query_port } } else { None }
    });
    let answer = match query {
        // SAFETY: an open context, a structure of so many bytes.
        Some(query) => unsafe { query(real_one, port, attr, bytes) },
        // SAFETY: as above; the library fills what it knows.
        None => unsafe { (real().query_port)(real_one, port, attr) },
    };
    if answer == 0 {
        // SAFETY: filled in.
        unsafe { show_lid(context, port, attr) };
    }
    answer
}

/// The LID that the program is to see.
///
/// # Safety
/// One of ours, a structure that was filled in.
pub unsafe fn show_lid(context: *mut Context, port: u8, attr: *mut PortAttr) {
    // SAFETY: the caller's promise.
    let id = unsafe { context_id(context) };
    if let Some(port) = enter().shadow.port(id, port) {
        // SAFETY: as above.
        unsafe { (*attr).lid = port.lid };
    }
}

/// `ibv_query_device_ex`.
unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input: *const c_void,
    attr: *mut DeviceAttr,
    bytes: usize,
) -> c_int {
    // SAFETY: one of ours.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above; the structure says what there is of it.
    let query =
        unsafe { extensions(real_one) }.and_then(|extended| unsafe { (*extended).query_device_ex });
    let answer = match query {
        // SAFETY: an open context, a structure of so many bytes that begins with the plain one.
        Some(query) => unsafe { query(real_one, input, attr, bytes) },
        None => return libc::EOPNOTSUPP,
    };
    if answer == 0 {
        // SAFETY: filled in.
        show_limits(unsafe { &mut *attr });
    }
    answer
}

/// What the shadow needs itself is not the program's.
pub fn show_limits(attr: &mut DeviceAttr) {
    for limit in [&mut attr.max_qp_wr, &mut attr.max_cqe, &mut attr.max_srq_wr] {
        *limit = (*limit - SPARE as c_int).max(0);
    }
}
