//! The functions that change files, or ask about them, and that programs and their libraries call
//! by way of us: the entries in global offset tables are changed, and what later objects find
//! (docs/adr/0010, 0028).
//!
//! Of Open MPI's objects only those of MPI-IO: others keep their own state in files. The C
//! library's own calls (stdio) are not reached: see `streams`.

use crate::files::{descriptors, folders, names, reads, status, streams};
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::freeze::got::{self, Objects};

/// A function of the C library under all its names, which take and give the same.
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
pub(super) use stock;

/// Objects of Open MPI and of what it is built on: they have files of their own.
const NOT_THE_PROGRAMS: [&[u8]; 9] = [
    b"mca_",
    b"libmpi.",
    b"libopen-",
    b"libpmix",
    b"libprrte",
    b"libhwloc",
    b"libevent",
    b"libucs",
    b"libfabric",
];
/// Those of them that write to the program's files: MPI-IO, which is in components of its own, or
/// in the library (Open MPI 5.0). Other files of that library's are left out by their names.
const WRITE_FOR_IT: [&[u8]; 6] =
    [b"mca_io_", b"mca_fs_", b"mca_fbtl_", b"mca_fcoll_", b"mca_sharedfp_", b"libmpi."];

/// All of them, and the addresses of ours.
fn functions() -> Vec<(&'static Function, usize)> {
    let mut all = descriptors::functions();
    all.extend(folders::functions());
    all.extend(names::functions());
    all.extend(reads::functions());
    all.extend(status::functions());
    all.extend(streams::functions());
    all
}

/// In MPI_Init: from the next [`redirect`] on calls come here.
pub fn install() {
    for (function, own) in functions() {
        for (index, name) in function.names.iter().enumerate() {
            // SAFETY: looks up a name.
            let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if stock.is_null() || stock.addr() == own {
                continue;
            }
            if index == 0 {
                function.stock.store(stock.expose_provenance(), Ordering::Relaxed);
            }
            if function.stock() != 0 {
                // SAFETY: ours take and give what the C library's do, and are never unloaded.
                unsafe { got::redefine(name, stock.addr(), own) };
            }
        }
    }
}

/// Changes the entries of all objects that write to the program's files.
pub fn redirect() {
    let mut known = functions();
    known.retain(|(function, _)| function.stock() != 0);
    let (mut names, mut own) = (Vec::new(), Vec::new());
    for (function, address) in &known {
        for name in function.names {
            names.push(*name);
            own.push(*address);
        }
    }
    let not_in = [redirect as *const () as usize];
    let program = Objects { not_named: &NOT_THE_PROGRAMS, ..Objects::but(&not_in) };
    let io = Objects { named: &WRITE_FOR_IT, ..Objects::but(&not_in) };
    for objects in [program, io] {
        let mut found = Vec::new();
        got::find_entries(&names, &objects, &mut |entry| {
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
