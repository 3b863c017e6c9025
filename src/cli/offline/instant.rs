//! Instants in logs, in us since the epoch. None if they are unreadable.
//!
//! jiff's timestamps end a day before the year 9999 does, so only its civil times are used.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::Pieces;
use jiff::tz::Offset;

use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The first us after the year 9999.
const END: Micros = 253_402_300_800 * MICROS_PER_SECOND;

/// `10/Oct/2000:13:55:36 -0700`; negative before the epoch. A leap second counts as the last second
/// of its minute.
pub(super) fn common_log(text: &[u8]) -> Option<i64> {
    let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
    micros(time.to_datetime().ok()?, time.offset()?)
}

/// `2026-11-21T10:41:53.312Z`, with any offset; the offset is required. Negative before the epoch.
pub(in crate::cli) fn rfc3339(text: &str) -> Option<i64> {
    let pieces = Pieces::parse(text).ok()?;
    micros(pieces.date().to_datetime(pieces.time()?), pieces.to_numeric_offset()?)
}

/// The time of a line, as written and in us: many lines have that of the line before.
#[derive(Debug, Default)]
pub(super) struct LastInstant(Vec<u8>, Micros);

impl LastInstant {
    /// # Errors
    /// When `parse` finds no time, or it is before 1970.
    pub(super) fn get(
        &mut self,
        written: &[u8],
        parse: fn(&[u8]) -> Option<i64>,
        wrong: &'static str,
    ) -> Result<Micros, &'static str> {
        if self.0 != written {
            let instant = parse(written).ok_or(wrong)?;
            *self = Self(written.to_vec(), Micros::try_from(instant).map_err(|_| "the time is before 1970")?);
        }
        Ok(self.1)
    }
}

/// The instant in UTC, by RFC 3339.
pub(in crate::cli) fn text(at: Micros) -> String {
    let since = SignedDuration::from_micros(i64::try_from(at).unwrap_or(i64::MAX));
    format!("{}Z", EPOCH.saturating_add(since))
}

/// A time as logs write it: RFC 3339, as in an access log, or a number since 1970. The inner `Err`
/// is a time before 1970.
pub(super) fn text_in_log(text: &str) -> Option<Result<Micros, &'static str>> {
    let of_access_log =
        || common_log(text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text).as_bytes());
    match rfc3339(text).or_else(of_access_log) {
        Some(instant) => Some(Micros::try_from(instant).map_err(|_| "is before 1970")),
        None => in_digits(text).map(Ok),
    }
}

fn in_digits(text: &str) -> Option<Micros> {
    let is_digit = |letter: char| letter.is_ascii_digit();
    match text.split_once('.') {
        None if text.chars().all(is_digit) => number(text.parse().ok()?),
        Some((whole, decimals)) if !whole.is_empty() && whole.chars().chain(decimals.chars()).all(is_digit) => {
            fraction(text.parse().ok()?)
        }
        _ => None,
    }
}

/// Seconds, ms, us or ns since the epoch: the size reveals the unit. In seconds 10^11 is the year
/// 5138; in ms it is 1973.
pub(super) fn number(number: u64) -> Option<Micros> {
    let instant = match number {
        0..100_000_000_000 => number * MICROS_PER_SECOND,
        100_000_000_000..100_000_000_000_000 => number * MICROS_PER_MILLI,
        100_000_000_000_000..100_000_000_000_000_000 => number,
        _ => number / 1_000,
    };
    Some(instant).filter(|instant| *instant < END)
}

/// Like [`number`], with a fraction.
pub(super) fn fraction(number: f64) -> Option<Micros> {
    let scale = match number {
        0.0..1e11 => 1e6,
        1e11..1e14 => 1e3,
        1e14..1e17 => 1.0,
        1e17..1.8e19 => 1e-3,
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 10^17")]
    Some((number * scale).round() as Micros)
}

fn micros(civil: DateTime, offset: Offset) -> Option<i64> {
    let since = civil.duration_since(EPOCH) - SignedDuration::from_secs(offset.seconds().into());
    i64::try_from(since.as_micros()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_access_log() {
        assert_eq!(common_log(b"10/Oct/2000:13:55:36 -0700"), Some(971_211_336_000_000));
        assert_eq!(common_log(b"21/Nov/2026:00:00:00 +0530"), Some(1_795_199_400_000_000));
        assert_eq!(common_log(b"31/Dec/2016:23:59:60 +0000"), Some(1_483_228_799_000_000));
        for wrong in ["", "10/Okt/2000:13:55:36 -0700", "31/Feb/2000:13:55:36 -0700", "10/Oct/2000:24:55:36 -0700"] {
            assert_eq!(common_log(wrong.as_bytes()), None, "{wrong}");
        }
        assert!(common_log(b"10/Oct/1969:13:55:36 -0700") < Some(0));
        assert_eq!(common_log("10/Oct/2000:13:55:36 -070é".as_bytes()), None);
    }

    #[test]
    fn unix_time_unit_follows_from_magnitude() {
        let second = 1_795_249_446_000_000;
        assert_eq!(number(1_795_249_446), Some(second));
        assert_eq!(number(1_795_249_446_027), Some(second + 27_000));
        assert_eq!(number(1_795_249_446_027_123), Some(second + 27_123));
        assert_eq!(number(1_795_249_446_027_123_999), Some(second + 27_123));
        assert_eq!(number(u64::MAX), Some(18_446_744_073_709_551));
        assert_eq!(fraction(1_795_249_446.027), Some(second + 27_000));
        assert_eq!(fraction(1_795_249_446_027.5), Some(second + 27_500));
        assert_eq!(fraction(1_795_249_446_027_123_000.0), Some(second + 27_123));
        assert_eq!((fraction(-1.0), fraction(f64::NAN)), (None, None));
    }

    #[test]
    fn texts_have_any_form_of_time() {
        let second = 1_795_249_446_000_000;
        for (text, instant) in [
            ("2026-11-21T08:24:06Z", Some(second)),
            ("2026-11-21T09:24:06+0100", Some(second)),
            ("21/Nov/2026:08:24:06 +0000", Some(second)),
            ("[21/Nov/2026:08:24:06 +0000]", Some(second)),
            ("1795249446", Some(second)),
            ("1795249446.027", Some(second + 27_000)),
            ("1795249446027", Some(second + 27_000)),
            ("1795249446027123456", Some(second + 27_123)),
            ("", None),
            (".", None),
            (".5", None),
            ("-1", None),
            ("+1", None),
            ("1e9", None),
            ("1.2.3", None),
            ("inf", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(text_in_log(text).map(Result::unwrap), instant, "{text}");
        }
        assert_eq!(text_in_log("1969-12-31T23:59:59Z"), Some(Err("is before 1970")));
    }

    #[test]
    fn rfc_3339_needs_its_offset() {
        assert_eq!(rfc3339("2026-11-21T10:41:53.312+01:00"), Some(1_795_254_113_312_000));
        assert_eq!(rfc3339("2026-11-21T10:41:53"), None);
    }
}
