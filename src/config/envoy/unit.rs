//! The units of Envoy's rate limits.

use prost::Enumeration;

use crate::limit::time::{MICROS_PER_SECOND, Micros};

named! {
    /// A unit of time. Weeks, months and years have 7, 30 and 365 days, counted from 1970.
    pub enum Unit {
        Second = "second",
        Minute = "minute",
        Hour = "hour",
        Day = "day",
        Week = "week",
        Month = "month",
        Year = "year",
    }
}

impl Unit {
    /// The unit of a word in any case.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(word))
    }

    /// The unit with this window, us.
    pub fn of_window(window: Micros) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.window() == window)
    }

    /// The length, us.
    pub fn window(self) -> Micros {
        let (day, hour, minute) = (86_400, 3_600, 60);
        let seconds = match self {
            Self::Second => 1,
            Self::Minute => minute,
            Self::Hour => hour,
            Self::Day => day,
            Self::Week => 7 * day,
            Self::Month => 30 * day,
            Self::Year => 365 * day,
        };
        seconds * MICROS_PER_SECOND
    }
}

/// A unit in the protocols: `RateLimitResponse.RateLimit.Unit`, and `RateLimitUnit` of requests and of
/// rules, which are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum UnitOfTime {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl UnitOfTime {
    const ALL: [Self; 8] =
        [Self::Unknown, Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// The name in JSON.
    pub fn name(self) -> String {
        format!("{self:?}").to_ascii_uppercase()
    }

    /// The unit with this name in JSON.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }
}
