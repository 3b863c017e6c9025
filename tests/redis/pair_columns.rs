//! Redis stores the counts of fixed windows and token buckets of a key in one String. Each quota
//! has a column.

use std::sync::Arc;

use redis::Connection;
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Quota, Rule};
use tollgate::limit::receipt::Receipt;
use tollgate::limit::time::Micros;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Done, Over, StoreError, Subject, Work};

use crate::support::dice::Dice;
use crate::support::redis::{Server, shared};
use crate::support::steps::{START, bucket, policy_of, quota, subject};
use crate::support::timed::{Timed, TimedRedis};
use crate::support::unique;
use crate::window_columns;

const SECOND: Micros = 1_000_000;

/// Bytes of a column without a tail, and of the header.
const COLUMN: usize = 34;
const HEADER: usize = 9;

fn fixed(anchor: Anchor, window: Micros) -> Quota {
    quota(100, window, Rule::FixedWindow(anchor))
}

fn daily(zone: &str) -> Quota {
    fixed(Anchor::Calendar(Calendar::new(Unit::Day, zone).unwrap()), Unit::Day.nominal())
}

/// One quota of each kind, in combinations that a policy of the algorithm permits.
fn kinds() -> [(Algorithm, [Quota; 4]); 2] {
    let hour = 3600 * SECOND;
    let windows =
        [fixed(Anchor::FirstHit, hour), fixed(Anchor::Clock, hour), daily("UTC"), fixed(Anchor::FirstHit, 2 * hour)];
    // So slow that nothing refills.
    let buckets = [1, 2, 3, 4].map(|days| bucket(100, 1, days * 24 * hour));
    [(Algorithm::FixedWindow, windows), (Algorithm::TokenBucket, buckets)]
}

async fn left(redis: &TimedRedis, policy: Policy, key: &str, now: Micros) -> Vec<u64> {
    window_columns::left(redis, policy, key, 1, now).await
}

fn name(policy: &Policy, key: &str) -> String {
    Tag::new("ratelimit", key).counts(policy)
}

fn length(connection: &mut Connection, name: &str) -> usize {
    redis::cmd("STRLEN").arg(name).query(connection).unwrap()
}

/// A reload, or another node with another file, changes the quotas. Common quotas keep their
/// counts, in any order. The counts of other quotas are there when these return. So are the notes
/// for refunds.
#[tokio::test]
async fn added_and_removed_quotas_keep_counts_of_others() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    for (algorithm, [a, b, c, d]) in kinds() {
        let key = unique("pairs");
        let all = |quotas: &[&Quota]| policy_of(algorithm, quotas.iter().copied().cloned().collect());
        let once = Work::Once { id: "noted".into(), cost: 5, over: Over::Deny };
        let of_three = subject(all(&[&a, &b, &c]), &key);
        let charged = redis.at(START).run(&of_three, once, &[]).await.unwrap();
        assert!(matches!(charged, Done::Charged(_)), "{charged:?}");
        let rows = [
            (vec![&b, &c], vec![94, 94]),
            (vec![&a], vec![94]),
            (vec![&d, &c, &b, &a], vec![99, 93, 93, 93]),
            (vec![&c], vec![92]),
            (vec![&a, &b, &c, &d], vec![92, 92, 91, 98]),
        ];
        for (number, (quotas, expected)) in rows.into_iter().enumerate() {
            let now = START + number as Micros;
            assert_eq!(left(&redis, all(&quotas), &key, now).await, expected, "{number}: {algorithm:?}");
        }
        let refund = Work::RefundOnce("noted".into());
        let Done::Refunded(after, 5) = redis.at(START + 10).run(&of_three, refund, &[]).await.unwrap() else {
            panic!("{algorithm:?}: the charge is given back")
        };
        let remaining = after.ruling.verdicts[0].quotas.iter().map(|quota| quota.remaining).collect::<Vec<_>>();
        assert_eq!(remaining, [97, 97, 96], "{algorithm:?}");
        assert_eq!(left(&redis, all(&[&d, &c]), &key, START + 11).await, [97, 95]);
    }
}

/// 1 a day is 2 in two days: the same column in Redis, the same counter of the embedded store.
#[tokio::test]
async fn equal_rates_share_a_column() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (memory, day) = (Timed::new(10), 86_400 * SECOND);
    let subject = subject(policy_of(Algorithm::TokenBucket, Vec::new()), &unique("rates"));
    for (number, days) in (1..).zip([1, 2, 1, 4]) {
        let policy = policy_of(Algorithm::TokenBucket, vec![bucket(100, days, days * day)]);
        let subject = Subject { policy: policy.into(), ..subject.clone() };
        let taken = redis.at(START).charge(&subject, &[1], &[]).await.unwrap();
        assert_eq!(taken.ruling.verdicts[0].quotas[0].remaining, 100 - number, "{days}");
        assert_eq!(Ok(taken), memory.at(START).charge(&subject, &[1], &[]));
    }
}

/// A bucket keeps its notes while checks use other buckets, even at the instant when it is full
/// again. It never reuses the numbers of its notes.
#[tokio::test]
async fn refund_notes_of_a_bucket_are_never_reused() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (key, hour) = (unique("again"), 3600 * SECOND);
    let (a, b) = (bucket(100, 1, hour), bucket(100, 1, 2 * hour));
    let [both, of_a, of_b] = [vec![a.clone(), b.clone()], vec![a], vec![b]]
        .map(|quotas| subject(policy_of(Algorithm::TokenBucket, quotas), &key));
    let hold = Work::Reserve { cost: 5, hold: SECOND };
    let now = redis.at(START);
    let Ok(Done::Reserved(_, Some(first))) = now.run(&both, hold.clone(), &[]).await else { panic!("reserved") };
    assert!(matches!(now.run(&both, Work::Refund(5), &[]).await, Ok(Done::Refunded(_, 5))));
    for subject in [&of_b, &of_a] {
        assert!(matches!(now.run(subject, hold.clone(), &[]).await, Ok(Done::Reserved(_, Some(_)))));
    }
    let first = Receipt { entries: first.entries[..1].into(), ..first };
    let given = now.run(&of_a, Work::GiveBack(first), &[]).await;
    assert!(matches!(given, Ok(Done::Refunded(_, 0))), "{given:?}");
}

/// In Troll a day has up to 26 hours, also when a check of another quota comes between.
#[tokio::test]
async fn long_day_counts_to_its_end() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let key = unique("troll");
    // 2026-10-25 there, from its first instant on.
    let (day, start, minute) = (daily("Antarctica/Troll"), 1_792_879_200_000_000, 60 * SECOND);
    let of_day = || policy_of(Algorithm::FixedWindow, vec![day.clone()]);
    assert_eq!(left(&redis, of_day(), &key, start).await, [99]);
    let hourly = policy_of(Algorithm::FixedWindow, vec![fixed(Anchor::FirstHit, 3600 * SECOND)]);
    assert_eq!(left(&redis, hourly, &key, start + (25 * 60 + 36) * minute).await, [99]);
    assert_eq!(left(&redis, of_day(), &key, start + (26 * 60 - 1) * minute).await, [98]);
    assert_eq!(left(&redis, of_day(), &key, start + 26 * 60 * minute).await, [99], "the next day");
}

/// Columns without a policy do not prevent in-place writes of the others.
#[tokio::test]
async fn leftover_columns_do_not_slow_checks() {
    let server = Server::start();
    let redis = server.timed_store();
    redis.store.ready().await;
    // The buckets fill so fast that the existing TTL suffices.
    let fast = [1000, 1001, 1002, 1003].map(|units| bucket(100, units, SECOND));
    let [(fixed, windows), (buckets, _)] = kinds();
    for (algorithm, [a, b, c, d]) in [(fixed, windows), (buckets, fast)] {
        let all = |quotas: &[&Quota]| policy_of(algorithm, quotas.iter().copied().cloned().collect());
        let key = unique("over");
        assert_eq!(left(&redis, all(&[&a, &b, &c, &d]), &key, START).await, [99; 4]);
        // One check, so that its columns come first.
        assert_eq!(left(&redis, all(&[&c, &b]), &key, START).await, [98; 2]);
        let calls = || server.calls(["set", "setrange"]);
        let before = calls();
        for number in 1..=5 {
            assert_eq!(left(&redis, all(&[&c, &b]), &key, START + number).await, [98 - number; 2]);
        }
        assert_eq!(calls(), [before[0], before[1] + 5], "{algorithm:?}");
        assert_eq!(left(&redis, all(&[&a, &b, &c, &d]), &key, START + 6).await, [98, 92, 92, 98]);
    }
}

/// A day of one time zone is not that of another.
#[tokio::test]
async fn other_time_zone_has_its_own_count() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let key = unique("zones");
    let days = |zone| policy_of(Algorithm::FixedWindow, vec![daily(zone)]);
    for (zone, expected) in [("UTC", 99), ("Asia/Tokyo", 99), ("UTC", 98), ("Asia/Tokyo", 98), ("Europe/Berlin", 99)] {
        assert_eq!(left(&redis, days(zone), &key, START).await, [expected], "{zone}");
    }
}

/// Unused columns go when their counts expire, and their number is bounded. A bucket of another
/// rate takes the former column over.
#[tokio::test]
async fn unused_columns_are_removed() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    let minutes = |count: u64| {
        let windows = policy_of(Algorithm::FixedWindow, vec![fixed(Anchor::FirstHit, count * 60 * SECOND)]);
        let buckets = policy_of(Algorithm::TokenBucket, vec![bucket(200, 1, count * 60 * SECOND)]);
        [windows, buckets]
    };
    for (place, columns) in [(0, 32), (1, 1)] {
        let (key, policy) = (unique("old-pairs"), |count| minutes(count)[place].clone());
        let name = name(&policy(1), &key);
        for count in 1..=100 {
            left(&redis, policy(count), &key, START).await;
        }
        assert_eq!(length(&mut connection, &name), HEADER + columns * COLUMN);
        left(&redis, policy(200), &key, START + 2 * 3600 * SECOND).await;
        assert_eq!(length(&mut connection, &name), HEADER + COLUMN);
    }
}

/// The store rejects a value with a wrong length or impossible content, and does not change it.
/// Every operation except a reset fails; a reset removes it.
#[tokio::test]
async fn truncated_state_is_rejected() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    for (algorithm, [a, b, ..]) in kinds() {
        let key = unique("half-pairs");
        let subject = subject(Arc::new(policy_of(algorithm, vec![a, b])), &key);
        let name = name(&subject.policy, &key);
        let hold = Work::Reserve { cost: 1, hold: SECOND };
        assert!(matches!(redis.at(START).run(&subject, hold.clone(), &[]).await, Ok(Done::Reserved(_, Some(_)))));
        let whole: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
        let mut spoilt: Vec<Vec<u8>> = (0..whole.len()).step_by(5).map(|length| whole[..length].to_vec()).collect();
        spoilt.push([&whole[..], b"x"].concat());
        // An end beyond doubles; more columns than there are, or fewer; a pair, a kind, and a
        // longer tail.
        let places = [(0, 255), (8, 3), (8, 1), (9, 255), (17, 255), (41, 255), (49, 255), (58, 9)];
        spoilt.extend(places.map(|(place, byte)| {
            let mut changed = whole.clone();
            changed[place] = byte;
            changed
        }));
        let asks = [Work::Take([1].as_slice().into()), hold, Work::Refund(1), Work::Look(1)];
        for value in spoilt {
            redis::cmd("SET").arg(&name).arg(&value).exec(&mut connection).unwrap();
            for work in &asks {
                let answered = redis.at(START + 1).run(&subject, work.clone(), &[]).await;
                assert!(matches!(answered, Err(StoreError::Refused(_))), "{answered:?} of {value:?}");
            }
            let left: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
            assert_eq!(left, value);
        }
        // Any type but a String is corrupt too.
        redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
        redis::cmd("RPUSH").arg(&name).arg("x").exec(&mut connection).unwrap();
        for work in asks {
            let answered = redis.at(START + 1).run(&subject, work, &[]).await;
            assert!(matches!(answered, Err(StoreError::Refused(_))), "{answered:?} of a list");
        }
        let reset = redis.at(START + 2).run(&subject, Work::Reset(Box::default()), &[]).await.unwrap();
        assert!(matches!(reset, Done::Refunded(_, 0)), "{reset:?}");
        assert_eq!(left(&redis, Policy::clone(&subject.policy), &key, START + 3).await, [99, 99]);
    }
}

/// Unreadable columns after those of the policy affect neither its next checks nor other keys.
#[tokio::test]
async fn unreadable_bytes_after_columns_are_removed() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    for (algorithm, [a, b, ..]) in kinds() {
        let key = unique("behind");
        let [both, own] = [vec![a.clone(), b], vec![a]].map(|quotas| subject(policy_of(algorithm, quotas), &key));
        left(&redis, Policy::clone(&both.policy), &key, START).await;
        let name = name(&own.policy, &key);
        let mut state: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
        // The key seems to end, so that the script writes the whole value; the second kind is
        // invalid.
        state[..8].fill(0);
        state[59..67].fill(0);
        redis::cmd("SET").arg(&name).arg(&state).exec(&mut connection).unwrap();
        assert_eq!(left(&redis, Policy::clone(&own.policy), &key, START + 1).await, [98]);
        assert_eq!(length(&mut connection, &name), HEADER + COLUMN);
    }
}

/// The key expires no earlier than its counts, and not much later. Few charges have to set the
/// expiry.
#[tokio::test]
async fn key_expires_when_its_counts_end() {
    let server = Server::start();
    let redis = server.timed_store();
    redis.store.ready().await;
    let mut connection = server.connection().unwrap();
    let minute = 60 * SECOND;
    let policies = [
        policy_of(Algorithm::FixedWindow, vec![fixed(Anchor::FirstHit, minute), fixed(Anchor::Clock, 10 * SECOND)]),
        policy_of(Algorithm::TokenBucket, vec![bucket(100, 1000, minute), bucket(100, 100, SECOND)]),
    ];
    let mut dice = Dice::new(17);
    for policy in policies {
        let (key, policy, mut now) = (unique("lives"), Arc::new(policy), START);
        let (subject, name) = (subject(policy.clone(), &key), name(&policy, &key));
        let sets = || server.calls(["set"])[0];
        let longest = policy.quotas.iter().map(|quota| quota.window).max().unwrap();
        let (before, mut charged) = (sets(), 0);
        for _ in 0..400 {
            now += dice.below(SECOND / 2);
            let taken = redis.at(now).charge(&subject, &[1 + dice.below(3)], &[]).await.unwrap();
            let verdict = &taken.ruling.verdicts[0];
            if verdict.allowed {
                charged += 1;
                let state: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
                let till = Micros::from_be_bytes(*state.first_chunk().unwrap());
                let needed = verdict.quotas.iter().map(|quota| quota.reset_after).max().unwrap();
                let most = longest + longest / 8 + 2 * SECOND;
                assert!((now + needed + SECOND..=now + most).contains(&till), "{till} at {now}, of {needed}");
                let ends: u64 = redis::cmd("PTTL").arg(&name).query(&mut connection).unwrap();
                assert!(ends <= most / 1000, "{ends}");
            }
        }
        let sets = sets() - before;
        assert!(charged > 60 && sets * 3 < charged, "{sets} of {charged} charges of {}", policy.algorithm.name());
    }
}
