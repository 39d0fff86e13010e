//! The real libibverbs, opened at run time. Its functions are found in the library itself, not by
//! the order of loading: in some programs it is not in the global scope.

use crate::abi::*;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use rustbtl_shadow::abi::*;
use std::sync::OnceLock;

const LIBRARY: &CStr = c"libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// Functions of libibverbs.
        #[allow(missing_docs, reason = "named as in C")]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Functions {
            fn find(symbol: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static CStr> {
                $(
                    let $name = symbol($symbol);
                    if $name.is_null() {
                        return Err($symbol);
                    }
                )+
                Ok(Self {
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
    open_device: c"ibv_open_device", fn(*mut Device) -> *mut Context;
    close_device: c"ibv_close_device", fn(*mut Context) -> c_int;
    query_device: c"ibv_query_device", fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: c"ibv_query_port", fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: c"ibv_query_gid", fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    query_pkey: c"ibv_query_pkey", fn(*mut Context, u8, c_int, *mut u16) -> c_int;
    get_pkey_index: c"ibv_get_pkey_index", fn(*mut Context, u8, u16) -> c_int;
    query_gid_ex:
        c"_ibv_query_gid_ex", fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    query_gid_table:
        c"_ibv_query_gid_table", fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    get_async_event: c"ibv_get_async_event", fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: c"ibv_ack_async_event", fn(*mut AsyncEvent);
    alloc_pd: c"ibv_alloc_pd", fn(*mut Context) -> *mut Pd;
    dealloc_pd: c"ibv_dealloc_pd", fn(*mut Pd) -> c_int;
    reg_mr: c"ibv_reg_mr", fn(*mut Pd, Pointer, usize, c_int) -> *mut Mr;
    reg_mr_iova2: c"ibv_reg_mr_iova2", fn(*mut Pd, Pointer, usize, u64, c_uint) -> *mut Mr;
    dereg_mr: c"ibv_dereg_mr", fn(*mut Mr) -> c_int;
    rereg_mr:
        c"ibv_rereg_mr", fn(*mut Mr, c_int, *mut Pd, Pointer, usize, c_int) -> c_int;
    create_ah: c"ibv_create_ah", fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah: c"ibv_destroy_ah", fn(*mut Ah) -> c_int;
    init_ah_from_wc:
        c"ibv_init_ah_from_wc",
        fn(*mut Context, u8, *mut Completion, Pointer, *mut AhAttr) -> c_int;
    create_comp_channel: c"ibv_create_comp_channel", fn(*mut Context) -> *mut Channel;
    destroy_comp_channel: c"ibv_destroy_comp_channel", fn(*mut Channel) -> c_int;
    get_cq_event: c"ibv_get_cq_event", fn(*mut Channel, *mut *mut Cq, *mut Pointer) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events", fn(*mut Cq, c_uint);
    create_cq:
        c"ibv_create_cq", fn(*mut Context, c_int, Pointer, *mut Channel, c_int) -> *mut Cq;
    resize_cq: c"ibv_resize_cq", fn(*mut Cq, c_int) -> c_int;
    destroy_cq: c"ibv_destroy_cq", fn(*mut Cq) -> c_int;
    create_srq: c"ibv_create_srq", fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    modify_srq: c"ibv_modify_srq", fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
    query_srq: c"ibv_query_srq", fn(*mut Srq, *mut SrqAttr) -> c_int;
    destroy_srq: c"ibv_destroy_srq", fn(*mut Srq) -> c_int;
    create_qp: c"ibv_create_qp", fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp: c"ibv_modify_qp", fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    query_qp: c"ibv_query_qp", fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    destroy_qp: c"ibv_destroy_qp", fn(*mut Qp) -> c_int;
    attach_mcast: c"ibv_attach_mcast", fn(*mut Qp, *const Gid, u16) -> c_int;
    detach_mcast: c"ibv_detach_mcast", fn(*mut Qp, *const Gid, u16) -> c_int;
    qp_to_qp_ex: c"ibv_qp_to_qp_ex", fn(*mut Qp) -> Pointer;
    query_ece: c"ibv_query_ece", fn(*mut Qp, Pointer) -> c_int;
    set_ece: c"ibv_set_ece", fn(*mut Qp, Pointer) -> c_int;
}

/// The library's functions. Where it cannot be opened, the process ends: the program was linked
/// with it.
pub fn real() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(|| match Functions::find(symbol) {
        Ok(functions) => functions,
        Err(name) => give_up(&format!("libibverbs has no {}", name.to_string_lossy())),
    })
}

/// A function of the library, of which not each has all. Null: this one has it not.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; the library's initialisers do nothing that could harm.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        give_up("libibverbs.so.1 cannot be loaded");
    }
    // SAFETY: the library is open, and is never closed.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Say what is wrong, and end the process.
pub fn give_up(why: &str) -> ! {
    eprintln!("rustbtl: shadow verbs: {why}");
    // The program can do nothing about it, and its state must not be lost in an unwinding.
    std::process::abort()
}

/// The name of an adapter.
///
/// # Safety
/// An entry of libibverbs' list.
pub unsafe fn name_of(device: *mut Device) -> String {
    // SAFETY: the caller's promise.
    let name = unsafe { &raw const (*device).name };
    // SAFETY: names are C strings.
    let name = unsafe { CStr::from_ptr(name.cast::<c_char>()) };
    name.to_string_lossy().into_owned()
}

/// The extensions of a context. None: it has none.
///
/// # Safety
/// A context of libibverbs.
pub unsafe fn extensions(context: *mut Context) -> Option<*mut VerbsContext> {
    const IS_EXTENDED: usize = usize::MAX;
    // SAFETY: the caller's promise.
    let compat = unsafe { (*context).abi_compat };
    let before = core::mem::offset_of!(VerbsContext, context);
    // SAFETY: a context that says so is the end of such a structure.
    (compat as usize == IS_EXTENDED).then(|| unsafe { context.byte_sub(before) }.cast())
}
