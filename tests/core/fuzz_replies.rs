//! Possible replies of a server: the store parses them, or calls them malformed.

use std::sync::Arc;

use redis::Value;
use tollgate::limit::policy::Algorithm;
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::ticks::Ticks;
use tollgate::store::redis::protocol::call::Call;
use tollgate::store::redis::protocol::check;
use tollgate::store::redis::protocol::keys::Tag;
use tollgate::store::{Over, Work};

use crate::support::dice::Dice;
use crate::support::fuzz::cases;
use crate::support::steps::{START, bucket, counters, logs, policy, policy_of, quota};

const SECOND: u64 = 1_000_000;

#[test]
fn random_replies_parse_or_are_malformed() {
    let tag = Tag::new("ratelimit", "k");
    let policies = [
        policy(&[(5, SECOND), (50, 60 * SECOND)]),
        policy(&[(1 << 33, 60 * SECOND)]),
        policy_of(Algorithm::FixedWindow, vec![quota(5, SECOND, Rule::FixedWindow(Anchor::FirstHit))]),
        policy_of(Algorithm::TokenBucket, vec![bucket(3, 2, SECOND), bucket(5, 7, 3 * SECOND)]),
        logs(&[(3, SECOND), (5, 3 * SECOND)], 4),
        counters(&[(3, SECOND), (5, 3 * SECOND)], Ticks::new(SECOND, false, true)),
    ]
    .map(Arc::new);
    let works = [
        Work::Take([1, 2, 3].into_iter().collect()),
        Work::Look(1),
        Work::Once { id: "id".into(), cost: 2, over: Over::Deny },
        Work::Drain(2),
        Work::Once { id: "id".into(), cost: 2, over: Over::Drain },
        Work::Reserve { cost: 2, hold: SECOND },
        Work::Refund(2),
        Work::RefundOnce("id".into()),
        Work::Reset(Box::default()),
        Work::ReadTicks { at: START, cost: 0 },
    ];
    for seed in 0..cases(20_000) {
        let dice = &mut Dice::new(seed);
        let (policy, work) = (dice.one_of(&policies), dice.one_of(&works));
        let costs: &[u64] = match work {
            Work::Take(costs) => costs,
            Work::Look(_) => &[0],
            Work::Once { .. } | Work::Reserve { .. } => &[2],
            _ => &[],
        };
        let call = Call { tag: &tag, policy, work, costs, metas: &[] };
        let reply = value(dice, 0);
        let _ = call.reply(&reply);
        if call.is_check() {
            assert_eq!(check::replies(&[call.clone(), call.clone(), call], &reply).len(), 3);
        }
    }
}

/// Mostly similar to replies of scripts: an array that starts with TIME.
fn value(dice: &mut Dice, depth: usize) -> Value {
    match dice.place(if depth == 0 { 30 } else { 9 }) {
        0 => Value::Nil,
        1 => Value::Okay,
        2 => Value::SimpleString("charged".to_owned()),
        3 => Value::Double(f64::NAN),
        4 | 5 => Value::Int(number(dice)),
        6 => Value::BulkString(b"charged".to_vec()),
        7 => Value::BulkString((0..dice.place(90)).map(|_| dice.number() as u8).collect()),
        8 if depth > 2 => Value::Boolean(true),
        _ => {
            let time = if depth == 0 && dice.place(4) > 0 { vec![Value::Int(START as i64)] } else { Vec::new() };
            let count = dice.place(14);
            Value::Array(time.into_iter().chain((0..count).map(|_| value(dice, depth + 1))).collect())
        }
    }
}

fn number(dice: &mut Dice) -> i64 {
    match dice.place(6) {
        0 => i64::MIN,
        1 => i64::MAX,
        2 => -1,
        3 => dice.number() as i64,
        4 => START as i64 + dice.place(1000) as i64,
        _ => dice.place(100) as i64,
    }
}
