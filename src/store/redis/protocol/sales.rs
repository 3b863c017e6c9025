//! Leases of callers: the replies to a sale and to its settle. `operation.lua` ends them with a list.

use redis::Value;

use super::call::Call;
use super::check::{states, states_of};
use super::reply::{Reply, is_corrupt, text, unsigned};
use crate::limit::decision::decide;
use crate::limit::lease::{Sold, SoldEnd, sell};
use crate::limit::refunds::is_tentative;
use crate::store::{Done, Taken, Work};

/// Reads the reply. None if it has no form of the script's.
pub fn read(call: &Call<'_>, value: &Value) -> Option<Reply> {
    let Value::Array(values) = value else { return None };
    let (time, said, told) = match &values[..] {
        [time] => return Some(Reply::OutsideTimeBounds(unsigned(time)?)),
        [_, value] if is_corrupt(value) => return Some(Reply::corrupt_state()),
        [time, said @ .., Value::Array(told)] => (unsigned(time)?, said, &told[..]),
        _ => return None,
    };
    let [word, numbers @ ..] = told else { return None };
    let (word, numbers) = (text(word)?, numbers.iter().map(unsigned).collect::<Option<Vec<u64>>>()?);
    let mut states = match call.work {
        Work::Sell(_) => states_of(call.policy, time, said)?,
        // The refunded units precede the states.
        _ => states(call.policy, time, said.get(1..)?)?,
    };
    let tentative = is_tentative(call.policy, &states, time);
    let decided = match call.work {
        Work::Sell(sale) if word != "replayed" => sell(call.policy, &mut states, time, call.costs, sale.hold).0,
        _ => decide(call.policy, &mut states, time, &[0]),
    };
    let taken = |tentative| Taken { ruling: decided, at: time, tentative };
    let end = match (word, &numbers[..]) {
        ("sold", [units, left]) => return sold(taken(tentative), Some((*units, *left, false))),
        ("replayed", [units, left]) => return sold(taken(tentative), Some((*units, *left, true))),
        ("denied", []) => return sold(taken(tentative), None),
        ("settled", [spent, returned]) => SoldEnd::Settled { spent: *spent, returned: *returned, replayed: false },
        ("again", [spent, returned]) => SoldEnd::Settled { spent: *spent, returned: *returned, replayed: true },
        ("expired", []) => SoldEnd::Expired,
        ("exceeded", [units]) => SoldEnd::Exceeded(*units),
        ("reused", []) => SoldEnd::SettledOtherwise,
        ("unknown", []) => SoldEnd::Unknown,
        _ => return None,
    };
    Some(Reply::Done(Done::Returned(taken(false), end)))
}

fn sold(taken: Taken, sold: Option<(u64, u64, bool)>) -> Option<Reply> {
    let sold = sold.map(|(units, left, replayed)| Sold { units, left, replayed });
    Some(Reply::Done(Done::Sold(taken, sold)))
}
