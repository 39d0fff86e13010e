//! Memory of shared windows: one rank makes it under a name that nobody can guess, the others map
//! it by that name, which is gone before the window is there.
//!
//! Names are those of node segments (`transports::shm`): what a job leaves that is killed in
//! between is removed by the next one.

use crate::os::OsError;
use crate::os::mapping::{OpenError, SharedMemory, unlink};
use crate::os::random;
use crate::transports::shm::Segment;
use core::ffi::{CStr, c_char};
use core::ptr::NonNull;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// As `enum rustbtl_memory`.
const HERE: i32 = 0;
/// There is none of that name.
const GONE: i32 = 1;
/// There is not enough memory, or what has that name is not ours.
const NONE: i32 = 2;

/// Bytes of a name's number.
const NUMBER_BYTES: usize = 16;
type Number = [u8; NUMBER_BYTES];

fn path_of(directory: &Path, number: Number) -> PathBuf {
    directory.join(Segment::name_of(u128::from_le_bytes(number)))
}

fn make(directory: &Path, bytes: usize) -> Result<(Number, SharedMemory), OsError> {
    let number = random::bytes()?;
    Ok((number, SharedMemory::create(&path_of(directory, number), bytes)?))
}

fn map(directory: &Path, number: Number, bytes: usize) -> Result<SharedMemory, OpenError> {
    SharedMemory::open(&path_of(directory, number), bytes)
}

/// # Safety
/// A C string that outlives the result.
unsafe fn directory_of<'a>(directory: *const c_char) -> &'a Path {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(directory) };
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

/// Memory under a new name. HERE or NONE.
///
/// # Safety
/// `directory` is a C string; `number` is writable, `memory` as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_memory_make(
    directory: *const c_char,
    bytes: u64,
    number: *mut Number,
    memory: *mut *mut u8,
) -> i32 {
    // SAFETY: the caller's promise.
    let directory = unsafe { directory_of(directory) };
    let Ok((name, made)) = make(directory, bytes as usize) else { return NONE };
    // SAFETY: the caller's promise.
    unsafe { number.write(name) };
    // SAFETY: the caller's promise.
    unsafe { memory.write(made.into_start().as_ptr()) };
    HERE
}

/// Maps what another rank has made. HERE, GONE or NONE.
///
/// # Safety
/// `directory` is a C string; `number` is readable, `memory` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_memory_map(
    directory: *const c_char,
    bytes: u64,
    number: *const Number,
    memory: *mut *mut u8,
) -> i32 {
    // SAFETY: the caller's promise.
    let directory = unsafe { directory_of(directory) };
    // SAFETY: the caller's promise.
    let number = unsafe { number.read() };
    match map(directory, number, bytes as usize) {
        Ok(mapped) => {
            // SAFETY: the caller's promise.
            unsafe { memory.write(mapped.into_start().as_ptr()) };
            HERE
        }
        Err(OpenError::Os(error)) if error.code == libc::ENOENT => GONE,
        Err(_) => NONE,
    }
}

/// All have mapped it, or nobody will: the name goes.
///
/// # Safety
/// `directory` is a C string; `number` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_memory_unname(
    directory: *const c_char,
    number: *const Number,
) {
    // SAFETY: the caller's promise.
    let (directory, number) = (unsafe { directory_of(directory) }, unsafe { number.read() });
    let _ = unlink(&path_of(directory, number));
}

/// The end of a mapping.
///
/// # Safety
/// `memory` was mapped with this size by one of the functions above, and nobody uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_memory_unmap(memory: *mut u8, bytes: u64) {
    if let Some(start) = NonNull::new(memory) {
        // SAFETY: the caller's promise.
        drop(unsafe { SharedMemory::of(start, bytes as usize) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_windows_have_the_same_name_and_all_map_the_same_memory() {
        let directory = Path::new("/dev/shm");
        let made: Vec<_> = (0..64).map(|_| make(directory, 4096).expect("memory")).collect();
        let numbers: BTreeSet<_> = made.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), 64);
        // Whoever knows one name knows nothing of the next: no byte is the same in all.
        for byte in 0..NUMBER_BYTES {
            let values: BTreeSet<_> = numbers.iter().map(|number| number[byte]).collect();
            assert!(values.len() > 16, "byte {byte}: {values:?}");
        }
        for (number, memory) in &made {
            let other = map(directory, *number, 4096).expect("it is there");
            // SAFETY: inside the mapping.
            unsafe { memory.start().write(number[0]) };
            // SAFETY: inside the mapping.
            assert_eq!(unsafe { other.start().read() }, number[0]);
            assert_eq!(unlink(&path_of(directory, *number)), Ok(true));
            assert!(map(directory, *number, 4096).is_err(), "the name is gone");
        }
    }
}
