//! Functions of the C library that others call by way of us: the entries in the tables of loaded
//! objects are changed, and what later objects find, or who looks a function up.
//!
//! Not reached: an address that the program has looked up before MPI_Init, system calls that are
//! made directly, and programs that are linked statically.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::freeze::got::{self, Objects};

/// A function of the C library under all its names, which take and give the same.
#[derive(Debug)]
pub struct Function {
    names: &'static [&'static CStr],
    /// Address of what is called for the first name; 0: there is none.
    stock: AtomicUsize,
}

impl Function {
    /// One with these names.
    pub const fn of(names: &'static [&'static CStr]) -> Self {
        Self { names, stock: AtomicUsize::new(0) }
    }

    /// Address of the C library's, or of a tool's.
    pub fn stock(&self) -> usize {
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
pub(crate) use stock;

/// Functions, and the addresses of ours, which take and give the same and are never unloaded. From
/// the next [`redirect`] on calls come to ours, and those of objects that are loaded later, and of
/// who looks a function up.
pub fn install(functions: &[(&'static Function, usize)]) {
    for (function, own) in functions {
        for (index, name) in function.names.iter().enumerate() {
            // SAFETY: looks up a name.
            let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if stock.is_null() || stock.addr() == *own {
                continue;
            }
            if index == 0 {
                function.stock.store(stock.expose_provenance(), Ordering::Relaxed);
            }
            if function.stock() != 0 {
                // SAFETY: the caller's promise.
                unsafe { got::redefine(name, stock.addr(), *own) };
            }
        }
    }
}

/// Changes the entries of these objects, where they call these functions.
pub fn redirect(functions: &[(&'static Function, usize)], objects: &[Objects<'_>]) {
    let known = functions.iter().filter(|(function, _)| function.stock() != 0);
    let all = known.flat_map(|&(function, own)| function.names.iter().map(move |&n| (n, own)));
    let (names, own): (Vec<&CStr>, Vec<usize>) = all.unzip();
    for objects in objects {
        let mut found = Vec::new();
        got::find_entries(&names, objects, &mut |entry| {
            let at: *const usize = core::ptr::with_exposed_provenance(entry.address);
            // SAFETY: an entry of an object that stays loaded while it is looked at.
            if unsafe { at.read() } != own[entry.name] {
                found.push(entry);
            }
        });
        for entry in found {
            // SAFETY: as in `install`.
            unsafe { got::replace_entry(&entry, own[entry.name]) };
        }
    }
}
