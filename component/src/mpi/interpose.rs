//! Functions of MPI that are no functions of a PML, and that a protected program calls by way of
//! us: the entries in the global offset tables of the program and its libraries are changed.
//!
//! Not reached: objects that are loaded between two checkpoints, until the next one; a function
//! whose address was looked up (dlsym) or stored by the program. Those of [`Source`] that are for
//! later are found there, too.

use crate::ffi::table::Glue;
use crate::mpi::{node_identity, system_v};
use crate::os::library_function;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustbtl_process::freeze::got::{self, GotEntry, Objects};
use std::collections::BTreeSet;
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
    named: &[b"libgfortran.", CXX_LIBRARY],
    importing: &[b"MPI_", b"PMPI_", b"mpi_", b"pmpi_", b"Py", b"_Py"],
    holding: &[],
};
const CXX_LIBRARY: &[u8] = b"libstdc++.";

/// Which objects call a function by way of us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callers {
    /// The program, libraries that call MPI for it, and those of its language.
    Programs,
    /// The same, but C++'s library.
    ProgramsButCxx,
    /// C++'s library.
    CxxLibrary,
}

impl Callers {
    const ALL: [Self; 3] = [Self::Programs, Self::ProgramsButCxx, Self::CxxLibrary];

    fn objects(self) -> Objects<'static> {
        match self {
            Self::Programs => PROGRAMS,
            Self::ProgramsButCxx => Objects { named: &[b"libgfortran."], ..PROGRAMS },
            Self::CxxLibrary => Objects { named: &[CXX_LIBRARY], ..Objects::but(&[]) },
        }
    }
}

/// A function of a library on which what the program does depends.
#[derive(Clone, Copy)]
pub struct Source {
    /// Its name.
    pub name: &'static CStr,
    /// Address of ours, which takes and gives what the library's does.
    pub own: usize,
    /// Who calls ours.
    pub callers: Callers,
    /// Objects that are loaded later, and who looks it up (dlsym), find ours, too. Others, Open
    /// MPI's among them, are made to call the library's.
    pub is_for_later: bool,
    /// Address of the library's.
    stock: usize,
}

impl Source {
    /// Called by [`Callers::Programs`].
    pub fn of(name: &'static CStr, own: *const ()) -> Self {
        let own = own.expose_provenance();
        Self { name, own, callers: Callers::Programs, is_for_later: false, stock: 0 }
    }

    /// The same, also found by who is loaded later.
    pub fn and_later(self) -> Self {
        Self { is_for_later: true, ..self }
    }

    /// The same, called by others.
    pub fn called_by(self, callers: Callers) -> Self {
        Self { callers, ..self }
    }
}

/// All of them that there are.
static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();

/// From the next [`redirect_new_objects`] on these are called by way of us. Once.
pub fn put_sources(sources: impl IntoIterator<Item = Source>) {
    SOURCES.get_or_init(|| {
        let known = sources.into_iter().map(|source| {
            // SAFETY: looks up a name.
            let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, source.name.as_ptr()) };
            Source { stock: stock.expose_provenance(), ..source }
        });
        // Not all versions of the C library have all; C++'s may be loaded later.
        known.filter(|source| source.stock != 0 || !source.is_for_later).collect()
    });
}

/// Are there any?
pub fn has_sources() -> bool {
    SOURCES.get().is_some()
}

/// The interpreter, which is no object that calls MPI; 0: the program is none of Python's.
fn python() -> usize {
    // SAFETY: looks up a name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr()) }.addr()
}

fn redirect_sources(sources: &[Source]) {
    let (own, python) = ([redirect_sources as *const () as usize], [python()]);
    let mut done = BTreeSet::new();
    // SAFETY: a function of that name, or the promise of `Source::own`.
    let set = |entry: &GotEntry, function: usize| unsafe { set(entry, function) };
    for callers in Callers::ALL {
        let those: Vec<&Source> = sources.iter().filter(|of| of.callers == callers).collect();
        let names: Vec<&CStr> = those.iter().map(|source| source.name).collect();
        let objects = Objects { not_in: &own, holding: &python, ..callers.objects() };
        let objects = if callers == Callers::CxxLibrary {
            Objects { holding: &[], ..objects }
        } else {
            objects
        };
        let mut found = Vec::new();
        got::find_entries(&names, &objects, &mut |entry| found.push(entry));
        for entry in found {
            set(&entry, those[entry.name].own);
            done.insert(entry.address);
        }
    }
    let later: Vec<&Source> = sources.iter().filter(|source| source.is_for_later).collect();
    let names: Vec<&CStr> = later.iter().map(|source| source.name).collect();
    let mut others = Vec::new();
    got::find_entries(&names, &Objects::default(), &mut |entry| others.push(entry));
    for entry in others.iter().filter(|entry| !done.contains(&entry.address)) {
        set(entry, later[entry.name].stock);
    }
    // Whoever is bound from now on is bound to ours: those who are not to be, were before.
    for source in later {
        // SAFETY: the promise of `Source::own`; nothing of us is ever unloaded.
        unsafe { got::redefine(source.name, source.stock, source.own) };
    }
}

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

    /// What callers of it have in their tables: all its names that are not somebody else's.
    fn names(&self) -> &[&'static CStr] {
        // SAFETY: looks up a name.
        let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.names[0].as_ptr()) }.addr();
        // A tool that measures has its own MPI_Wtime, and calls Open MPI's by its second name.
        if known == self.stock() { &self.names } else { &self.names[1..] }
    }

    /// Do the same objects call ours?
    fn has_callers_of(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.objects.named, of.objects.importing);
        key(self) == key(other)
    }

    /// Functions with the same callers are searched for at once: each search goes through all that
    /// all objects import, and holds up the program.
    fn redirect(those: &[&Self]) {
        let Some(objects) = those.first().map(|function| function.objects) else { return };
        let owns: Vec<usize> = those.iter().map(|one| one.own.load(Ordering::Relaxed)).collect();
        let names = those.iter().zip(&owns);
        let (names, own): (Vec<&CStr>, Vec<usize>) =
            names.flat_map(|(one, own)| one.names().iter().map(|name| (*name, *own))).unzip();
        let holding = [python()];
        let holding = if objects.importing.is_empty() { &holding[..0] } else { &holding };
        let objects = Objects { not_in: &owns, holding, ..objects };
        let mut found = Vec::new();
        got::find_entries(&names, &objects, &mut |entry| found.push(entry));
        // SAFETY: the promise of `put`.
        found.iter().for_each(|entry| unsafe { set(entry, own[entry.name]) });
    }
}

/// Has an object call this function, if it does not yet.
///
/// # Safety
/// As for [`got::replace_entry`].
unsafe fn set(entry: &GotEntry, function: usize) {
    let at: *const usize = core::ptr::with_exposed_provenance(entry.address);
    // SAFETY: an entry of an object that stays loaded while it is looked at.
    if unsafe { at.read() } != function {
        // SAFETY: the caller's promise.
        unsafe { got::replace_entry(entry, function) };
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
        let mut functions: Vec<&InPlace> = [&WTIME, &TIME].into_iter().chain(of_c).collect();
        functions.retain(|function| function.stock() != 0);
        while let Some(first) = functions.first().copied() {
            let (same, others) = functions.iter().partition(|one| one.has_callers_of(first));
            functions = others;
            InPlace::redirect(Vec::as_slice(&same));
        }
        let of_all = [&node_identity::functions()[..], &system_v::functions()[..]].concat();
        library_function::redirect(&of_all, &[Objects::default()]);
        crate::files::functions::redirect();
        // Those that open files call those of `files`: they come before them.
        if let Some(sources) = SOURCES.get() {
            redirect_sources(sources);
        }
    }
}
