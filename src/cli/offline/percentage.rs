//! A share in percent, as `--fail-over` and `--propose` take it.

use std::fmt;
use std::str::FromStr;

/// The decimals of a share in percent.
const DECIMALS: usize = 6;

/// Parts of a whole: percent with [`DECIMALS`].
const WHOLE: u128 = 100_000_000;

/// A share as written, such as `0.5%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Percentage {
    written: String,
    /// In parts of [`WHOLE`].
    parts: u128,
}

impl Percentage {
    /// Whether `part` is more than this share of `whole`.
    pub(in crate::cli) fn is_exceeded(&self, part: u64, whole: u64) -> bool {
        u128::from(part) * WHOLE > self.parts * u128::from(whole)
    }

    /// The largest part of `whole` that is not more than this share.
    pub(in crate::cli) fn most_of(&self, whole: usize) -> usize {
        usize::try_from(self.parts * whole as u128 / WHOLE).unwrap_or(whole)
    }
}

impl FromStr for Percentage {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let parts = written.strip_suffix('%').and_then(parts).or_else(|| (written == "0").then_some(0));
        let parts = parts.filter(|parts| *parts <= WHOLE).ok_or_else(|| {
            format!("it must be 0, or a percentage up to 100% with at most {DECIMALS} decimals, such as `1%` or `0.5%`")
        })?;
        Ok(Self { written: written.to_owned(), parts })
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// The parts in a decimal number of percent.
fn parts(percent: &str) -> Option<u128> {
    let (whole, decimals) = percent.split_once('.').map_or((percent, None), |(whole, rest)| (whole, Some(rest)));
    let is_number =
        |text: &str, most| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole, 3) || decimals.is_some_and(|decimals| !is_number(decimals, DECIMALS)) {
        return None;
    }
    format!("{whole}{:0<DECIMALS$}", decimals.unwrap_or_default()).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_zero_or_a_percentage() {
        for (written, parts) in
            [("0", 0), ("0%", 0), ("1%", 1_000_000), ("0.5%", 500_000), ("12.25%", 12_250_000), ("100%", WHOLE)]
        {
            assert_eq!(written.parse::<Percentage>().map(|share| share.parts), Ok(parts), "{written}");
        }
        for wrong in
            ["", "%", "1", "0.01", "1 %", "-1%", "+1%", "100.1%", "101%", "1e1%", ".5%", "1.%", "0.1234567%", "x%"]
        {
            assert!(wrong.parse::<Percentage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn exact_share_is_not_exceeded() {
        let share = |written: &str| written.parse::<Percentage>().unwrap();
        assert!(!share("1%").is_exceeded(1, 100) && share("1%").is_exceeded(2, 199));
        assert!(share("0").is_exceeded(1, u64::MAX) && !share("0").is_exceeded(0, 0));
        assert!(!share("100%").is_exceeded(u64::MAX, u64::MAX));
        assert_eq!(["1%", "0.5%", "100%"].map(|written| share(written).most_of(199)), [1, 0, 199]);
    }
}
