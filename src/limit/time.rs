//! Time as the core sees it: a number that is passed in.

use std::time::Duration;

/// Microseconds: an instant (since the Unix epoch, by the clock of whoever decides) or a span.
///
/// An instant is 1.8e15 today, below 2^53, so that Lua's doubles hold it exactly.
pub type Micros = u64;

pub const MICROS_PER_MILLI: Micros = 1_000;
pub const MICROS_PER_SECOND: Micros = 1_000_000;

/// The units in which spans are written, and their length, the longest first.
pub const UNITS: [(&str, Micros); 5] = [
    ("d", 86_400 * MICROS_PER_SECOND),
    ("h", 3_600 * MICROS_PER_SECOND),
    ("m", 60 * MICROS_PER_SECOND),
    ("s", MICROS_PER_SECOND),
    ("ms", MICROS_PER_MILLI),
];

/// Whole microseconds, rounded down; of a span without an end 2^62, so that a few can be added up.
pub fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(Micros::MAX).min(1 << 62)
}

/// Whole milliseconds, rounded up: a caller who waits that long never comes too early.
pub fn millis_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_MILLI)
}

/// Whole seconds, rounded up, for header fields that know nothing finer.
pub fn seconds_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_SECOND)
}

/// A span as the configuration writes it: `100ms`, `10s`, `1m`, `36h`, `1d`; the largest unit that divides it.
pub fn span_text(span: Micros) -> String {
    let (count, unit) = span_in_units(span);
    format!("{count}{unit}")
}

/// The two parts of that.
pub fn span_in_units(span: Micros) -> (u64, &'static str) {
    let [longer @ .., shortest] = &UNITS;
    let divides = |(_, unit): &&(&str, Micros)| span >= *unit && span.is_multiple_of(*unit);
    let (name, unit) = longer.iter().find(divides).unwrap_or(shortest);
    (span / unit, name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_written_in_the_largest_unit_that_divides_it() {
        let cases = [
            (100_000, "100ms"),
            (1_500_000, "1500ms"),
            (10_000_000, "10s"),
            (60_000_000, "1m"),
            (90_000_000, "90s"),
            (36 * 3_600_000_000, "36h"),
            (86_400_000_000, "1d"),
        ];
        for (span, text) in cases {
            assert_eq!(span_text(span), text);
        }
    }
}
