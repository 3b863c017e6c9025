//! The keys of a run and their distribution.

use std::fmt;
use std::str::FromStr;

use super::random::Random;
use super::zipf::Zipf;

const MAX_KEYS: u64 = 1_000_000_000_000;

/// A distribution over the keys 0, 1, 2, ...
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Keys {
    One,
    Uniform(u64),
    /// A few frequent keys and many rare ones, as in real traffic.
    Zipf(Zipf),
}

impl Keys {
    pub(super) fn pick(&self, random: &mut Random) -> u64 {
        match self {
            Self::One => 0,
            Self::Uniform(count) => random.below(*count),
            Self::Zipf(zipf) => zipf.pick(random) - 1,
        }
    }

    pub(super) fn count(&self) -> u64 {
        match self {
            Self::One => 1,
            Self::Uniform(count) => *count,
            Self::Zipf(zipf) => zipf.count(),
        }
    }
}

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["one"] => Ok(Self::One),
            ["uniform", count] => Ok(Self::Uniform(key_count(count)?)),
            ["zipf", count] => Ok(Self::Zipf(Zipf::new(key_count(count)?, 1.0))),
            ["zipf", count, steepness] => Ok(Self::Zipf(Zipf::new(key_count(count)?, exponent(steepness)?))),
            _ => Err("write `one`, `uniform:N`, `zipf:N` or `zipf:N:S`, such as `zipf:100000:1.1`".into()),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One => f.write_str("one"),
            Self::Uniform(count) => write!(f, "uniform:{count}"),
            Self::Zipf(zipf) => write!(f, "zipf:{}:{}", zipf.count(), zipf.exponent()),
        }
    }
}

fn key_count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_KEYS).contains(count));
    count.ok_or_else(|| format!("`{text}` is no number of keys: it must be from 1 to {MAX_KEYS}"))
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse().ok().filter(|exponent| (0.01..=10.0).contains(exponent));
    exponent.ok_or_else(|| format!("`{text}` is no exponent: it must be from 0.01 to 10"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["one", "uniform:1000", "zipf:100:1.5"] {
            assert_eq!(text.parse::<Keys>().unwrap().to_string(), text);
        }
        for wrong in ["", "two", "uniform", "uniform:0", "uniform:-1", "zipf:10:0", "zipf:10:nan", "zipf:1:1:1"] {
            assert!(wrong.parse::<Keys>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn uniform_reaches_every_key_about_equally() {
        let (keys, mut random) = (Keys::Uniform(10), Random::new(1));
        let mut counts = [0; 10];
        (0..100_000).for_each(|_| counts[keys.pick(&mut random) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
