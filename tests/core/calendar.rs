//! Calendar windows are right across every clock change of a time zone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use tollgate::clock::Clock;
use tollgate::limit::calendar::{Calendar, Span, Unit, zones};
use tollgate::limit::decision::{Wait, decide};
use tollgate::limit::state::State;
use tollgate::store::MemoryStore;

use crate::support::calendar::{UNITS, by_calendar, micros, subject};
use crate::support::steps::runner;
use crate::support::timed::Timed;

#[test]
fn calendar_windows_end_at_calendar_boundaries() {
    use Unit::{Day, Month, Week, Year};
    let rows = [
        // Summer time begins on 2026-03-29 and ends on 2026-10-25 in Berlin.
        (Day, "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", 24),
        (Day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", 23),
        (
            Day,
            "Europe/Berlin",
            "2026-03-29T21:59:59.999999Z",
            "2026-03-28T23:00:00Z",
            "2026-03-29T22:00:00Z",
            23,
        ),
        (Day, "Europe/Berlin", "2026-03-29T22:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z", 24),
        (Day, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", 25),
        (Week, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", 167),
        (Week, "Europe/Berlin", "2026-10-19T00:00:00Z", "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z", 169),
        (Month, "Europe/Berlin", "2026-03-15T00:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", 743),
        (Month, "Europe/Berlin", "2024-02-29T22:59:59Z", "2024-01-31T23:00:00Z", "2024-02-29T23:00:00Z", 696),
        (Year, "Europe/Berlin", "2026-06-01T00:00:00Z", "2025-12-31T23:00:00Z", "2026-12-31T23:00:00Z", 8760),
        (
            Year,
            "America/New_York",
            "2028-01-01T04:59:59Z",
            "2027-01-01T05:00:00Z",
            "2028-01-01T05:00:00Z",
            8760,
        ),
        (
            Year,
            "America/New_York",
            "2028-01-01T05:00:00Z",
            "2028-01-01T05:00:00Z",
            "2029-01-01T05:00:00Z",
            8784,
        ),
        // Weeks start on Monday, also where they begin in the old year.
        (Week, "UTC", "2026-11-21T12:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", 168),
        (Week, "UTC", "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z", 168),
        (Week, "UTC", "2026-11-15T23:59:59Z", "2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z", 168),
        (Week, "UTC", "2021-01-01T00:00:00Z", "2020-12-28T00:00:00Z", "2021-01-04T00:00:00Z", 168),
        (Month, "UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", 744),
        // Clocks skip midnight: the day begins at one o'clock.
        (Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", 23),
        (Day, "Africa/Cairo", "2024-04-26T12:00:00Z", "2024-04-25T22:00:00Z", "2024-04-26T21:00:00Z", 23),
        (Day, "Asia/Beirut", "2022-03-27T12:00:00Z", "2022-03-26T22:00:00Z", "2022-03-27T21:00:00Z", 23),
        // Clocks repeat the last hour of the day: the second one ends at midnight.
        (Day, "America/Sao_Paulo", "2018-02-17T12:00:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z", 25),
        (Day, "Africa/Cairo", "2024-10-31T12:00:00Z", "2024-10-30T21:00:00Z", "2024-10-31T22:00:00Z", 25),
        // Clocks repeat midnight: the day begins with the first one and includes the repeated hour.
        (Day, "America/Havana", "2026-11-01T04:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", 25),
        (Day, "America/Goose_Bay", "2010-11-07T03:00:30Z", "2010-11-07T03:00:00Z", "2010-11-08T04:00:00Z", 25),
        (Day, "America/Goose_Bay", "2010-11-07T03:30:00Z", "2010-11-07T03:00:00Z", "2010-11-08T04:00:00Z", 25),
        (Day, "America/Goose_Bay", "2010-11-07T02:59:59Z", "2010-11-06T03:00:00Z", "2010-11-07T03:00:00Z", 24),
        // Offsets with half hours, also in summer time.
        (Day, "Asia/Kolkata", "2026-11-21T18:29:59Z", "2026-11-20T18:30:00Z", "2026-11-21T18:30:00Z", 24),
        (Day, "Asia/Kathmandu", "2026-11-21T18:15:00Z", "2026-11-21T18:15:00Z", "2026-11-22T18:15:00Z", 24),
        // The date line: 2011-12-30 is missing in Samoa, 1994-12-31 on Kiritimati, 1993-08-21 on
        // Kwajalein.
        (Day, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", 24),
        (Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", 24),
        (Week, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-26T10:00:00Z", "2012-01-01T10:00:00Z", 144),
        (Month, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z", 720),
        (
            Year,
            "Pacific/Kiritimati",
            "1994-06-01T00:00:00Z",
            "1994-01-01T10:00:00Z",
            "1994-12-31T10:00:00Z",
            8736,
        ),
        (Day, "Pacific/Kwajalein", "1993-08-21T11:59:59Z", "1993-08-20T12:00:00Z", "1993-08-21T12:00:00Z", 24),
        // Pyongyang jumped from 23:30 to midnight.
        (Day, "Asia/Pyongyang", "2018-05-04T14:59:59Z", "2018-05-03T15:30:00Z", "2018-05-04T15:00:00Z", 0),
        // Nothing precedes the epoch; the rules continue into the far future.
        (Day, "Europe/Berlin", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T23:00:00Z", 23),
        (Year, "Europe/Berlin", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-12-31T23:00:00Z", 8759),
        (Day, "Europe/Berlin", "2099-03-29T12:00:00Z", "2099-03-28T23:00:00Z", "2099-03-29T22:00:00Z", 23),
    ];
    for (unit, zone, instant, start, end, hours) in rows {
        let window = Calendar::new(unit, zone).unwrap().window(micros(instant));
        assert_eq!(window, Span { start: micros(start), end: micros(end) }, "{unit:?} of {instant} in {zone}");
        // 0: no whole hours.
        assert!(hours == 0 || window.end - window.start == hours * 3_600_000_000, "{unit:?} of {instant} in {zone}");
    }
}

/// The start of a date, found by checking the clocks every minute and then every second.
fn begins(zone: &TimeZone, date: Date) -> i64 {
    let reached = |second: i64| zone.to_datetime(Timestamp::from_second(second).unwrap()).date() >= date;
    let utc = date.at(0, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp().as_second();
    let minute = (utc - 30 * 3600..).step_by(60).find(|second| reached(*second)).unwrap();
    (minute - 60..=minute).find(|second| reached(*second)).unwrap()
}

fn window_by_days(zone: &TimeZone, unit: Unit, instant: i64) -> (i64, i64) {
    let new = |date: Date| match unit {
        Unit::Day => true,
        Unit::Week => date.weekday() == Weekday::Monday,
        Unit::Month => date.day() == 1,
        Unit::Year => date.day() == 1 && date.month() == 1,
    };
    let mut first = zone.to_datetime(Timestamp::from_second(instant).unwrap()).date().tomorrow().unwrap();
    while !new(first) || begins(zone, first) > instant {
        first = first.yesterday().unwrap();
    }
    let mut next = first.tomorrow().unwrap();
    while !new(next) || begins(zone, next) <= instant {
        next = next.tomorrow().unwrap();
    }
    (begins(zone, first), begins(zone, next))
}

#[test]
fn calendar_windows_match_wall_clock_search() {
    let zones: Vec<String> = zones().into_iter().filter(|zone| zone.contains('/')).collect();
    assert!(zones.len() > 400, "{}", zones.len());
    // From two days into 1970 to 130 years later, mostly near a clock change.
    let span = 2 * 86_400..130 * 365 * 86_400i64;
    let near = prop_oneof![3 => -200_000..200_000i64, 1 => Just(0i64)];
    let cases = (prop::sample::select(zones), 0..UNITS.len(), span, any::<bool>(), near);
    let mut runner = runner(4000);
    runner
        .run(&cases, |(name, unit, instant, set, near)| {
            let zone = TimeZone::get(&name).unwrap();
            let change = zone.following(Timestamp::from_second(instant).unwrap()).next();
            let near = change.filter(|_| set).map(|change| change.timestamp().as_second() + near);
            let instant = near.filter(|instant| (172_800..4_100_000_000).contains(instant)).unwrap_or(instant);
            let window = Calendar::new(UNITS[unit], &name).unwrap().window(instant as u64 * 1_000_000);
            let (start, end) = window_by_days(&zone, UNITS[unit], instant);
            let expected = Span { start: start.max(0) as u64 * 1_000_000, end: end as u64 * 1_000_000 };
            prop_assert_eq!(window, expected, "{:?} of {} in {}", UNITS[unit], instant, name);
            Ok(())
        })
        .unwrap();
}

/// Twenty years of each zone. Zones that follow each other in the list have other years.
#[test]
fn calendar_windows_are_contiguous_in_every_zone() {
    const YEARS: u64 = 20 * 366 * 24 * 3_600_000_000;
    for (number, zone) in (0..).zip(zones()) {
        let calendar = Calendar::new(Unit::Day, &zone).unwrap();
        let mut window = calendar.window(number % 3 * YEARS);
        let mut days = 0;
        while days < 20 * 366 {
            let next = calendar.window(window.end);
            assert_eq!(next.start, window.end, "{zone}");
            assert_eq!(calendar.window(window.end - 1), window, "{zone}");
            // The length differs by a day at most, where a date is missing or repeated.
            assert!((1..=48).contains(&((next.end - next.start) / 3_600_000_000)), "{zone}: {next:?}");
            window = next;
            days += 1;
        }
    }
}

/// Ten text messages a day: the old day admits ten. The next day admits ten more from its first
/// instant on.
#[test]
fn day_without_midnight_begins_at_its_first_instant() {
    let policy = by_calendar(10, Unit::Day, "America/Sao_Paulo");
    let mut states = vec![State::new(&policy.quotas[0])];
    let edge = micros("2018-11-04T03:00:00Z");
    let before = decide(&policy, &mut states, edge - 1, &[10, 1]);
    assert!(before.verdicts[0].allowed);
    assert_eq!((before.verdicts[1].allowed, before.verdicts[1].retry_after), (false, Wait::For(1)));
    let after = decide(&policy, &mut states, edge, &[10, 1]);
    assert!(after.verdicts[0].allowed);
    assert_eq!(after.verdicts[1].retry_after, Wait::For(23 * 3_600_000_000));
    assert_eq!(after.verdicts[1].quotas[0].reset_after, 23 * 3_600_000_000);
}

#[test]
fn embedded_store_counts_calendar_windows_and_expires_them() {
    let hand = Arc::new(AtomicU64::new(micros("2026-03-29T21:59:59Z")));
    let store = MemoryStore::new(Clock::manual(hand.clone()), 10);
    let subject = subject(&by_calendar(1, Unit::Day, "Europe/Berlin"));
    let allowed = || store.charge(&subject, &[1], &[]).unwrap().ruling.verdicts[0].allowed;
    assert!(allowed());
    assert!(!allowed());
    store.sweep();
    assert!(!allowed());
    hand.store(micros("2026-03-29T22:00:00Z"), Ordering::SeqCst);
    store.sweep();
    assert!(store.is_empty());
    assert!(allowed());
    assert!(!allowed());
}

/// The fallback `local` divides the limit and keeps the windows.
#[test]
fn fallback_share_keeps_calendar_windows() {
    let share = by_calendar(10, Unit::Day, "Europe/Berlin").share(2.try_into().unwrap());
    let store = Timed::new(10);
    let (subject, now) = (subject(&share), micros("2026-10-25T12:00:00Z"));
    let taken = store.at(now).charge(&subject, &[5, 1], &[]).unwrap();
    assert_eq!(taken.ruling.verdicts[1].retry_after, Wait::For(11 * 3_600_000_000));
    assert!(store.at(now + 11 * 3_600_000_000).charge(&subject, &[5], &[]).unwrap().ruling.verdicts[0].allowed);
}
