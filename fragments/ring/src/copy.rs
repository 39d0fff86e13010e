//! Copies of a few bytes without a call.

use core::ptr;

/// Copy `len` bytes. Up to 64 are moved by at most four fixed-size moves, which overlap where the
/// length is between two sizes; more go to `memcpy`.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // The shortest first: one question more is a smaller part of what the longer ones take.
    if len <= 16 {
        if len >= 8 {
            // SAFETY: 8 <= len <= 16.
            unsafe { ends::<u64>(from, to, len) }
        } else if len >= 4 {
            // SAFETY: 4 <= len <= 8.
            unsafe { ends::<u32>(from, to, len) }
        } else if len >= 2 {
            // SAFETY: 2 <= len <= 4.
            unsafe { ends::<u16>(from, to, len) }
        } else if len == 1 {
            // SAFETY: one byte.
            unsafe { ends::<u8>(from, to, 1) }
        }
    } else if len <= 32 {
        // SAFETY: 16 <= len <= 32: two blocks of 16 cover it.
        unsafe { ends::<[u64; 2]>(from, to, len) }
    } else if len <= 64 {
        // SAFETY: 32 <= len <= 64: two blocks of 32 cover it.
        unsafe { ends::<[u64; 4]>(from, to, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Copy the first and the last `T` of `len` bytes.
///
/// # Safety
/// `size_of::<T>() <= len <= 2 * size_of::<T>()`; else as [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let rest = len - size_of::<T>();
    // SAFETY: the first T lies within the source.
    let first = unsafe { from.cast::<T>().read_unaligned() };
    // SAFETY: rest + size_of::<T>() == len.
    let from_last = unsafe { from.add(rest) };
    // SAFETY: the last T lies within the source.
    let last = unsafe { from_last.cast::<T>().read_unaligned() };
    // SAFETY: the first T lies within the target.
    unsafe { to.cast::<T>().write_unaligned(first) };
    // SAFETY: rest + size_of::<T>() == len.
    let to_last = unsafe { to.add(rest) };
    // SAFETY: the last T lies within the target.
    unsafe { to_last.cast::<T>().write_unaligned(last) };
}
