//! Durations as written: `100ms`, `10s`, `1m`, `36h`, `1d`.

use std::ops::RangeInclusive;

use crate::limit::calendar::Unit;
use crate::limit::quota::{MAX_WINDOW, MIN_WINDOW};
use crate::limit::time::{Micros, UNITS, span_text};

use super::scalar::{digits, excerpt};

/// The duration in `text`, in us, saturated if it is too long. Otherwise the reason why it is
/// wrong.
pub fn parse(text: &str) -> Result<Micros, String> {
    let (count, unit) = parts(text);
    let known = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, length)| *length);
    match (digits(count), known, calendar_unit(unit)) {
        (Some(count), Some(length), _) => Ok(count.saturating_mul(length)),
        (Some(count), None, Some(unit)) => Err(format!(
            "`{}`: weeks, months and years are for `algorithm: fixed-window` with `anchor: clock`, write `{}`",
            excerpt(text),
            span_text(count.saturating_mul(unit.nominal()))
        )),
        _ => Err(format!(
            "`{}` is no duration: write an integer and `ms`, `s`, `m`, `h` or `d`, such as `10s`",
            excerpt(text)
        )),
    }
}

/// Parses a window by the clock. A unit of the calendar (day, week, month, year) counts only once;
/// other windows have a fixed length.
pub(super) fn parse_by_clock(text: &str) -> Result<(Micros, Option<Unit>), String> {
    let (count, unit) = parts(text);
    match (digits(count), calendar_unit(unit)) {
        (Some(1), Some(unit)) => Ok((unit.nominal(), Some(unit))),
        (Some(count), Some(unit)) => {
            let (one, days) = (unit.name(), span_text(count.max(1).saturating_mul(unit.nominal())));
            Err(format!(
                "`{}`: by the clock only one day, week, month or year has a beginning, write `1{one}`, or `anchor: \
                 first-hit` and `{days}`",
                excerpt(text)
            ))
        }
        _ => parse_within(text, &(MIN_WINDOW..=MAX_WINDOW)).map(|window| (window, None)),
    }
}

/// Splits the number from the unit.
fn parts(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()))
}

fn calendar_unit(symbol: &str) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit.name() == symbol)
}

/// The duration in `text` if it is in the range, otherwise the reason why it is wrong.
pub(super) fn parse_within(text: &str, range: &RangeInclusive<Micros>) -> Result<Micros, String> {
    let span = parse(text)?;
    let (shortest, longest) = (span_text(*range.start()), span_text(*range.end()));
    let fits = range.contains(&span).then_some(span);
    fits.ok_or_else(|| format!("`{text}` is out of range: it must be from {shortest} to {longest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_an_integer_and_a_unit() {
        let cases = [
            ("0s", 0),
            ("100ms", 100_000),
            ("10s", 10_000_000),
            ("1m", 60_000_000),
            ("36h", 129_600_000_000),
            ("1d", 86_400_000_000),
        ];
        for (text, span) in cases {
            assert_eq!(parse(text), Ok(span), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", "10", "10 s", "1.5s", "-1s", "+1s", "1h30m", "10S", "10sec", "010s", "1us", "１s", "1s "]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units_of_the_calendar_are_only_for_windows_by_the_clock() {
        for (text, instead) in [("1w", "`7d`"), ("2mo", "`60d`"), ("1y", "`365d`")] {
            assert!(parse(text).unwrap_err().ends_with(instead), "{text}");
        }
        let units = [("1d", Unit::Day), ("1w", Unit::Week), ("1mo", Unit::Month), ("1y", Unit::Year)];
        for (text, unit) in units {
            assert_eq!(parse_by_clock(text), Ok((unit.nominal(), Some(unit))));
        }
        assert_eq!(parse_by_clock("24h"), Ok((86_400_000_000, None)));
        for text in ["0d", "2d", "2w", "99999999999999999999y", "1W", "01d", "d"] {
            assert!(parse_by_clock(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_long_durations_are_out_of_range() {
        let refused = parse_within("99999999999999999999d", &(0..=1_000_000)).unwrap_err();
        assert_eq!(refused, "`99999999999999999999d` is out of range: it must be from 0ms to 1s");
    }

    #[test]
    fn both_ends_of_the_range_belong_to_it() {
        let range = 100_000..=1_000_000;
        assert_eq!(parse_within("100ms", &range), Ok(100_000));
        assert_eq!(parse_within("1s", &range), Ok(1_000_000));
        assert!(parse_within("99ms", &range).is_err());
        assert!(parse_within("1001ms", &range).is_err());
    }
}
