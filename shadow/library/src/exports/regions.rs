//! Protection domains, registered memory, addresses.

use crate::abi::*;
use crate::operations::*;
use crate::real::{real, symbol};
use crate::refused;
use crate::state::{enter, hide, id_of, show};
use core::ffi::{c_int, c_uint, c_void};
use rustbtl_shadow::abi::*;
use rustbtl_shadow::{AhId, Errno, PdId, RegionId, RegionSpec};

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: the caller's.
    if !unsafe { is_ours(context) } {
        // SAFETY: as above.
        return unsafe { (real().alloc_pd)(context) };
    }
    // SAFETY: ours.
    let of = unsafe { context_id(context) };
    match enter().shadow.alloc_pd(of) {
        Ok(id) => show(Pd { context, handle: id.0 }, id.0),
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().dealloc_pd)(pd) };
    }
    // SAFETY: ours.
    let id = PdId(unsafe { id_of(pd) });
    let done = enter().shadow.dealloc_pd(id);
    if done.is_ok() {
        // SAFETY: ours, and gone for the program.
        unsafe { hide(pd) };
    }
    code(done)
}

/// # Safety
/// A domain of ours.
unsafe fn register(pd: *mut Pd, spec: RegionSpec) -> *mut Mr {
    // SAFETY: the caller's promise.
    let id = PdId(unsafe { id_of(pd) });
    // SAFETY: as above.
    let context = unsafe { (*pd).context };
    match enter().shadow.register(id, spec) {
        Ok((id, keys)) => {
            let seen = Mr {
                context,
                pd,
                addr: spec.start as Pointer,
                length: spec.bytes as usize,
                handle: id.0,
                lkey: keys.local,
                rkey: keys.remote,
            };
            show(seen, id.0)
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
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    start: Pointer,
    bytes: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().reg_mr)(pd, start, bytes, access) };
    }
    let (start, bytes, access) = (start as u64, bytes as u64, access as u32);
    // SAFETY: ours.
    unsafe { register(pd, RegionSpec { start, bytes, iova: None, access }) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    start: Pointer,
    bytes: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().reg_mr_iova2)(pd, start, bytes, iova, access) };
    }
    let iova = (iova != start as u64).then_some(iova);
    // SAFETY: ours.
    unsafe { register(pd, RegionSpec { start: start as u64, bytes: bytes as u64, iova, access }) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    start: Pointer,
    bytes: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the caller's.
    unsafe { ibv_reg_mr_iova2(pd, start, bytes, iova, access as c_uint) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        let next = symbol(c"ibv_reg_dmabuf_mr");
        if next.is_null() {
            set_errno(Errno::UNSUPPORTED);
            return core::ptr::null_mut();
        }
        type Call = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
        // SAFETY: the function of this name has this type.
        let next = unsafe { core::mem::transmute::<*mut c_void, Call>(next) };
        // SAFETY: the caller's.
        return unsafe { next(pd, offset, bytes, iova, fd, access) };
    }
    set_errno(refused::refuse(refused::dmabuf));
    core::ptr::null_mut()
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    start: Pointer,
    bytes: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(mr) } {
        // SAFETY: as above.
        return unsafe { (real().rereg_mr)(mr, flags, pd, start, bytes, access) };
    }
    const BAD_ARGUMENT: c_int = -1;
    set_errno(refused::refuse(refused::rereg));
    BAD_ARGUMENT
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(mr) } {
        // SAFETY: as above.
        return unsafe { (real().dereg_mr)(mr) };
    }
    // SAFETY: ours.
    let id = RegionId(unsafe { id_of(mr) });
    let done = enter().shadow.deregister(id);
    if done.is_ok() {
        // SAFETY: ours, and gone for the program.
        unsafe { hide(mr) };
    }
    code(done)
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(pd) } {
        // SAFETY: as above.
        return unsafe { (real().create_ah)(pd, attr) };
    }
    // SAFETY: ours.
    let id = PdId(unsafe { id_of(pd) });
    // SAFETY: as above.
    let context = unsafe { (*pd).context };
    // SAFETY: the caller's.
    let attr = unsafe { *attr };
    match enter().shadow.create_ah(id, attr) {
        Ok(id) => show(Ah { context, pd, handle: id.0 }, id.0),
        Err(errno) => {
            set_errno(errno);
            core::ptr::null_mut()
        }
    }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut Context,
    port: u8,
    completion: *mut Completion,
    grh: Pointer,
    attr: *mut AhAttr,
) -> c_int {
    // SAFETY: the caller's.
    let real_one = unsafe { real_context(context) };
    // SAFETY: as above.
    unsafe { (real().init_ah_from_wc)(real_one, port, completion, grh, attr) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut Pd,
    completion: *mut Completion,
    grh: Pointer,
    port: u8,
) -> *mut Ah {
    let mut attr = AhAttr::default();
    // SAFETY: the caller's.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    if unsafe { ibv_init_ah_from_wc(context, port, completion, grh, &mut attr) } != 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { ibv_create_ah(pd, &mut attr) }
}

/// # Safety
/// As libibverbs says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: the caller's.
    if !unsafe { is_of_ours(ah) } {
        // SAFETY: as above.
        return unsafe { (real().destroy_ah)(ah) };
    }
    // SAFETY: ours.
    let id = AhId(unsafe { id_of(ah) });
    let done = enter().shadow.destroy_ah(id);
    if done.is_ok() {
        // SAFETY: ours, and gone for the program.
        unsafe { hide(ah) };
    }
    code(done)
}
