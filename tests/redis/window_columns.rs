//! Redis stores the counts of a key's sliding windows in one String. Each quota has a column.

use std::sync::Arc;

use proptest::prelude::*;
use redis::Connection;
use smallvec::smallvec;
use tollgate::limit::policy::Policy;
use tollgate::limit::time::Micros;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Done, StoreError, Subject, Work};

use crate::support::dice::Dice;
use crate::support::redis::{Server, shared, timed_store};
use crate::support::steps::{START, policy, subject};
use crate::support::timed::{Timed, TimedRedis, in_time};
use crate::support::unique;

const SECOND: Micros = 1_000_000;

pub(super) async fn left(redis: &TimedRedis, policy: Policy, key: &str, cost: u64, now: Micros) -> Vec<u64> {
    let taken = redis.at(now).charge(&subject(policy, key), &[cost], &[]).await.unwrap();
    let verdict = &taken.ruling.verdicts[0];
    assert!(verdict.allowed, "{verdict:?}");
    verdict.quotas.iter().map(|quota| quota.remaining).collect()
}

fn name(key: &str) -> String {
    Tag::new("ratelimit", key).counts(&policy(&[(1, SECOND)]))
}

fn length(connection: &mut Connection, key: &str) -> usize {
    redis::cmd("STRLEN").arg(name(key)).query(connection).unwrap()
}

/// A reload, or another node with another file, changes the quotas. Common quotas keep their
/// counts, in any order. The counts of other quotas are there when these return.
#[tokio::test]
async fn added_and_removed_quotas_keep_counts_of_others() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let key = unique("columns");
    let (second, ten, minute, hour) = ((100, SECOND), (100, 10 * SECOND), (100, 60 * SECOND), (100, 3600 * SECOND));
    let rows = [
        (vec![ten, minute], vec![99, 99]),
        (vec![ten, minute, hour], vec![98, 98, 99]),
        (vec![hour, ten], vec![98, 97]),
        (vec![minute], vec![97]),
        (vec![minute, second], vec![96, 99]),
        (vec![ten, minute, hour], vec![96, 95, 97]),
        (vec![second, ten, minute, hour], vec![98, 95, 94, 96]),
        (vec![ten, minute], vec![94, 93]),
    ];
    for (number, (quotas, expected)) in rows.into_iter().enumerate() {
        // Within one bucket of a second, and in later ones of it.
        let now = START + number as Micros * 20_000;
        assert_eq!(left(&redis, policy(&quotas), &key, 1, now).await, expected, "{number}: {quotas:?}");
    }
    // A limit that crosses 2^32 takes its counts along, in either direction.
    let now = START + SECOND / 2;
    assert_eq!(left(&redis, policy(&[(1 << 32, 10 * SECOND)]), &key, 1, now).await, [(1 << 32) - 7]);
    assert_eq!(left(&redis, policy(&[ten]), &key, 1, now).await, [92]);
}

/// Counts of a former limit may be too large for the sums of a limit below 2^32.
#[tokio::test]
async fn refund_under_lower_limit_gives_back_no_more_than_it_was_asked() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (key, high, low) = (unique("lower"), policy(&[(1 << 33, 10 * SECOND)]), policy(&[(100, 10 * SECOND)]));
    assert_eq!(left(&redis, high, &key, (1 << 32) + 10, START).await, [(1 << 32) - 10]);
    let refund = redis.at(START).run(&subject(low, &key), Work::Refund(1 << 32), &[]).await.unwrap();
    let Done::Refunded(taken, given) = refund else { panic!("{refund:?}") };
    assert_eq!((given, taken.ruling.verdicts[0].quotas[0].remaining), (1 << 32, 90));
}

/// The column of a removed quota, for example of a day, does not force each check to rewrite the
/// value.
/// A give-back lowers the sums of its bucket and of later ones in place.
#[tokio::test]
async fn give_back_to_an_earlier_bucket_matches_embedded_store() {
    let (redis, key) = (shared().timed_store(), unique("back"));
    redis.store.ready().await;
    for limits in [vec![(100, 64 * SECOND)], vec![(1 << 33, 64 * SECOND), (100, 640 * SECOND)]] {
        for (late, others) in [(0, 1), (1, 1), (4, 1), (5, 1), (2, 0)] {
            let subject = subject(policy(&limits), &format!("{key} {} {late} {others}", limits.len()));
            let memory = Timed::new(10);
            let alike = async |now: Micros, work: Work| {
                let expected = memory.at(now).run(&subject, &work, &[]).unwrap();
                let answered = redis.at(now).run(&subject, work, &[]).await.unwrap();
                match (&expected, &answered) {
                    // The embedded store knows more of a reservation that fits.
                    (Done::Reserved(_, expected), Done::Reserved(_, answered)) => assert_eq!(answered, expected),
                    (Done::Taken(expected), Done::Taken(answered)) => {
                        assert_eq!(answered.ruling.verdicts, expected.ruling.verdicts, "{late} {others}");
                    }
                    (Done::Refunded(expected, back), Done::Refunded(answered, given)) => {
                        assert_eq!((given, &answered.ruling.verdicts), (back, &expected.ruling.verdicts));
                    }
                    _ => panic!("{answered:?}, {expected:?}"),
                }
                answered
            };
            let reserved = alike(START, Work::Reserve { cost: 5, hold: 60 * SECOND }).await;
            let Done::Reserved(_, Some(receipt)) = reserved else { panic!("{reserved:?}") };
            alike(START, Work::Take(smallvec![others])).await;
            let now = START + late * SECOND;
            alike(now, Work::Take(smallvec![2])).await;
            alike(now, Work::GiveBack(receipt)).await;
            for second in 0..75 {
                alike(now + second * SECOND, Work::Look(1)).await;
            }
        }
    }
}

#[tokio::test]
async fn leftover_columns_do_not_slow_checks() {
    let server = Server::start();
    let redis = server.timed_store();
    redis.store.ready().await;
    let (ten, day) = ((100, 10 * SECOND), (100, 86_400 * SECOND));
    for number in 0..3 {
        left(&redis, policy(&[day, ten]), "over", 1, START + number * SECOND).await;
    }
    // One check, so that its columns come first.
    left(&redis, policy(&[ten]), "over", 1, START + 3 * SECOND).await;
    let calls = || server.calls(["set", "setrange"]);
    let before = calls();
    for number in 0..5 {
        left(&redis, policy(&[ten]), "over", 1, START + 3 * SECOND + number).await;
    }
    assert_eq!(calls(), [before[0], before[1] + 5]);
    assert_eq!(left(&redis, policy(&[day, ten]), "over", 1, START + 4 * SECOND).await, [96, 90]);
}

/// A clock that steps back twice still finds the charges in between. This holds if the first charge
/// lies further ahead than a window, and on both stores.
#[tokio::test]
async fn two_clock_steps_back_hide_no_charge() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (memory, key) = (Timed::new(10), unique("twice"));
    let subject = subject(policy(&[(100, 10 * SECOND)]), &key);
    for (back, cost, is_allowed) in [(0, 1, true), (6, 99, true), (12, 100, false), (12, 1, true), (6, 1, false)] {
        let now = START - back * SECOND;
        let taken = redis.at(now).charge(&subject, &[cost], &[]).await.unwrap();
        assert_eq!(taken.ruling.verdicts[0].allowed, is_allowed, "{cost} {back} s back: {taken:?}");
        assert_eq!(Ok(taken), memory.at(now).charge(&subject, &[cost], &[]));
    }
}

/// Unused columns go when their counts expire, and their number is bounded.
#[tokio::test]
async fn unused_columns_are_removed() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    let key = unique("old-columns");
    for number in 1..=100 {
        left(&redis, policy(&[(100, number * 60 * SECOND)]), &key, 1, START).await;
    }
    assert_eq!(length(&mut connection, &key), 9 + 32 * 34);
    // After five hours only longer windows remain, and a new one of an hour.
    left(&redis, policy(&[(100, 3600 * SECOND + 1)]), &key, 1, START + 5 * 3600 * SECOND).await;
    assert_eq!(length(&mut connection, &key), 9 + 34);
}

/// A key with one hit is short. A busy key is never longer than two windows of sums.
#[tokio::test]
async fn key_size_grows_with_hits() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    let windows = [(1 << 20, SECOND), (1 << 20, 10 * SECOND), (1 << 20, 60 * SECOND)];
    for (count, once, most) in [(1, 43, 43 + 129 * 4), (3, 111, 111 + 3 * 129 * 4)] {
        let key = unique("length");
        let bucket = SECOND.div_ceil(64);
        for number in 0..400 {
            left(&redis, policy(&windows[..count]), &key, 1, START + number * bucket).await;
            let length = length(&mut connection, &key);
            match number {
                0 => assert_eq!(length, once),
                1..=4 => assert!(length <= once + count * 16, "{length} after {number}"),
                _ => assert!(length <= most, "{length} after {number}"),
            }
        }
    }
}

/// Fails if a history fails, unless it took so long that keys may have expired.
fn hold_alike(history: impl FnOnce() -> Result<(), TestCaseError>) {
    match in_time(history) {
        Err(TestCaseError::Reject(_)) | Ok(()) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Narrow sums cannot hold all charges of a higher limit. A refund does not lower what counts below
/// the rest of them.
#[tokio::test]
async fn refund_after_limit_falls_below_2_32_frees_no_more_than_it_refunds() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let (key, memory) = (unique("refund"), Timed::new(10));
    let high = subject(policy(&[(1 << 33, SECOND)]), &key);
    let low = Subject { policy: policy(&[((1 << 32) - 2, SECOND)]).into(), ..high.clone() };
    for (subject, work) in [
        (&high, Work::Take([7_000_000_000].into_iter().collect())),
        (&low, Work::Refund(1_000_000_000)),
        (&low, Work::Take([1].into_iter().collect())),
        (&low, Work::Refund(2_000_000_000)),
        (&low, Work::Take([1].into_iter().collect())),
        (&low, Work::Refund(500)),
    ] {
        let expected = memory.at(START).run(subject, &work, &[]).unwrap();
        assert_eq!(redis.at(START).run(subject, work.clone(), &[]).await.unwrap(), expected, "{work:?}");
    }
}

/// Eight quotas, the maximum, with sums that wrap: the store decides as the embedded store does.
#[test]
fn eight_quotas_match_embedded_store() {
    let (runtime, redis) = timed_store();
    let mut dice = Dice::new(8);
    for round in 0..40u64 {
        let limit = [7, 1000, (1 << 32) - 1, 1 << 32, 1_000_000_000_000_000][round as usize % 5];
        let quotas: Vec<(u64, Micros)> = (0..8).map(|n| (limit, [100_000, 137_000][n % 2] << (n / 2))).collect();
        let key = unique("eight");
        let history = || {
            let subject = Subject { ..subject(policy(&quotas), &key) };
            let (memory, mut now) = (Timed::new(10), START);
            for step in 0..150 {
                now += [0, 0, 900, 4_000, 30_000, 300_000][dice.place(6)];
                let most = limit / dice.one_of(&[1, 3, 40]);
                let costs: Vec<u64> = (0..=dice.below(2)).map(|_| 1 + dice.below(most)).collect();
                let expected = memory.at(now).charge(&subject, &costs, &[]);
                let answered = runtime.block_on(redis.at(now).charge(&subject, &costs, &[]));
                prop_assert_eq!(answered, expected, "step {} of round {}: {:?}", step, round, costs);
            }
            Ok(())
        };
        hold_alike(history);
    }
}

/// A busy key is decided as by the embedded store through many windows, while its sums wrap. Gaps
/// between checks vary, the clock steps back, refunds occur, and columns of other quotas come and
/// go.
#[test]
fn long_busy_key_matches_embedded_store() {
    let (runtime, redis) = timed_store();
    let mut dice = Dice::new(34);
    for round in 0..30u64 {
        let limit = [40, 4000, (1 << 32) - 1, 1 << 32][round as usize % 4];
        let windows = [100_000, 1_000_000, 777_777, 60 * SECOND];
        let first = dice.place(4);
        let quotas: Vec<_> = (first..=first + dice.place(3)).map(|n| (limit, windows[n % 4])).collect();
        let others: Vec<_> = quotas.iter().copied().chain([(limit, 5 * SECOND)]).collect();
        let bucket = windows[first].div_ceil(64);
        let usual = subject(policy(&quotas), &unique("busy"));
        let changed = Subject { policy: policy(&others).into(), ..usual.clone() };
        let history = || {
            let (memory, mut now) = (Timed::new(10), START + dice.below(SECOND));
            for step in 0..700 {
                now += match dice.below(300) {
                    0 => dice.below(200 * bucket),
                    1..20 => dice.below(18 * bucket),
                    20..200 => dice.below(bucket),
                    _ => 0,
                };
                let subject = if dice.below(150) == 0 { &changed } else { &usual };
                let at = now - if dice.below(100) == 0 { dice.below(30 * bucket) } else { 0 };
                let most = limit / dice.one_of(&[1, 40, 400]);
                let costs: Vec<u64> = (0..=dice.below(2)).map(|_| dice.below(most + 1)).collect();
                let work = match dice.below(200) {
                    0 => Work::Refund(1 + dice.below(most)),
                    _ => Work::Take(costs.into_iter().collect()),
                };
                let expected = memory.at(at).run(subject, &work, &[]).unwrap();
                let answered = runtime.block_on(redis.at(at).run(subject, work.clone(), &[])).unwrap();
                let told = |done| match done {
                    // A refund does not report when a cost fits.
                    Done::Refunded(mut taken, given) => {
                        taken.ruling.closed = None;
                        Done::Refunded(taken, given)
                    }
                    done => done,
                };
                prop_assert_eq!(told(answered), told(expected), "step {} of round {}: {:?}", step, round, work);
            }
            Ok(())
        };
        hold_alike(history);
    }
}

/// The store rejects a value with a wrong length or impossible content, and does not change it.
#[tokio::test]
async fn truncated_state_is_rejected() {
    let redis = shared().timed_store();
    redis.store.ready().await;
    let mut connection = shared().connection().unwrap();
    let key = unique("half");
    let quotas = [(100, SECOND), (100, 10 * SECOND)];
    for number in 0..9 {
        left(&redis, policy(&quotas), &key, 1, START + number * 40_000).await;
    }
    let whole: Vec<u8> = redis::cmd("GET").arg(name(&key)).query(&mut connection).unwrap();
    let subject = subject(Arc::new(policy(&quotas)), &key);
    let mut spoilt: Vec<Vec<u8>> = (0..whole.len()).step_by(7).map(|length| whole[..length].to_vec()).collect();
    spoilt.push([&whole[..], b"x"].concat());
    // More columns than there are, a first bucket after the last, more room than there is, a total
    // beyond doubles.
    spoilt.extend([(8, 3), (17, 255), (41, 255), (42, 255), (33, 255)].map(|(place, byte)| {
        let mut changed = whole.clone();
        changed[place] = byte;
        changed
    }));
    for value in spoilt {
        redis::cmd("SET").arg(name(&key)).arg(&value).exec(&mut connection).unwrap();
        let answered = redis.at(START + 400_000).charge(&subject, &[1], &[]).await;
        assert!(matches!(answered, Err(StoreError::Refused(_))), "{answered:?} of {value:?}");
        let left: Vec<u8> = redis::cmd("GET").arg(name(&key)).query(&mut connection).unwrap();
        assert_eq!(left, value);
    }
    // Any type but a String is corrupt too; a reset removes it.
    let name = name(&key);
    redis::cmd("DEL").arg(&name).exec(&mut connection).unwrap();
    redis::cmd("RPUSH").arg(&name).arg("x").exec(&mut connection).unwrap();
    let answered = redis.at(START).charge(&subject, &[1], &[]).await;
    assert!(matches!(answered, Err(StoreError::Refused(_))), "{answered:?}");
    let reset = redis.at(START).run(&subject, Work::Reset(Box::default()), &[]).await.unwrap();
    assert!(matches!(reset, Done::Refunded(_, 0)), "{reset:?}");
    assert_eq!(left(&redis, policy(&quotas), &key, 1, START).await, [99, 99]);
}
