//! Keys in Redis: their names and lifetimes, and no other keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::policy::Algorithm;
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::time::Micros;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Id, Over, Subject, Work};

use crate::support::redis::{Server, bus_port, shared};
use crate::support::steps::{START, bucket, logs, policy, policy_of, quota, subject};
use crate::support::timed::TimedRedis;
use crate::support::unique;

async fn take(redis: &TimedRedis, subject: &Subject, cost: u64, now: Micros) -> bool {
    redis.at(now).charge(subject, &[cost], &[]).await.unwrap().ruling.verdicts[0].allowed
}

/// The matching keys, and the remaining lifetime of each, ms (-1: for ever).
fn lives(server: &Server, pattern: &str) -> BTreeMap<String, i64> {
    let mut connection = server.connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
    let life = |key: &String| redis::cmd("PTTL").arg(key).query(&mut connection).unwrap();
    let lives: Vec<i64> = keys.iter().map(life).collect();
    keys.into_iter().zip(lives).collect()
}

#[tokio::test]
async fn window_keys_expire_one_second_after_their_windows() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    for window in [100_000u64, 137_000, 1_000_000, 60_000_000, 86_400_000_000] {
        let segment = window.div_ceil(64) * 64;
        for into in [0, segment / 3, segment - 1] {
            let now = START / segment * segment + into;
            let key = unique("life");
            let subject = subject(policy(&[(3, window)]), &key);
            assert!(take(&redis, &subject, 1, now).await);
            let until = (now / segment + 2) * segment - now;
            let expected = i64::try_from(until.div_ceil(1000) + 1000).unwrap();
            let pattern = format!("*{key}*");
            let first = lives(shared(), &pattern);
            assert_eq!(first.len(), 1, "{first:?}");
            let (name, life) = first.first_key_value().unwrap();
            assert!(*life <= expected && *life > expected - 900, "{name}: {life}, expected {expected}");
            // Neither a later hit nor a denial prolongs it.
            for cost in [1, 3, 0, 1, 1] {
                take(&redis, &subject, cost, now).await;
            }
            let later = lives(shared(), &pattern);
            assert!(later[name] <= *life, "{name}: {} after {life}", later[name]);
        }
    }
}

#[tokio::test]
async fn record_of_a_retry_id_lives_as_long_as_the_caller_asks() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    for (policy, usual) in [(policy(&[(3, 86_400_000_000)]), 86_400_000), (policy(&[(3, 1_000_000)]), 300_000)] {
        for (life, expected) in [(None, usual), (Some(2_000_000), 2000), (Some(86_400_000_000), 86_400_000)] {
            let key = unique("id-life");
            let id = Id { life, ..Id::from("a") };
            let work = Work::Once { id, cost: 1, over: Over::Deny };
            redis.at(START).run(&subject(policy.clone(), &key), work, &[]).await.unwrap();
            let lives = lives(shared(), &format!("*{key}*:id:*"));
            let life = *lives.values().next().unwrap_or(&-2);
            assert!(life <= expected && life > expected - 1500, "{lives:?}, expected {expected}");
        }
    }
}

#[tokio::test]
async fn redis_keys_of_a_key_share_one_slot() {
    let server = Server::start();
    let redis = server.timed_store();
    redis.store.ready().await;
    let long = "k".repeat(1024);
    let spelled_like_its_hash = {
        let tag = format!("{:?}", Tag::new("ratelimit", &long));
        tag.split(':').nth(1).unwrap().to_owned()
    };
    let odd = [
        "{",
        "}",
        "{}",
        "a{b}c",
        "}{",
        " ",
        "a b",
        "line\nfeed",
        "\0",
        "%",
        "%7B",
        "ünïcödé",
        "🦀",
        &long,
        &spelled_like_its_hash,
        "a:b",
        "a:}p:windows",
    ];
    let cluster_node = Server::start_on(bus_port(), &["--cluster-enabled", "yes"]);
    let mut connection = cluster_node.connection().unwrap();
    for key in odd {
        let key = if key == long || key == spelled_like_its_hash {
            key.to_owned()
        } else {
            format!("{key}{}", unique("odd"))
        };
        // The counts of a policy are one key.
        let windows = policy(&[(2, 1_000_000), (3, 10_000_000), (5, 60_000_000)]);
        let buckets = [bucket(2, 1, 1_000_000), bucket(3, 1, 10_000_000), bucket(5, 1, 60_000_000)];
        let subject = subject(windows, &key);
        let of_buckets =
            Subject { policy: policy_of(Algorithm::TokenBucket, buckets.into()).into(), ..subject.clone() };
        let before = lives(&server, "*");
        for subject in [&subject, &of_buckets] {
            assert!(take(&redis, subject, 1, START).await, "{key:?} shares a counter");
            assert!(take(&redis, subject, 1, START).await, "{key:?} shares a counter");
            assert!(!take(&redis, subject, 1, START).await, "{key:?} is not counted");
        }
        let names: Vec<String> = lives(&server, "*").into_keys().filter(|name| !before.contains_key(name)).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        for name in &names {
            let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut connection).unwrap();
            assert_eq!(slot, redis.store.slot(&subject), "{name}");
        }
    }
}

#[tokio::test]
async fn calendar_keys_expire_one_second_after_their_window() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    // Noon of the days on which Berlin sets its clocks forward and back, and a March.
    let rows = [
        (Unit::Day, 1_774_782_000_000_000u64, 11 * 3600u64),
        (Unit::Day, 1_792_926_000_000_000, 12 * 3600),
        (Unit::Month, 1_772_319_600_000_000, 743 * 3600),
    ];
    for (unit, now, left) in rows {
        let rule = Rule::FixedWindow(Anchor::Calendar(Calendar::new(unit, "Europe/Berlin").unwrap()));
        let policy = policy_of(Algorithm::FixedWindow, vec![quota(3, unit.nominal(), rule)]);
        let key = unique("calendar-life");
        let subject = subject(policy, &key);
        assert!(take(&redis, &subject, 1, now).await);
        assert!(take(&redis, &subject, 1, now + 1_000_000).await);
        assert!(!take(&redis, &subject, 2, now + 1_000_000).await);
        let all = lives(shared(), &format!("*{key}*"));
        let (written, life) = all.first_key_value().unwrap();
        assert_eq!((all.len(), written.clone()), (1, format!("{{ratelimit:{key}:}}p:fixed")));
        // The second charge, a second later, has not prolonged it.
        let expected = i64::try_from(left * 1000).unwrap() + 1000;
        assert!(*life <= expected && *life > expected - 20_000, "{written}: {life}, expected {expected}");
    }
}

#[tokio::test]
async fn database_is_empty_after_all_windows() {
    let server = Server::start();
    let store = server.store();
    store.ready().await;
    let policies = [
        policy(&[(2, 100_000), (3, 400_000)]),
        policy_of(Algorithm::FixedWindow, vec![quota(2, 100_000, Rule::FixedWindow(Anchor::Clock))]),
        policy_of(Algorithm::FixedWindow, vec![quota(2, 300_000, Rule::FixedWindow(Anchor::FirstHit))]),
        policy_of(Algorithm::TokenBucket, vec![bucket(1, 7, 100_000), bucket(2, 20, 300_000)]),
        logs(&[(2, 100_000), (3, 300_000)], 10),
    ];
    for (number, policy) in (0..200).zip(policies.into_iter().map(Arc::new).cycle()) {
        let subject = subject(policy, &format!("gone-{number}"));
        for cost in [1, 1, 1, 0] {
            store.charge(&subject, &[cost], &[Some("who".into())]).await.unwrap();
        }
    }
    let all = lives(&server, "*");
    // -2: the key has expired since the listing. -1: the key never expires.
    assert!(!all.is_empty() && all.values().all(|life| *life > 0 || *life == -2), "{all:?}");
    let empty = || {
        let size: u64 = redis::cmd("DBSIZE").query(&mut server.connection().unwrap()).unwrap();
        size == 0
    };
    crate::support::wait_until("the database is empty", empty);
}
