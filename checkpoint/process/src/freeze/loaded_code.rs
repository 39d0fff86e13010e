//! The code of the objects of this process that are a program's own: the program, the libraries
//! that it names (DT_NEEDED), those that these name, and so on; without the libraries of the system
//! and of languages, and what these name.
//!
//! Source: System V ABI (dynamic linking); dl_iterate_phdr(3).

use super::got::{DT_STRTAB, Dynamics, LibcNote, headers, note_of, table};
use core::ffi::{CStr, c_int, c_void};
use std::collections::BTreeSet;

const DT_NEEDED: i64 = 1;
const DT_SONAME: i64 = 14;
const READ_AND_RUN: u32 = libc::PF_R | libc::PF_X;

/// What is known of an object.
pub struct Known {
    /// Its file; empty: the program.
    pub path: Vec<u8>,
    /// The name by which others need it.
    pub name: Vec<u8>,
    /// The names of those that it needs.
    pub needs: Vec<Vec<u8>>,
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn path(info: &libc::dl_phdr_info) -> &[u8] {
    if info.dlpi_name.is_null() {
        return b"";
    }
    // SAFETY: a name that the dynamic linker keeps while the object is loaded.
    unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
}

fn visit(each: &mut dyn FnMut(&libc::dl_phdr_info)) {
    type Each<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info);
    extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library gives a valid structure.
        let info = unsafe { &*info };
        // SAFETY: our own, given below.
        let each = unsafe { &mut *data.cast::<Each<'_>>() };
        each(info);
        0
    }
    let (mut each, note): (Each<'_>, LibcNote) = (each, note_of(note));
    // SAFETY: the function fits the data, which lives.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut each).cast()) };
}

/// None: the kernel's own object, whose table has no addresses.
fn known(info: &libc::dl_phdr_info) -> Option<Known> {
    let headers = headers(info);
    let dynamic = Dynamics::of(info, headers)?;
    let names = dynamic.address(DT_STRTAB);
    let base = info.dlpi_addr as usize;
    let has = |header: &&libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&names)
    };
    let text = |entry: &super::got::Dynamic| {
        let at = core::ptr::with_exposed_provenance(names + entry.value as usize);
        // SAFETY: names in an object's table end with 0.
        unsafe { CStr::from_ptr(at) }.to_bytes().to_vec()
    };
    headers.iter().find(has)?;
    let used = dynamic.entries.iter().take_while(|entry| entry.tag != 0);
    let of = |tag| used.clone().filter(move |entry| entry.tag == tag);
    let path = path(info).to_vec();
    let name = of(DT_SONAME).map(text).next().unwrap_or_else(|| last(&path).to_vec());
    Some(Known { name, needs: of(DT_NEEDED).map(text).collect(), path })
}

/// The program's own objects, by their paths. `not_named`: those whose file has a name that begins
/// so, and what only they need, are not. `also`: others that are, with what they need.
fn own(not_named: &[&[u8]], also: fn(&Known) -> bool) -> BTreeSet<Vec<u8>> {
    let mut all = Vec::new();
    visit(&mut |info| all.extend(known(info)));
    let is_meant =
        |known: &Known| !not_named.iter().any(|name| last(&known.path).starts_with(name));
    let first = all.iter().filter(|known| known.path.is_empty() || also(known));
    let mut open: Vec<&Known> = first.filter(|known| is_meant(known)).collect();
    let mut own = BTreeSet::new();
    while let Some(next) = open.pop() {
        if own.insert(next.path.clone()) {
            let needed = all.iter().filter(|known| next.needs.contains(&known.name));
            open.extend(needed.filter(|known| is_meant(known)));
        }
    }
    own
}

/// Calls `each` with the path and the code of each of the program's own objects, as they are
/// loaded now; an object's code may come in parts. None can be unloaded meanwhile.
pub fn visit_own_code(
    not_named: &[&[u8]],
    also: fn(&Known) -> bool,
    each: &mut dyn FnMut(&[u8], &[u8]),
) {
    let own = own(not_named, also);
    visit(&mut |info| {
        let path = path(info);
        if !own.contains(path) {
            return;
        }
        for header in headers(info) {
            // What is only run, and not read, is left alone.
            let can_run = header.p_flags & READ_AND_RUN == READ_AND_RUN;
            if header.p_type == libc::PT_LOAD && can_run {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                // SAFETY: a segment of an object that stays loaded while it is visited.
                each(path, unsafe { table(start, header.p_filesz as usize) });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(not_named: &[&[u8]], also: fn(&Known) -> bool) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        visit_own_code(not_named, also, &mut |path, code| {
            assert!(!code.is_empty());
            found.insert(last(path).to_vec());
        });
        found
    }

    #[test]
    fn the_program_is_its_own_and_so_is_what_it_needs() {
        let nobody = |_: &Known| false;
        let all = names(&[], nobody);
        let has_libc = |names: &BTreeSet<Vec<u8>>| names.iter().any(|n| n.starts_with(b"libc."));
        assert!(all.contains(&b""[..]) && has_libc(&all));
        let system: &[&[u8]] = &[b"libc.", b"libgcc", b"ld-linux", b"libm."];
        let program = BTreeSet::from([Vec::new()]);
        assert_eq!(names(system, nobody), program);
        // What is not meant is not, whoever asks for it.
        let libc: fn(&Known) -> bool = |known| known.name.starts_with(b"libc.");
        assert_eq!(names(system, libc), program);
        // By what others need.
        assert!(has_libc(&names(&[b"ld-linux"], |known| !known.needs.is_empty())));
    }

    #[test]
    fn the_code_of_this_test_is_there() {
        let own = the_code_of_this_test_is_there as *const () as usize;
        let mut has = false;
        visit_own_code(&[b"lib"], |_| false, &mut |path, code| {
            has |= path.is_empty() && code.as_ptr_range().contains(&(own as *const u8));
        });
        assert!(has);
    }
}
