//! Operations other than checks: the keys and arguments after those of the algorithm, and the
//! records of ids. `operation_head.lua` reads them from the end.

use std::num::NonZeroU64;
use std::sync::Arc;

use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};

use super::call::Call;
use super::holds;
use super::keys::recorded;
use super::reply::{Reply, text, unsigned};
use super::sources::ScriptId;
use crate::limit::decision::{QuotaState, QuotaStates, Verdict, Wait};
use crate::limit::policy::{Algorithm, Durability, Policy};
use crate::limit::quota::Quota;
use crate::limit::receipt::{Parts, Receipt};
use crate::limit::time::{Micros, millis_up};
use crate::store::work::{Charged, Done, Id, Line, Over, Work, longest_life};

/// The number of values in a record before its quotas, and for each quota.
const RECORD: (usize, usize) = (3, 8);

/// Returns the key of the id's record and that of the last reset, if the work depends on them. Under
/// a policy with holds it always depends on the latter, and on the places.
pub fn keys(call: &Call<'_>) -> SmallVec<[String; 2]> {
    let mut keys = own_keys(call);
    if call.work.is_held(call.policy) {
        if !call.work.takes_back() {
            keys.push(reset(call));
        }
        keys.push(call.tag.held(call.policy.counters()));
    }
    keys
}

fn reset(call: &Call<'_>) -> String {
    match call.policy.algorithm {
        Algorithm::SlidingCounter => call.tag.ticks_reset(call.policy),
        _ => call.tag.reset(call.policy.counters()),
    }
}

fn own_keys(call: &Call<'_>) -> SmallVec<[String; 2]> {
    let record = |id: &str| call.tag.record(call.policy.counters(), id);
    let of_caller = |id: &str| call.tag.sale(call.policy.counters(), id);
    match call.work {
        Work::Take(_) | Work::Look(_) | Work::Drain(_) | Work::ReadLog(_) | Work::ReadTicks { .. } => SmallVec::new(),
        Work::Sell(sale) => smallvec![of_caller(&sale.id.name), reset(call)],
        Work::Settle { id, .. } if call.work.is_of_caller(call.policy) => smallvec![of_caller(id), reset(call)],
        Work::Once { .. } | Work::Wait(_) => call.work.id().map(|id| record(&id.name)).into_iter().collect(),
        Work::RefundOnce(id) | Work::Undo(id) | Work::Settle { id, .. } => smallvec![record(id), reset(call)],
        Work::Renew(id) => smallvec![record(id)],
        Work::ReadHolds => SmallVec::new(),
        Work::Reserve { .. } | Work::Lease { .. } | Work::GiveBack(_) | Work::Return(_) => smallvec![reset(call)],
        Work::Refund(_) | Work::Reset(_) => smallvec![reset(call)],
    }
}

/// Adds the arguments of `operation_head.lua`, unless the script is one of checks. Tests replace the
/// TIME of `hold.lua` by `time`.
pub fn arguments(call: &Call<'_>, cmd: &mut Cmd, time: Option<Micros>) {
    if !ScriptId::of(call.policy, call.work).is_operation() {
        return;
    }
    let quotas = &call.policy.quotas;
    let how = match call.work {
        Work::ReadLog(_) | Work::ReadTicks { .. } => return,
        // Only a policy with holds decides a check by this script.
        Work::Take(_) | Work::Look(_) => {
            cmd.arg(Over::Deny.name());
            "charge"
        }
        Work::Drain(_) => {
            cmd.arg(Over::Drain.name());
            "charge"
        }
        Work::Reserve { hold, .. } | Work::Lease { hold, .. } => {
            cmd.arg(*hold).arg(Over::Deny.name());
            "hold"
        }
        Work::Once { id, over, .. } => {
            record(call.policy, id, cmd);
            cmd.arg(over.name());
            "once"
        }
        Work::Wait(waiting) => {
            if let Some(id) = &waiting.id {
                record(call.policy, id, cmd);
            }
            let Line { longest, queue } = waiting.line;
            cmd.arg(queue.map_or(-1, |queue| queue as i64)).arg(longest).arg("wait");
            if waiting.id.is_some() { "once" } else { "charge" }
        }
        Work::Sell(sale) => {
            record(call.policy, &sale.id, cmd);
            let ends = call.policy.algorithm == Algorithm::FixedWindow;
            cmd.arg(call.policy.ahead())
                .arg(u8::from(ends))
                .arg(sale.span)
                .arg(sale.hold)
                .arg(Over::Deny.name());
            "once"
        }
        Work::GiveBack(receipt) => {
            give_back(receipt, cmd);
            "receipt"
        }
        Work::Return(lease) => {
            give_back(&lease.charge, cmd);
            cmd.arg(lease.made).arg(lease.until);
            "lease"
        }
        Work::Refund(cost) => {
            cmd.arg(*cost);
            "cost"
        }
        Work::Renew(_) => "renew",
        Work::ReadHolds => "holds",
        Work::RefundOnce(_) | Work::Undo(_) | Work::Settle { .. } => {
            if let (Work::Settle { cost, .. }, true) = (call.work, call.work.is_of_caller(call.policy)) {
                cmd.arg(cost.map_or(-1, |cost| cost as i64));
            }
            quotas.iter().for_each(|quota| _ = cmd.arg(recorded(quota)));
            "id"
        }
        Work::Reset(others) => {
            let is_log = call.policy.algorithm == Algorithm::SlidingLog;
            let names = others.iter().filter(|_| is_log).map(recorded).collect::<Vec<_>>();
            cmd.arg(millis_up(longest_life(call.policy))).arg(&names[..]).arg(names.len());
            "reset"
        }
    };
    if call.work.is_held(call.policy) {
        holds::arguments(call, cmd, time);
    }
    cmd.arg(quotas.len()).arg(how);
}

/// Adds what the record of an id has of each quota, and its life.
fn record(policy: &Policy, id: &Id, cmd: &mut Cmd) {
    for quota in &policy.quotas {
        cmd.arg(recorded(quota)).arg(&quota.name).arg(quota.limit.get()).arg(quota.window);
    }
    let is_durable = policy.options.durability == Durability::Replica;
    cmd.arg(millis_up(id.record_life(policy))).arg(u8::from(is_durable));
}

fn give_back(receipt: &Receipt, cmd: &mut Cmd) {
    cmd.arg(receipt.at).arg(receipt.cost);
    for entry in &receipt.entries {
        let entry = entry.unwrap_or_default();
        cmd.arg(entry.number).arg(entry.debt);
    }
}

/// Reads the reply to a check with an id that has a record; none without one.
pub fn recorded_reply(call: &Call<'_>, values: &[Value]) -> Option<Reply> {
    let asked = match call.work {
        Work::Once { cost, over, .. } => (*cost, *over),
        Work::Wait(waiting) => (waiting.cost, Over::Deny),
        _ => return None,
    };
    let [Value::BulkString(word), record @ ..] = values else { return None };
    let mut charged = charged(call.policy, word, asked, record);
    // Only a check that waits asks for the time until its start.
    if let (Some(Done::Charged(charged)), Work::Wait(_)) = (&mut charged, call.work) {
        match record.get(1).and_then(unsigned) {
            Some(span) => charged.verdict.start_after = span,
            None => return Some(Reply::malformed()),
        }
    }
    Some(match charged {
        Some(done) => Reply::Done(done),
        // Another program may have written the record.
        None if word == b"replayed" => Reply::corrupt_record(),
        None => Reply::malformed(),
    })
}

/// Reads a record. `word` reports whether it is new or old.
fn charged(policy: &Arc<Policy>, word: &[u8], asked: (u64, Over), record: &[Value]) -> Option<Done> {
    let (record, drained) = match record {
        [record @ .., Value::Array(drained)] => (record, Some(drained)),
        _ => (record, None),
    };
    let (head, quotas) = record.split_at_checked(RECORD.0)?;
    let (cost, over) = (unsigned(&head[0])?, if drained.is_some() { Over::Drain } else { Over::Deny });
    let (charged, []) = quotas.as_chunks::<{ RECORD.1 }>() else { return None };
    let present = |name: &str| policy.quotas.iter().find(|quota| quota.name == name);
    let quota = |[_, name, limit, window, ..]: &[Value; RECORD.1]| {
        let name = text(name)?.to_owned();
        let rule = present(&name).map(|quota| quota.rule).unwrap_or_default();
        Some(Quota { limit: NonZeroU64::new(unsigned(limit)?)?, window: unsigned(window)?, rule, name })
    };
    let state = |[_, _, _, _, left, reset, ..]: &[Value; RECORD.1]| {
        Some(QuotaState { remaining: unsigned(left)?, reset_after: unsigned(reset)? })
    };
    let quotas = charged.iter().map(quota).collect::<Option<Vec<Quota>>>()?;
    let states = charged.iter().map(state).collect::<Option<QuotaStates>>()?;
    let verdict = match drained {
        None => Verdict::of_charge(cost, states),
        Some(drained) => drained_verdict(cost, states, drained)?,
    };
    let policy =
        if policy.quotas == quotas { policy.clone() } else { Arc::new(Policy { quotas, ..Policy::clone(policy) }) };
    if (cost, over) != asked {
        return Some(Done::Reused(Some(policy)));
    }
    Some(Done::Charged(Box::new(Charged {
        policy,
        verdict,
        replayed: word == b"replayed",
        refunded: unsigned(&head[2])? == 1,
    })))
}

/// Reads the list of a drain's record: for each quota the units that it took, and us until the cost
/// fits.
fn drained_verdict(cost: u64, states: QuotaStates, drained: &[Value]) -> Option<Verdict> {
    let (quotas, []) = drained.as_chunks::<2>() else { return None };
    let parts = quotas.iter().map(|[part, _]| unsigned(part)).collect::<Option<Parts>>()?;
    let wait = |[_, wait]: &[Value; 2]| match wait {
        Value::Int(-1) => Some(Wait::Never),
        wait => unsigned(wait).map(Wait::For),
    };
    let waits = quotas.iter().map(wait).collect::<Option<SmallVec<[Wait; 3]>>>()?;
    (parts.len() == states.len()).then(|| Verdict::of_drain(cost, states, parts, &waits))
}
