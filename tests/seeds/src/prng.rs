//! Random numbers: SplitMix64, the same on every machine; and a hash of what a program has seen.

/// Seeds are small numbers; states are not.
pub const SALT: u64 = 0xD1B5_4A32_D192_ED03;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut prng = Self(seed ^ SALT);
        prng.bits();
        prng
    }

    /// The stream that goes on from this state.
    pub const fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// An independent stream, named `salt`.
    pub fn fork(&self, salt: u64) -> Self {
        Self::new(self.0 ^ salt.wrapping_mul(0xA24B_AED4_963E_E407))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scatter(self.0)
    }

    /// A number below `end` (which is not 0).
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// A number from `first` to `last`, both included.
    pub fn from_to(&mut self, first: u64, last: u64) -> u64 {
        first + self.below((last - first + 1) as usize) as u64
    }

    /// The same of counts.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Put into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// Mix a value into a state.
pub fn mix(state: u64, value: u64) -> u64 {
    scatter((state ^ value.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(12345))
}

/// Mix bytes into a state.
pub fn mix_bytes(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(mix(state, bytes.len() as u64), |state, &byte| mix(state, byte.into()))
}

/// SplitMix64's finalizer.
fn scatter(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds are noted in tests and documents: they stand for the same runs for ever.
    #[test]
    fn numbers_do_not_change() {
        let mut prng = Prng::from_state(7);
        let expected = [0x63CB_E1E4_5932_0DD7, 0x044C_3CD7_F43C_661C];
        assert_eq!([prng.bits(), prng.bits()], expected);
        assert_eq!(Prng::new(0).bits(), 0x7585_6F74_5165_F252);
        assert_eq!(mix(3, 4), 0xA1BC_EC64_B2A6_5F92);
    }

    #[test]
    fn numbers_are_where_they_should_be() {
        let mut prng = Prng::new(1);
        for _ in 0..1000 {
            assert!(prng.below(3) < 3);
            assert!((5..=7).contains(&prng.from_to(5, 7)));
            assert!(prng.chance(100) && !prng.chance(0));
        }
        let mut items = [0, 1, 2, 3, 4];
        prng.shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2, 3, 4]);
    }
}
