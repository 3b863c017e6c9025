//! The additional arguments and replies of calls other than plain charges. The scripts read them
//! from the end: `hold_head.lua`, `once_head.lua`, `back_head.lua`.

use std::num::NonZeroU64;
use std::sync::Arc;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::limit::amend::{Entry, Receipt};
use crate::limit::decision::{QuotaState, QuotaStates, Taken, Verdict};
use crate::limit::policy::{Durability, Policy};
use crate::limit::quota::Quota;
use crate::limit::time::millis_up;
use crate::store::redis::protocol::keys::recorded;
use crate::store::redis::protocol::script::{Call, unsigned};
use crate::store::work::{Charged, Done, Work, longest_life, record_life};

/// The number of values in a record before its quotas, and for each quota.
const RECORD: (usize, usize) = (3, 8);

/// Returns the keys after the algorithm's own.
pub(in crate::store::redis) fn keys(call: &Call<'_>) -> SmallVec<[String; 2]> {
    let policy = call.policy.counters();
    let mut keys = SmallVec::new();
    if let Work::Once { id, .. } | Work::RefundOnce(id) = call.work {
        keys.push(call.tag.record(policy, id));
    }
    if call.work.takes_back() || matches!(call.work, Work::Reserve { .. }) {
        keys.push(call.tag.reset(policy));
    }
    keys
}

/// Adds the arguments after the algorithm's own.
pub(in crate::store::redis) fn arguments(call: &Call<'_>, cmd: &mut Cmd) {
    let quotas = &call.policy.quotas;
    match call.work {
        Work::Take(_) | Work::Look(_) => {}
        Work::Reserve { hold, .. } => {
            cmd.arg(*hold);
        }
        Work::Once { .. } => {
            for quota in quotas {
                cmd.arg(recorded(quota)).arg(&quota.name).arg(quota.limit.get()).arg(quota.window);
            }
            let is_durable = call.policy.options.durability == Durability::Replica;
            cmd.arg(4 * quotas.len()).arg(millis_up(record_life(call.policy))).arg(u8::from(is_durable));
        }
        Work::GiveBack(receipt) => {
            cmd.arg(receipt.at).arg(receipt.cost);
            for entry in &receipt.entries {
                let entry = entry.unwrap_or_default();
                cmd.arg(entry.number).arg(entry.debt);
            }
            cmd.arg(receipt.entries.len()).arg("charge");
        }
        Work::Refund(cost) => {
            cmd.arg(*cost).arg("cost");
        }
        Work::RefundOnce(_) => {
            for quota in quotas {
                cmd.arg(recorded(quota));
            }
            cmd.arg(quotas.len()).arg("id");
        }
        Work::Reset => {
            cmd.arg(millis_up(longest_life(call.policy))).arg("reset");
        }
    }
}

/// Reads a record. `word` reports whether it is new or old.
pub(in crate::store::redis) fn charged(
    policy: &Arc<Policy>,
    word: &[u8],
    asked: u64,
    record: &[Value],
) -> Option<Done> {
    let (head, quotas) = record.split_at_checked(RECORD.0)?;
    let cost = unsigned(&head[0])?;
    if cost != asked {
        return Some(Done::Reused);
    }
    let (charged, []) = quotas.as_chunks::<{ RECORD.1 }>() else { return None };
    let present = |name: &str| policy.quotas.iter().find(|quota| quota.name == name);
    let quota = |[_, name, limit, window, ..]: &[Value; RECORD.1]| {
        let name = text(name)?;
        let rule = present(&name).map(|quota| quota.rule).unwrap_or_default();
        Some(Quota { limit: NonZeroU64::new(unsigned(limit)?)?, window: unsigned(window)?, rule, name })
    };
    let state = |[_, _, _, _, left, reset, ..]: &[Value; RECORD.1]| {
        Some(QuotaState { remaining: unsigned(left)?, reset_after: unsigned(reset)? })
    };
    let quotas = charged.iter().map(quota).collect::<Option<Vec<Quota>>>()?;
    let states = charged.iter().map(state).collect::<Option<QuotaStates>>()?;
    let policy =
        if policy.quotas == quotas { policy.clone() } else { Arc::new(Policy { quotas, ..Policy::clone(policy) }) };
    Some(Done::Charged(Box::new(Charged {
        policy,
        verdict: Verdict::of_charge(cost, states),
        replayed: word == b"replayed",
        refunded: unsigned(&head[2])? == 1,
    })))
}

/// Returns the receipt of a reservation in sliding windows with room to spare. Their states are not
/// part of the reply.
pub(in crate::store::redis) fn roomy_receipt(call: &Call<'_>, taken: &Taken) -> Option<Receipt> {
    let Work::Reserve { cost, .. } = call.work else { return None };
    let entries = call.policy.quotas.iter().map(|_| Some(Entry::default())).collect();
    Some(Receipt { at: taken.at, cost: *cost, entries })
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}
