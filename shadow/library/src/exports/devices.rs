//! Devices, ports, asynchronous events.

use crate::abi::*;
use crate::channels::{close, front_of};
use crate::operations::*;
use crate::real::{name_of, real};
use crate::refused;
use crate::state::{async_fd, enter, is_asked};
use crate::system::number_in;
use core::ffi::{c_int, c_void};
use rustbtl_shadow::Errno;
use rustbtl_shadow::abi::*;

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    if !is_asked() {
        // SAFETY: the caller's.
        return unsafe { (real().open_device)(device) };
    }
    // SAFETY: the caller's.
    let name = unsafe { name_of(device) };
    let mut state = enter();
    let opened = state.shadow.open(&name);
    let made = opened.and_then(|id| {
        let real = state.shadow.real_context(id).ok_or(Errno::INVALID)?;
        let front = front_of(async_fd(real))?;
        // SAFETY: just opened.
        Ok((id, unsafe { seen_context(real.pointer(), id, front) }))
    });
    match made {
        Ok((id, seen)) => {
            let seen = Box::into_raw(seen);
            // SAFETY: just made; the context is its end.
            let context = unsafe { &raw mut (*seen).verbs.context };
            state.seen_contexts.insert(id.0, context as usize);
            crate::in_job::opened();
            context
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
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_ours(context) } {
        // SAFETY: as above.
        return unsafe { (real().close_device)(context) };
    }
    // SAFETY: ours.
    let id = unsafe { context_id(context) };
    let mut state = enter();
    if let Err(errno) = state.shadow.close(id) {
        return code(Err(errno));
    }
    state.seen_contexts.remove(&id.0);
    // SAFETY: ours.
    close(unsafe { (*context).async_fd });
    // What the program sees stays: it is small, and some look at it once more.
    0
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let answer = unsafe { (real().query_device)(real_one, attr) };
    if answer == 0 && real_one != context {
        // SAFETY: filled in.
        show_limits(unsafe { &mut *attr });
    }
    answer
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let answer = unsafe { (real().query_port)(real_one, port, attr) };
    if answer == 0 && real_one != context {
        // SAFETY: filled in, and ours.
        unsafe { show_lid(context, port, attr) };
    }
    answer
}

/// The GID that the program is to see.
///
/// # Safety
/// One of ours.
unsafe fn show_gid(context: *mut Context, port: u8, gid: &mut Gid) {
    // SAFETY: the caller's promise.
    let id = unsafe { context_id(context) };
    gid.0 = enter().shadow.virtual_gid(id, port, gid.0);
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let answer = unsafe { (real().query_gid)(real_one, port, index, gid) };
    if answer == 0 && real_one != context {
        // SAFETY: filled in, and ours.
        let gid = unsafe { &mut *gid };
        // SAFETY: ours.
        unsafe { show_gid(context, port, gid) };
    }
    answer
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let answer = unsafe { (real().query_gid_ex)(real_one, port, index, entry, flags, bytes) };
    if answer == 0 && real_one != context {
        // SAFETY: filled in, and ours.
        let gid = unsafe { &mut (*entry).gid };
        // SAFETY: ours.
        unsafe { show_gid(context, port as u8, gid) };
    }
    answer
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    most: usize,
    flags: u32,
    bytes: usize,
) -> isize {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    let count = unsafe { (real().query_gid_table)(real_one, entries, most, flags, bytes) };
    if real_one != context {
        for at in 0..count.max(0) as usize {
            // SAFETY: filled in; an entry has `bytes`.
            let entry = unsafe { entries.byte_add(at * bytes) };
            // SAFETY: as above.
            let entry = unsafe { &mut *entry };
            // SAFETY: ours.
            unsafe { show_gid(context, entry.port_num as u8, &mut entry.gid) };
        }
    }
    count
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    unsafe { (real().query_pkey)(real_one, port, index, pkey) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut Context, port: u8, pkey: u16) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    unsafe { (real().get_pkey_index)(real_one, port, pkey) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut Context,
    event: *mut AsyncEvent,
) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_ours(context) } {
        // SAFETY: as above.
        return unsafe { (real().get_async_event)(context, event) };
    }
    // SAFETY: ours.
    let front = unsafe { (*context).async_fd };
    loop {
        // SAFETY: ours, and writable.
        if unsafe { take_event(context, event) } {
            return 0;
        }
        if !wait_for(front) {
            set_errno(Errno(libc::EAGAIN));
            return -1;
        }
    }
}

/// Wait until a descriptor is readable, for a moment: it may be made again. False: the program does
/// not want to wait.
pub fn wait_for(fd: c_int) -> bool {
    const MOMENT_MS: c_int = 50;
    // SAFETY: a descriptor.
    if unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK != 0 {
        return false;
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, MOMENT_MS) };
    true
}

/// An event of the adapter, with the program's object in it. It is acknowledged at once: real
/// objects do not wait for the program.
///
/// # Safety
/// One of ours, and writable.
unsafe fn take_event(context: *mut Context, event: *mut AsyncEvent) -> bool {
    const CQ_ERR: c_int = 0;
    const QP_FIRST: c_int = 1;
    const QP_LAST: c_int = 7;
    const SRQ_ERR: c_int = 14;
    const SRQ_LIMIT_REACHED: c_int = 15;
    const QP_LAST_WQE_REACHED: c_int = 16;
    // SAFETY: ours.
    let id = unsafe { context_id(context) };
    let mut state = enter();
    let Some(real_one) = state.shadow.real_context(id) else { return false };
    let mut found = AsyncEvent { element: core::ptr::null_mut(), event_type: 0 };
    // SAFETY: an open context, whose descriptor does not block.
    if unsafe { (real().get_async_event)(real_one.pointer(), &mut found) } != 0 {
        return false;
    }
    let real_element = found.element;
    let (cookie, seen): (Pointer, _) = match found.event_type {
        // SAFETY: the real object; it cannot go while we hold the lock.
        CQ_ERR => (unsafe { (*real_element.cast::<Cq>()).cq_context }, Some(&state.seen_cqs)),
        QP_FIRST..=QP_LAST | QP_LAST_WQE_REACHED => {
            // SAFETY: as above.
            (unsafe { (*real_element.cast::<Qp>()).qp_context }, Some(&state.seen_qps))
        }
        SRQ_ERR | SRQ_LIMIT_REACHED => {
            // SAFETY: as above.
            (unsafe { (*real_element.cast::<Srq>()).srq_context }, Some(&state.seen_srqs))
        }
        // The number of a port, or nothing.
        _ => (core::ptr::null_mut(), None),
    };
    // SAFETY: as it came.
    unsafe { (real().ack_async_event)(&mut found) };
    let id = number_in(cookie);
    if let (Some(id), SRQ_LIMIT_REACHED) = (id, found.event_type) {
        let seen = state.seen_srqs.get(&id).copied();
        found.element = seen.map_or(core::ptr::null_mut(), |seen| seen as Pointer);
        state.shadow.srq_limit_reached(rustbtl_shadow::SrqId(id));
    } else if let Some(seen) = seen {
        let seen = id.and_then(|id| seen.get(&id).copied());
        found.element = seen.map_or(core::ptr::null_mut(), |seen| seen as Pointer);
    }
    let is_of_port = !(CQ_ERR..=QP_LAST).contains(&found.event_type)
        && !(SRQ_ERR..=QP_LAST_WQE_REACHED).contains(&found.event_type);
    if found.element.is_null() && !is_of_port {
        // Its object is gone.
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { event.write(found) };
    true
}

/// Events of ours were acknowledged when they came. Only contexts of others hand out others.
///
/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    if !is_asked() {
        // SAFETY: the caller's.
        unsafe { (real().ack_async_event)(event) };
    }
}

/// Functions that are refused; where nothing is shadowed, the next library's is called.
macro_rules! refused_functions {
    ($($what:ident: $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $no:expr;)+) => { $(
        /// # Safety
        /// As its library says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            if !is_asked() {
                let symbol = concat!(stringify!($name), "\0").as_ptr().cast();
                // SAFETY: a C string.
                let next = unsafe { libc::dlsym(libc::RTLD_NEXT, symbol) };
                if !next.is_null() {
                    type Call = unsafe extern "C" fn($($type),*) -> $result;
                    // SAFETY: the function of this name has this type.
                    let next = unsafe { core::mem::transmute::<*mut c_void, Call>(next) };
                    // SAFETY: the caller's.
                    return unsafe { next($($argument),*) };
                }
            }
            set_errno(refused::refuse(refused::$what));
            $no
        }
    )+ };
}

// Without those of mlx5dv libmlx5 would take our contexts for its own. Programs that find a device
// not supported use plain verbs.
refused_functions! {
    import: ibv_import_device(fd: c_int) -> *mut Context = core::ptr::null_mut();
    mlx5dv: mlx5dv_is_supported(device: *mut Device) -> bool = false;
    mlx5dv: mlx5dv_open_device(device: *mut Device, attr: Pointer) -> *mut Context =
        core::ptr::null_mut();
    mlx5dv: mlx5dv_query_device(context: *mut Context, attr: Pointer) -> c_int =
        libc::EOPNOTSUPP;
    mlx5dv: mlx5dv_init_obj(object: Pointer, kind: u64) -> c_int = libc::EOPNOTSUPP;
    mlx5dv: mlx5dv_create_qp(context: *mut Context, attr: Pointer, more: Pointer) -> *mut Qp =
        core::ptr::null_mut();
    mlx5dv: mlx5dv_create_cq(context: *mut Context, attr: Pointer, more: Pointer) -> Pointer =
        core::ptr::null_mut();
}
