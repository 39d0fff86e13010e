//! Numbers as bytes, little endian: everything that this project writes to a wire or a file uses
//! this one reader and writer. (What the kernel defines is not ours and is read as it comes.)
//!
//! A reader is a `&mut &[u8]`: what was taken is gone from its front. Nothing here allocates but
//! [`LittleEndian::append`], and nothing trusts a length: what is not there is `None`.

/// A number with a fixed width.
pub trait LittleEndian: Sized + Copy {
    /// Append its bytes.
    fn append(self, out: &mut Vec<u8>);
    /// Write it into `bytes` from `at` on.
    ///
    /// # Panics
    /// If it does not fit.
    fn write_at(self, bytes: &mut [u8], at: usize);
    /// The number in `bytes` from `at` on.
    ///
    /// # Panics
    /// If it is not all there.
    fn read_at(bytes: &[u8], at: usize) -> Self;
    /// Take it from the front of `from`; `None`: it is not all there, and nothing is taken.
    fn take_from(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($kind:ty)*) => { $(
        impl LittleEndian for $kind {
            #[inline(always)]
            fn append(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn write_at(self, bytes: &mut [u8], at: usize) {
                bytes[at..at + size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn read_at(bytes: &[u8], at: usize) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(&bytes[at..at + size_of::<Self>()]);
                Self::from_le_bytes(own)
            }

            #[inline(always)]
            fn take_from(from: &mut &[u8]) -> Option<Self> {
                take_array(from).map(Self::from_le_bytes)
            }
        }
    )* };
}
numbers!(u8 u16 u32 u64 u128 i32 i64);

/// Take `count` bytes from the front of `from`; `None`: they are not all there.
#[inline]
pub fn take_bytes<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(head)
}

/// The same for a number of bytes that is known when this is compiled.
#[inline]
pub fn take_array<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_taken_and_read_in_place() {
        let mut out = Vec::new();
        7u8.append(&mut out);
        0x0102u16.append(&mut out);
        (-3i32).append(&mut out);
        0x0102_0304_0506_0708u64.append(&mut out);
        assert_eq!(out[..3], [7, 2, 1]);
        assert_eq!((u16::read_at(&out, 1), i32::read_at(&out, 3)), (0x0102, -3));
        let mut rest = &out[..];
        assert_eq!(u8::take_from(&mut rest), Some(7));
        assert_eq!(take_array(&mut rest), Some([2, 1]));
        assert_eq!(i32::take_from(&mut rest), Some(-3));
        assert_eq!(take_bytes(&mut rest, 4), Some(&[8, 7, 6, 5][..]));
        assert_eq!((u64::take_from(&mut rest), rest.len()), (None, 4), "nothing is taken");
        assert_eq!(take_bytes(&mut rest, 5), None);
        0xffu8.write_at(&mut out, 14);
        assert_eq!(u64::read_at(&out, 7), 0xff02_0304_0506_0708);
    }
}
