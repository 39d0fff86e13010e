//! The checksum of pages that lie together, from the checksums of the pages: whoever knows these
//! need not read the pages again.

/// Reflected polynomial of the checksum (CRC-32 of IEEE 802.3).
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// What 4096 more bytes do to each bit of a checksum: it is linear.
const PAGE_LATER: [u32; 32] = page_later();

/// A checksum's bits as the sum of their images.
const fn apply(matrix: &[u32; 32], value: u32) -> u32 {
    let (mut sum, mut rest) = (0, value);
    while rest != 0 {
        sum ^= matrix[rest.trailing_zeros() as usize];
        rest &= rest - 1;
    }
    sum
}

/// One bit later, doubled 15 times: 2¹⁵ bits are 4096 bytes.
const fn page_later() -> [u32; 32] {
    let mut matrix = [0; 32];
    matrix[0] = POLYNOMIAL;
    let mut bit = 1;
    while bit < 32 {
        matrix[bit] = 1 << (bit - 1);
        bit += 1;
    }
    let mut doubled = 0;
    while doubled < 15 {
        let once = matrix;
        let mut bit = 0;
        while bit < 32 {
            matrix[bit] = apply(&once, once[bit]);
            bit += 1;
        }
        doubled += 1;
    }
    matrix
}

/// The checksum of memory and one page of 4096 bytes behind it, from both checksums.
pub const fn append_page(before: u32, page: u32) -> u32 {
    apply(&PAGE_LATER, before) ^ page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::checksum;

    #[test]
    fn checksums_of_pages_give_the_checksum_of_all() {
        let bytes: Vec<u8> = (0..5 * 4096u32).map(|at| ((at * at) >> 7) as u8).collect();
        let pages = bytes.chunks(4096).map(checksum);
        let sum = pages.reduce(append_page).unwrap();
        assert_eq!(sum, checksum(&bytes));
    }
}
