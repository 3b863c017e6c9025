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

use super::call::{By, Call, runs};
use super::quota_args::{QuotaArgs, Quotas, common};
use super::reply::{Reply, is_corrupt, opened};
use super::sources::{ScriptId, begin};
use super::windows::window_kind;
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::Micros;
use crate::limit::window::Grid;
use crate::store::Done;

/// Whether a call declares its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    Yes,
    /// The keys belong to several slots.
    No,
}

/// Builds the command for one or more checks by the same script. `now` is the expected TIME of the
/// shard, us. Tests replace TIME by `time`.
pub fn command(calls: &[Call<'_>], declared: Declared, by: By, now: Micros, time: Option<Micros>) -> Cmd {
    let told: SmallVec<[QuotaArgs; 1]> = calls.iter().map(|call| QuotaArgs::of(call.policy, now)).collect();
    let (from, to) = common(told.iter().map(|told| told.bounds));
    let mut cmd = begin(by, ScriptId::of(calls[0].policy, calls[0].work));
    let mut numbers = Numbers::default();
    numbers.push([from as f64, to as f64, time.unwrap_or(0) as f64, calls.len() as f64]);
    for (call, told) in calls.iter().zip(&told) {
        numbers.push_check(call, told);
    }
    let name_all = |cmd: &mut Cmd| calls.iter().for_each(|call| _ = cmd.arg(call.tag.counts(call.policy)));
    match declared {
        Declared::Yes => {
            cmd.arg(calls.len());
            name_all(&mut cmd);
            cmd.arg(&numbers.0[..]);
        }
        Declared::No => {
            cmd.arg(0).arg(&numbers.0[..]);
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
    let said = match rest.first()? {
        Value::Nil => {
            rest.split_off_first();
            return Some(Reply::Undecided);
        }
        said if is_corrupt(said) => {
            rest.split_off_first();
            return Some(Reply::corrupt_state());
        }
        Value::Array(told) => {
            rest.split_off_first();
            told
        }
        _ => rest.split_off(..values_told(call.policy))?,
    };
    Some(Reply::Done(Done::Taken(call.taken(time, said)?.0)))
}

/// Returns the number of values for a check that is not a list. Windows with room return one count
/// each; pairs return one state.
fn values_told(policy: &Policy) -> usize {
    if policy.algorithm == Algorithm::SlidingWindow { policy.quotas.len() } else { 1 }
}

/// Numbers as scripts unpack them: doubles, which are exact below 2^53.
#[derive(Default)]
struct Numbers(SmallVec<[u8; 160]>);

impl Numbers {
    fn push<const COUNT: usize>(&mut self, numbers: [f64; COUNT]) {
        numbers.map(f64::to_le_bytes).iter().for_each(|bytes| self.0.extend_from_slice(bytes));
    }

    /// Appends the numbers of one check.
    fn push_check(&mut self, call: &Call<'_>, told: &QuotaArgs) {
        let start = self.0.len();
        self.push([0.0]);
        match &told.quotas {
            Quotas::Windows => self.push_windows(call),
            Quotas::Pairs(pairs) => pairs.iter().for_each(|pair| self.push(pair.map(|number| number as f64))),
        }
        for (cost, times) in runs(call.costs) {
            self.push([cost as f64, times as f64]);
        }
        // The first number is the place where the script reads on, counted from 1.
        let ends = (self.0.len() + 1) as f64;
        self.0[start..start + 8].copy_from_slice(&ends.to_le_bytes());
    }

    fn push_windows(&mut self, call: &Call<'_>) {
        for quota in &call.policy.quotas {
            let bucket = Grid::new(quota.window).bucket();
            self.push([bucket as f64, quota.limit.get() as f64, window_kind(quota) as f64]);
        }
    }
}
