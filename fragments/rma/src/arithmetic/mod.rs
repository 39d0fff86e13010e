//! What MPI_Accumulate and its relatives do with elements: predefined operations on predefined
//! types (MPI-3.1 §5.9.2, §5.9.4, §11.3.4). Pure functions on packed elements.
//!
//! The target's element is the left operand, the origin's the right one. Integers wrap. The larger
//! of two numbers of which one is no number is the origin's, as `target > origin ? target : origin`
//! says. Complex products are taken term by term, without C's repair of infinities.

pub mod long_double;

use crate::error::RmaError;
use crate::primitive::{Pair, Primitive};
use core::cmp::Ordering;
use long_double::LongDouble;

/// A predefined operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Op {
    /// MPI_REPLACE: for every type.
    Replace = 1,
    /// MPI_NO_OP: nothing happens; what is fetched is read atomically.
    NoOp,
    /// MPI_MAX.
    Max,
    /// MPI_MIN.
    Min,
    /// MPI_SUM.
    Sum,
    /// MPI_PROD.
    Prod,
    /// MPI_LAND.
    LogicalAnd,
    /// MPI_LOR.
    LogicalOr,
    /// MPI_LXOR.
    LogicalXor,
    /// MPI_BAND.
    BitAnd,
    /// MPI_BOR.
    BitOr,
    /// MPI_BXOR.
    BitXor,
    /// MPI_MINLOC: of equal values the lower index.
    MinLoc,
    /// MPI_MAXLOC: of equal values the lower index.
    MaxLoc,
}

use Op::*;
use Primitive::*;

/// All of them, in the order of their numbers.
pub const ALL_OPS: [Op; 14] = [
    Replace, NoOp, Max, Min, Sum, Prod, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor,
    MinLoc, MaxLoc,
];

impl Op {
    /// The operation of a number on the wire.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1..=14 => Some(ALL_OPS[code as usize - 1]),
            _ => None,
        }
    }

    /// Does MPI define it for elements of this type?
    #[inline]
    pub fn is_defined(self, primitive: Primitive) -> bool {
        let integer = matches!(primitive, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64);
        let real = matches!(primitive, F32 | F64 | LongDouble);
        let complex = matches!(primitive, C32 | C64 | CLongDouble);
        match self {
            Replace | NoOp => true,
            Max | Min => integer || real,
            Sum | Prod => integer || real || complex,
            LogicalAnd | LogicalOr | LogicalXor => integer || matches!(primitive, Bool | Logical),
            BitAnd | BitOr | BitXor => integer || primitive == Byte,
            MinLoc | MaxLoc => primitive.pair().is_some(),
        }
    }
}

/// Packed elements of the target become those of `target op origin`.
///
/// # Errors
/// `Op`: not defined for the type. `Type`: the two are not equally many whole elements. The target
/// is as before.
pub fn combine(
    op: Op,
    primitive: Primitive,
    target: &mut [u8],
    origin: &[u8],
) -> Result<(), RmaError> {
    let size = primitive.size();
    if target.len() != origin.len() || !target.len().is_multiple_of(size) {
        return Err(RmaError::Type);
    }
    if !op.is_defined(primitive) {
        return Err(RmaError::Op);
    }
    match op {
        NoOp => {}
        Replace => target.copy_from_slice(origin),
        _ => {
            for (a, b) in target.chunks_exact_mut(size).zip(origin.chunks_exact(size)) {
                element(op, primitive, a, b);
            }
        }
    }
    Ok(())
}

/// The same of one element for which it is defined.
#[inline]
pub(crate) fn combine_one(op: Op, primitive: Primitive, target: &mut [u8], origin: &[u8]) {
    match op {
        NoOp => {}
        Replace => target.copy_from_slice(origin),
        _ => element(op, primitive, target, origin),
    }
}

/// MPI_Compare_and_swap on one packed element: replaced if it is equal, bit by bit.
pub fn compare_and_swap(target: &mut [u8], compare: &[u8], new: &[u8]) {
    if target == compare {
        target.copy_from_slice(new);
    }
}

macro_rules! number {
    ($kind:ty, $bytes:expr) => {{
        let mut own = [0; size_of::<$kind>()];
        own.copy_from_slice(&$bytes[..size_of::<$kind>()]);
        <$kind>::from_le_bytes(own)
    }};
}

macro_rules! integers {
    ($op:expr, $kind:ty, $a:expr, $b:expr) => {{
        let (a, b) = (number!($kind, $a), number!($kind, $b));
        let truth = |is: bool| <$kind>::from(u8::from(is) as $kind);
        let result = match $op {
            Max => a.max(b),
            Min => a.min(b),
            Sum => a.wrapping_add(b),
            Prod => a.wrapping_mul(b),
            LogicalAnd => truth(a != 0 && b != 0),
            LogicalOr => truth(a != 0 || b != 0),
            LogicalXor => truth((a != 0) != (b != 0)),
            BitAnd => a & b,
            BitOr => a | b,
            BitXor => a ^ b,
            Replace | NoOp | MinLoc | MaxLoc => a,
        };
        $a.copy_from_slice(&result.to_le_bytes());
    }};
}

macro_rules! reals {
    ($op:expr, $kind:ty, $a:expr, $b:expr) => {{
        let (a, b) = (number!($kind, $a), number!($kind, $b));
        let result = match $op {
            Max if a > b => a,
            Min if a < b => a,
            Max | Min => b,
            Sum => a + b,
            Prod => a * b,
            _ => a,
        };
        $a.copy_from_slice(&result.to_le_bytes());
    }};
}

macro_rules! complexes {
    ($op:expr, $kind:ty, $a:expr, $b:expr) => {{
        const HALF: usize = size_of::<$kind>();
        let (a, b) = (number!($kind, $a), number!($kind, $b));
        let (ai, bi) = (number!($kind, $a[HALF..]), number!($kind, $b[HALF..]));
        let (re, im) = match $op {
            Prod => (a * b - ai * bi, a * bi + ai * b),
            _ => (a + b, ai + bi),
        };
        $a[..HALF].copy_from_slice(&re.to_le_bytes());
        $a[HALF..].copy_from_slice(&im.to_le_bytes());
    }};
}

fn element(op: Op, primitive: Primitive, a: &mut [u8], b: &[u8]) {
    match primitive {
        Byte | U8 => integers!(op, u8, a, b),
        Bool | Logical => truths(op, a, b),
        I8 => integers!(op, i8, a, b),
        I16 => integers!(op, i16, a, b),
        I32 => integers!(op, i32, a, b),
        I64 => integers!(op, i64, a, b),
        U16 => integers!(op, u16, a, b),
        U32 => integers!(op, u32, a, b),
        U64 => integers!(op, u64, a, b),
        F32 => reals!(op, f32, a, b),
        F64 => reals!(op, f64, a, b),
        C32 => complexes!(op, f32, a, b),
        C64 => complexes!(op, f64, a, b),
        LongDouble => long_double(op, a, b),
        CLongDouble => complex_long_double(op, a, b),
        FloatInt | DoubleInt | LongInt | TwoInt | ShortInt | LongDoubleInt | TwoReal
        | TwoDouble => {
            if let Some(pair) = primitive.pair() {
                value_and_index(op, pair, a, b);
            }
        }
    }
}

/// Logical types of any width: not 0 is true, true is written as 1.
fn truths(op: Op, a: &mut [u8], b: &[u8]) {
    let is_true = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0);
    let (x, y) = (is_true(a), is_true(b));
    let result = match op {
        LogicalAnd => x && y,
        LogicalOr => x || y,
        _ => x != y,
    };
    a.fill(0);
    a[0] = u8::from(result);
}

fn long_double(op: Op, a: &mut [u8], b: &[u8]) {
    let (x, y) = (LongDouble::read(a), LongDouble::read(b));
    let order = x.compare(y);
    let result = match op {
        Max if order == Some(Ordering::Greater) => x,
        Min if order == Some(Ordering::Less) => x,
        Max | Min => y,
        Sum => x.plus(y),
        _ => x.multiply(y),
    };
    result.write(a);
}

fn complex_long_double(op: Op, a: &mut [u8], b: &[u8]) {
    let half = LongDouble.size();
    let (x, xi) = (LongDouble::read(a), LongDouble::read(&a[half..]));
    let (y, yi) = (LongDouble::read(b), LongDouble::read(&b[half..]));
    let (re, im) = match op {
        Prod => (x.multiply(y).plus(xi.multiply(yi).negate()), x.multiply(yi).plus(xi.multiply(y))),
        _ => (x.plus(y), xi.plus(yi)),
    };
    re.write(a);
    im.write(&mut a[half..]);
}

/// The order of two packed numbers; `None`: one is none.
fn order(primitive: Primitive, a: &[u8], b: &[u8]) -> Option<Ordering> {
    match primitive {
        I16 => Some(number!(i16, a).cmp(&number!(i16, b))),
        I32 => Some(number!(i32, a).cmp(&number!(i32, b))),
        I64 => Some(number!(i64, a).cmp(&number!(i64, b))),
        F32 => number!(f32, a).partial_cmp(&number!(f32, b)),
        F64 => number!(f64, a).partial_cmp(&number!(f64, b)),
        LongDouble => LongDouble::read(a).compare(LongDouble::read(b)),
        _ => None,
    }
}

fn value_and_index(op: Op, pair: Pair, a: &mut [u8], b: &[u8]) {
    let at = pair.value.size();
    let wins = if op == MinLoc { Ordering::Less } else { Ordering::Greater };
    match order(pair.value, b, a) {
        Some(found) if found == wins => a.copy_from_slice(b),
        Some(Ordering::Equal) if order(pair.index, &b[at..], &a[at..]) == Some(Ordering::Less) => {
            a[at..].copy_from_slice(&b[at..]);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
