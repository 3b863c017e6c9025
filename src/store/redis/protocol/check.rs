//! The calls for checks of one or several keys. Checks by sliding logs use other calls (`log.rs`).
//!
//! The call itself is half of the server's cost of a script call, so checks of several keys share
//! one. The script decides each check separately, and all at the same TIME.
//!
//! A cluster requires that all keys that a call declares share one slot. There, a shared call
//! declares none and passes the names as arguments. Servers permit this to scripts without a
//! shebang line. The server then does not check beforehand whether it owns the keys. The script
//! notices this when it reads each key, before it charges anything. The lane then sends that check
//! in a call of its own, with a declared key.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::call::{By, Call, TOLERANCE, runs};
use super::pairs::{self, pair_kind};
use super::reply::{EXACT, Reply, is_corrupt, opened, unsigned};
use super::sources::{ScriptId, begin};
use super::windows::{self, window_kind};
use super::{counters, log, operations};
use crate::limit::decision::{decide, decide_roomy, look};
use crate::limit::drain::drain;
use crate::limit::lease;
use crate::limit::line;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::receipt::{Entry, LeaseReceipt, Receipt};
use crate::limit::refunds::{charge, is_tentative};
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::limit::window::Grid;
use crate::store::{Done, Over, Taken, Work};

/// Whether a call declares its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    Yes,
    /// The keys belong to several slots.
    No,
}

/// Builds the command for one or more checks by the same script, or for one other operation. `now`
/// is the expected TIME of the shard, us. Tests replace TIME by `time`.
pub fn command(calls: &[Call<'_>], declared: Declared, by: By, now: Micros, time: Option<Micros>) -> Cmd {
    let mut numbers = Numbers { to: EXACT, ..Numbers::default() };
    numbers.push([0, EXACT, time.unwrap_or(0), calls.len() as u64]);
    let script = ScriptId::of(calls[0].policy, calls[0].work);
    calls.iter().for_each(|call| numbers.push_check(call, script.records_ahead(), now));
    numbers.set(0, numbers.from);
    numbers.set(8, numbers.to);
    let mut cmd = begin(by, script);
    let name_all = |cmd: &mut Cmd| calls.iter().for_each(|call| _ = cmd.arg(call.tag.counts(call.policy)));
    match (calls, declared) {
        ([call], _) => {
            let more = operations::keys(call);
            cmd.arg(1 + more.len());
            name_all(&mut cmd);
            cmd.arg(&more[..]).arg(&numbers.bytes[..]);
            operations::arguments(call, &mut cmd, time);
        }
        (_, Declared::Yes) => {
            cmd.arg(calls.len());
            name_all(&mut cmd);
            cmd.arg(&numbers.bytes[..]);
        }
        (_, Declared::No) => {
            cmd.arg(0).arg(&numbers.bytes[..]);
            name_all(&mut cmd);
        }
    }
    cmd
}

/// Reads the reply to this command, one result for each check.
pub fn replies(calls: &[Call<'_>], value: &Value) -> SmallVec<[Reply; 1]> {
    let all = |reply: fn(Micros) -> Reply, time| calls.iter().map(|_| reply(time)).collect();
    let Some((time, mut rest)) = opened(value) else { return all(|_| Reply::malformed(), 0) };
    if rest.is_empty() {
        return all(Reply::OutsideTimeBounds, time);
    }
    calls.iter().map(|call| next(call, time, &mut rest).unwrap_or_else(Reply::malformed)).collect()
}

/// Reads the result of the next check and removes it from `rest`.
fn next(call: &Call<'_>, time: Micros, rest: &mut &[Value]) -> Option<Reply> {
    let count = match (rest.first()?, call.policy.algorithm) {
        (Value::Nil | Value::Array(_), _) => 1,
        (value, _) if is_corrupt(value) => 1,
        // Windows with room return one count each.
        (_, Algorithm::SlidingWindow) => call.policy.quotas.len(),
        (_, Algorithm::FixedWindow | Algorithm::TokenBucket) => 1,
        (_, Algorithm::SlidingLog | Algorithm::SlidingCounter) => rest.len(),
    };
    let said = match rest.split_off(..count)? {
        [Value::Nil] => return Some(Reply::Undecided),
        [value] if is_corrupt(value) => return Some(Reply::corrupt_state()),
        [Value::Array(told)] => told,
        said => said,
    };
    done(call, time, said).map(Reply::Done)
}

/// Returns the verdicts on the costs, and the receipt of a reservation or a lease.
fn done(call: &Call<'_>, time: Micros, values: &[Value]) -> Option<Done> {
    let (policy, mut rest) = (call.policy, values);
    if policy.algorithm == Algorithm::SlidingWindow {
        let (counted, state) = values.split_at_checked(policy.quotas.len())?;
        if state.is_empty() {
            let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
            let ruling = decide_roomy(policy, &counted, (time, call.work.ahead(policy)), call.costs)?;
            return Some(charged(call, Taken { ruling, at: time, tentative: false }));
        }
        rest = state;
    }
    let mut states = states(policy, time, rest)?;
    let tentative = is_tentative(policy, &states, time);
    let taken = |ruling| Taken { ruling, at: time, tentative };
    Some(match call.work {
        Work::Look(cost) => Done::Taken(taken(look(policy, &states, time, *cost))),
        Work::Reserve { cost, hold } => {
            let (ruling, receipt) = charge(policy, &mut states, time, (*cost, Over::Deny), time + hold);
            Done::Reserved(taken(ruling), receipt)
        }
        Work::Lease { hold, .. } => {
            let (ruling, receipt) = lease::sell(policy, &mut states, time, call.costs, *hold);
            Done::Leased(taken(ruling), receipt.map(Box::new))
        }
        Work::Drain(cost) | Work::Once { cost, over: Over::Drain, .. } => {
            Done::Taken(taken(drain(policy, &mut states, time, *cost)))
        }
        Work::Wait(waiting) => {
            let (cost, line) = (waiting.cost, waiting.line);
            Done::Taken(taken(line::wait(policy, &mut states, time, cost, line, false).0))
        }
        _ => Done::Taken(taken(decide(policy, &mut states, time, call.costs))),
    })
}

/// Adds the receipt of a lease to verdicts of sliding windows that charged every cost. These
/// identify a charge by its instant.
fn charged(call: &Call<'_>, taken: Taken) -> Done {
    let Work::Lease { costs, hold } = call.work else { return Done::Taken(taken) };
    let (at, cost) = (taken.at + call.policy.ahead(), costs.last().copied().unwrap_or_default());
    let entries = call.policy.quotas.iter().map(|_| Some(Entry::default())).collect();
    let (charge, made) = (Receipt { at, cost, kept: 0, parts: None, entries }, taken.at);
    Done::Leased(taken, Some(Box::new(LeaseReceipt { charge, made, until: made + hold })))
}

/// Reads the states from the result of an operation that was decided at `time`, us. It has them as a
/// check has.
pub fn states_of(policy: &Policy, time: Micros, said: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let said = if let [Value::Array(told)] = said { told } else { said };
    let counted = if policy.algorithm == Algorithm::SlidingWindow { policy.quotas.len() } else { 0 };
    states(policy, time, said.split_at_checked(counted)?.1)
}

/// Reads the states from the reply to a call that was decided at `time`, us. Each quota of `policy`
/// has one.
pub fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    match policy.algorithm {
        Algorithm::SlidingWindow => windows::states(policy, time, values),
        Algorithm::FixedWindow | Algorithm::TokenBucket => pairs::states(policy, time, values),
        Algorithm::SlidingLog => log::digests(policy, values),
        Algorithm::SlidingCounter => counters::states(policy, time, values),
    }
}

/// Numbers as scripts unpack them: doubles, which are exact below 2^53.
#[derive(Default)]
pub(super) struct Numbers {
    pub bytes: SmallVec<[u8; 160]>,
    /// The bounds of TIME within which the numbers suffice, us.
    from: Micros,
    to: Micros,
}

impl Numbers {
    pub fn push<const COUNT: usize>(&mut self, numbers: [u64; COUNT]) {
        let doubles = numbers.map(|number| (number as f64).to_le_bytes());
        doubles.iter().for_each(|bytes| self.bytes.extend_from_slice(bytes));
    }

    /// Replaces the number at a place.
    fn set(&mut self, place: usize, number: u64) {
        self.bytes[place..place + 8].copy_from_slice(&(number as f64).to_le_bytes());
    }

    /// Appends the numbers of one call.
    fn push_check(&mut self, call: &Call<'_>, records_ahead: bool, now: Micros) {
        let start = self.bytes.len();
        self.push([0]);
        if records_ahead {
            let hold = if let Work::Lease { hold, .. } = call.work { *hold } else { 0 };
            self.push([call.policy.ahead(), hold]);
        }
        call.policy.quotas.iter().for_each(|quota| self.push_quota(quota, now));
        runs(call.costs).for_each(|(cost, times)| self.push([cost, times as u64]));
        // The first number is the place where the script reads on, counted from 1.
        self.set(start, self.bytes.len() as u64 + 1);
    }

    fn push_quota(&mut self, quota: &Quota, now: Micros) {
        let limit = quota.limit.get();
        if quota.rule == Rule::SlidingWindow {
            return self.push([Grid::new(quota.window).step(), limit, window_kind(quota)]);
        }
        let [a, b] = pair_kind(quota);
        let Rule::FixedWindow(Anchor::Calendar(calendar)) = quota.rule else {
            return self.push([a, b, limit, 0, 0, 0]);
        };
        let window = calendar.window(now.saturating_sub(TOLERANCE));
        let next = calendar.window(window.end);
        (self.from, self.to) = (self.from.max(window.start), self.to.min(next.end - 1));
        self.push([a, b, limit, window.start, window.end, next.end]);
    }
}
