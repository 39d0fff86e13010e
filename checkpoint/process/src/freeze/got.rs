//! Where the objects of this process have the addresses of functions that they call in others:
//! their global offset tables. `tid_remap.rs` changes them, and so does the component for MPI_Wtime
//! and the like. And where an object has those that others look up in it: its table of symbols.
//!
//! Source: System V ABI, x86-64 supplement (dynamic linking); dl_iterate_phdr(3).

use crate::raw;
use core::ffi::{CStr, c_int, c_void};
use core::mem::offset_of;
use core::ops::Range;

const DT_PLTRELSZ: i64 = 2;
pub(super) const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const SHN_UNDEF: u16 = 0;
const R_64: u32 = 1;
const PF_R: u32 = 4;
const R_GLOB_DAT: u32 = 6;
const R_JUMP_SLOT: u32 = 7;

const PAGE: usize = 4096;

/// Elf64_Dyn.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dynamic {
    pub(super) tag: i64,
    pub(super) value: u64,
}

/// Elf64_Rela.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Where an object has the address of a function: an entry of its global offset table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GotEntry {
    /// The word that holds it.
    pub address: usize,
    /// Index of its name among those that were searched for.
    pub name: usize,
    /// The dynamic linker has made it read-only when it was done (RELRO).
    pub sealed: bool,
}

/// How many objects were ever loaded, and how many were unloaded: the same as last time means that
/// nothing has changed.
pub fn loaded() -> (u64, u64) {
    extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library gives a valid structure.
        let info = unsafe { &*info };
        // SAFETY: our own data, given below.
        let counts = unsafe { &mut *data.cast::<(u64, u64)>() };
        *counts = (info.dlpi_adds, info.dlpi_subs);
        1
    }
    let mut counts = (0u64, 0u64);
    // SAFETY: the function fits the data, which lives.
    unsafe { libc::dl_iterate_phdr(Some(note_of(note)), (&raw mut counts).cast()) };
    counts
}

pub(super) type Note = extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
pub(super) type LibcNote =
    unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

pub(super) fn note_of(note: Note) -> LibcNote {
    note
}

/// Which objects are meant.
#[derive(Clone, Copy, Default)]
pub struct Objects<'a> {
    /// None with one of these addresses in it.
    pub not_in: &'a [usize],
    /// None whose file has a name that begins so.
    pub not_named: &'a [&'a [u8]],
    /// If there are any: only those whose file has a name that begins so...
    pub named: &'a [&'a [u8]],
    /// ...or that take something from another object whose name begins so...
    pub importing: &'a [&'a [u8]],
    /// ...or that have one of these addresses in them.
    pub holding: &'a [usize],
}

impl<'a> Objects<'a> {
    /// All but those that have one of these addresses.
    pub const fn but(not_in: &'a [usize]) -> Self {
        Self { not_in, not_named: &[], named: &[], importing: &[], holding: &[] }
    }

    /// By the name of their file. None: by what they import.
    fn are_named(&self, path: &[u8]) -> Option<bool> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let begins = |with: &[&[u8]]| with.iter().any(|with| name.starts_with(with));
        match () {
            () if begins(self.not_named) => Some(false),
            () if self.named.is_empty() && self.importing.is_empty() => Some(true),
            () if begins(self.named) => Some(true),
            () if self.importing.is_empty() => Some(false),
            () => None,
        }
    }
}

struct Search<'a> {
    names: &'a [&'a CStr],
    objects: &'a Objects<'a>,
    beginnings: Beginnings,
    found: &'a mut dyn FnMut(GotEntry),
}

/// The first two bytes of what is searched for. Large objects import tens of thousands of names,
/// and nearly all of them are told by these bytes: nothing else of them is looked at.
struct Beginnings(Box<[u64; (1 << 16) / 64]>);

impl Beginnings {
    fn of(search: &[&CStr], objects: &Objects<'_>) -> Self {
        let mut beginnings = Self(Box::new([0; _]));
        for name in search {
            if let Some(&first) = name.to_bytes_with_nul().first_chunk() {
                beginnings.add(first);
            }
        }
        for prefix in objects.importing {
            match *prefix {
                [one, two, ..] => beginnings.add([*one, *two]),
                [one] => (0..=u8::MAX).for_each(|two| beginnings.add([*one, two])),
                [] => beginnings.0.fill(u64::MAX),
            }
        }
        beginnings
    }

    fn add(&mut self, first: [u8; 2]) {
        let at = usize::from(u16::from_le_bytes(first));
        self.0[at / 64] |= 1 << (at % 64);
    }

    #[inline]
    fn has(&self, first: [u8; 2]) -> bool {
        let at = usize::from(u16::from_le_bytes(first));
        self.0[at / 64] >> (at % 64) & 1 == 1
    }
}

/// Finds all entries of these functions in such objects.
pub fn find_entries(names: &[&CStr], objects: &Objects<'_>, found: &mut dyn FnMut(GotEntry)) {
    extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library gives a valid structure.
        let info = unsafe { &*info };
        // SAFETY: our own data, given below.
        let search = unsafe { &mut *data.cast::<Search<'_>>() };
        object(info, search);
        0
    }
    let beginnings = Beginnings::of(names, objects);
    let mut search = Search { names, objects, beginnings, found };
    // SAFETY: the function fits the data, which lives.
    unsafe { libc::dl_iterate_phdr(Some(note_of(visit)), (&raw mut search).cast()) };
}

/// An array in the memory of an object that is loaded.
///
/// # Safety
/// The address and the count come from the tables of an object that stays loaded meanwhile.
pub(super) unsafe fn table<'a, T>(address: usize, count: usize) -> &'a [T] {
    if address == 0 || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address), count) }
}

/// The program headers of a loaded object.
pub(super) fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the object cannot go while it is visited.
    unsafe { table(info.dlpi_phdr.expose_provenance(), info.dlpi_phnum.into()) }
}

/// Its segments of a kind.
fn segments(
    info: &libc::dl_phdr_info,
    headers: &[libc::Elf64_Phdr],
    kind: u32,
) -> impl Iterator<Item = Range<usize>> {
    let base = info.dlpi_addr as usize;
    headers.iter().filter(move |header| header.p_type == kind).map(move |header| {
        let start = base + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    })
}

/// What the dynamic linker knows of an object.
pub(super) struct Dynamics<'a> {
    base: usize,
    pub(super) entries: &'a [Dynamic],
}

impl<'a> Dynamics<'a> {
    pub(super) fn of(info: &'a libc::dl_phdr_info, headers: &[libc::Elf64_Phdr]) -> Option<Self> {
        let range = segments(info, headers, libc::PT_DYNAMIC).next()?;
        // SAFETY: the object's dynamic section.
        let entries = unsafe { table(range.start, range.len() / size_of::<Dynamic>()) };
        Some(Self { base: info.dlpi_addr as usize, entries })
    }

    fn value(&self, tag: i64) -> usize {
        let used = self.entries.iter().take_while(|entry| entry.tag != 0);
        used.filter(|entry| entry.tag == tag).map(|entry| entry.value as usize).next().unwrap_or(0)
    }

    /// The dynamic linker has made addresses of them; where it has not, they are offsets.
    pub(super) fn address(&self, tag: i64) -> usize {
        match self.value(tag) {
            0 => 0,
            value if value < self.base => self.base + value,
            value => value,
        }
    }
}

fn object(info: &libc::dl_phdr_info, search: &mut Search<'_>) {
    let (base, headers) = (info.dlpi_addr as usize, headers(info));
    let of = |kind| segments(info, headers, kind);
    let has = |address: &usize| of(libc::PT_LOAD).any(|range| range.contains(address));
    // The kernel's own object has no relocations, and its table no addresses.
    let is_complete = of(libc::PT_DYNAMIC).next().is_some_and(|dynamic| has(&dynamic.start));
    if search.objects.not_in.iter().any(has) || !is_complete {
        return;
    }
    let Some(dynamic) = Dynamics::of(info, headers) else { return };
    let (symbols, names) = (dynamic.address(DT_SYMTAB), dynamic.address(DT_STRTAB));
    if !has(&symbols) || !has(&names) {
        return;
    }
    let path = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: a name that the dynamic linker keeps.
        unsafe { CStr::from_ptr(info.dlpi_name) }
    };
    let mut meant = search.objects.are_named(path.to_bytes());
    if meant.is_none() && search.objects.holding.iter().any(has) {
        meant = Some(true);
    }
    let mut here = Vec::new();
    for (start, bytes) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        if meant == Some(false) {
            return;
        }
        let count = dynamic.value(bytes) / size_of::<Relocation>();
        let start = dynamic.address(start);
        // SAFETY: the object's table of relocations, which the dynamic linker has worked through.
        for relocation in unsafe { table::<Relocation>(start, count) } {
            let (kind, symbol) = (relocation.info as u32, (relocation.info >> 32) as usize);
            let plain = kind == R_64 && relocation.addend == 0;
            if symbol == 0 || !(plain || matches!(kind, R_GLOB_DAT | R_JUMP_SLOT)) {
                continue;
            }
            let at = symbols + symbol * size_of::<libc::Elf64_Sym>();
            // SAFETY: relocations name symbols of the object's table.
            let symbol: &[libc::Elf64_Sym] = unsafe { table(at, 1) };
            let name = names + symbol[0].st_name as usize;
            // SAFETY: names of symbols end with 0: that of an empty one is the only byte.
            let first: &[u8] = unsafe { table(name, 1) };
            if first[0] == 0 {
                continue;
            }
            // SAFETY: the end of the name, or more of it.
            let second: &[u8] = unsafe { table(name + 1, 1) };
            if !search.beginnings.has([first[0], second[0]]) {
                continue;
            }
            // SAFETY: names of symbols end with 0.
            let name = unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(name)) };
            let imported = symbol[0].st_shndx == SHN_UNDEF;
            let begins = |with: &&[u8]| name.to_bytes().starts_with(with);
            if meant.is_none() && imported && search.objects.importing.iter().any(begins) {
                meant = Some(true);
            }
            if let Some(index) = search.names.iter().position(|wanted| *wanted == name) {
                let address = base + relocation.offset as usize;
                // Of whole pages only: the rest of the last one stays writable, and other entries
                // are written to it when they are called first.
                let sealed = of(libc::PT_GNU_RELRO)
                    .any(|range| (range.start..range.end & !(PAGE - 1)).contains(&address));
                here.push(GotEntry { address, name: index, sealed });
            }
        }
    }
    if meant == Some(true) {
        here.into_iter().for_each(&mut *search.found);
    }
}

/// Makes an object call the function at `function`.
///
/// # Safety
/// It has the signature of the function whose name was searched for.
pub unsafe fn replace_entry(entry: &GotEntry, function: usize) {
    let (start, bytes) = (entry.address & !(PAGE - 1), PAGE);
    let protect = |protection: c_int| {
        let a = [start, bytes, protection as usize, 0];
        raw::plain(libc::SYS_mprotect, a).is_ok()
    };
    // Through the kernel: where the object has been unloaded since, it returns an error instead of
    // faulting.
    let (ours, theirs) = ([function], [entry.address, size_of::<usize>()]);
    let from = [ours.as_ptr().addr(), size_of::<usize>()];
    let pid = raw::plain(libc::SYS_getpid, [0; 4]).unwrap_or_default();
    let a = [pid, from.as_ptr().addr(), 1, theirs.as_ptr().addr(), 1, 0];
    // SAFETY: an entry of a global offset table; the caller's promise about the function.
    let write = || unsafe { raw::call(libc::SYS_process_vm_writev, a) }.is_ok();
    // Another thread may be loading the object: what is not sealed yet the dynamic linker still
    // writes to, and seals it when it has.
    if write() || !entry.sealed {
        return;
    }
    if protect(libc::PROT_READ | libc::PROT_WRITE) {
        write();
        protect(libc::PROT_READ);
    }
}

/// Makes such objects of this process call `function` instead of the functions with these names;
/// how many entries were changed.
///
/// # Safety
/// As for [`replace_entry`], for each of the names.
pub unsafe fn redirect(names: &[&CStr], objects: &Objects<'_>, function: usize) -> usize {
    let mut found = Vec::new();
    find_entries(names, objects, &mut |entry| found.push(entry));
    for entry in &found {
        // SAFETY: the caller's promise.
        unsafe { replace_entry(entry, function) };
    }
    found.len()
}

struct Definition<'a> {
    name: &'a CStr,
    stock: usize,
    function: usize,
    done: bool,
}

/// Where an object has the address of a function that it defines: in its table of symbols, which is
/// searched by DT_GNU_HASH (four numbers, a filter, buckets, chains).
fn definition(info: &libc::dl_phdr_info, wanted: &Definition<'_>) -> Option<usize> {
    const STT_FUNC: u8 = 2;
    let (base, headers) = (info.dlpi_addr as usize, headers(info));
    if !segments(info, headers, libc::PT_LOAD).any(|range| range.contains(&wanted.stock)) {
        return None;
    }
    let dynamic = Dynamics::of(info, headers)?;
    let (symbols, names) = (dynamic.address(DT_SYMTAB), dynamic.address(DT_STRTAB));
    let hash = dynamic.address(DT_GNU_HASH);
    // In memory that is only read: code stays as it is.
    let is_data = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        let range = start..start + header.p_memsz as usize;
        header.p_type == libc::PT_LOAD && header.p_flags == PF_R && range.contains(&symbols)
    };
    if hash == 0 || names == 0 || !headers.iter().any(is_data) {
        return None;
    }
    // SAFETY: the head of the object's hash table.
    let head: &[u32] = unsafe { table(hash, 4) };
    let [buckets, first, filter, _] = [0, 1, 2, 3].map(|at| head[at] as usize);
    let buckets_at = hash + 16 + filter * size_of::<u64>();
    let chains_at = buckets_at + buckets * size_of::<u32>();
    let word = |at: usize| {
        // SAFETY: inside the object's hash table.
        let word: &[u32] = unsafe { table(at, 1) };
        word[0]
    };
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add((*byte).into());
    let key = wanted.name.to_bytes().iter().fold(5381, step);
    let mut index = word(buckets_at + key as usize % buckets * size_of::<u32>()) as usize;
    while index >= first {
        let here = word(chains_at + (index - first) * size_of::<u32>());
        let at = symbols + index * size_of::<libc::Elf64_Sym>();
        // SAFETY: chains name symbols of the object's table.
        let symbol: &[libc::Elf64_Sym] = unsafe { table(at, 1) };
        let text = names + symbol[0].st_name as usize;
        // SAFETY: names of symbols end with 0.
        let text = unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(text)) };
        let is_it = base.wrapping_add(symbol[0].st_value as usize) == wanted.stock;
        if here | 1 == key | 1 && text == wanted.name && is_it {
            let is_function = symbol[0].st_info & 15 == STT_FUNC;
            return is_function.then_some(at + offset_of!(libc::Elf64_Sym, st_value));
        }
        if here & 1 == 1 {
            break;
        }
        index += 1;
    }
    None
}

/// Has the dynamic linker find `function` where it would find `stock`, the function with this name:
/// for objects that are loaded from now on, and for who looks it up (dlsym). Was that possible?
///
/// # Safety
/// `function` takes and gives what the other one does, and is never unloaded.
pub unsafe fn redefine(name: &CStr, stock: usize, function: usize) -> bool {
    extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library gives a valid structure.
        let info = unsafe { &*info };
        // SAFETY: our own data, given below.
        let wanted = unsafe { &mut *data.cast::<Definition<'_>>() };
        let Some(address) = definition(info, wanted) else { return 0 };
        let entry = GotEntry { address, name: 0, sealed: true };
        // Added to the object's base again when it is used.
        let offset = wanted.function.wrapping_sub(info.dlpi_addr as usize);
        // SAFETY: the promise of `redefine`.
        unsafe { replace_entry(&entry, offset) };
        wanted.done = true;
        1
    }
    let mut wanted = Definition { name, stock, function, done: false };
    // SAFETY: the function fits the data, which lives.
    unsafe { libc::dl_iterate_phdr(Some(note_of(visit)), (&raw mut wanted).cast()) };
    wanted.done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_being_loaded_stays_writable_and_a_loaded_one_sealed() {
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping.
            unsafe { libc::mmap(core::ptr::null_mut(), PAGE, protection, flags, -1, 0) }
        };
        let rights = |at: usize| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let is_it = |line: &&str| {
                let (start, rest) = line.split_once('-').unwrap();
                let end = rest.split_once(' ').unwrap().0;
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                (number(start)..number(end)).contains(&at)
            };
            let line = maps.lines().find(is_it).unwrap();
            line.split_once(' ').unwrap().1[..2].to_owned()
        };
        for (protection, wanted) in
            [(libc::PROT_READ | libc::PROT_WRITE, "rw"), (libc::PROT_READ, "r-")]
        {
            let page = map(protection);
            assert_ne!(page, libc::MAP_FAILED);
            let address = page.expose_provenance();
            // SAFETY: nobody calls it.
            unsafe { replace_entry(&GotEntry { address, name: 0, sealed: true }, 7) };
            assert_eq!(rights(address), wanted);
            // SAFETY: the page from above.
            assert_eq!(unsafe { *page.cast::<usize>() }, 7);
            // SAFETY: as above.
            unsafe { libc::munmap(page, PAGE) };
        }
    }

    #[test]
    fn who_looks_a_function_up_later_finds_the_other_one() {
        extern "C" fn own_getpgrp() -> libc::pid_t {
            7
        }
        let own = own_getpgrp as *const ();
        // SAFETY: looks up a name.
        let find = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpgrp".as_ptr()) }.addr();
        let stock = find();
        // SAFETY: it takes and gives what getpgrp does.
        assert!(unsafe { redefine(c"getpgrp", stock, own as usize) });
        assert!(stock != own.addr() && find() == own.addr());
        // SAFETY: as above; there is no such function at that address.
        assert!(!unsafe { redefine(c"getpgrp", stock + 1, own as usize) });
        // SAFETY: what was there before, which ours now stands for.
        let again = unsafe { redefine(c"getpgrp", own.addr(), stock) };
        assert!(!again, "it is no function of the object in which it would be looked for");
    }

    #[test]
    fn the_entry_of_a_function_holds_its_address() {
        let mut all = Vec::new();
        // The test itself calls it, by way of the standard library.
        let own = the_entry_of_a_function_holds_its_address as *const () as usize;
        let everywhere = Objects::default();
        find_entries(&[c"no_such_function", c"pthread_self"], &everywhere, &mut |entry| {
            all.push(entry)
        });
        // SAFETY: looks up a name.
        let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pthread_self".as_ptr()) }.addr();
        let bound = |entry: &&GotEntry| {
            // SAFETY: a word of an object that stays loaded.
            let word: &[usize] = unsafe { table(entry.address, 1) };
            word[0] == known
        };
        assert!(all.iter().all(|entry| entry.name == 1));
        assert!(all.iter().filter(bound).count() >= 1, "{all:?}");
        let mut others = 0;
        find_entries(&[c"pthread_self"], &Objects::but(&[own]), &mut |_| others += 1);
        assert!(others < all.len(), "this object is left out");
        assert_eq!(loaded(), loaded());
    }

    #[test]
    fn objects_are_chosen_by_what_they_import_and_by_the_names_of_their_files() {
        let count = |objects: &Objects<'_>| {
            let mut count = 0;
            find_entries(&[c"pthread_self"], objects, &mut |_| count += 1);
            count
        };
        let all = Objects::default();
        // The test itself, whose file the dynamic linker gives no name.
        let own = count(&Objects { importing: &[b"no_such", b"pthread_se"], ..all });
        assert!(own > 0 && own <= count(&all));
        // However little of the name is given.
        for importing in [&[b"pthread_self" as &[u8]], &[b"pt"], &[b"p"], &[b""]] {
            assert!(count(&Objects { importing, ..all }) >= own, "{importing:?}");
        }
        assert_eq!(count(&Objects { importing: &[b"no_such"], ..all }), 0);
        assert_eq!(count(&Objects { importing: &[b"no_such"], named: &[b""], ..all }), count(&all));
        let here: &[&[u8]] = &[b"pthread_self"];
        assert_eq!(count(&Objects { importing: here, not_named: &[b""], ..all }), 0);
        let own_code = object as *const () as usize;
        let none: &[&[u8]] = &[b"no_such"];
        assert!(count(&Objects { importing: none, holding: &[own_code], ..all }) > 0);
        assert_eq!(count(&Objects { importing: none, holding: &[0], ..all }), 0);
        let objects = Objects { not_named: &[b"mca_"], named: &[b"libgf"], importing: here, ..all };
        assert_eq!(objects.are_named(b"/usr/lib/openmpi/mca_x.so"), Some(false));
        assert_eq!(objects.are_named(b"/usr/lib/libgfortran.so.5"), Some(true));
        assert_eq!(objects.are_named(b"/usr/mca_/libgf/program"), None);
        assert_eq!(Objects::but(&[1]).are_named(b""), Some(true));
    }

    #[test]
    fn others_call_what_they_are_redirected_to() {
        extern "C" fn own_getppid() -> libc::pid_t {
            7
        }
        let own = own_getppid as *const ();
        // SAFETY: no arguments.
        let parent = unsafe { libc::getppid() };
        // SAFETY: it takes and gives what getppid does.
        let changed = unsafe { redirect(&[c"getppid"], &Objects::default(), own as usize) };
        // SAFETY: as above.
        assert!(changed > 0 && parent != 7 && unsafe { libc::getppid() } == 7);
        // SAFETY: looks up a name.
        let stock = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) }.addr();
        // SAFETY: what was there before.
        unsafe { redirect(&[c"getppid"], &Objects::default(), stock) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::getppid() }, parent);
    }
}
