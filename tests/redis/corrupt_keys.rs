//! A corrupt value is rejected for its key alone, without a charge. A reset ends that.

use std::sync::Arc;
use std::time::Duration;

use redis::Connection;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::store::{Done, Over, RedisStore, StoreError, Subject, Work};

use crate::support::dice::Dice;
use crate::support::redis::shared;
use crate::support::steps::{bucket, logs, policy, policy_of, quota, subject};
use crate::support::unique;

const HOUR: u64 = 3_600_000_000;

fn policies() -> Vec<Policy> {
    let fixed = |anchor| Rule::FixedWindow(anchor);
    vec![
        policy(&[(100, HOUR), (90, 2 * HOUR)]),
        policy(&[(1 << 33, HOUR)]),
        policy_of(
            Algorithm::FixedWindow,
            vec![quota(100, HOUR, fixed(Anchor::FirstHit)), quota(90, 2 * HOUR, fixed(Anchor::Clock))],
        ),
        policy_of(Algorithm::TokenBucket, vec![bucket(100, 1, HOUR), bucket(90, 1, 2 * HOUR)]),
        logs(&[(100, HOUR), (90, 2 * HOUR)], 90),
    ]
}

fn works() -> Vec<Work> {
    vec![
        Work::Take([1].into_iter().collect()),
        Work::Take([1, 2, 0].into_iter().collect()),
        Work::Look(1),
        Work::Once { id: "id".into(), cost: 1, over: Over::Deny },
        Work::Once { id: "new".into(), cost: 1, over: Over::Deny },
        Work::Drain(1),
        Work::Once { id: "drained".into(), cost: 1, over: Over::Drain },
        Work::Reserve { cost: 1, hold: 1_000_000 },
        Work::Refund(1),
        Work::RefundOnce("id".into()),
    ]
}

async fn ask(store: &RedisStore, subject: &Subject, work: Work) -> Result<Done, StoreError> {
    let metas = vec![Some("who".into()); work.costs().len()];
    store.run(subject, work, &metas).await
}

async fn write_all(store: &RedisStore, subject: &Subject) {
    for work in works() {
        ask(store, subject, work).await.unwrap();
    }
    let Ok(Done::Reserved(_, Some(receipt))) = ask(store, subject, Work::Reserve { cost: 1, hold: 1_000_000 }).await
    else {
        panic!("it is reserved");
    };
    ask(store, subject, Work::GiveBack(receipt)).await.unwrap();
    for _ in 0..5 {
        ask(store, subject, Work::Take([1].into_iter().collect())).await.unwrap();
    }
    ask(store, subject, Work::Once { id: "id".into(), cost: 1, over: Over::Deny }).await.unwrap();
}

fn names(connection: &mut Connection, key: &str) -> Vec<String> {
    let mut names: Vec<String> = redis::cmd("KEYS").arg(format!("*{key}:*")).query(connection).unwrap();
    names.sort();
    names
}

fn dumps(connection: &mut Connection, names: &[String]) -> Vec<(i64, Option<Vec<u8>>)> {
    const DUMP: &str = "local size = redis.pcall('STRLEN', KEYS[1])
        return {type(size) == 'number' and size or 0, type(size) == 'number' and size > 1000000 and '' or redis.call('DUMP', KEYS[1])}";
    let mut all = redis::pipe();
    names.iter().for_each(|name| _ = all.cmd("EVAL").arg(DUMP).arg(1).arg(name));
    all.query(connection).unwrap()
}

fn spoilings(connection: &mut Connection, name: &str, dice: &mut Dice) -> Vec<(String, Vec<Vec<Vec<u8>>>)> {
    let bytes = |parts: &[&str]| parts.iter().map(|part| part.as_bytes().to_vec()).collect::<Vec<_>>();
    let set = |value: Vec<u8>| vec![b"SET".to_vec(), name.into(), value];
    let push = |values: Vec<Vec<u8>>| [vec![b"RPUSH".to_vec(), name.into()], values].concat();
    let mut all = vec![
        ("a hash".to_owned(), vec![bytes(&["HSET", name, "a", "b"])]),
        ("a set".into(), vec![bytes(&["SADD", name, "a"])]),
        ("a sorted set".into(), vec![bytes(&["ZADD", name, "1", "a"])]),
        ("a stream".into(), vec![bytes(&["XADD", name, "*", "a", "b"])]),
        ("a list".into(), vec![push(vec![b"x".to_vec()])]),
        ("a list of notes too short".into(), vec![push(vec![vec![0; 23]; 50])]),
        ("a list of notes too long".into(), vec![push(vec![vec![0; 100_000]; 200])]),
        ("a list of notes that are no text".into(), vec![push(vec![vec![255; 40]; 50])]),
        ("a list of 100,000".into(), vec![push(vec![vec![7; 30]; 1000]); 100]),
        ("a text".into(), vec![set(b"hello".to_vec())]),
        ("a number".into(), vec![set(b"42".to_vec())]),
        ("a float".into(), vec![set(b"1e400".to_vec())]),
        ("20 MB".into(), vec![set(vec![0; 20 << 20])]),
        ("20 MB of ones".into(), vec![set(vec![255; 20 << 20])]),
    ];
    all.extend((0..60).step_by(7).map(|length| (format!("{length} zeros"), vec![set(vec![0; length])])));
    all.extend([1, 16, 17, 48, 1040, 4096].map(|length| (format!("{length} ones"), vec![set(vec![255; length])])));
    let kind: String = redis::cmd("TYPE").arg(name).query(connection).unwrap();
    if kind == "string" {
        let whole: Vec<u8> = redis::cmd("GET").arg(name).query(connection).unwrap();
        for length in (1..whole.len()).step_by(whole.len() / 6 + 1) {
            all.push((format!("the first {length} bytes"), vec![set(whole[..length].to_vec())]));
        }
        all.push(("one byte more".into(), vec![set([&whole[..], b"x"].concat())]));
        all.push(("20 MB more".into(), vec![set([&whole[..], &vec![1; 20 << 20][..]].concat())]));
        for round in 0..24 {
            let mut changed = whole.clone();
            for _ in 0..=round % 3 {
                let place = dice.place(changed.len());
                changed[place] = dice.number() as u8;
            }
            all.push((format!("changed: {changed:?}"), vec![set(changed)]));
        }
        // More columns, or pairs, than the format permits.
        if whole.len() > 9 {
            let mut changed = whole.clone();
            changed[8] = changed[8].wrapping_add(1);
            changed.extend([9; 400]);
            all.push(("one more, with what nobody can read behind".into(), vec![set(changed)]));
        }
    }
    all
}

#[tokio::test]
async fn corrupt_value_is_rejected_for_its_key_until_reset() {
    let (store, mut connection) = (shared().store(), shared().connection().unwrap());
    store.ready().await;
    let dice = &mut Dice::new(33);
    for policy in policies().into_iter().map(Arc::new) {
        let (key, other) = (unique("spoilt"), subject(policy.clone(), &unique("sound")));
        let spoilt = subject(policy.clone(), &key);
        write_all(&store, &spoilt).await;
        let names = names(&mut connection, &key);
        assert!(names.len() >= 3, "{names:?}");
        for name in &names {
            let is_record = name.contains(":id:");
            for (what, commands) in spoilings(&mut connection, name, dice) {
                let what = format!("{what} at {name}");
                redis::cmd("DEL").arg(name).exec(&mut connection).unwrap();
                for command in commands {
                    let mut cmd = redis::Cmd::new();
                    command.iter().for_each(|part| _ = cmd.arg(part));
                    cmd.exec(&mut connection).unwrap();
                }
                let mut before = dumps(&mut connection, &names);
                for work in works() {
                    let answer = ask(&store, &spoilt, work.clone()).await;
                    let after = dumps(&mut connection, &names);
                    match answer {
                        Ok(_) => before = after,
                        Err(StoreError::Refused(_)) => {
                            assert!(after == before, "{work:?} with {what} was refused and made");
                        }
                        Err(error) => panic!("{work:?} with {what}: {error}"),
                    }
                }
                if policy.algorithm == Algorithm::SlidingLog {
                    let history = store.history(&spoilt, Duration::from_secs(5)).await;
                    assert!(matches!(history, Ok(_) | Err(StoreError::Refused(_))), "{what}: {history:?}");
                }
                ask(&store, &other, Work::Take([0].into_iter().collect())).await.unwrap();
                assert!(store.health().shards[0].up, "{what}: {:?}", store.health());
                let reset = ask(&store, &spoilt, Work::Reset(Box::default())).await;
                assert!(matches!(reset, Ok(Done::Refunded(..))), "{what}: {reset:?}");
                let charged = ask(&store, &spoilt, Work::Take([1].into_iter().collect())).await.unwrap();
                let Done::Taken(taken) = charged else { panic!("{charged:?}") };
                let verdict = &taken.ruling.verdicts[0];
                assert!(verdict.allowed, "{what}: {verdict:?}");
                let left: Vec<u64> = verdict.quotas.iter().map(|quota| quota.remaining).collect();
                let expected: Vec<u64> = policy.quotas.iter().map(|quota| quota.limit.get() - 1).collect();
                assert_eq!(left, expected, "{what}");
                if policy.algorithm == Algorithm::SlidingLog {
                    store.history(&spoilt, Duration::from_secs(5)).await.unwrap();
                }
                // A reset does not know the ids, so their records stay.
                redis::cmd("DEL").arg(&names).exec(&mut connection).unwrap();
                if is_record || dice.place(3) == 0 {
                    ask(&store, &spoilt, Work::Reset(Box::default())).await.unwrap();
                }
                write_all(&store, &spoilt).await;
            }
        }
    }
}
