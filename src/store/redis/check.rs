//! The calls for checks: of one key, or of several in one call. Only those by sliding logs are made otherwise.
//!
//! Half of what a script call costs the server is the call, so checks of several keys that go out together share one.
//! They are decided each by itself, all at the same TIME.
//!
//! The keys that a call declares must be of one slot where the server is a cluster's, so there such a call declares
//! none and tells them as arguments, as servers permit to scripts without a shebang line. What is lost is that the
//! server checks beforehand whether it has them. So the script notices for each check, when it reads its key and before
//! it has charged anything; the check is then asked for alone, with its key declared.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::script::{By, Call, Reply, is_foreign, named, opened, runs};
use super::sources::Script;
use super::states::window_kind;
use super::told::{Quotas, Told, common};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::time::Micros;
use crate::limit::window::Grid;
use crate::store::{Done, Work};

/// Whether a call declares its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    Yes,
    /// They are of several slots.
    No,
}

/// Whether work under a policy is a check that such a call may decide.
pub fn is_check(policy: &Policy, work: &Work) -> bool {
    policy.algorithm != Algorithm::SlidingLog && matches!(work, Work::Take(_) | Work::Look(_))
}

/// The command for checks, one of them at least, by the same script, for a shard whose TIME is believed to be `now`
/// (us). `time` is decided by instead of TIME; tests only.
pub fn command(calls: &[Call<'_>], declared: Declared, by: By, now: Micros, time: Option<Micros>) -> Cmd {
    let told: SmallVec<[Told; 1]> = calls.iter().map(|call| Told::of(call, now)).collect();
    let (from, to) = common(told.iter().map(|told| told.bounds));
    let mut cmd = named(by, Script::of(calls[0].policy, calls[0].work));
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

/// What the reply to such a command says of each check.
pub fn replies(calls: &[Call<'_>], value: &Value) -> SmallVec<[Reply; 1]> {
    let all = |reply: fn(Micros) -> Reply, time| calls.iter().map(|_| reply(time)).collect();
    let Some((time, mut rest)) = opened(value) else { return all(|_| Reply::Malformed, 0) };
    if rest.is_empty() {
        return all(|time| Reply::NotCovered { time }, time);
    }
    calls.iter().map(|call| next(call, time, &mut rest).unwrap_or(Reply::Malformed)).collect()
}

/// Takes off what is said of the next check.
fn next(call: &Call<'_>, time: Micros, rest: &mut &[Value]) -> Option<Reply> {
    let said = match rest.first()? {
        Value::Nil => {
            rest.split_off_first();
            return Some(Reply::Undecided);
        }
        said if is_foreign(said) => {
            rest.split_off_first();
            return Some(Reply::Foreign);
        }
        Value::Array(told) => {
            rest.split_off_first();
            told
        }
        _ => rest.split_off(..values_told(call.policy))?,
    };
    Some(Reply::Done(Done::Taken(call.taken(time, said)?.0)))
}

/// What is told of a check that is not in a list: what each window counted when that says all, or the state of pairs.
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

    /// Those of one check.
    fn push_check(&mut self, call: &Call<'_>, told: &Told) {
        let start = self.0.len();
        self.push([0.0]);
        match &told.quotas {
            Quotas::Windows => self.push_windows(call),
            Quotas::Pairs(pairs) => pairs.iter().for_each(|pair| self.push(pair.map(|number| number as f64))),
        }
        for (cost, times) in runs(call.costs) {
            self.push([cost as f64, times as f64]);
        }
        // Where they end, which is where the script would read on: it counts from 1.
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
