//! The environment of this process is that of programs that it starts: they are no ranks, nobody in
//! them answers for names, and they are not to have this library.
//!
//! It is changed when the component has come, in MPI_Init: whatever stands between the guardian and
//! the program (a shell, `numactl`) has to hand it on.

use core::ffi::{CStr, c_void};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

const PRELOAD: &str = "LD_PRELOAD";

/// Children do not get the library, and are not shadowed if they have it.
pub fn hide() {
    let list = std::env::var_os(PRELOAD).unwrap_or_default();
    let rest = own_file().map(|own| without(list.as_bytes(), &own));
    if let Some(rest) = rest.filter(|rest| rest != list.as_bytes()) {
        // SAFETY: Open MPI changes the environment in MPI_Init, too: what others have read stays.
        unsafe { std::env::set_var(PRELOAD, OsString::from_vec(rest)) };
    }
    // SAFETY: as above.
    unsafe { std::env::set_var(crate::state::JOB, "") };
}

/// The file that this code is in.
fn own_file() -> Option<Vec<u8>> {
    // SAFETY: all-zero is valid.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    let here = (&raw const crate::in_job::INTERFACE).cast::<c_void>();
    // SAFETY: room for the answer.
    let is_found = unsafe { libc::dladdr(here, &raw mut found) } != 0;
    let name = found.dli_fname;
    // SAFETY: a C string that stays.
    (is_found && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes().to_vec())
}

/// A list for the loader, without all that has the same file name.
fn without(list: &[u8], own: &[u8]) -> Vec<u8> {
    let file = |path: &'_ [u8]| path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec);
    let is_end = |byte: &u8| matches!(byte, b':' | b' ');
    let others = list.split(is_end).filter(|path| !path.is_empty() && file(path) != file(own));
    others.collect::<Vec<_>>().join(&b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_library_goes() {
        let own = b"/usr/lib/librustbtl_verbs.so";
        for (list, rest) in [
            ("", ""),
            ("/usr/lib/librustbtl_verbs.so", ""),
            ("/other/librustbtl_verbs.so:/x/liba.so", "/x/liba.so"),
            ("liba.so librustbtl_verbs.so libb.so", "liba.so:libb.so"),
            (
                "/librustbtl_verbs.so/liba.so:librustbtl_verbs.so.1",
                "/librustbtl_verbs.so/liba.so:librustbtl_verbs.so.1",
            ),
        ] {
            assert_eq!(without(list.as_bytes(), own), rest.as_bytes(), "{list}");
        }
        assert!(own_file().is_some());
    }
}
