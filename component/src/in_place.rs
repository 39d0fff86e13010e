//! Functions of MPI that are no functions of a PML, and that a protected program calls by way of
//! us: the entries in the global offset tables of the program and its libraries are changed.
//!
//! Not reached: objects that are loaded between two lines, until the next one; a function whose
//! address was looked up (dlsym) or stored by the program.

use crate::glue::Glue;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::inside::got;

/// A function that is called by way of us.
pub struct InPlace {
    /// As MPI has it, and its second name, for tools that have their own of the first.
    names: [&'static CStr; 2],
    /// Address of Open MPI's; 0: nobody is to call ours.
    stock: AtomicUsize,
    /// Address of ours.
    own: AtomicUsize,
}

/// `MPI_Wtime`: see `wtime`.
pub static WTIME: InPlace = InPlace::of([c"MPI_Wtime", c"PMPI_Wtime"]);
/// `MPI_Request_get_status`: looks at requests, and has no function in `ompi_request_functions`.
static GET_STATUS: InPlace = InPlace::of([c"MPI_Request_get_status", c"PMPI_Request_get_status"]);

/// Objects that were loaded and unloaded when the entries were changed last.
static SEEN: [AtomicUsize; 2] = [const { AtomicUsize::new(usize::MAX) }; 2];

impl InPlace {
    const fn of(names: [&'static CStr; 2]) -> Self {
        Self { names, stock: AtomicUsize::new(0), own: AtomicUsize::new(0) }
    }

    /// Address of Open MPI's own; 0: ours is not called.
    pub fn stock(&self) -> usize {
        self.stock.load(Ordering::Relaxed)
    }

    /// Have ours called. Its address must be of a function that takes and gives what Open MPI's
    /// does, and calls that one.
    pub fn put(&self, stock: usize, own: usize) {
        self.own.store(own, Ordering::Relaxed);
        self.stock.store(stock, Ordering::Relaxed);
        self.redirect();
    }

    fn redirect(&self) {
        let (stock, own) = (self.stock(), self.own.load(Ordering::Relaxed));
        if stock == 0 {
            return;
        }
        // SAFETY: looks up a name.
        let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.names[0].as_ptr()) }.addr();
        // A tool that measures has its own MPI_Wtime, and calls Open MPI's by its second name.
        let names = if known == stock { &self.names[..] } else { &self.names[1..] };
        // SAFETY: the promise of `put`.
        unsafe { got::redirect(names, &[own], own) };
    }
}

/// From now on the program's calls of `MPI_Request_get_status` are recorded.
pub fn install(glue: &Glue) {
    let address = |function: *const ()| function.expose_provenance();
    let stock = address(glue.stock_get_status as *const ());
    GET_STATUS.put(stock, address(glue.get_status as *const ()));
}

/// Objects may have been loaded since.
pub fn look_again() {
    let (loaded, unloaded) = got::loaded();
    let now = [loaded as usize, unloaded as usize];
    if SEEN.iter().zip(now).all(|(seen, now)| seen.swap(now, Ordering::Relaxed) == now) {
        return;
    }
    for function in [&WTIME, &GET_STATUS] {
        function.redirect();
    }
}
