//! Clocks and random numbers that a program takes from the processor itself (rdtsc, rdrand): they
//! cannot be recorded. Where `verbose` is 1 or more, rank 0 says once which files have such code:
//! the program, libraries that it needs, those that call MPI, modules of Python (docs/adr/0029).
//!
//! The C library, its loader, Open MPI and the libraries of languages have such code, too, which is
//! no source of the program's: they are left out. What is loaded later is looked through before the
//! next snapshot.

use crate::ffi::table::Glue;
use crate::ffi::verbose;
use crate::os::x86_code::{self, Found};
use rustbtl_process::freeze::got;
use rustbtl_process::freeze::loaded_code::{Known, visit_own_code};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

/// Libraries of the system, of MPI and of languages: names of their files begin so.
const NOT_THE_PROGRAMS: &[&[u8]] = &[
    b"ld-linux",
    b"linux-vdso",
    b"libc.",
    b"libdl.",
    b"libgcc_s.",
    b"libgfortran.",
    b"libgomp.",
    b"libm.",
    b"libmpi.",
    b"libmpi_cxx.",
    b"libmpi_mpifh.",
    b"libmpi_usempi",
    b"libmvec.",
    b"libopen-",
    b"libpmix.",
    b"libpthread.",
    b"libquadmath.",
    b"librt.",
    b"librustbtl",
    b"libstdc++.",
    b"mca_",
];

/// Calls MPI, or is a module of Python.
fn is_the_programs(object: &Known) -> bool {
    let contains = |text: &[u8]| object.path.windows(text.len()).any(|part| part == text);
    object.needs.iter().any(|name| name.starts_with(b"libmpi"))
        || contains(b".cpython-")
        || contains(b".abi3.so")
}

/// What was looked through, by its path.
#[derive(Debug)]
struct Looked {
    loaded: (u64, u64),
    program: Option<PathBuf>,
    files: BTreeMap<Vec<u8>, Found>,
}

static LOOKED: Mutex<Looked> =
    Mutex::new(Looked { loaded: (0, 0), program: None, files: BTreeMap::new() });

impl Looked {
    /// New files that have such code.
    fn look(&mut self) -> Vec<(Vec<u8>, Found)> {
        let now = got::loaded();
        if core::mem::replace(&mut self.loaded, now) == now {
            return Vec::new();
        }
        let mut new = BTreeMap::<Vec<u8>, Found>::new();
        visit_own_code(NOT_THE_PROGRAMS, is_the_programs, &mut |path, code| {
            if !self.files.contains_key(path) {
                let found = new.entry(path.to_vec()).or_default();
                *found = found.with(x86_code::find(code));
            }
        });
        self.files.extend(new.iter().map(|(path, found)| (path.clone(), *found)));
        new.into_iter().filter(|(_, found)| found.any()).collect()
    }
}

fn text(file: &str, found: Found) -> String {
    let what = match (found.counter, found.random) {
        (true, true) => {
            "reads the processor's counter (rdtsc) and draws its random numbers (rdrand)"
        }
        (true, false) => "reads the processor's counter (rdtsc)",
        _ => "draws the processor's random numbers (rdrand)",
    };
    format!("code of {file} {what}: that cannot be recorded, and may differ after a rollback")
}

/// Says what is new since the last time.
pub fn note(glue: &Glue, rank: u32) {
    if rank != 0 || !verbose::is_said(verbose::NOTICE) {
        return;
    }
    let mut looked = LOOKED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if looked.program.is_none() {
        // A restored process has another one.
        looked.program = std::env::current_exe().ok();
    }
    for (path, found) in looked.look() {
        let program = looked.program.as_ref().filter(|_| path.is_empty());
        let file = program.map_or_else(
            || String::from_utf8_lossy(&path).into_owned(),
            |program| program.display().to_string(),
        );
        glue.verbose(verbose::NOTICE, || text(&file, found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_looked_through_once() {
        let mut looked = Looked { loaded: (0, 0), program: None, files: BTreeMap::new() };
        // This program reads the counter (`os::ticks`).
        let found = looked.look();
        assert!(found.iter().any(|(path, found)| path.is_empty() && found.counter), "{found:?}");
        assert!(looked.files.keys().all(|path| !path.ends_with(b"libc.so.6")));
        assert_eq!(looked.look(), []);
        looked.loaded = (0, 0);
        assert_eq!(looked.look(), []);
    }

    #[test]
    fn what_is_said_names_the_file_and_what_it_does() {
        for (counter, random, words) in
            [(true, false, "rdtsc"), (false, true, "rdrand"), (true, true, "rdrand")]
        {
            let text = text("a.so", Found { counter, random });
            assert!(text.contains("a.so") && text.contains(words), "{text}");
        }
    }
}
