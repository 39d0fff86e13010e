//! Random bytes from the kernel.

use crate::os::{OsError, errno};

/// Fill `out` with random bytes.
pub fn fill(out: &mut [u8]) -> Result<(), OsError> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got > 0 {
            done += got as usize;
        } else if errno() != libc::EINTR {
            return Err(OsError::last("getrandom", format!("{} bytes", out.len())));
        }
    }
    Ok(())
}

/// `N` random bytes.
pub fn bytes<const N: usize>() -> Result<[u8; N], OsError> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_draws_differ() {
        let (a, b) = (super::bytes::<32>().unwrap(), super::bytes::<32>().unwrap());
        assert_ne!(a, b);
    }
}
