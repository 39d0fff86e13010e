//! Where the data of an operation lies in the target's memory: MPI's type at the target, flattened.
//!
//! A described layout is a list of blocks; a block is `length` elements in a row, repeated
//! `repeats` times at a distance of `stride` bytes (a row of a vector or of a subarray is one
//! block). The list is repeated `count` times at a distance of `extent` bytes. Elements are in the
//! order of the list: that is their order in a message.
//!
//! A type with more than [`BLOCKS_MAX`] blocks travels as several operations, each with a part of
//! the list: operations of one origin are applied in order, so nobody sees a difference.

use crate::error::RmaError;
use crate::primitive::Primitive;
use rustbtl_fragments::little_endian::{LittleEndian, take_array};

/// Blocks of a layout on the wire.
pub const BLOCKS_MAX: usize = 1024;
/// Bytes of a block on the wire.
pub const BLOCK_BYTES: usize = 24;

/// Elements in a row, repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Bytes from the place of the operation to the first element.
    pub displacement: i64,
    /// Bytes from one repetition to the next.
    pub stride: i64,
    /// Elements in a row; at least 1.
    pub length: u32,
    /// How many rows; at least 1.
    pub repeats: u32,
}

/// The data of an operation in the target's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Elements in a row.
    Contiguous {
        /// What they are.
        primitive: Primitive,
        /// How many.
        count: u64,
    },
    /// A derived type.
    Described {
        /// What the elements are. (MPI wants one kind for accumulates; puts and gets take bytes.)
        primitive: Primitive,
        /// How often the blocks are repeated.
        count: u32,
        /// Bytes from one repetition to the next.
        extent: i64,
        /// At least one, at most [`BLOCKS_MAX`].
        blocks: Vec<Block>,
    },
}

/// Bytes in a row that an operation touches: from `first` (in bytes from its place) to before
/// `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The lowest byte.
    pub first: i128,
    /// Behind the highest byte.
    pub end: i128,
}

impl Layout {
    /// `count` bytes in a row.
    pub const fn bytes(count: u64) -> Self {
        Self::Contiguous { primitive: Primitive::Byte, count }
    }

    /// What the elements are.
    pub const fn primitive(&self) -> Primitive {
        match self {
            Self::Contiguous { primitive, .. } | Self::Described { primitive, .. } => *primitive,
        }
    }

    /// Bytes that its data takes in messages; `None`: more than can be counted.
    pub fn packed_bytes(&self) -> Option<u64> {
        let elements = match self {
            Self::Contiguous { count, .. } => *count,
            Self::Described { count, .. } => {
                self.elements_of_one().checked_mul(u64::from(*count))?
            }
        };
        elements.checked_mul(self.primitive().size() as u64)
    }

    /// Elements of one repetition of the list (at most 1024 * 2^64, so counted with care).
    fn elements_of_one(&self) -> u64 {
        match self {
            Self::Contiguous { count, .. } => *count,
            Self::Described { blocks, .. } => blocks.iter().fold(0u64, |sum, block| {
                sum.saturating_add(u64::from(block.length) * u64::from(block.repeats))
            }),
        }
    }

    /// What it touches, from end to end; `None`: nothing.
    pub fn span(&self) -> Option<Span> {
        match self {
            Self::Contiguous { count: 0, .. } | Self::Described { count: 0, .. } => None,
            Self::Contiguous { primitive, count } => {
                Some(Span { first: 0, end: i128::from(*count) * primitive.extent() as i128 })
            }
            Self::Described { primitive, count, extent, blocks } => {
                let ends = |first: i128, distance: i64, times: u32| {
                    let last = first + i128::from(distance) * i128::from(times - 1);
                    (first.min(last), first.max(last))
                };
                let mut span: Option<Span> = None;
                for block in blocks {
                    let row = i128::from(block.length) * primitive.extent() as i128;
                    let (low, high) = ends(block.displacement.into(), block.stride, block.repeats);
                    let ((first, _), (_, last)) =
                        (ends(low, *extent, *count), ends(high, *extent, *count));
                    let end = last + row;
                    span = Some(match span {
                        None => Span { first, end },
                        Some(other) => {
                            Span { first: other.first.min(first), end: other.end.max(end) }
                        }
                    });
                }
                span
            }
        }
    }

    /// Rows of elements that hold the packed bytes from `first` on, `bytes` of them, in order:
    /// calls `row` with where a row begins (in bytes from the operation's place) and how many
    /// elements it has. Both must be whole elements inside of the layout.
    ///
    /// # Errors
    /// `Type`: they are not. What `row` returns, ends it.
    pub fn rows(
        &self,
        first: u64,
        bytes: u64,
        mut row: impl FnMut(i64, u64) -> Result<(), RmaError>,
    ) -> Result<(), RmaError> {
        let size = self.primitive().size() as u64;
        let all = self.packed_bytes().ok_or(RmaError::Type)?;
        let inside = first.checked_add(bytes).is_some_and(|end| end <= all);
        if !inside || !first.is_multiple_of(size) || !bytes.is_multiple_of(size) {
            return Err(RmaError::Type);
        }
        let (mut skip, mut left) = (first / size, bytes / size);
        if left == 0 {
            return Ok(());
        }
        let step = self.primitive().extent() as i64;
        match self {
            Self::Contiguous { .. } => row((skip as i64).wrapping_mul(step), left),
            Self::Described { count, extent, blocks, .. } => {
                let one = self.elements_of_one();
                let start = (skip / one) as u32;
                skip %= one;
                for time in start..*count {
                    let base = extent.wrapping_mul(time.into());
                    for block in blocks {
                        let of_block = u64::from(block.length) * u64::from(block.repeats);
                        if skip >= of_block {
                            skip -= of_block;
                            continue;
                        }
                        let length = u64::from(block.length);
                        let begin = (skip / length) as u32;
                        skip %= length;
                        for repeat in begin..block.repeats {
                            let now = left.min(length - skip);
                            let at = base
                                .wrapping_add(block.displacement)
                                .wrapping_add(block.stride.wrapping_mul(repeat.into()))
                                .wrapping_add((skip as i64).wrapping_mul(step));
                            row(at, now)?;
                            skip = 0;
                            left -= now;
                            if left == 0 {
                                return Ok(());
                            }
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Bytes that it takes on the wire.
    pub fn wire_bytes(&self) -> usize {
        match self {
            Self::Contiguous { .. } => 16,
            Self::Described { blocks, .. } => 24 + BLOCK_BYTES * blocks.len(),
        }
    }

    /// Can it be sent?
    ///
    /// # Errors
    /// `Type`: no block, an empty one, or more than [`BLOCKS_MAX`].
    pub fn check(&self) -> Result<(), RmaError> {
        let Self::Described { blocks, .. } = self else { return Ok(()) };
        let empty = blocks.iter().any(|block| block.length == 0 || block.repeats == 0);
        match blocks.is_empty() || blocks.len() > BLOCKS_MAX || empty {
            true => Err(RmaError::Type),
            false => Ok(()),
        }
    }

    /// Append it.
    ///
    /// # Errors
    /// As [`Layout::check`]; nothing is appended then.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), RmaError> {
        self.check()?;
        match self {
            Self::Contiguous { primitive, count } => {
                out.extend_from_slice(&[1, *primitive as u8, 0, 0]);
                0u32.append(out);
                count.append(out);
            }
            Self::Described { primitive, count, extent, blocks } => {
                out.extend_from_slice(&[2, *primitive as u8, 0, 0]);
                (blocks.len() as u32).append(out);
                extent.append(out);
                count.append(out);
                0u32.append(out);
                for block in blocks {
                    block.displacement.append(out);
                    block.stride.append(out);
                    block.length.append(out);
                    block.repeats.append(out);
                }
            }
        }
        Ok(())
    }

    /// Take one from the front of `from`; `None`: there is no sound one.
    pub fn decode(from: &mut &[u8]) -> Option<Self> {
        let [kind, primitive, 0, 0] = take_array(from)? else { return None };
        let primitive = Primitive::from_code(primitive)?;
        let blocks = u32::take_from(from)? as usize;
        match kind {
            1 if blocks == 0 => Some(Self::Contiguous { primitive, count: u64::take_from(from)? }),
            2 if (1..=BLOCKS_MAX).contains(&blocks) => {
                let extent = i64::take_from(from)?;
                let count = u32::take_from(from)?;
                if u32::take_from(from)? != 0 || from.len() < blocks * BLOCK_BYTES {
                    return None;
                }
                let blocks: Option<Vec<_>> = (0..blocks).map(|_| Block::decode(from)).collect();
                Some(Self::Described { primitive, count, extent, blocks: blocks? })
            }
            _ => None,
        }
    }
}

impl Block {
    fn decode(from: &mut &[u8]) -> Option<Self> {
        let displacement = i64::take_from(from)?;
        let stride = i64::take_from(from)?;
        let length = u32::take_from(from)?;
        let repeats = u32::take_from(from)?;
        (length > 0 && repeats > 0).then_some(Self { displacement, stride, length, repeats })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Places of all elements, one by one: the plain reading of the description.
    fn places(layout: &Layout) -> Vec<i64> {
        let step = layout.primitive().extent() as i64;
        match layout {
            Layout::Contiguous { count, .. } => (0..*count as i64).map(|i| i * step).collect(),
            Layout::Described { count, extent, blocks, .. } => {
                let mut all = Vec::new();
                for time in 0..i64::from(*count) {
                    for block in blocks {
                        for repeat in 0..i64::from(block.repeats) {
                            for i in 0..i64::from(block.length) {
                                let row = block.displacement + block.stride * repeat;
                                all.push(time * extent + row + i * step);
                            }
                        }
                    }
                }
                all
            }
        }
    }

    fn block() -> impl Strategy<Value = Block> {
        (-50i64..50, -40i64..40, 1u32..5, 1u32..4).prop_map(
            |(displacement, stride, length, repeats)| Block {
                displacement,
                stride,
                length,
                repeats,
            },
        )
    }

    fn layout() -> impl Strategy<Value = Layout> {
        let primitive = prop::sample::select(&crate::primitive::ALL[..]);
        let described =
            (primitive.clone(), 0u32..4, -30i64..90, prop::collection::vec(block(), 1..5))
                .prop_map(|(primitive, count, extent, blocks)| Layout::Described {
                    primitive,
                    count,
                    extent,
                    blocks,
                });
        let plain = (primitive, 0u64..20)
            .prop_map(|(primitive, count)| Layout::Contiguous { primitive, count });
        prop_oneof![3 => described, 1 => plain]
    }

    proptest! {
        #[test]
        fn rows_are_the_elements_in_order(
            layout in layout(),
            first in 0u64..99,
            count in 0u64..99,
        ) {
            let all = places(&layout);
            let primitive = layout.primitive();
            let (size, step) = (primitive.size() as u64, primitive.extent() as i64);
            prop_assert_eq!(layout.packed_bytes(), Some(all.len() as u64 * size));
            let mut found = Vec::new();
            let walked = layout.rows(first * size, count * size, |at, length| {
                found.extend((0..length as i64).map(|i| at + i * step));
                Ok(())
            });
            match all.get(first as usize..(first + count) as usize) {
                Some(expected) => prop_assert_eq!(&found[..], expected),
                None => prop_assert_eq!(walked, Err(RmaError::Type)),
            }
            let span = all.iter().min().zip(all.iter().max())
                .map(|(&a, &b)| Span { first: a.into(), end: i128::from(b + step) });
            prop_assert_eq!(layout.span(), span);
            if size > 1 {
                prop_assert_eq!(layout.rows(1, size, |_, _| Ok(())), Err(RmaError::Type));
            }
        }

        #[test]
        fn a_layout_survives_the_wire(layout in layout()) {
            let mut bytes = Vec::new();
            prop_assert_eq!(layout.encode(&mut bytes), Ok(()));
            prop_assert_eq!(bytes.len(), layout.wire_bytes());
            prop_assert_eq!(Layout::decode(&mut &bytes[..]), Some(layout));
            for short in 0..bytes.len() {
                prop_assert_eq!(Layout::decode(&mut &bytes[..short]), None);
            }
        }
    }

    #[test]
    fn numbers_that_are_too_large_are_not_believed() {
        let block =
            Block { displacement: i64::MAX, stride: i64::MIN, length: u32::MAX, repeats: u32::MAX };
        let layout = Layout::Described {
            primitive: Primitive::CLongDouble,
            count: u32::MAX,
            extent: i64::MIN,
            blocks: vec![block; BLOCKS_MAX],
        };
        assert_eq!(layout.packed_bytes(), None);
        assert_eq!(layout.rows(0, 32, |_, _| Ok(())), Err(RmaError::Type));
        assert!(layout.span().is_some_and(|span| span.first < 0));
        let mut out = Vec::new();
        let too_many = Layout::Described {
            primitive: Primitive::Byte,
            count: 1,
            extent: 0,
            blocks: vec![block; BLOCKS_MAX + 1],
        };
        assert_eq!(too_many.encode(&mut out), Err(RmaError::Type));
        let none =
            Layout::Described { primitive: Primitive::Byte, count: 1, extent: 0, blocks: vec![] };
        assert_eq!(none.encode(&mut out), Err(RmaError::Type));
        assert!(out.is_empty());
    }
}
