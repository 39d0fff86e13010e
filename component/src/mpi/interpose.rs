//! Functions of MPI that are no functions of a PML, and that a protected program calls by way of
//! us: the entries in the global offset tables of the program and its libraries are changed.
//!
//! Not reached: objects that are loaded between two checkpoints, until the next one; a function
//! whose address was looked up (dlsym) or stored by the program.

use crate::ffi::table::Glue;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::freeze::got::{self, Objects};
use std::sync::OnceLock;

/// A function that is called by way of us.
pub struct InPlace {
    /// As MPI has it, and its second name, for tools that have their own of the first.
    names: [&'static CStr; 2],
    /// Which objects call ours.
    objects: Objects<'static>,
    /// Address of Open MPI's; 0: nobody is to call ours.
    stock: AtomicUsize,
    /// Address of ours.
    own: AtomicUsize,
}

/// `MPI_Wtime`: see `wtime`.
pub static WTIME: InPlace = InPlace::of([c"MPI_Wtime", c"PMPI_Wtime"]);
/// Those that C has: `MPI_Request_get_status`, which looks at requests and has no function in
/// `ompi_request_functions`, and what depends on files (`files`).
static OF_C: OnceLock<Vec<InPlace>> = OnceLock::new();

/// `time`: see `date`.
pub static TIME: InPlace = InPlace { objects: PROGRAMS, ..InPlace::of([c"time", c"time"]) };

/// The program and libraries that call MPI for it, and Fortran's.
const PROGRAMS: Objects<'_> = Objects {
    not_in: &[],
    not_named: &[b"mca_", b"libmpi.", b"libmpi_mpifh.", b"libmpi_usempi", b"libmpi_cxx."],
    named: &[b"libgfortran."],
    importing: &[b"MPI_", b"PMPI_", b"mpi_", b"pmpi_"],
};

/// Objects that were loaded and unloaded when the entries were changed last.
static SEEN: [AtomicUsize; 2] = [const { AtomicUsize::new(usize::MAX) }; 2];

impl InPlace {
    const fn of(names: [&'static CStr; 2]) -> Self {
        let objects = Objects::but(&[]);
        Self { names, objects, stock: AtomicUsize::new(0), own: AtomicUsize::new(0) }
    }

    /// Address of Open MPI's own; 0: ours is not called.
    pub fn stock(&self) -> usize {
        self.stock.load(Ordering::Relaxed)
    }

    /// Have ours called from the next [`redirect_new_objects`] on. Its address must be of a
    /// function that takes and gives what Open MPI's does, and calls that one.
    pub fn put(&self, stock: usize, own: usize) {
        self.own.store(own, Ordering::Relaxed);
        self.stock.store(stock, Ordering::Relaxed);
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
        unsafe { got::redirect(names, &Objects { not_in: &[own], ..self.objects }, own) };
    }
}

/// From the next [`redirect_new_objects`] on the program calls what C has by way of us.
pub fn install(glue: &Glue) {
    OF_C.get_or_init(|| {
        let mut all = Vec::new();
        let mut next = glue.interposed;
        // SAFETY: a table that lives as long as the process, and ends with an entry without name.
        while let Some(entry) = unsafe { next.as_ref() }.filter(|entry| !entry.name.is_null()) {
            // SAFETY: constants of C.
            let name = |name| unsafe { CStr::from_ptr(name) };
            let function = InPlace::of([name(entry.name), name(entry.second_name)]);
            function.put(entry.stock.expose_provenance(), entry.own.expose_provenance());
            all.push(function);
            next = next.wrapping_add(1);
        }
        all
    });
}

/// Objects may have been loaded since, or a function was [put](InPlace::put) in place.
pub fn redirect_new_objects() {
    let (loaded, unloaded) = got::loaded();
    let now = [loaded as usize, unloaded as usize];
    // Both are noted, whichever differs.
    let seen = [0, 1].map(|at| SEEN[at].swap(now[at], Ordering::Relaxed));
    if seen != now {
        let of_c = OF_C.get().into_iter().flatten();
        for function in [&WTIME, &TIME].into_iter().chain(of_c) {
            function.redirect();
        }
        crate::mpi::node_identity::redirect();
        crate::files::functions::redirect();
    }
}
