//! One quota: at most `limit` units in a `window`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use super::calendar::Calendar;
pub use super::rate::Rate;
use super::rate::Terms;
use super::ticks::Ticks;
use super::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros, span_text};

/// Maximum number of quotas of a policy, an override or a check.
pub const MAX_QUOTAS: usize = 8;

/// The largest limit and the largest cost, in units. The sum of two stays far below 2^53.
pub const MAX_UNITS: u64 = 1_000_000_000_000_000;

/// The shortest window: 100 ms, in us.
pub const MIN_WINDOW: Micros = 100 * MICROS_PER_MILLI;

/// The longest window: 366 days, in us.
pub const MAX_WINDOW: Micros = 366 * DAY;

/// 24 hours, in us.
const DAY: Micros = 24 * HOUR;

const HOUR: Micros = 3600 * MICROS_PER_SECOND;

/// At most `limit` units in any `window` (IETF draft ratelimit-headers: `q` and `w`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The name in responses and header fields: `[A-Za-z0-9_.-]`, unique in its policy.
    pub name: String,
    /// Units, 1 to [`MAX_UNITS`].
    pub limit: NonZeroU64,
    /// Microseconds, a multiple of 1 ms, [`MIN_WINDOW`] to [`MAX_WINDOW`]. For a token bucket: the
    /// time to fill an empty bucket, rounded up. For a calendar window: the nominal length, since
    /// real lengths vary.
    pub window: Micros,
    /// The algorithm and its parameters.
    pub rule: Rule,
}

/// How a quota counts: its policy's algorithm with that algorithm's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// Admits at most the limit in any interval as long as the window (`window.rs`).
    #[default]
    SlidingWindow,
    /// Admits at most the limit in each window. The anchor sets where windows begin (`fixed.rs`).
    FixedWindow(Anchor),
    /// Admits at most the limit at once, and the rate in the long run (`bucket.rs`).
    TokenBucket(Rate),
    /// Admits exactly at most the limit in any interval as long as the window (`log.rs`). The value
    /// is the maximum number of charges in a key's log.
    SlidingLog(NonZeroU32),
    /// Admits at most the limit in any span of whole ticks as long as the window (`counter.rs`).
    SlidingCounter(Ticks),
}

/// Where fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At multiples of the window since the Unix epoch: a window of a day is a day in UTC.
    Clock,
    /// At the first charged check after the previous window has ended.
    FirstHit,
    /// At each day, week, month or year of a time zone.
    Calendar(Calendar),
}

impl Anchor {
    /// The name in the configuration. A calendar is a kind of `clock`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock | Self::Calendar(_) => "clock",
            Self::FirstHit => "first-hit",
        }
    }

    /// The IANA name of a calendar's time zone.
    pub fn zone(self) -> Option<&'static str> {
        match self {
            Self::Calendar(calendar) => Some(calendar.zone()),
            Self::Clock | Self::FirstHit => None,
        }
    }
}

impl Quota {
    /// A token bucket. Returns none if its debt cannot be exact.
    pub fn bucket(name: String, rate: Rate, burst: NonZeroU64) -> Option<Self> {
        let window = Terms::of(rate).fill_time(burst)?;
        Some(Self { name, limit: burst, window, rule: Rule::TokenBucket(rate) })
    }

    /// Whether both count in the same state, whatever their limits are. Token buckets do, since a
    /// key keeps its debt.
    pub fn counts_with(&self, other: &Self) -> bool {
        match (self.rule, other.rule) {
            (Rule::TokenBucket(_), Rule::TokenBucket(_)) => true,
            (Rule::SlidingLog(_), Rule::SlidingLog(_)) => self.window == other.window,
            // The ticks have the windows of the other quotas in them.
            (Rule::SlidingCounter(one), Rule::SlidingCounter(two)) => {
                self.window == other.window && one.length() == two.length()
            }
            (one, two) => self.window == other.window && one == two,
        }
    }

    /// The anchor of a fixed window.
    pub fn anchor(&self) -> Option<Anchor> {
        match self.rule {
            Rule::FixedWindow(anchor) => Some(anchor),
            Rule::SlidingWindow | Rule::TokenBucket(_) | Rule::SlidingLog(_) | Rule::SlidingCounter(_) => None,
        }
    }

    /// The ticks of a sliding counter.
    pub fn ticks(&self) -> Option<Ticks> {
        match self.rule {
            Rule::SlidingCounter(ticks) => Some(ticks),
            _ => None,
        }
    }

    /// The share of one of `nodes`. It divides the limit, rounded down, at least 1. It divides the
    /// rate, at least one unit in its span. A token bucket's window becomes the time to fill the
    /// share.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # use tollgate::limit::quota::{Quota, Rule};
    /// let number = |number| NonZeroU64::new(number).unwrap(); let quota = Quota { name:
    /// "1m".into(), limit: number(100), window: 60_000_000, rule: Rule::SlidingWindow };
    /// assert_eq!(quota.share(number(3)).limit, number(33));
    /// ```
    pub fn share(&self, nodes: NonZeroU64) -> Self {
        let limit = divided(self.limit, nodes);
        let (rule, window) = match self.rule {
            Rule::TokenBucket(rate) => {
                let rate = rate.share(nodes, limit);
                (Rule::TokenBucket(rate), Terms::of(rate).fill_time(limit).unwrap_or(self.window))
            }
            rule => (rule, self.window),
        };
        Self { name: self.name.clone(), limit, window, rule }
    }
}

/// Whether counts begin anew for a key whose quotas change: a window or the algorithm differs.
pub fn begin_anew(present: &[Quota], next: &[Quota]) -> bool {
    !next.iter().all(|next| present.iter().any(|present| present.counts_with(next)))
}

impl Terms {
    /// The terms of a token bucket's quota. Any other quota counts as a limit that refills evenly
    /// over its window.
    pub fn of_quota(quota: &Quota) -> Self {
        match quota.rule {
            Rule::TokenBucket(rate) => Self::of_bucket(rate, quota.limit),
            _ => Self::of(Rate { units: quota.limit, per: quota.window }),
        }
    }
}

impl Rate {
    /// The share of one of `nodes` for a bucket of `burst`.
    ///
    /// Normally the span grows and the units stay the same. The common divisor survives, so an
    /// exact bucket stays exact. Two cases divide the units instead, rounded down, at least 1.
    /// Either the longer span cannot be exact, or it would refill less than one unit per original
    /// span.
    fn share(self, nodes: NonZeroU64, burst: NonZeroU64) -> Self {
        let longer = self.per.checked_mul(nodes.get()).map(|per| Self { per, ..self });
        longer
            .filter(|longer| self.units >= nodes && Terms::of(*longer).capacity(burst).is_some())
            .unwrap_or_else(|| Self { units: divided(self.units, nodes), ..self })
    }
}

/// Rounded down, at least 1.
fn divided(units: NonZeroU64, nodes: NonZeroU64) -> NonZeroU64 {
    NonZeroU64::new(units.get() / nodes).unwrap_or(NonZeroU64::MIN)
}

impl fmt::Display for Quota {
    /// Formats for people: `5 per 1mo`, or `10 per 1s, burst 20` for a token bucket. Several days
    /// of clock windows appear in hours, as in the configuration.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::TokenBucket(Rate { units, per }) => {
                write!(out, "{units} per {}, burst {}", span_text(per), self.limit)
            }
            Rule::FixedWindow(Anchor::Calendar(calendar)) => {
                write!(out, "{} per 1{}", self.limit, calendar.unit().name())
            }
            Rule::FixedWindow(Anchor::Clock) if self.window > DAY && self.window.is_multiple_of(DAY) => {
                write!(out, "{} per {}h", self.limit, self.window / HOUR)
            }
            _ => write!(out, "{} per {}", self.limit, span_text(self.window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::calendar::Unit;
    use super::*;

    #[test]
    fn a_share_is_never_less_than_one() {
        let quota = Quota { name: "1s".into(), limit: NonZeroU64::MIN, window: 1_000_000, rule: Rule::default() };
        let share = quota.share(NonZeroU64::new(3).unwrap());
        assert_eq!(share.limit.get(), 1);
    }

    #[test]
    fn quotas_render_in_configuration_form() {
        let berlin = |unit| Rule::FixedWindow(Anchor::Calendar(Calendar::new(unit, "Europe/Berlin").unwrap()));
        let (clock, first_hit) = (Rule::FixedWindow(Anchor::Clock), Rule::FixedWindow(Anchor::FirstHit));
        let cases = [
            (berlin(Unit::Day), DAY, "9 per 1d"),
            (berlin(Unit::Month), 30 * DAY, "9 per 1mo"),
            (clock, DAY, "9 per 1d"),
            (clock, 7 * DAY, "9 per 168h"),
            (clock, 36 * HOUR, "9 per 36h"),
            (clock, 60_000_000, "9 per 1m"),
            (first_hit, 7 * DAY, "9 per 7d"),
            (Rule::SlidingWindow, DAY, "9 per 1d"),
        ];
        for (rule, window, told) in cases {
            let quota = Quota { name: "q".into(), limit: NonZeroU64::new(9).unwrap(), window, rule };
            assert_eq!(quota.to_string(), told);
        }
    }

    #[test]
    fn a_share_of_a_token_bucket_can_be_counted_exactly() {
        let of = |value: u64| NonZeroU64::new(value).unwrap();
        let cases = [
            // burst, rate, nodes; refilled units and span of the share
            ((5_000_000_000, (10_000_000_000, DAY), 3), (10_000_000_000, 3 * DAY)),
            ((5, (10, 1_000_000), 3), (10, 3_000_000)),
            ((5, (2, 1_000_000), 3), (1, 1_000_000)),
            ((1, (1_000_003, MAX_WINDOW), 1000), (1000, MAX_WINDOW)),
        ];
        for ((burst, (units, per), nodes), (share_units, share_per)) in cases {
            let rule = Rule::TokenBucket(Rate { units: of(units), per });
            let share = Quota { name: "q".into(), limit: of(burst), window: DAY, rule }.share(of(nodes));
            let rate = Rate { units: of(share_units), per: share_per };
            assert_eq!((share.limit.get(), share.rule), ((burst / nodes).max(1), Rule::TokenBucket(rate)));
            assert_eq!(Terms::of(rate).fill_time(share.limit), Some(share.window));
        }
    }
}
