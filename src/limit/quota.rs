//! One quota: at most `limit` units in a `window`.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use super::bucket::Terms;
use super::calendar::Calendar;
use super::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros, span_text};

/// The most quotas of a policy, an override or a check.
pub const MAX_QUOTAS: usize = 8;

/// The largest limit and the largest cost, in units. Sums of two stay far below 2^53.
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
    /// What responses and header fields call it: `[A-Za-z0-9_.-]`, unique in its policy.
    pub name: String,
    /// Units, 1 to [`MAX_UNITS`].
    pub limit: NonZeroU64,
    /// Microseconds, a multiple of 1 ms, [`MIN_WINDOW`] to [`MAX_WINDOW`]; of a token bucket the time in which
    /// an empty one fills, rounded up; of a window by the calendar the nominal length, since each has its own.
    pub window: Micros,
    /// How it counts.
    pub rule: Rule,
}

/// How a quota counts: the algorithm of its policy with what that needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// At most the limit in any interval as long as the window (`window.rs`).
    #[default]
    SlidingWindow,
    /// At most the limit in each window; windows follow each other as the anchor says (`fixed.rs`).
    FixedWindow(Anchor),
    /// At most the limit at once, and the rate in the long run (`bucket.rs`).
    TokenBucket(Rate),
    /// At most the limit in any interval as long as the window, exactly; the log of a key holds at most that many
    /// charges (`log.rs`).
    SlidingLog(NonZeroU32),
}

/// Where fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At the multiples of the window since the Unix epoch: a window of a day is a day in UTC.
    Clock,
    /// With the first charged check after the previous window has ended.
    FirstHit,
    /// With each day, week, month or year of a time zone.
    Calendar(Calendar),
}

/// How fast a token bucket refills: `units` in each `per` us, evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// 1 to [`MAX_UNITS`].
    pub units: NonZeroU64,
    /// As a window.
    pub per: Micros,
}

impl Anchor {
    /// The name in the configuration; a calendar is by the clock as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock | Self::Calendar(_) => "clock",
            Self::FirstHit => "first-hit",
        }
    }

    /// The time zone of a calendar, by its IANA name.
    pub fn zone(self) -> Option<&'static str> {
        match self {
            Self::Calendar(calendar) => Some(calendar.zone()),
            Self::Clock | Self::FirstHit => None,
        }
    }
}

impl Quota {
    /// Of a fixed window.
    pub fn anchor(&self) -> Option<Anchor> {
        match self.rule {
            Rule::FixedWindow(anchor) => Some(anchor),
            Rule::SlidingWindow | Rule::TokenBucket(_) | Rule::SlidingLog(_) => None,
        }
    }

    /// The share of one of `nodes`: the limit divided, rounded down, at least 1; and the rate divided, at least one
    /// unit in its span. The window of a token bucket is how long that takes to fill.
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

impl Rate {
    /// The share of one of `nodes` for a bucket of `burst`.
    ///
    /// As many units in a longer span, which leaves what the two have in common, so that a bucket that could be counted
    /// exactly still can. Where that cannot be, because of a small burst, and where it would be less than one unit in
    /// the span, the units are divided, rounded down, at least 1.
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
    /// In words, for people: `5 per 1mo`; of a token bucket `10 per 1s, burst 20`. Several days by the clock are told
    /// in hours, as they are written.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::TokenBucket(Rate { units, per }) => {
                write!(out, "{units} per {}, burst {}", span_text(per), self.limit)
            }
            Rule::FixedWindow(Anchor::Calendar(calendar)) => {
                write!(out, "{} per 1{}", self.limit, calendar.unit().symbol())
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
    fn a_quota_is_told_as_it_may_be_written() {
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
            // burst, rate, nodes; what the share refills in how long
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
