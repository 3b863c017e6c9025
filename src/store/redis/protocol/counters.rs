//! The calls for sliding counters: their keys, arguments and replies.
//!
//! The names of ticks follow programs that keep one counter per key and second. Shared counters
//! are `{<prefix>:<key>:}<tick>`. Others are `{<prefix>:<key>:}<policy>:<tick>`, with the length of
//! the tick before it unless that is a second.

use std::fmt::Write;
use std::ops::RangeInclusive;

use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};

use super::call::{By, Call, TOLERANCE, runs};
use super::check::Numbers;
use super::operations;
use super::reply::{Reply, text, unsigned};
use super::sources::{ScriptId, begin};
use crate::limit::counter::SlidingCounter;
use crate::limit::counts::Count;
use crate::limit::decision::look;
use crate::limit::policy::Policy;
use crate::limit::state::State;
use crate::limit::ticks::{DEFAULT_TICK, MAX_TICKS, Ticks};
use crate::limit::time::{Micros, span_text};
use crate::store::{Done, Taken, Work};

/// The largest count, of 16 digits, as doubles round it.
const LARGEST: u64 = 10_000_000_000_000_000;

/// Builds the command for a shard whose expected TIME is `now`, us. Tests replace TIME by `time`.
pub fn command(call: &Call<'_>, ticks: Ticks, by: By, now: Micros, time: Option<Micros>) -> Cmd {
    if let Work::ReadTicks { at, .. } = call.work {
        return read_command(call, ticks, *at);
    }
    // A reset concerns every window that may count the ticks.
    let window = if matches!(call.work, Work::Reset(_)) { MAX_TICKS } else { ticks.longest() };
    let (early, late) = (ticks.at(now.saturating_sub(TOLERANCE)), ticks.at(now + TOLERANCE));
    let named = early.saturating_sub(ticks.before(window))..=late + ticks.ahead();
    let more_keys = operations::keys(call);
    let mut cmd = begin(by, ScriptId::of(call.policy, call.work));
    cmd.arg(2 + (named.end() - named.start() + 1) as usize + more_keys.len())
        .arg(call.tag.ticks_hold(call.policy))
        .arg(call.tag.ticks_reset(call.policy));
    add_names(call, ticks, named.clone(), &mut cmd);
    cmd.arg(&more_keys[..]);
    let (from, to) = (early * ticks.length(), (late + 1) * ticks.length() - 1);
    let mut numbers = Numbers::default();
    numbers.push([from, to, time.unwrap_or(0), ticks.length(), *named.start()]);
    numbers.push([ticks.before(window), ticks.ahead(), ticks.kept(), ticks.before(ticks.life())]);
    numbers.push([call.work.ahead(call.policy), call.policy.quotas.len() as u64]);
    for quota in &call.policy.quotas {
        numbers.push([ticks.before(ticks.in_window(quota.window)), quota.limit.get()]);
    }
    runs(call.costs).for_each(|(cost, times)| numbers.push([cost, times as u64]));
    cmd.arg(&numbers.bytes[..]);
    operations::arguments(call, &mut cmd, time);
    cmd
}

/// Builds the plain read of the ticks that count at `at`, us.
fn read_command(call: &Call<'_>, ticks: Ticks, at: Micros) -> Cmd {
    let mut cmd = redis::cmd("MGET");
    let counting = ticks.counting(ticks.longest(), at);
    add_names(call, ticks, counting.start..=counting.end - 1, &mut cmd);
    cmd
}

/// Reads the reply to the plain read. The counts decide a peek as at `at`, us.
pub fn read_reply(policy: &Policy, ticks: Ticks, (at, cost): (Micros, u64), value: &Value) -> Option<Reply> {
    let Value::Array(values) = value else { return None };
    let first = ticks.counting(ticks.longest(), at).start;
    let mut counts: SmallVec<[Count; 16]> = SmallVec::new();
    for (tick, value) in (first..).zip(values) {
        let units = match value {
            Value::Nil => 0,
            value => match text(value).and_then(count) {
                Some(units) => units,
                None => return Some(Reply::corrupt_state()),
            },
        };
        if units > 0 {
            counts.push(Count { number: tick, units });
        }
    }
    let counter = SlidingCounter::from_counts(counts, 0);
    let listed = counter.listed(ticks, at);
    let states: SmallVec<[State; 3]> = smallvec![State::SlidingCounter(counter); policy.quotas.len()];
    let mut ruling = look(policy, &states, at, cost);
    // The shard's clock did not decide, so nothing follows for later checks.
    ruling.closed = None;
    Some(Reply::Done(Done::Ticks(Taken { ruling, at, tentative: false }, listed)))
}

/// Reads the counts in the reply to a call that was decided at `time`, us. Each quota has the same.
pub fn states(policy: &Policy, time: Micros, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let (counts, mark) = match values {
        [counts] => (text(counts)?, 0),
        [counts, mark] => (text(counts)?, unsigned(mark)?),
        _ => return None,
    };
    let ticks = policy.ticks()?;
    let last = ticks.at(time) + ticks.ahead();
    let mut told: SmallVec<[Count; 16]> = SmallVec::new();
    for (back, units) in counts.rsplit(',').enumerate().filter(|(_, units)| !units.is_empty()) {
        let (tick, units) = (last.checked_sub(back as u64)?, units.parse().ok().filter(|units| *units <= LARGEST)?);
        if units > 0 {
            told.push(Count { number: tick, units });
        }
    }
    told.reverse();
    let counter = SlidingCounter::from_counts(told, mark);
    Some(smallvec![State::SlidingCounter(counter); policy.quotas.len()])
}

/// The count that a value stands for; none for a value that is no count.
fn count(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_count = (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_count.then(|| text.parse().unwrap_or(0))
}

fn add_names(call: &Call<'_>, ticks: Ticks, named: RangeInclusive<u64>, cmd: &mut Cmd) {
    let mut name = call.tag.ticks(call.policy);
    if !ticks.shared && ticks.length() != DEFAULT_TICK {
        name.push_str(&span_text(ticks.length()));
        name.push(':');
    }
    let length = name.len();
    for tick in named {
        name.truncate(length);
        // A String accepts every write.
        let _ = write!(name, "{}", ticks.start(tick));
        cmd.arg(&name);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use std::time::Duration;

    use redis::Arg;

    use super::*;
    use crate::limit::policy::Algorithm;
    use crate::limit::quota::{Quota, Rule};
    use crate::store::redis::protocol::keys::Tag;

    const NOW: Micros = 1_605_054_195_500_000;

    fn policy(length: Micros, shared: bool) -> Arc<Policy> {
        let ticks = Ticks::new(length, false, shared).with_longest(3 * length);
        let limit = NonZeroU64::new(5).unwrap();
        let quota = Quota { name: "q".into(), limit, window: 3 * length, rule: Rule::SlidingCounter(ticks) };
        Arc::new(Policy::new("per-ip", Algorithm::SlidingCounter, vec![quota], Duration::from_secs(1)))
    }

    fn keys(policy: &Arc<Policy>) -> Vec<String> {
        Call::look(&Tag::new("ratelimit", "203.0.113.7"), policy).keys_at(NOW)
    }

    #[test]
    fn shared_counters_have_the_names_of_the_classic_script() {
        let names = ["hold", "reset", "1605054193", "1605054194", "1605054195", "1605054196"];
        assert_eq!(keys(&policy(1_000_000, true)), names.map(|name| format!("{{ratelimit:203.0.113.7:}}{name}")));
    }

    #[test]
    fn other_counters_have_the_names_of_their_policy_and_tick() {
        let last = |length| keys(&policy(length, false)).pop().unwrap();
        let name = |name: &str| format!("{{ratelimit:203.0.113.7:}}per-ip:{name}");
        assert_eq!(last(1_000_000), name("1605054196"));
        assert_eq!(last(10_000_000), name("10s:1605054200"));
        // 250 ms later begins another tick, and three of 100 ms count after it.
        assert_eq!(last(100_000), name("100ms:1605054196000"));
        assert_eq!(keys(&policy(10_000_000, false))[..2], [name("hold"), name("reset")]);
    }

    #[test]
    fn usage_is_one_plain_read() {
        let (tag, policy) = (Tag::new("ratelimit", "203.0.113.7"), policy(1_000_000, true));
        let call = Call { work: &Work::ReadTicks { at: NOW, cost: 0 }, costs: &[], ..Call::look(&tag, &policy) };
        let command = call.command(By::Hash, NOW, None);
        assert_eq!(command.args_iter().next(), Some(Arg::Simple(&b"MGET"[..])));
        assert_eq!(command.args_iter().count(), 5);
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = |values| call.reply(&Value::Array(values));
        let ticks = |reply| match reply {
            Reply::Done(Done::Ticks(taken, listed)) => Some((taken, listed)),
            _ => None,
        };
        let (taken, listed) = ticks(reply(vec![bulk("2"), Value::Nil, bulk("1"), bulk("-7")])).unwrap();
        assert_eq!(listed, [(1_605_054_195, 1), (1_605_054_193, 2)]);
        assert_eq!(taken.ruling.verdicts[0].quotas[0].remaining, 2);
        for spoilt in ["", "12345678901234567", "1.5", "+1", "x", "-"] {
            assert_eq!(
                reply(vec![bulk(spoilt), Value::Nil, Value::Nil, Value::Nil]),
                Reply::corrupt_state(),
                "{spoilt}"
            );
        }
    }
}
