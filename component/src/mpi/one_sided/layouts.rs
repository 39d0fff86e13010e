//! The target's type: rows of bytes, as Open MPI's convertor gives them, become layouts of the
//! machine.

use crate::ffi::table::{Access, Row};
use rustbtl_rma::error::RmaError;
use rustbtl_rma::layout::{BLOCKS_MAX, Block, Layout};
use rustbtl_rma::primitive::Primitive;

/// A type of more blocks than fit into one operation is written out one element after the other:
/// no more than this.
const BLOCKS_OF_ALL_MAX: u64 = 1 << 26;

/// The layouts of an access, in the order of its data: as a rule one.
///
/// # Errors
/// `Type`: its rows are no elements of its primitive, or are too many.
pub fn layouts_of(access: &Access, rows: &[Row]) -> Result<Vec<Layout>, RmaError> {
    let code = u8::try_from(access.primitive).map_err(|_| RmaError::Type)?;
    let primitive = Primitive::from_code(code).ok_or(RmaError::Type)?;
    if access.rows.is_null() {
        return Ok(vec![Layout::Contiguous { primitive, count: access.count }]);
    }
    let blocks = blocks_of(primitive, rows)?;
    if blocks.is_empty() || access.count == 0 {
        return Ok(vec![Layout::Contiguous { primitive, count: 0 }]);
    }
    if blocks.len() <= BLOCKS_MAX
        && let Ok(count) = u32::try_from(access.count)
    {
        let extent = access.extent;
        return Ok(vec![Layout::Described { primitive, count, extent, blocks }]);
    }
    if (blocks.len() as u64).saturating_mul(access.count) > BLOCKS_OF_ALL_MAX {
        return Err(RmaError::Type);
    }
    let mut layouts = Vec::new();
    for time in 0..access.count as i64 {
        let moved = |block: &Block| {
            let displacement = block.displacement.wrapping_add(time.wrapping_mul(access.extent));
            Block { displacement, ..*block }
        };
        layouts.extend(blocks.chunks(BLOCKS_MAX).map(|some| {
            let blocks = some.iter().map(moved).collect();
            Layout::Described { primitive, count: 1, extent: 0, blocks }
        }));
    }
    Ok(layouts)
}

/// Places of elements in a row, in bytes, and how many.
type Run = (i64, u64);

/// Rows of bytes as runs of elements. Those of a pair with padding are joined: its halves may lie
/// in different rows.
fn runs_of(primitive: Primitive, rows: &[Row]) -> Result<Vec<Run>, RmaError> {
    let mut runs = Vec::new();
    let size = primitive.size() as u64;
    let Some(pair) = primitive.pair().filter(|_| !primitive.is_dense()) else {
        for row in rows.iter().filter(|row| row.bytes > 0) {
            if !row.bytes.is_multiple_of(size) {
                return Err(RmaError::Type);
            }
            runs.push((row.at, row.bytes / size));
        }
        return Ok(runs);
    };
    let (value, index) = (pair.value.size() as u64, pair.index.size() as u64);
    let mut rest = rows.iter().copied().filter(|row| row.bytes > 0);
    let mut row = Row { at: 0, bytes: 0 };
    // The next bytes, which lie in one row; where they are.
    let mut take = |bytes: u64| -> Result<Option<i64>, RmaError> {
        if row.bytes == 0 {
            match rest.next() {
                None => return Ok(None),
                Some(next) => row = next,
            }
        }
        if row.bytes < bytes {
            return Err(RmaError::Type);
        }
        let at = row.at;
        row = Row { at: at.wrapping_add_unsigned(bytes), bytes: row.bytes - bytes };
        Ok(Some(at))
    };
    while let Some(at) = take(value)? {
        match take(index)? {
            Some(second) if second == at.wrapping_add(pair.index_offset as i64) => {
                runs.push((at, 1));
            }
            _ => return Err(RmaError::Type),
        }
    }
    Ok(runs)
}

/// Neighbouring runs of equal length at equal distances are one block.
fn blocks_of(primitive: Primitive, rows: &[Row]) -> Result<Vec<Block>, RmaError> {
    let step = primitive.extent() as i64;
    let mut joined: Vec<Run> = Vec::new();
    for (at, count) in runs_of(primitive, rows)? {
        match joined.last_mut() {
            Some((before, have)) if before.wrapping_add(step.wrapping_mul(*have as i64)) == at => {
                *have += count;
            }
            _ => joined.push((at, count)),
        }
    }
    let mut blocks: Vec<Block> = Vec::new();
    for (displacement, count) in joined {
        let length = u32::try_from(count).map_err(|_| RmaError::Type)?;
        if let Some(last) = blocks.last_mut()
            && last.length == length
        {
            let end = last
                .displacement
                .wrapping_add(last.stride.wrapping_mul(i64::from(last.repeats - 1)));
            let distance = displacement.wrapping_sub(end);
            if last.repeats == 1 || last.stride == distance {
                last.stride = distance;
                last.repeats += 1;
                continue;
            }
        }
        blocks.push(Block { displacement, stride: 0, length, repeats: 1 });
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(i64, u64)]) -> Vec<Row> {
        of.iter().map(|&(at, bytes)| Row { at, bytes }).collect()
    }

    fn block(displacement: i64, stride: i64, length: u32, repeats: u32) -> Block {
        Block { displacement, stride, length, repeats }
    }

    #[test]
    fn a_vector_is_one_block() {
        let vector = rows(&[(8, 16), (40, 16), (72, 16)]);
        assert_eq!(blocks_of(Primitive::F64, &vector), Ok(vec![block(8, 32, 2, 3)]));
        assert_eq!(blocks_of(Primitive::Byte, &vector), Ok(vec![block(8, 32, 16, 3)]));
        let odd = rows(&[(0, 8), (-8, 8), (-16, 8), (3, 8), (11, 16)]);
        let expected = vec![block(0, -8, 8, 3), block(3, 0, 24, 1)];
        assert_eq!(blocks_of(Primitive::Byte, &odd), Ok(expected));
        assert_eq!(blocks_of(Primitive::I32, &rows(&[(0, 6)])), Err(RmaError::Type));
    }

    #[test]
    fn halves_of_pairs_are_joined() {
        let dense = rows(&[(0, 12), (16, 12), (48, 12)]);
        let expected = vec![block(0, 0, 2, 1), block(48, 0, 1, 1)];
        assert_eq!(blocks_of(Primitive::DoubleInt, &dense), Ok(expected));
        let apart = rows(&[(8, 2), (12, 4), (16, 2), (20, 4)]);
        assert_eq!(blocks_of(Primitive::ShortInt, &apart), Ok(vec![block(8, 0, 2, 1)]));
        for wrong in [&[(0, 2), (8, 4)][..], &[(0, 2)], &[(0, 3), (4, 4)]] {
            assert_eq!(blocks_of(Primitive::ShortInt, &rows(wrong)), Err(RmaError::Type));
        }
    }

    #[test]
    fn many_blocks_are_several_operations() {
        let of = |count: u64, rows: &[Row]| {
            let access = Access {
                rows: rows.as_ptr(),
                row_count: rows.len() as u64,
                count,
                extent: 100_000,
                primitive: Primitive::Byte as u32,
                ..Access::default()
            };
            layouts_of(&access, rows)
        };
        // Lengths that differ cannot be joined.
        let all: Vec<Row> =
            (0..1500).map(|i| Row { at: i * 40, bytes: 1 + (i % 2) as u64 }).collect();
        let layouts = of(2, &all).expect("not too many");
        let counts: Vec<_> = layouts.iter().map(|l| l.packed_bytes().unwrap_or(0)).collect();
        assert_eq!(counts, [1536, 714, 1536, 714]);
        assert!(layouts.iter().all(|layout| layout.check().is_ok()));
        assert_eq!(layouts[3].span().map(|span| span.first), Some(100_000 + 1024 * 40));
        assert_eq!(of(2, &all[..10]).map(|l| l.len()), Ok(1));
        assert_eq!(of(0, &all).map(|l| l[0].packed_bytes()), Ok(Some(0)));
    }
}
