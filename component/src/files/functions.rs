//! The functions that change files, or ask about them, and that programs and their libraries call
//! by way of us: the entries in global offset tables are changed, and what later objects find
//! (docs/adr/0010, 0028).
//!
//! Of Open MPI's objects only those of MPI-IO: others keep their own state in files. The C
//! library's own calls (stdio) are not reached: see `streams`.

use crate::files::{descriptors, folders, names, reads, status, streams};
use crate::os::library_function;
pub use crate::os::library_function::Function;
pub(super) use crate::os::library_function::stock;
use rustbtl_process::freeze::got::Objects;

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
    library_function::install(&functions());
}

/// Changes the entries of all objects that write to the program's files.
pub fn redirect() {
    let not_in = [redirect as *const () as usize];
    let program = Objects { not_named: &NOT_THE_PROGRAMS, ..Objects::but(&not_in) };
    let io = Objects { named: &WRITE_FOR_IT, ..Objects::but(&not_in) };
    library_function::redirect(&functions(), &[program, io]);
}
