//! Time as the core sees it: a number that is passed in.

/// Microseconds: an instant (since the Unix epoch, by the clock of whoever decides) or a span.
///
/// An instant is 1.8e15 today, below 2^53, so that Lua's doubles hold it exactly.
pub type Micros = u64;

pub const MICROS_PER_MILLI: Micros = 1_000;
pub const MICROS_PER_SECOND: Micros = 1_000_000;

/// Whole milliseconds, rounded up: a caller who waits that long never comes too early.
pub fn millis_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_MILLI)
}

/// Whole seconds, rounded up, for header fields that know nothing finer.
pub fn seconds_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_SECOND)
}

/// When a cost would be admitted, if nothing else is charged meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After that many us; 0 is now.
    For(Micros),
    /// It is larger than a limit.
    Never,
}

impl Wait {
    pub const NONE: Self = Self::For(0);

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}
