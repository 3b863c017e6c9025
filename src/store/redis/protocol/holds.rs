//! Calls under policies with holds: the arguments and the reply of `hold.lua`.

use percent_encoding::percent_decode_str;
use redis::{Cmd, Value};

use super::call::Call;
use super::check::{states, states_of};
use super::keys::recorded;
use super::operations;
use super::reply::{Reply, is_corrupt, opened, text, unsigned};
use crate::limit::decision::{Ruling, decide, look};
use crate::limit::drain::{Over, drain, drain_rest};
use crate::limit::hold::{End, HoldState, OnExpiry, Places, Renewal, Settlement};
use crate::limit::line;
use crate::limit::policy::Durability;
use crate::limit::refunds::is_tentative;
use crate::limit::time::Micros;
use crate::store::{Done, OpenHold, Taken, Waiting, Work};

/// Adds the arguments of `hold.lua`.
pub fn arguments(call: &Call<'_>, cmd: &mut Cmd, time: Option<Micros>) {
    let Call { tag, policy, work, metas, .. } = *call;
    let hold = policy.options.hold;
    policy.quotas.iter().for_each(|quota| _ = cmd.arg(recorded(quota)));
    cmd.arg(metas.first().and_then(|meta| meta.as_deref()).unwrap_or_default());
    match work {
        Work::Settle { cost: Some(cost), .. } => cmd.arg(*cost),
        Work::Settle { cost: None, .. } => cmd.arg("all"),
        Work::RefundOnce(_) => cmd.arg("refund"),
        Work::Undo(_) => cmd.arg("undo"),
        _ => cmd.arg(""),
    };
    cmd.arg(u8::from(policy.options.durability == Durability::Replica))
        .arg(time.unwrap_or(0))
        .arg(hold.map_or(0, |hold| hold.ttl))
        .arg(hold.and_then(|hold| hold.in_flight).map_or(0, Into::into))
        .arg(hold.map_or(OnExpiry::Charge, |hold| hold.on_expiry).name())
        .arg(tag.records(policy.counters()));
}

/// Reads the reply to a call under a policy with holds. None if it has no form of the script's.
pub fn read(call: &Call<'_>, value: &Value) -> Option<Reply> {
    if let Value::Array(values) = value
        && let [Value::BulkString(word)] = &values[..]
        && word == b"reused"
    {
        return Some(Reply::Done(Done::Reused(None)));
    }
    let done = match call.work {
        Work::Renew(_) => renewal(opened(value)?.1).map(Done::Renewed),
        Work::ReadHolds => listed(opened(value)?.1),
        _ => return read_operation(call, value),
    };
    done.map(Reply::Done)
}

fn read_operation(call: &Call<'_>, value: &Value) -> Option<Reply> {
    let Value::Array(values) = value else { return None };
    let (told, rest) = match &values[..] {
        [time] => return Some(Reply::OutsideTimeBounds(unsigned(time)?)),
        [_, value] if is_corrupt(value) => return Some(Reply::corrupt_state()),
        [rest @ .., Value::Array(told)] => (HoldReply::read(call, told)?, rest),
        _ => return None,
    };
    if let Some(recorded) = operations::recorded_reply(call, rest) {
        return Some(match recorded {
            Reply::Done(done) => Reply::Done(told.added_to(done)),
            reply => reply,
        });
    }
    told.done(call, rest).map(Reply::Done)
}

/// The list that ends a reply.
struct HoldReply {
    places: Places,
    /// Whether the charge of an expired hold was given back, or will be.
    is_released: bool,
    /// The word of a settle, and its numbers.
    result: (String, Settlement),
    /// The cost that a settle drained.
    drained: u64,
}

impl HoldReply {
    fn read(call: &Call<'_>, told: &[Value]) -> Option<Self> {
        let [open, wait, reset_after, unswept, expired, own, left, word, charged, refunded, owed, drained, lived] =
            told
        else {
            return None;
        };
        let (own, word) = (text(own)?, text(word)?.to_owned());
        let places = Places {
            open: unsigned(open)?,
            limit: call.policy.options.hold.and_then(|hold| hold.in_flight).map(Into::into),
            wait: unsigned(wait)?,
            reset_after: unsigned(reset_after)?,
            is_unswept: unsigned(unswept)? == 1,
            expired: unsigned(expired)?,
            denies: false,
            hold: state(own, unsigned(left)?),
            lived: if word == "settled" { Some(unsigned(lived)?) } else { None },
            fits_after: 0,
        };
        let [charged, refunded, owed] = [charged, refunded, owed].map(unsigned);
        let replayed = word == "replayed";
        let settlement = Settlement { charged: charged?, refunded: refunded?, owed: owed?, replayed };
        Some(Self { places, is_released: own == "released", result: (word, settlement), drained: unsigned(drained)? })
    }

    fn added_to(self, done: Done) -> Done {
        match done {
            Done::Charged(mut charged) => {
                charged.refunded |= self.is_released;
                charged.verdict.places = Some(Box::new(self.places));
                Done::Charged(charged)
            }
            done => done,
        }
    }

    /// Reads the states of the quotas, and decides by them as the script did.
    fn done(self, call: &Call<'_>, rest: &[Value]) -> Option<Done> {
        let (policy, (time, mut said)) = (call.policy, (unsigned(rest.first()?)?, &rest[1..]));
        let mut given = 0;
        let mut states = if call.work.takes_back() && self.drained == 0 {
            given = unsigned(said.first()?)?;
            said = &said[1..];
            states(policy, time, said)?
        } else {
            states_of(policy, time, said)?
        };
        let tentative = self.places.is_tentative() || is_tentative(policy, &states, time);
        let mut needs_place = false;
        let ruling: Ruling = match call.work {
            _ if self.drained > 0 => drain_rest(policy, &mut states, time, self.drained),
            Work::Look(cost) => {
                needs_place = true;
                look(policy, &states, time, *cost)
            }
            Work::Once { cost, over: Over::Deny, .. } => {
                needs_place = true;
                match self.places.wait {
                    0 => decide(policy, &mut states, time, &[*cost]),
                    _ => look(policy, &states, time, *cost),
                }
            }
            Work::Wait(waiting) => {
                needs_place = true;
                let Waiting { cost, line, .. } = **waiting;
                if self.places.wait > 0 && cost > 0 {
                    line::deny(policy, &states, time, cost, line)
                } else {
                    line::wait(policy, &mut states, time, cost, line, false).0
                }
            }
            Work::Drain(cost) | Work::Once { cost, .. } => drain(policy, &mut states, time, *cost),
            Work::Take(_) => decide(policy, &mut states, time, call.costs),
            _ => decide(policy, &mut states, time, &[0]),
        };
        let (word, settlement) = self.result;
        let ruling = self.places.added_to(ruling, needs_place);
        let taken = Taken { ruling, at: time, tentative };
        Some(match call.work {
            Work::Settle { .. } => Done::Settled(taken, (word != "unknown_id").then_some(settlement)),
            _ if call.work.takes_back() => Done::Refunded(Taken { tentative: false, ..taken }, given),
            _ => Done::Taken(taken),
        })
    }
}

fn state(word: &str, left: Micros) -> Option<HoldState> {
    match word {
        "open" => Some(HoldState::Open(left)),
        _ => ended(word).map(HoldState::Ended),
    }
}

fn ended(word: &str) -> Option<End> {
    match word {
        "released" => Some(End::Expired),
        _ => End::WORDS.iter().find(|(name, _)| *name == word).map(|(_, end)| *end),
    }
}

fn renewal(values: &[Value]) -> Option<Renewal> {
    let [word, left] = values else { return None };
    Some(match state(text(word)?, unsigned(left)?) {
        Some(HoldState::Open(left)) => Renewal::Open(left),
        Some(HoldState::Ended(end)) => Renewal::Ended(end),
        None => Renewal::Unknown,
    })
}

/// Reads the number of open holds, and the list of some.
fn listed(values: &[Value]) -> Option<Done> {
    let (open, holds) = values.split_first()?;
    let (holds, []) = holds.as_chunks::<5>() else { return None };
    let hold = |[id, expires_in, cost, age, meta]: &[Value; 5]| {
        let (id, meta) = (percent_decode_str(text(id)?).decode_utf8().ok()?, text(meta)?);
        Some(OpenHold {
            id: id.into(),
            age: unsigned(age)?,
            cost: unsigned(cost)?,
            expires_in: unsigned(expires_in)?,
            meta: (!meta.is_empty()).then(|| meta.into()),
        })
    };
    Some(Done::Holds(unsigned(open)?, holds.iter().map(hold).collect::<Option<Vec<_>>>()?))
}
