//! An operation on the target's memory: rows of a layout are read, combined and written.
//!
//! The machine has checked every address against the window before it gets here. Memory is copied
//! and never borrowed: programs may look at it while it changes.

use crate::arithmetic::{Op, combine, compare_and_swap};
use crate::error::RmaError;
use crate::layout::Layout;
use crate::primitive::Primitive;

/// The memory of the process. Addresses are its own; after a restore they are the same.
pub trait Memory {
    /// Copy from it.
    fn read(&self, address: u64, into: &mut [u8]);
    /// Copy to it.
    fn write(&mut self, address: u64, from: &[u8]);
}

/// A part of an operation's data: packed bytes from `first` on. Large operations travel in several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Bytes of the packed data before it.
    pub first: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Elements that are combined at once: bounded, so that the buffers are on the stack.
const CHUNK_BYTES: usize = 1024;

/// Append the data of a part in packed form.
///
/// # Errors
/// `Type`: the part is no whole elements of the layout.
pub fn pack(
    memory: &impl Memory,
    place: u64,
    layout: &Layout,
    part: Part,
    out: &mut Vec<u8>,
) -> Result<(), RmaError> {
    let primitive = layout.primitive();
    layout.rows(part.first, part.bytes, |at, elements| {
        let begin = out.len();
        out.resize(begin + elements as usize * primitive.size(), 0);
        read_row(memory, primitive, place.wrapping_add_signed(at), &mut out[begin..]);
        Ok(())
    })
}

/// Apply packed data to a part: what is there becomes `there op data`.
///
/// # Errors
/// `Type`: the part is no whole elements of the layout, or the data is not as long. `Op`: not
/// defined. Nothing is written then.
pub fn accumulate(
    memory: &mut impl Memory,
    place: u64,
    layout: &Layout,
    part: Part,
    op: Op,
    data: &[u8],
) -> Result<(), RmaError> {
    let primitive = layout.primitive();
    if !op.is_defined(primitive) {
        return Err(RmaError::Op);
    }
    if op == Op::NoOp {
        return layout.rows(part.first, part.bytes, |_, _| Ok(()));
    }
    if data.len() as u64 != part.bytes {
        return Err(RmaError::Type);
    }
    let mut data = data;
    layout.rows(part.first, part.bytes, |at, elements| {
        let (row, rest) = data.split_at(elements as usize * primitive.size());
        data = rest;
        let address = place.wrapping_add_signed(at);
        if op == Op::Replace {
            write_row(memory, primitive, address, row);
            return Ok(());
        }
        let per_chunk = CHUNK_BYTES / primitive.size();
        let mut there = [0; CHUNK_BYTES];
        for (piece, number) in row.chunks(per_chunk * primitive.size()).zip(0u64..) {
            let address = address + number * (per_chunk * primitive.extent()) as u64;
            let there = &mut there[..piece.len()];
            read_row(memory, primitive, address, there);
            combine(op, primitive, there, piece)?;
            write_row(memory, primitive, address, there);
        }
        Ok(())
    })
}

/// MPI_Compare_and_swap: the element that was there is returned in `found`.
pub fn swap(
    memory: &mut impl Memory,
    address: u64,
    primitive: Primitive,
    compare: &[u8],
    new: &[u8],
    found: &mut Vec<u8>,
) {
    let begin = found.len();
    found.resize(begin + primitive.size(), 0);
    read_row(memory, primitive, address, &mut found[begin..]);
    let mut element = found[begin..].to_vec();
    compare_and_swap(&mut element, compare, new);
    if element != found[begin..] {
        write_row(memory, primitive, address, &element);
    }
}

fn read_row(memory: &impl Memory, primitive: Primitive, address: u64, packed: &mut [u8]) {
    match primitive.pair().filter(|_| !primitive.is_dense()) {
        None => memory.read(address, packed),
        Some(pair) => {
            for (element, number) in packed.chunks_exact_mut(primitive.size()).zip(0u64..) {
                let at = address + number * primitive.extent() as u64;
                let (value, index) = element.split_at_mut(pair.value.size());
                memory.read(at, value);
                memory.read(at + pair.index_offset as u64, index);
            }
        }
    }
}

/// Bytes of padding are not touched.
fn write_row(memory: &mut impl Memory, primitive: Primitive, address: u64, packed: &[u8]) {
    match primitive.pair().filter(|_| !primitive.is_dense()) {
        None => memory.write(address, packed),
        Some(pair) => {
            for (element, number) in packed.chunks_exact(primitive.size()).zip(0u64..) {
                let at = address + number * primitive.extent() as u64;
                let (value, index) = element.split_at(pair.value.size());
                memory.write(at, value);
                memory.write(at + pair.index_offset as u64, index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Block;

    struct Plain(Vec<u8>);

    impl Memory for Plain {
        fn read(&self, address: u64, into: &mut [u8]) {
            into.copy_from_slice(&self.0[address as usize..][..into.len()]);
        }
        fn write(&mut self, address: u64, from: &[u8]) {
            self.0[address as usize..][..from.len()].copy_from_slice(from);
        }
    }

    fn double_int(value: f64, index: i32) -> Vec<u8> {
        [&value.to_le_bytes()[..], &index.to_le_bytes()].concat()
    }

    #[test]
    fn pairs_with_padding_keep_it() {
        let layout = Layout::Contiguous { primitive: Primitive::DoubleInt, count: 2 };
        let mut memory = Plain(vec![0xEE; 48]);
        let part = Part { first: 0, bytes: 24 };
        let data = [double_int(3.0, 7), double_int(1.0, 1)].concat();
        accumulate(&mut memory, 8, &layout, part, Op::Replace, &data).expect("inside");
        let data = [double_int(4.0, 9), double_int(1.0, 0)].concat();
        accumulate(&mut memory, 8, &layout, part, Op::MaxLoc, &data).expect("inside");
        let mut found = Vec::new();
        pack(&memory, 8, &layout, part, &mut found).expect("inside");
        assert_eq!(found, [double_int(4.0, 9), double_int(1.0, 0)].concat());
        for padding in [0..8, 20..24, 36..48] {
            assert!(memory.0[padding].iter().all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn parts_together_are_the_whole() {
        let blocks = vec![
            Block { displacement: 40, stride: -12, length: 2, repeats: 3 },
            Block { displacement: 48, stride: 0, length: 1, repeats: 1 },
        ];
        let layout = Layout::Described { primitive: Primitive::I32, count: 2, extent: 100, blocks };
        let data: Vec<u8> = (0..56).collect();
        let whole = Part { first: 0, bytes: 56 };
        let (mut once, mut twice) = (Plain(vec![1; 200]), Plain(vec![1; 200]));
        accumulate(&mut once, 4, &layout, whole, Op::Sum, &data).expect("inside");
        for first in (0..56).step_by(8) {
            let part = Part { first, bytes: 8 };
            let data = &data[first as usize..][..8];
            accumulate(&mut twice, 4, &layout, part, Op::Sum, data).expect("inside");
        }
        assert_eq!(once.0, twice.0);
        let mut found = Vec::new();
        pack(&once, 4, &layout, whole, &mut found).expect("inside");
        let expected: Vec<_> = data
            .chunks(4)
            .flat_map(|b| {
                (0x0101_0101 + u32::from_le_bytes([b[0], b[1], b[2], b[3]])).to_le_bytes()
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn long_rows_are_combined_in_chunks() {
        let layout = Layout::Contiguous { primitive: Primitive::LongInt, count: 500 };
        let mut memory = Plain(vec![0; 16 * 500]);
        let data: Vec<u8> = (0..500i64)
            .flat_map(|i| [&(i % 7 - 3).to_le_bytes()[..], &(i as i32).to_le_bytes()].concat())
            .collect();
        let part = Part { first: 0, bytes: data.len() as u64 };
        accumulate(&mut memory, 0, &layout, part, Op::MinLoc, &data).expect("inside");
        let mut found = Vec::new();
        pack(&memory, 0, &layout, part, &mut found).expect("inside");
        for (i, element) in (0i64..).zip(found.chunks(12)) {
            let index = if i % 7 < 3 { i as i32 } else { 0 };
            let expected = [&(i % 7 - 3).min(0).to_le_bytes()[..], &index.to_le_bytes()].concat();
            assert_eq!(element, expected, "{i}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let layout = Layout::Contiguous { primitive: Primitive::I32, count: 2 };
        let mut memory = Plain(vec![9; 8]);
        let whole = Part { first: 0, bytes: 8 };
        let refused = |got, expected| assert_eq!(got, Err(expected));
        refused(accumulate(&mut memory, 0, &layout, whole, Op::Sum, &[0; 4]), RmaError::Type);
        refused(accumulate(&mut memory, 0, &layout, whole, Op::MinLoc, &[0; 8]), RmaError::Op);
        let beyond = Part { first: 4, bytes: 8 };
        refused(accumulate(&mut memory, 0, &layout, beyond, Op::Sum, &[0; 8]), RmaError::Type);
        assert_eq!(memory.0, [9; 8]);
    }
}
