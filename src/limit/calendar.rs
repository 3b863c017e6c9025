//! Calendar windows: the days, weeks, months and years of a time zone.
//!
//! A date begins with the first instant at which local clocks show it or a later date. Usually that
//! is midnight. If clocks skip midnight, it is the instant after the gap. If clocks repeat
//! midnight, it is the first of the two. A window ends where the next window's first date begins.
//! So windows never overlap or leave a gap, whatever the clocks do. A day has 23, 24, 25 or more
//! hours. A skipped date has no window. If clocks step back across midnight, the repeated end of
//! the old date belongs to the new window.
//!
//! The module is pure: the program contains the zone rules.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use super::time::{MICROS_PER_SECOND, Micros};

/// The default zone.
pub const UTC: &str = "UTC";

named! {
    /// A unit of the calendar, named as in durations. Weeks start on Monday.
    pub enum Unit {
        Day = "d",
        Week = "w",
        Month = "mo",
        Year = "y",
    }
}

impl Unit {
    /// The nominal length for places that show one number, us: 1, 7, 30 or 365 days of 24 hours.
    pub fn nominal(self) -> Micros {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
            Self::Year => 365,
        };
        days * 86_400 * MICROS_PER_SECOND
    }

    /// The first date of the unit that holds `date`.
    fn first(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => date.tomorrow().ok()?.nth_weekday(-1, Weekday::Monday).ok(),
            Self::Month => Some(date.first_of_month()),
            Self::Year => Some(date.first_of_year()),
        }
    }

    /// The first date after the unit that holds `date`.
    fn next(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => date.tomorrow().ok(),
            Self::Week => date.nth_weekday(1, Weekday::Monday).ok(),
            Self::Month => date.last_of_month().tomorrow().ok(),
            Self::Year => date.last_of_year().tomorrow().ok(),
        }
    }
}

/// A time interval: from `start` until just before `end`, us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: Micros,
    pub end: Micros,
}

impl Span {
    pub fn contains(self, instant: Micros) -> bool {
        (self.start..self.end).contains(&instant)
    }
}

/// The windows of one unit in one time zone.
///
/// The process keeps each of the few calendars for its whole life. So a calendar is a plain value,
/// and all keys share one computed window.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Windows);

struct Windows {
    unit: Unit,
    /// As the IANA database spells it.
    name: String,
    zone: TimeZone,
    recent: Recent,
}

impl Calendar {
    /// Finds a zone by the exact spelling of its IANA name. Returns none if there is no such zone.
    pub fn new(unit: Unit, zone: &str) -> Option<Self> {
        static ALL: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());
        // A thread that panics under the lock leaves the list intact.
        let mut all = ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = all.iter().find(|calendar| calendar.unit() == unit && calendar.zone() == zone);
        if let Some(known) = known {
            return Some(*known);
        }
        let name = zones().into_iter().find(|name| name == zone)?;
        let zone = TimeZoneDatabase::bundled().get(&name).ok()?;
        let calendar = Self(Box::leak(Box::new(Windows { unit, name, zone, recent: Recent::default() })));
        all.push(calendar);
        Some(calendar)
    }

    pub fn unit(self) -> Unit {
        self.0.unit
    }

    /// The zone's IANA name.
    pub fn zone(self) -> &'static str {
        &self.0.name
    }

    /// The window that contains `instant`. A window that began before the epoch starts at the
    /// epoch. The calendar ends after the year 9999; later windows have the unit's nominal length.
    pub fn window(self, instant: Micros) -> Span {
        if let Some(window) = self.0.recent.find(instant) {
            return window;
        }
        let length = self.unit().nominal();
        let beyond = || Span { start: instant - instant % length, end: instant - instant % length + length };
        let window = self.0.work_out(instant).unwrap_or_else(beyond);
        self.0.recent.note(window, length);
        window
    }
}

impl Windows {
    fn work_out(&self, instant: Micros) -> Option<Span> {
        let instant = Timestamp::from_microsecond(i64::try_from(instant).ok()?).ok()?;
        let mut first = self.unit.first(self.zone.to_datetime(instant).date())?;
        // Usually one step. A skipped or repeated date needs one more.
        loop {
            let next = self.unit.next(first)?;
            let end = self.begins(next)?;
            if end > instant {
                return Some(Span { start: micros(self.begins(first)?), end: micros(end) });
            }
            first = next;
        }
    }

    /// The first instant at which clocks in the zone show `date` or a later one.
    fn begins(&self, date: Date) -> Option<Timestamp> {
        let midnight = self.zone.to_ambiguous_timestamp(date.at(0, 0, 0, 0));
        match midnight.offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(midnight.datetime()).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(midnight.datetime()).ok(),
            // With the offset before the gap, midnight maps to a time after the gap, which clocks
            // do show.
            AmbiguousOffset::Gap { before, .. } => {
                let after = before.to_timestamp(midnight.datetime()).ok()?;
                let shown = after.as_second() + 1;
                self.zone.preceding(Timestamp::from_second(shown).ok()?).next().map(|gap| gap.timestamp())
            }
        }
    }
}

/// Every zone, by its IANA name.
pub fn zones() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

fn micros(instant: Timestamp) -> Micros {
    u64::try_from(instant.as_microsecond()).unwrap_or(0)
}

/// Recently used windows. Each window is one number, so that no reader sees half of one. The high
/// bits store the start in seconds and the low bits the length in seconds. Zone offsets are whole
/// seconds.
#[derive(Default)]
struct Recent([AtomicU64; 4]);

/// Bits of the length: four years in seconds.
const LENGTH_BITS: u32 = 27;

impl Recent {
    fn find(&self, instant: Micros) -> Option<Span> {
        self.0
            .iter()
            .map(|window| unpacked(window.load(Ordering::Relaxed)))
            .find(|window| window.contains(instant))
    }

    /// Consecutive windows mostly occupy different places.
    fn note(&self, window: Span, nominal: Micros) {
        let Some(packed) = packed(window) else { return };
        let place = (window.start / nominal) as usize % self.0.len();
        self.0[place].store(packed, Ordering::Relaxed);
    }
}

fn packed(window: Span) -> Option<u64> {
    let (start, length) = (window.start / MICROS_PER_SECOND, (window.end - window.start) / MICROS_PER_SECOND);
    let packed = (start << LENGTH_BITS) | length;
    (unpacked(packed) == window).then_some(packed)
}

fn unpacked(packed: u64) -> Span {
    let start = packed >> LENGTH_BITS;
    let length = packed & ((1 << LENGTH_BITS) - 1);
    Span { start: start * MICROS_PER_SECOND, end: (start + length) * MICROS_PER_SECOND }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit() == other.unit() && self.zone() == other.zone()
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Calendar {
    /// Formats as `1d-Europe/Berlin`: unique for the unit and the zone, without a blank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1{}-{}", self.unit().name(), self.zone())
    }
}
