//! Long doubles against the processor: what the x87 computes is what the crate computes.
#![cfg(target_arch = "x86_64")]

use core::arch::asm;
use core::cmp::Ordering;
use proptest::prelude::*;
use rustbtl_rma::arithmetic::long_double::LongDouble;

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Memory([u8; 16]);

fn stored(number: LongDouble) -> Memory {
    let mut memory = Memory([0; 16]);
    number.write(&mut memory.0);
    memory
}

/// `a + b` or `a * b` of the processor, in its full precision (Linux's default).
fn processor(a: LongDouble, b: LongDouble, multiply: bool) -> LongDouble {
    let (a, b, mut result) = (stored(a), stored(b), Memory([0; 16]));
    let (a, b, to) = (a.0.as_ptr(), b.0.as_ptr(), result.0.as_mut_ptr());
    if multiply {
        // SAFETY: reads 10 bytes each of two blocks of 16, writes 10 of a third; the x87's stack is
        // left as it was.
        unsafe {
            asm!("fninit", "fld tbyte ptr [{a}]", "fld tbyte ptr [{b}]", "fmulp",
                "fstp tbyte ptr [{to}]", a = in(reg) a, b = in(reg) b, to = in(reg) to,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _);
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("fninit", "fld tbyte ptr [{a}]", "fld tbyte ptr [{b}]", "faddp",
                "fstp tbyte ptr [{to}]", a = in(reg) a, b = in(reg) b, to = in(reg) to,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _);
        }
    }
    LongDouble::read(&result.0)
}

/// Numbers of every kind; many close to each other, so that bits cancel, and many at the ends.
fn number() -> impl Strategy<Value = LongDouble> {
    let field = prop_oneof![
        Just(0u16),
        Just(1),
        0u16..200,
        16300u16..16460,
        0x7F00u16..0x7FFF,
        Just(0x7FFF),
        8000u16..8400,
    ];
    let low = prop_oneof![
        any::<u64>(),
        Just(0),
        Just(u64::MAX),
        (0u32..63).prop_map(|bit| 1 << bit),
        0u64..4,
        Just(1 << 62)
    ];
    (any::<bool>(), field, low, prop::bool::weighted(0.95)).prop_map(
        |(negative, field, low, leads)| {
            let leading = u64::from(leads && field != 0) << 63;
            let significand = low & !(1 << 63) | leading;
            LongDouble { head: u16::from(negative) << 15 | field, significand }
        },
    )
}

/// Two of them; half of the time at a distance at which bits are lost, or cancel.
fn two() -> impl Strategy<Value = (LongDouble, LongDouble)> {
    let apart = prop_oneof![Just(None), (-3i32..4).prop_map(Some), (61i32..68).prop_map(Some)];
    (number(), number(), apart).prop_map(|(a, b, apart)| {
        let Some(apart) = apart else { return (a, b) };
        let field = (i32::from(a.head & 0x7FFF) - apart).clamp(1, 0x7FFE) as u16;
        (a, LongDouble { head: b.head & 0x8000 | field, significand: b.significand | 1 << 63 })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60_000))]

    #[test]
    fn sums_and_products_are_the_processors((a, b) in two()) {
        for (own, multiply) in [(a.plus(b), false), (a.multiply(b), true)] {
            let expected = processor(a, b, multiply);
            match expected.is_nan() {
                true => prop_assert!(own.is_nan(), "{:x?} {:x?} {}", a, b, multiply),
                false => prop_assert_eq!(own, expected, "{:x?} {:x?} {}", a, b, multiply),
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_difference((a, b) in two()) {
        let difference = processor(a, b.negate(), false);
        let zero = difference.significand == 0 && difference.head & 0x7FFF == 0;
        let expected = match (a.is_nan() || b.is_nan(), zero || a == b, difference.head >> 15) {
            (true, ..) => None,
            (_, true, _) => Some(Ordering::Equal),
            (_, _, 1) => Some(Ordering::Less),
            _ => Some(Ordering::Greater),
        };
        prop_assert_eq!(a.compare(b), expected, "{:x?} {:x?}", a, b);
        prop_assert_eq!(b.compare(a), expected.map(Ordering::reverse));
    }
}
