//! Completion channels, completion queues, shared receive queues.

use crate::abi::*;
use crate::exports::devices::wait_for;
use crate::operations::*;
use crate::real::real;
use crate::state::{enter, hide, id_of, show};
use crate::system::number_in;
use core::ffi::{c_int, c_uint};
use rustbtl_shadow::abi::*;
use rustbtl_shadow::{ChannelId, CqId, Errno, PdId, SrqId};

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut Channel {
    // SAFETY: the caller's.
    if !unsafe { is_ours(context) } {
        // SAFETY: as above.
        return unsafe { (real().create_comp_channel)(context) };
    }
    // SAFETY: ours.
    let of = unsafe { context_id(context) };
    let mut state = enter();
    let made = state.shadow.create_channel(of).and_then(|id| {
        let front = state.shadow.host.channels.front(id).ok_or(Errno::NOT_FOUND)?;
        Ok((id, front))
    });
    match made {
        Ok((id, fd)) => show(Channel { context, fd, refcnt: 0 }, id.0),
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(channel) } {
        // SAFETY: as above.
        return unsafe { (real().destroy_comp_channel)(channel) };
    }
    // SAFETY: ours.
    let id = ChannelId(unsafe { id_of(channel) });
    let mut state = enter();
    let done = state.shadow.destroy_channel(id);
    if done.is_ok() {
        state.shadow.host.channels.forget(id);
        // SAFETY: ours, and gone for the program.
        unsafe { hide(channel) };
    }
    code(done)
}

/// An event of a channel: which queue.
///
/// # Safety
/// One of ours.
unsafe fn take_event(channel: *mut Channel) -> Option<*mut Cq> {
    // SAFETY: the caller's promise.
    let id = ChannelId(unsafe { id_of(channel) });
    let mut state = enter();
    let cq = match state.shadow.host.channels.take(id) {
        Some(raised) => raised,
        None => {
            let real_one = state.shadow.real_channel(id)?;
            let (mut cq, mut cookie) = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: a channel that does not block.
            let answer = unsafe { (real().get_cq_event)(real_one.pointer(), &mut cq, &mut cookie) };
            if answer != 0 {
                return None;
            }
            // Real queues do not wait for the program.
            // SAFETY: as it came.
            unsafe { (real().ack_cq_events)(cq, 1) };
            CqId(number_in(cookie)?)
        }
    };
    state.shadow.has_event(cq);
    state.seen_cqs.get(&cq.0).map(|&seen| seen as *mut Cq)
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut Channel,
    cq: *mut *mut Cq,
    cq_context: *mut Pointer,
) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(channel) } {
        // SAFETY: as above.
        return unsafe { (real().get_cq_event)(channel, cq, cq_context) };
    }
    // SAFETY: ours.
    let front = unsafe { (*channel).fd };
    loop {
        // SAFETY: ours.
        if let Some(seen) = unsafe { take_event(channel) } {
            // SAFETY: the caller's, writable.
            unsafe { cq.write(seen) };
            // SAFETY: the queue that the program made.
            let context = unsafe { (*seen).cq_context };
            // SAFETY: the caller's, writable.
            unsafe { cq_context.write(context) };
            return 0;
        }
        if !wait_for(front) {
            set_errno(Errno(libc::EAGAIN));
            return -1;
        }
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(cq) } {
        // SAFETY: as above.
        unsafe { (real().ack_cq_events)(cq, count) };
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    cq_context: Pointer,
    channel: *mut Channel,
    vector: c_int,
) -> *mut Cq {
    // SAFETY: the caller's.
    if !unsafe { is_ours(context) } {
        // SAFETY: as above.
        return unsafe { (real().create_cq)(context, entries, cq_context, channel, vector) };
    }
    // SAFETY: ours.
    let of = unsafe { context_id(context) };
    // SAFETY: a channel of ours, or none.
    let on = (!channel.is_null()).then(|| ChannelId(unsafe { id_of(channel) }));
    let mut state = enter();
    let entries = u32::try_from(entries).map_err(|_| Errno::INVALID);
    let made = entries.and_then(|entries| state.shadow.create_cq(of, on, entries, vector as u32));
    match made {
        Ok((id, cqe)) => {
            let private = [0; 12];
            let cqe = cqe as c_int;
            let seen = Cq { context, channel, cq_context, handle: id.0, cqe, private };
            let seen = show(seen, id.0);
            state.seen_cqs.insert(id.0, seen as usize);
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
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut Cq, entries: c_int) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(cq) } {
        // SAFETY: as above.
        return unsafe { (real().resize_cq)(cq, entries) };
    }
    // SAFETY: ours.
    let id = CqId(unsafe { id_of(cq) });
    let done = enter().shadow.resize_cq(id, entries.max(1) as u32);
    code(done.map(|cqe| {
        // SAFETY: ours.
        unsafe { (*cq).cqe = cqe as c_int };
    }))
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(cq) } {
        // SAFETY: as above.
        return unsafe { (real().destroy_cq)(cq) };
    }
    // SAFETY: ours.
    let id = CqId(unsafe { id_of(cq) });
    let mut state = enter();
    let done = state.shadow.destroy_cq(id);
    if done.is_ok() {
        state.shadow.host.channels.forget_queue(id);
        state.seen_cqs.remove(&id.0);
        // SAFETY: ours, and gone for the program.
        unsafe { hide(cq) };
    }
    code(done)
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, init: *mut SrqInitAttr) -> *mut Srq {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().create_srq)(pd, init) };
    }
    // SAFETY: ours.
    let of = PdId(unsafe { id_of(pd) });
    // SAFETY: as above.
    let context = unsafe { (*pd).context };
    // SAFETY: the caller's.
    let init = unsafe { &mut *init };
    let mut state = enter();
    match state.shadow.create_srq(of, init.attr) {
        Ok((id, attr)) => {
            init.attr = attr;
            let srq_context = init.srq_context;
            let seen = Srq { context, srq_context, pd, handle: id.0, private: [0; 12] };
            let seen = show(seen, id.0);
            state.seen_srqs.insert(id.0, seen as usize);
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
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(srq) } {
        // SAFETY: as above.
        return unsafe { (real().modify_srq)(srq, attr, mask) };
    }
    // SAFETY: ours.
    let id = SrqId(unsafe { id_of(srq) });
    // SAFETY: the caller's.
    let attr = unsafe { &*attr };
    code(enter().shadow.modify_srq(id, attr, mask as u32))
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(srq) } {
        // SAFETY: as above.
        return unsafe { (real().query_srq)(srq, attr) };
    }
    // SAFETY: ours.
    let id = SrqId(unsafe { id_of(srq) });
    let found = enter().shadow.srq_attr(id).ok_or(Errno::INVALID);
    code(found.map(|found| {
        // SAFETY: the caller's, writable.
        unsafe { attr.write(found) };
    }))
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(srq) } {
        // SAFETY: as above.
        return unsafe { (real().destroy_srq)(srq) };
    }
    // SAFETY: ours.
    let id = SrqId(unsafe { id_of(srq) });
    let mut state = enter();
    let done = state.shadow.destroy_srq(id);
    if done.is_ok() {
        state.seen_srqs.remove(&id.0);
        // SAFETY: ours, and gone for the program.
        unsafe { hide(srq) };
    }
    code(done)
}
