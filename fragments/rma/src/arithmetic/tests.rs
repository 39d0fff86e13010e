//! Arithmetic against a model that is as plain as MPI's tables: one element, wide numbers.

use super::*;
use crate::primitive::ALL;

fn pack<const N: usize>(halves: [&[u8]; N]) -> Vec<u8> {
    halves.concat()
}

fn after(op: Op, primitive: Primitive, target: &[u8], origin: &[u8]) -> Vec<u8> {
    let mut target = target.to_vec();
    assert_eq!(combine(op, primitive, &mut target, origin), Ok(()));
    target
}

/// What MPI says of two integers, in 128 bits, cut to the type's width afterwards.
fn model(op: Op, a: i128, b: i128) -> i128 {
    let (x, y) = (a != 0, b != 0);
    match op {
        Replace => b,
        NoOp => a,
        Max => a.max(b),
        Min => a.min(b),
        Sum => a + b,
        Prod => a.wrapping_mul(b),
        LogicalAnd => i128::from(x && y),
        LogicalOr => i128::from(x || y),
        LogicalXor => i128::from(x ^ y),
        BitAnd => a & b,
        BitOr => a | b,
        BitXor => a ^ b,
        MinLoc | MaxLoc => unreachable!("not for integers"),
    }
}

proptest::proptest! {
    #[test]
    fn integers_are_as_in_the_model(a in proptest::num::i128::ANY, b in proptest::num::i128::ANY) {
        for primitive in [I8, I16, I32, I64, U8, U16, U32, U64] {
            let size = primitive.size();
            let signed = matches!(primitive, I8 | I16 | I32 | I64);
            // Small values, too, so that some are equal and some are 0.
            for (a, b) in [(a, b), (a % 3, b % 3)] {
                let cut = |number: i128| {
                    let shift = 128 - 8 * size as u32;
                    match signed {
                        true => (number << shift) >> shift,
                        false => ((number << shift) as u128 >> shift) as i128,
                    }
                };
                let bytes = |number: i128| number.to_le_bytes()[..size].to_vec();
                for op in ALL_OPS.into_iter().filter(|op| op.is_defined(primitive)) {
                    let expected = model(op, cut(a), cut(b));
                    let got = after(op, primitive, &bytes(a), &bytes(b));
                    proptest::prop_assert_eq!(got, bytes(expected), "{:?} {:?}", op, primitive);
                }
            }
        }
    }

    #[test]
    fn values_with_an_index_keep_the_better(
        values in proptest::array::uniform2(-2i32..3),
        indexes in proptest::array::uniform2(-2i32..3),
    ) {
        for op in [MinLoc, MaxLoc] {
            let better = match op {
                MinLoc => values[1] < values[0],
                _ => values[1] > values[0],
            };
            let expected = if values[0] == values[1] {
                (values[0], indexes[0].min(indexes[1]))
            } else if better {
                (values[1], indexes[1])
            } else {
                (values[0], indexes[0])
            };
            for primitive in ALL.into_iter().filter(|primitive| primitive.pair().is_some()) {
                let packed = |value: i32, index: i32| packed_pair(primitive, value, index);
                let target = packed(values[0], indexes[0]);
                let got = after(op, primitive, &target, &packed(values[1], indexes[1]));
                proptest::prop_assert_eq!(got, packed(expected.0, expected.1), "{:?}", primitive);
            }
        }
    }
}

fn packed_pair(primitive: Primitive, value: i32, index: i32) -> Vec<u8> {
    let number = |of: Primitive, number: i32| match of {
        I16 => (number as i16).to_le_bytes().to_vec(),
        I32 => number.to_le_bytes().to_vec(),
        I64 => i64::from(number).to_le_bytes().to_vec(),
        F32 => (number as f32).to_le_bytes().to_vec(),
        F64 => f64::from(number).to_le_bytes().to_vec(),
        LongDouble => {
            let mut bytes = vec![0; 16];
            long(number).write(&mut bytes);
            bytes
        }
        other => unreachable!("{other:?} is in no pair"),
    };
    let pair = primitive.pair().expect("a pair");
    pack([&number(pair.value, value), &number(pair.index, index)])
}

/// A small integer as a long double.
fn long(number: i32) -> LongDouble {
    let head = u16::from(number < 0) << 15;
    match number.unsigned_abs() {
        0 => long_double::LongDouble { head: 0, significand: 0 },
        size => {
            let shift = u64::from(size).leading_zeros();
            let head = head | (16383 + 63 - shift) as u16;
            long_double::LongDouble { head, significand: u64::from(size) << shift }
        }
    }
}

#[test]
fn floats_complex_numbers_and_truths() {
    let f64s = |a: f64, b: f64| pack([&a.to_le_bytes(), &b.to_le_bytes()]);
    let f32s = |a: f32, b: f32| pack([&a.to_le_bytes(), &b.to_le_bytes()]);
    assert_eq!(after(Sum, F64, &f64s(0.1, 1.0), &f64s(0.2, -3.0)), f64s(0.1 + 0.2, -2.0));
    assert_eq!(after(Max, F64, &f64s(1.0, 5.0), &f64s(2.0, -3.0)), f64s(2.0, 5.0));
    assert_eq!(after(Min, F32, &f32s(1.0, 5.0), &f32s(2.0, -3.0)), f32s(1.0, -3.0));
    assert_eq!(after(Prod, F32, &f32s(3.0, 0.5), &f32s(2.0, 8.0)), f32s(6.0, 4.0));
    let nan_loses = after(Max, F64, &f64s(f64::NAN, 1.0), &f64s(2.0, 1.0));
    assert_eq!(nan_loses, f64s(2.0, 1.0));
    // (1 + 2i)(3 - 4i) = 11 + 2i
    assert_eq!(after(Prod, C64, &f64s(1.0, 2.0), &f64s(3.0, -4.0)), f64s(11.0, 2.0));
    assert_eq!(after(Sum, C32, &f32s(1.0, 2.0), &f32s(3.0, -4.0)), f32s(4.0, -2.0));
    let long_pair = |a, b| {
        let mut bytes = vec![0; 32];
        long(a).write(&mut bytes);
        long(b).write(&mut bytes[16..]);
        bytes
    };
    assert_eq!(after(Prod, CLongDouble, &long_pair(1, 2), &long_pair(3, -4)), long_pair(11, 2));
    assert_eq!(after(Sum, LongDouble, &long_pair(1, -9), &long_pair(3, 4)), long_pair(4, -5));
    assert_eq!(after(Max, LongDouble, &long_pair(1, -9), &long_pair(3, -10)), long_pair(3, -9));
    assert_eq!(after(LogicalXor, Logical, &[0, 7, 0, 0], &[0; 4]), [1, 0, 0, 0]);
    assert_eq!(after(LogicalAnd, Bool, &[1, 2, 0], &[1, 0, 1]), [1, 0, 0]);
}

#[test]
fn what_mpi_does_not_define_is_refused() {
    let table = [
        (Sum, Byte),
        (Max, C64),
        (LogicalAnd, F64),
        (BitAnd, F32),
        (MinLoc, I32),
        (Sum, DoubleInt),
        (BitXor, Bool),
    ];
    for (op, primitive) in table {
        let mut target = vec![1; primitive.size()];
        let origin = vec![2; primitive.size()];
        assert_eq!(combine(op, primitive, &mut target, &origin), Err(RmaError::Op), "{op:?}");
        assert!(target.iter().all(|&byte| byte == 1), "as before");
    }
    assert_eq!(combine(Sum, I32, &mut [0; 4], &[0; 8]), Err(RmaError::Type));
    assert_eq!(combine(Sum, I32, &mut [0; 6], &[0; 6]), Err(RmaError::Type));
    for (op, code) in ALL_OPS.into_iter().zip(1..) {
        assert_eq!((op as u8, Op::from_code(code)), (code, Some(op)));
    }
    assert_eq!((Op::from_code(0), Op::from_code(15)), (None, None));
}

#[test]
fn an_element_is_swapped_if_it_is_equal() {
    let mut target = 7u32.to_le_bytes();
    compare_and_swap(&mut target, &8u32.to_le_bytes(), &9u32.to_le_bytes());
    assert_eq!(u32::from_le_bytes(target), 7);
    compare_and_swap(&mut target, &7u32.to_le_bytes(), &9u32.to_le_bytes());
    assert_eq!(u32::from_le_bytes(target), 9);
}
