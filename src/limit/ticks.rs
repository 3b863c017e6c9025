//! The ticks of a sliding counter: equal parts of time, numbered from the epoch.

use std::ops::Range;

use super::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};

/// Maximum number of ticks in a window.
pub const MAX_TICKS: u64 = 120;

/// The shortest tick: 100 ms, in us.
pub const MIN_TICK: Micros = 100 * MICROS_PER_MILLI;

/// The longest tick: an hour, in us.
pub const MAX_TICK: Micros = 3600 * MICROS_PER_SECOND;

/// The default tick: a second, in us.
pub const DEFAULT_TICK: Micros = MICROS_PER_SECOND;

/// How far a clock may step back and still count what it wrote, us.
pub const STEP_BACK: Micros = 250 * MICROS_PER_MILLI;

/// How long a store keeps a tick that counts no more, for clocks that step, us. It is no multiple of
/// usual ticks, so no tick is dropped just where another one begins.
const SLACK: Micros = 1_037 * MICROS_PER_MILLI;

/// How a policy divides time into ticks, and which of them count. It is compact, since each key of
/// the embedded store holds one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    length_ms: u32,
    /// The policy's longest window, in ticks.
    longest: u8,
    /// The longest window of all policies that share the counts, in ticks.
    life: u8,
    /// Counts one tick more, so that the limit holds in any interval.
    pub strict: bool,
    /// All shared policies count a key together, in counters without a policy's name.
    pub shared: bool,
}

impl Ticks {
    /// Ticks of this length (us, [`MIN_TICK`] to [`MAX_TICK`]), without windows yet.
    pub fn new(length: Micros, strict: bool, shared: bool) -> Self {
        let length_ms = u32::try_from(length / MICROS_PER_MILLI).unwrap_or(u32::MAX).max(1);
        Self { length_ms, longest: 0, life: 0, strict, shared }
    }

    /// The same ticks for a policy whose longest window is `window` us.
    #[must_use]
    pub fn with_longest(self, window: Micros) -> Self {
        let longest = u8::try_from(self.in_window(window)).unwrap_or(u8::MAX);
        Self { longest, life: self.life.max(longest), ..self }
    }

    /// The same ticks for counts that other policies share, the longest of them with a window of
    /// `life` ticks.
    #[must_use]
    pub fn with_life(self, life: u64) -> Self {
        let life = u8::try_from(life).unwrap_or(u8::MAX);
        Self { life: life.max(self.longest), ..self }
    }

    /// Length of a tick, us.
    pub fn length(self) -> Micros {
        Micros::from(self.length_ms) * MICROS_PER_MILLI
    }

    /// The tick that contains `now`.
    pub fn at(self, now: Micros) -> u64 {
        now / self.length()
    }

    /// Ticks in a window of this length, us.
    pub fn in_window(self, window: Micros) -> u64 {
        window / self.length()
    }

    /// The policy's longest window, in ticks.
    pub fn longest(self) -> u64 {
        self.longest.into()
    }

    /// The longest window of all policies that share the counts, in ticks.
    pub fn life(self) -> u64 {
        self.life.into()
    }

    /// How many ticks before the current one count in a window of so many ticks.
    pub fn before(self, window: u64) -> u64 {
        (window + u64::from(self.strict)).saturating_sub(1)
    }

    /// How many ticks after the current one count.
    pub fn ahead(self) -> u64 {
        STEP_BACK.div_ceil(self.length())
    }

    /// How long a store keeps a count from the start of its tick on, us. It covers the longest
    /// window, the tick, and some more for clocks that step.
    pub fn kept(self) -> Micros {
        (self.life() + 1) * self.length() + SLACK
    }

    /// The instant from which a tick is not kept any more, if its longest window has `life` ticks.
    pub(super) fn ends(self, tick: u64, life: u8) -> Micros {
        tick * self.length() + Self { life, ..self }.kept()
    }

    /// The start of a tick as users see it: unix seconds, or ms if a tick is no whole number of
    /// seconds.
    pub fn start(self, tick: u64) -> u64 {
        let unit = if self.length_ms.is_multiple_of(1000) { MICROS_PER_SECOND } else { MICROS_PER_MILLI };
        tick * (self.length() / unit)
    }

    /// The ticks that count at `now` in a window of so many ticks.
    pub fn counting(self, window: u64, now: Micros) -> Range<u64> {
        let current = self.at(now);
        current.saturating_sub(self.before(window))..current + self.ahead() + 1
    }

    /// The instant from which a charge in `tick` no longer counts in a window of so many ticks.
    pub(super) fn leaves(self, window: u64, tick: u64) -> Micros {
        (tick + self.before(window) + 1) * self.length()
    }
}
