//! The elements of which the target's memory consists: MPI's predefined types, by what arithmetic
//! does with them. Several MPI types are the same primitive (MPI_LONG, MPI_INT64_T, MPI_AINT).

/// A predefined type. Sizes are those of x86-64 and aarch64 Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Primitive {
    /// MPI_BYTE, and whatever is only moved (MPI_CHAR, MPI_PACKED).
    Byte = 1,
    /// Signed, 1 byte.
    I8,
    /// Signed, 2 bytes.
    I16,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// MPI_FLOAT.
    F32,
    /// MPI_DOUBLE.
    F64,
    /// MPI_LONG_DOUBLE: 10 bytes of an x87 number, 6 of padding. (On aarch64 it is another format:
    /// only moved there.)
    LongDouble,
    /// MPI_C_FLOAT_COMPLEX.
    C32,
    /// MPI_C_DOUBLE_COMPLEX.
    C64,
    /// MPI_C_LONG_DOUBLE_COMPLEX.
    CLongDouble,
    /// MPI_C_BOOL: 1 byte.
    Bool,
    /// MPI_LOGICAL: 4 bytes; not 0 is true.
    Logical,
    /// MPI_FLOAT_INT.
    FloatInt,
    /// MPI_DOUBLE_INT: 8 + 4 bytes, and 4 of padding.
    DoubleInt,
    /// MPI_LONG_INT: 8 + 4 bytes, and 4 of padding.
    LongInt,
    /// MPI_2INT, MPI_2INTEGER.
    TwoInt,
    /// MPI_SHORT_INT: 2 bytes, 2 of padding, 4.
    ShortInt,
    /// MPI_LONG_DOUBLE_INT: 16 + 4 bytes, and 12 of padding.
    LongDoubleInt,
    /// MPI_2REAL: the index is a float.
    TwoReal,
    /// MPI_2DOUBLE_PRECISION: the index is a double.
    TwoDouble,
}

use Primitive::*;

/// All of them, in the order of their numbers.
pub const ALL: [Primitive; 25] = [
    Byte,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    LongDouble,
    C32,
    C64,
    CLongDouble,
    Bool,
    Logical,
    FloatInt,
    DoubleInt,
    LongInt,
    TwoInt,
    ShortInt,
    LongDoubleInt,
    TwoReal,
    TwoDouble,
];

/// The two halves of a value with an index, as they lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Type of the value, at offset 0.
    pub value: Primitive,
    /// Type of the index.
    pub index: Primitive,
    /// Where the index is in memory, in bytes. In packed form it follows the value.
    pub index_offset: usize,
}

impl Primitive {
    /// The primitive of a number on the wire.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1..=25 => Some(ALL[code as usize - 1]),
            _ => None,
        }
    }

    /// Bytes that an element takes in a message (without padding between the halves of a pair).
    #[inline(always)]
    pub const fn size(self) -> usize {
        match self {
            Byte | I8 | U8 | Bool => 1,
            I16 | U16 => 2,
            I32 | U32 | F32 | Logical => 4,
            ShortInt => 6,
            I64 | U64 | F64 | C32 | FloatInt | TwoInt | TwoReal => 8,
            DoubleInt | LongInt => 12,
            LongDouble | C64 | TwoDouble => 16,
            LongDoubleInt => 20,
            CLongDouble => 32,
        }
    }

    /// Bytes from one element to the next in memory.
    #[inline(always)]
    pub const fn extent(self) -> usize {
        match self {
            ShortInt => 8,
            DoubleInt | LongInt => 16,
            LongDoubleInt => 32,
            other => other.size(),
        }
    }

    /// Are elements in memory as they are in a message?
    #[inline(always)]
    pub const fn is_dense(self) -> bool {
        self.size() == self.extent()
    }

    /// The halves, of a pair.
    pub const fn pair(self) -> Option<Pair> {
        let (value, index, index_offset) = match self {
            FloatInt => (F32, I32, 4),
            DoubleInt => (F64, I32, 8),
            LongInt => (I64, I32, 8),
            TwoInt => (I32, I32, 4),
            ShortInt => (I16, I32, 4),
            LongDoubleInt => (LongDouble, I32, 16),
            TwoReal => (F32, F32, 4),
            TwoDouble => (F64, F64, 8),
            _ => return None,
        };
        Some(Pair { value, index, index_offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_agree() {
        for (primitive, code) in ALL.into_iter().zip(1..) {
            assert_eq!((primitive as u8, Primitive::from_code(code)), (code, Some(primitive)));
            assert!(primitive.size() <= primitive.extent());
            if let Some(pair) = primitive.pair() {
                assert_eq!(primitive.size(), pair.value.size() + pair.index.size());
                assert!(pair.index_offset >= pair.value.size());
                assert!(pair.index_offset + pair.index.size() <= primitive.extent());
            }
        }
        assert_eq!((Primitive::from_code(0), Primitive::from_code(26)), (None, None));
        let padded: Vec<_> = ALL.into_iter().filter(|p| !p.is_dense()).collect();
        assert_eq!(padded, [DoubleInt, LongInt, ShortInt, LongDoubleInt]);
    }
}
