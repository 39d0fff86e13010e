//! Is there room on the disk for a whole run? Found out first: in the middle, each test that writes
//! would fail with a reason of its own.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Context, Result, fail};
use crate::paths;

const GIB: u64 = 1 << 30;
/// Builds of a whole run, and images of the largest jobs; without jobs.
const WHOLE_BYTES: u64 = 9 * GIB;
const FAST_BYTES: u64 = 5 * GIB;

/// What a run may need of the file system, less what builds have taken there before.
pub fn check(fast: bool) -> Result<()> {
    let target = paths::root().join("target");
    let before = if target.join("debug/deps").exists() { WHOLE_BYTES / 2 } else { 0 };
    let needed = if fast { FAST_BYTES } else { WHOLE_BYTES };
    enough(paths::root(), needed.saturating_sub(before))
}

fn enough(path: &Path, needed: u64) -> Result<()> {
    let free = free_bytes(path)?;
    if free >= needed {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / GIB as f64;
    fail!(
        "only {:.1} GiB are free on the file system of {}, and a run of the tests needs about \
         {:.0}: make room, or run them from a checkout on another file system",
        gib(free),
        path.display(),
        gib(needed).ceil()
    )
}

fn free_bytes(path: &Path) -> Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(std::io::Error::from);
    let name = name.context(|| path.display().to_string())?;
    // SAFETY: all-zero is a valid statvfs.
    let mut status: libc::statvfs = unsafe { core::mem::zeroed() };
    // SAFETY: a C string and a writable struct.
    if unsafe { libc::statvfs(name.as_ptr(), &mut status) } != 0 {
        let error: std::io::Result<()> = Err(std::io::Error::last_os_error());
        error.context(|| format!("statvfs on {}", path.display()))?;
    }
    Ok(status.f_bavail * status.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_small_is_named_with_what_is_missing() {
        assert!(enough(Path::new("/"), 0).is_ok());
        let error = enough(Path::new("/"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("file system of /") && error.contains("make room"), "{error}");
        assert!(free_bytes(Path::new("/does/not/exist")).is_err());
    }
}
