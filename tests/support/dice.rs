//! Pseudo-random numbers, the same for a seed in each run (xorshift64, Marsaglia 2003).

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.number() % sides.max(1)
    }

    pub(crate) fn place(&mut self, places: usize) -> usize {
        usize::try_from(self.below(places as u64)).unwrap()
    }

    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.place(all.len())]
    }
}
