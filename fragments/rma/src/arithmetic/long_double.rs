//! MPI_LONG_DOUBLE on x86-64: numbers of the x87 (64 bits of significand, 15 of exponent) in
//! integers, since Rust has no such type. Sum, product and comparison, rounded to nearest, ties to
//! even, as the processor does (`tests/long_double.rs` compares with it).

use core::cmp::Ordering;

/// A number: 10 bytes, little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongDouble {
    /// Sign (1 bit) and exponent (15 bits).
    pub head: u16,
    /// Significand; its highest bit is the one before the point.
    pub significand: u64,
}

const EXPONENT: u16 = 0x7FFF;
const LEADING: u64 = 1 << 63;
/// What an invalid operation gives.
const INDEFINITE: LongDouble = LongDouble { head: 0xFFFF, significand: 3 << 62 };
/// Power of two of the last bit of numbers with the smallest exponent.
const LOWEST: i32 = 1 - 16383 - 63;

/// A finite number other than 0: `significand * 2^power`, the highest bit set.
struct Finite {
    negative: bool,
    significand: u64,
    power: i32,
}

enum Kind {
    NotANumber,
    Infinite,
    Zero,
    Finite(Finite),
}

impl LongDouble {
    /// The number in the first 10 bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(bytes: &[u8]) -> Self {
        let (mut significand, mut head) = ([0; 8], [0; 2]);
        significand.copy_from_slice(&bytes[..8]);
        head.copy_from_slice(&bytes[8..10]);
        Self { head: u16::from_le_bytes(head), significand: u64::from_le_bytes(significand) }
    }

    /// Write it into the first 10 bytes; padding behind it stays.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn write(self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.significand.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.head.to_le_bytes());
    }

    /// Is it no number?
    pub fn is_nan(self) -> bool {
        matches!(self.kind(), Kind::NotANumber)
    }

    fn is_negative(self) -> bool {
        self.head & !EXPONENT != 0
    }

    fn kind(self) -> Kind {
        let field = self.head & EXPONENT;
        let leads = self.significand & LEADING != 0;
        match (field, self.significand) {
            (0, 0) => Kind::Zero,
            (EXPONENT, LEADING) => Kind::Infinite,
            (EXPONENT, _) => Kind::NotANumber,
            // The processor takes a number whose leading bit is missing for none.
            (1.., _) if !leads => Kind::NotANumber,
            (field, significand) => {
                let shift = significand.leading_zeros();
                let power = i32::from(field.max(1)) - 1 + LOWEST - shift as i32;
                let significand = significand << shift;
                Kind::Finite(Finite { negative: self.is_negative(), significand, power })
            }
        }
    }

    /// Nearest to `wide * 2^power`, where `wide` is not 0. A bit that stands for lost ones may be
    /// the lowest, if there are more than 64.
    fn nearest(negative: bool, wide: u128, power: i32) -> Self {
        let top = 127 - wide.leading_zeros() as i32;
        let shift = (top - 63).max(LOWEST - power);
        let (mut significand, up) = match shift {
            ..=0 => (wide << -shift, false),
            1..=127 => {
                let rest = wide & ((1 << shift) - 1);
                let half = 1 << (shift - 1);
                let kept = wide >> shift;
                (kept, rest > half || rest == half && kept & 1 == 1)
            }
            _ => (0, shift == 128 && wide > 1 << 127),
        };
        significand += u128::from(up);
        let mut power = power + shift;
        if significand >> 64 != 0 {
            significand >>= 1;
            power += 1;
        }
        let significand = significand as u64;
        let field = if significand & LEADING == 0 { 0 } else { power - LOWEST + 1 };
        let sign = u16::from(negative) << 15;
        if field >= i32::from(EXPONENT) {
            return Self { head: sign | EXPONENT, significand: LEADING };
        }
        Self { head: sign | field as u16, significand }
    }

    fn zero(negative: bool) -> Self {
        Self { head: u16::from(negative) << 15, significand: 0 }
    }

    fn quiet(self) -> Self {
        // Numbers without a leading bit are invalid operands, not NaNs that are passed on.
        match self.head & EXPONENT == EXPONENT && self.significand & LEADING != 0 {
            true => Self { significand: self.significand | 1 << 62, ..self },
            false => INDEFINITE,
        }
    }

    /// `self + other`.
    pub fn plus(self, other: Self) -> Self {
        match (self.kind(), other.kind()) {
            (Kind::NotANumber, _) => self.quiet(),
            (_, Kind::NotANumber) => other.quiet(),
            (Kind::Infinite, Kind::Infinite) if self.head != other.head => INDEFINITE,
            (Kind::Infinite, _) => self,
            (_, Kind::Infinite) => other,
            (Kind::Zero, Kind::Zero) => Self::zero(self.is_negative() && other.is_negative()),
            (Kind::Zero, Kind::Finite(_)) => other.normal(),
            (Kind::Finite(_), Kind::Zero) => self.normal(),
            (Kind::Finite(a), Kind::Finite(b)) => {
                let (big, small) = match (a.power, a.significand) >= (b.power, b.significand) {
                    true => (a, b),
                    false => (b, a),
                };
                // 63 bits below the larger one's last; what is lost below counts as one bit.
                let wide = u128::from(big.significand) << 63;
                let apart = (big.power - small.power) as u32;
                let low = u128::from(small.significand) << 63;
                let low = match apart {
                    0..=127 => low >> apart | u128::from(low & ((1 << apart) - 1) != 0),
                    _ => 1,
                };
                let wide = if big.negative == small.negative { wide + low } else { wide - low };
                match wide {
                    0 => Self::zero(false),
                    _ => Self::nearest(big.negative, wide, big.power - 63),
                }
            }
        }
    }

    /// As the processor would write it: with its own exponent.
    fn normal(self) -> Self {
        match self.kind() {
            Kind::Finite(a) => Self::nearest(a.negative, a.significand.into(), a.power),
            _ => self,
        }
    }

    /// `self * other`.
    pub fn multiply(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self.kind(), other.kind()) {
            (Kind::NotANumber, _) => self.quiet(),
            (_, Kind::NotANumber) => other.quiet(),
            (Kind::Infinite, Kind::Zero) | (Kind::Zero, Kind::Infinite) => INDEFINITE,
            (Kind::Infinite, _) | (_, Kind::Infinite) => {
                Self { head: u16::from(negative) << 15 | EXPONENT, significand: LEADING }
            }
            (Kind::Zero, _) | (_, Kind::Zero) => Self::zero(negative),
            (Kind::Finite(a), Kind::Finite(b)) => {
                let wide = u128::from(a.significand) * u128::from(b.significand);
                Self::nearest(negative, wide, a.power + b.power)
            }
        }
    }

    /// `-self`.
    pub fn negate(self) -> Self {
        Self { head: self.head ^ !EXPONENT, ..self }
    }

    /// Order of two numbers; `None`: one is none.
    pub fn compare(self, other: Self) -> Option<Ordering> {
        let rank = |number: Self| match number.kind() {
            Kind::NotANumber => None,
            Kind::Zero => Some((0, 0, 0)),
            Kind::Infinite => Some((1, i32::MAX, 0)),
            Kind::Finite(a) => Some((1, a.power, a.significand)),
        };
        let (a, b) = (rank(self)?, rank(other)?);
        let sign = |number: Self, (one, _, _): (i32, i32, u64)| match number.is_negative() {
            true => -one,
            false => one,
        };
        let by_sign = sign(self, a).cmp(&sign(other, b));
        Some(by_sign.then(if self.is_negative() { b.cmp(&a) } else { a.cmp(&b) }))
    }
}
