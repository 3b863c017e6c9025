//! Calendar windows are right across every clock change of a time zone, and equal on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::Clock;
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::decision::Wait;

use serde_json::{Value, json};

use crate::support::calendar::{UNITS, by_calendar, micros, subject};
use crate::support::faketime::shifted;
use crate::support::redis::{shared, timed_store};
use crate::support::stores::on_memory_redis_and_cluster;
use crate::support::timed::{Timed, TimedRedis};
use crate::support::{Node, file_with, unique};

/// Both stores, on each unit, in zones with every kind of edge: before, at and after the edge.
#[test]
fn both_stores_change_windows_at_the_same_instant() {
    let (runtime, redis) = timed_store();
    let memory = Timed::new(10_000);
    for zone in ["UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Africa/Cairo", "Pacific/Apia"] {
        for unit in UNITS {
            let subject = subject(&by_calendar(2, unit, zone));
            let calendar = Calendar::new(unit, zone).unwrap();
            let mut now = micros("2011-03-01T00:00:00Z");
            for _ in 0..12 {
                let window = calendar.window(now);
                for (instant, allowed) in [(window.start, 2), (window.end - 200_000, 0), (window.end - 1, 0)] {
                    let here = memory.at(instant).charge(&subject, &[1, 1, 1], &[]).unwrap();
                    let there = runtime.block_on(redis.at(instant).charge(&subject, &[1, 1, 1], &[])).unwrap();
                    assert_eq!(here, there, "{unit:?} in {zone} at {instant}");
                    let verdicts = &here.ruling.verdicts;
                    assert_eq!(verdicts.iter().filter(|verdict| verdict.allowed).count(), allowed);
                    assert_eq!(verdicts[2].retry_after, Wait::For(window.end - instant), "{unit:?} in {zone}");
                }
                now = window.end;
            }
        }
    }
}

/// A clock that is ahead writes a charge beyond the edge. For a clock behind the edge the charge
/// counts until its own end.
#[test]
fn charge_of_next_window_counts_after_clock_step_back() {
    let (runtime, redis) = timed_store();
    let memory = Timed::new(10);
    for back in [1, 200_000, 5_000_000, 20 * 3_600_000_000] {
        let subject = subject(&by_calendar(1, Unit::Day, "Europe/Berlin"));
        let edge = micros("2026-03-28T23:00:00Z");
        for (now, allowed) in [(edge + 10, true), (edge - back, false), (edge + 22 * 3_600_000_000, false)] {
            let here = memory.at(now).charge(&subject, &[1], &[]).unwrap();
            let there = runtime.block_on(redis.at(now).charge(&subject, &[1], &[])).unwrap();
            assert_eq!(here, there);
            assert_eq!(here.ruling.verdicts[0].allowed, allowed, "{back} us back");
        }
    }
}

/// The shard's TIME decides, whatever the node's clock shows and however far it jumps.
#[test]
fn node_with_wrong_clock_counts_in_window_of_shard() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let hand = Arc::new(AtomicU64::new(micros("2026-03-29T12:00:00Z")));
    let redis = {
        let _inside = runtime.enter();
        TimedRedis::open(&[shared().url()], Clock::manual(hand.clone()))
    };
    runtime.block_on(redis.store.ready());
    let subjects = UNITS.map(|unit| subject(&by_calendar(3, unit, "Europe/Berlin")));
    let now = micros("2026-03-29T12:00:00Z");
    for (charged, jump) in (0..).zip([0, 86_400, -86_400, 40 * 86_400, -400 * 86_400, 3 * 366 * 86_400, 0]) {
        hand.store(hand.load(Ordering::SeqCst).saturating_add_signed(jump * 1_000_000), Ordering::SeqCst);
        for subject in &subjects {
            let taken = runtime.block_on(redis.at(now + charged).charge(subject, &[1], &[])).unwrap();
            assert_eq!(taken.at, now + charged);
            let (verdict, left) = (&taken.ruling.verdicts[0], 3u64.saturating_sub(charged));
            assert_eq!((verdict.allowed, verdict.quotas[0].remaining), (left > 0, left.saturating_sub(1)), "{jump} s");
        }
    }
}

const POLICIES: &str = "
policies:
  sms: {algorithm: fixed-window, anchor: clock, timezone: Europe/Berlin, quotas: [10 per 1d]}
  api-key: {algorithm: fixed-window, timezone: America/New_York, quotas: [12 per 1d, {name: monthly, limit: 20, per: 1mo}]}
";

/// Row 5 by the calendar, on every store: 20 concurrent checks admit exactly ten.
#[test]
fn daily_limit_of_ten_holds_on_each_store() {
    on_memory_redis_and_cluster(POLICIES, |node| {
        let exactly_ten = || {
            let key = unique("sms");
            let asked = std::thread::scope(|scope| {
                let asked: Vec<_> = (0..20).map(|_| scope.spawn(|| node.check("sms", &key, 1))).collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
            });
            let denied = asked.iter().find(|answer| answer["allowed"] == false).unwrap();
            assert!(denied["source"] != "fallback", "{denied}");
            assert!((1..=25 * 3_600_000).contains(&denied["retry_after_ms"].as_u64().unwrap()), "{denied}");
            asked.iter().filter(|answer| answer["allowed"] == true).count() == 10
        };
        // Midnight may fall between the checks; the test then runs once more.
        assert!((0..2).any(|_| exactly_ten()), "never exactly ten of twenty");
        let answer = node.check("api-key", &unique("api-key"), 1);
        let names: Vec<_> = answer["quotas"].as_array().unwrap().iter().map(|quota| &quota["name"]).collect();
        assert_eq!(names, [&json!("1d"), &json!("monthly")]);
        // All days share one nominal length, and so do all months.
        let windows: Vec<_> = answer["quotas"].as_array().unwrap().iter().map(|quota| &quota["window_ms"]).collect();
        assert_eq!(windows, [&json!(86_400_000u64), &json!(2_592_000_000u64)]);
    });
}

/// Runs the real program from noon into the next day, while Berlin sets its clocks forward.
/// Berlin's midnight is ten o'clock in the evening of UTC.
#[test]
fn daily_limit_renews_after_midnight_of_23_hour_day() {
    let file = file_with(POLICIES);
    let folder = tempfile::tempdir().unwrap();
    let shift = folder.path().join("shift");
    let noon = i64::try_from((micros("2035-03-25T12:00:00Z") - Clock::system().now()) / 1_000_000).unwrap();
    let set = |minutes: i64| std::fs::write(&shift, format!("+{}s\n", noon + minutes * 60)).unwrap();
    set(1);
    let mut program = shifted();
    program.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_TIMESTAMP_FILE", &shift);
    program.env("FAKETIME_DONT_FAKE_MONOTONIC", "0");
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let hours = |answer: &Value, name: &str| answer[name].as_f64().unwrap() / 3_600_000.0;
    for left in (0..10).rev() {
        let answer = node.check("sms", "user-42", 1);
        assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(true), &json!(left)), "{answer}");
        // Ten hours to midnight; a busy machine may use up a part of them.
        assert!((9.5..=10.0).contains(&hours(&answer, "reset_after_ms")), "{answer}");
    }
    set(9 * 60 + 31);
    let denied = node.check("sms", "user-42", 1);
    assert_eq!(denied["allowed"], false, "{denied}");
    assert!(hours(&denied, "retry_after_ms") <= 0.5, "{denied}");
    set(10 * 60 + 1);
    let mut next_day = Value::Null;
    crate::support::wait_until("the next day has begun", || {
        next_day = node.check("sms", "user-42", 1);
        next_day["allowed"] == true
    });
    assert_eq!(next_day["remaining"], 9, "{next_day}");
    assert!((23.0..24.0).contains(&hours(&next_day, "reset_after_ms")), "{next_day}");
}
