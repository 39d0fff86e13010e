//! Random numbers: SplitMix64, the same on every machine.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut prng = Self(seed ^ 0xD1B5_4A32_D192_ED03);
        prng.bits();
        prng
    }

    /// An independent stream, named `salt`.
    pub fn fork(&self, salt: u64) -> Self {
        Self::new(self.0 ^ salt.wrapping_mul(0xA24B_AED4_963E_E407))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end` (which is not 0).
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// A number from `first` to `last`, both included.
    pub fn from_to(&mut self, first: u64, last: u64) -> u64 {
        first + self.below((last - first + 1) as usize) as u64
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
