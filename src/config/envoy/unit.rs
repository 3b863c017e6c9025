//! The units of Envoy's rate limits.

use crate::limit::time::{MICROS_PER_SECOND, Micros};

named! {
    /// A unit of time, with its number in the protocols, where 0 is none. Weeks, months and years
    /// have 7, 30 and 365 days, counted from 1970.
    #[derive(prost::Enumeration)]
    #[repr(i32)]
    pub enum Unit {
        Second = "second" as 1,
        Minute = "minute" as 2,
        Hour = "hour" as 3,
        Day = "day" as 4,
        Week = "week" as 7,
        Month = "month" as 5,
        Year = "year" as 6,
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
