//! Time as a parameter: the core never reads a clock.

use std::time::Duration;

use jiff::Timestamp;

/// Microseconds: an instant (since the Unix epoch, by the deciding clock) or a span.
///
/// An instant is about 1.8e15, below 2^53, so Lua's doubles represent it exactly.
pub type Micros = u64;

pub const MICROS_PER_MILLI: Micros = 1_000;
pub const MICROS_PER_SECOND: Micros = 1_000_000;

/// The units in which spans are written, with their lengths, the longest first.
pub const UNITS: [(&str, Micros); 5] = [
    ("d", 86_400 * MICROS_PER_SECOND),
    ("h", 3_600 * MICROS_PER_SECOND),
    ("m", 60 * MICROS_PER_SECOND),
    ("s", MICROS_PER_SECOND),
    ("ms", MICROS_PER_MILLI),
];

/// Whole microseconds, rounded down. An endless span becomes 2^62, so that a few can be added.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::limit::time::micros;
/// assert_eq!(micros(Duration::from_millis(5)), 5_000);
/// ```
pub fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(Micros::MAX).min(1 << 62)
}

/// An instant in UTC by RFC 3339, to the millisecond.
///
/// ```
/// # use tollgate::limit::time::instant;
/// assert_eq!(instant(1_795_000_000_250_999), "2026-11-18T11:06:40.25Z");
/// ```
pub fn instant(micros: Micros) -> String {
    let millis = i64::try_from(micros / MICROS_PER_MILLI).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX).to_string()
}

/// Whole milliseconds, rounded up, so that a caller never waits too short.
///
/// ```
/// # use tollgate::limit::time::millis_up;
/// assert_eq!(millis_up(1_001), 2);
/// ```
pub fn millis_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_MILLI)
}

/// Whole seconds, rounded up, for header fields of that precision.
///
/// ```
/// # use tollgate::limit::time::seconds_up;
/// assert_eq!(seconds_up(1_000_001), 2);
/// ```
pub fn seconds_up(span: Micros) -> u64 {
    span.div_ceil(MICROS_PER_SECOND)
}

/// A span as in the configuration: `100ms`, `10s`, `1m`, `36h`, `1d`. It uses the largest unit that
/// divides the span.
///
/// ```
/// # use tollgate::limit::time::span_text;
/// assert_eq!(span_text(90_000_000), "90s");
/// assert_eq!(span_text(120_000_000), "2m");
/// ```
pub fn span_text(span: Micros) -> String {
    let (count, unit) = span_in_units(span);
    format!("{count}{unit}")
}

/// The number and the unit of [`span_text`].
pub fn span_in_units(span: Micros) -> (u64, &'static str) {
    let [longer @ .., shortest] = &UNITS;
    let divides = |(_, unit): &&(&str, Micros)| span >= *unit && span.is_multiple_of(*unit);
    let (name, unit) = longer.iter().find(divides).unwrap_or(shortest);
    (span / unit, name)
}

/// Time until a cost fits without further charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// After that many us; 0 is now.
    For(Micros),
    /// The cost exceeds a limit.
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
