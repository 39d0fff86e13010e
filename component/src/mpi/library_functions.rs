//! Functions of the C library that all objects of a process call by way of us: also Open MPI's,
//! which may be one object with us. (Those that only the program calls so: `interpose`.)
//!
//! Not reached: an address that the program has looked up before MPI_Init, system calls that are
//! made directly, and programs that are linked statically.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::freeze::got::{self, Objects};

/// One of them.
pub(super) struct Function {
    name: &'static CStr,
    /// Address of the C library's; 0: there is none.
    stock: AtomicUsize,
}

impl Function {
    /// The one with this name.
    pub(super) const fn of(name: &'static CStr) -> Self {
        Self { name, stock: AtomicUsize::new(0) }
    }

    /// The address of the C library's.
    pub(super) fn stock(&self) -> usize {
        self.stock.load(Ordering::Relaxed)
    }
}

/// Calls the C library's function.
macro_rules! stock {
    ($place:ident($($value:expr => $kind:ty),*) -> $result:ty) => {{
        type Stock = unsafe extern "C" fn($($kind),*) -> $result;
        let function: *const () = core::ptr::with_exposed_provenance($place.stock());
        // SAFETY: the address of the C library's function of that name, which takes these.
        let function: Stock = unsafe { core::mem::transmute(function) };
        // SAFETY: what the caller has promised to that function.
        unsafe { function($($value),*) }
    }};
}
pub(super) use stock;

/// Functions, and the addresses of ours, which take and give the same and are never unloaded. From
/// the next [`redirect`] on the program's calls come to ours, and those of objects that are loaded
/// later, and of who looks a function up.
pub(super) fn install(functions: &[(&'static Function, usize)]) {
    for (function, own) in functions {
        // SAFETY: looks up a name.
        let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.name.as_ptr()) };
        if stock.addr() != *own && !stock.is_null() {
            function.stock.store(stock.expose_provenance(), Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { got::redefine(function.name, stock.addr(), *own) };
        }
    }
}

/// Changes the entries of all objects that call these functions.
pub(super) fn redirect(functions: &[(&'static Function, usize)]) {
    let mut known = functions.to_vec();
    known.retain(|(function, _)| function.stock() != 0);
    let names: Vec<&CStr> = known.iter().map(|(function, _)| function.name).collect();
    let mut found = Vec::new();
    got::find_entries(&names, &Objects::default(), &mut |entry| {
        let at: *const usize = core::ptr::with_exposed_provenance(entry.address);
        // SAFETY: an entry of an object that stays loaded while it is looked at.
        if unsafe { at.read() } != known[entry.name].1 {
            found.push(entry);
        }
    });
    for entry in found {
        // SAFETY: as in `install`.
        unsafe { got::replace_entry(&entry, known[entry.name].1) };
    }
}
