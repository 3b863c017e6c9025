//! Calls of one key, for slots that move.

use redis::{Cmd, Value};

use super::keys::{Tag, counter_width};
use super::script::{By, named, parameters, unsigned};
use super::sources::Script;
use super::states::history;
use super::told::pair_numbers;
use crate::limit::bucket::Terms;
use crate::limit::policy::Policy;
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::time::Micros;
use crate::limit::window::{Grid, SlidingWindow};

/// A call of one key. Its reply is read by whoever made it.
#[derive(Debug, Clone)]
pub struct Single {
    /// None for GET.
    script: Option<Script>,
    key: String,
    arguments: Vec<String>,
}

/// What charging a segment brought.
#[derive(Debug)]
pub enum Charged {
    /// TIME is in another segment; this is it.
    Elsewhen(Micros),
    /// At this instant; the segment is as it was before.
    Here { at: Micros, charged: bool, segment: Value },
}

impl Single {
    /// Charges `cost` to the segment of `quota` that `now` lies in, as far as this alone does not exceed the limit. For
    /// `hold` us it may be given back.
    pub fn charge(tag: &Tag, policy: &Policy, quota: &Quota, now: Micros, cost: u64, hold: Micros) -> Self {
        let grid = Grid::new(quota.window);
        let start = grid.segment_at(now) * grid.bucket() * 64;
        Self {
            script: Some(Script::FIRST_WINDOW),
            key: tag.segment(policy.counters(), quota, grid.segment_at(now)),
            arguments: texts([start, grid.bucket(), quota.limit.get(), cost, hold]),
        }
    }

    /// The same of a quota whose state is a pair. The reply is that to a reservation.
    pub fn charge_pair(tag: &Tag, policy: &Policy, quota: &Quota, now: Micros, cost: u64, hold: Micros) -> Self {
        let is_bucket = matches!(quota.rule, Rule::TokenBucket(_));
        let [first, second, third] = parameters(quota, pair_numbers(quota, now));
        Self {
            script: Some(if is_bucket { Script::FIRST_BUCKET } else { Script::FIRST_FIXED }),
            key: tag.state(policy.counters(), quota),
            // Of one quota, and one cost, once.
            arguments: vec![hold.to_string(), "1".into(), first, second, third, cost.to_string(), "1".into()],
        }
    }

    /// Reads the segment before the one that `now` lies in.
    pub fn previous(tag: &Tag, policy: &Policy, quota: &Quota, now: Micros) -> Self {
        let segment = Grid::new(quota.window).segment_at(now).saturating_sub(1);
        Self { script: None, key: tag.segment(policy.counters(), quota, segment), arguments: Vec::new() }
    }

    /// Gives back what was charged to `quota` at `at`, unless that is a log. `reset_after` is what the charge's answer
    /// said of it.
    pub fn back(tag: &Tag, policy: &Policy, quota: &Quota, at: Micros, cost: u64, reset_after: Micros) -> Option<Self> {
        let grid = Grid::new(quota.window);
        let (script, key, arguments) = match quota.rule {
            Rule::SlidingWindow => {
                let bucket = at / grid.bucket() % 64;
                let key = tag.segment(policy.counters(), quota, grid.segment_at(at));
                (Script::FIRST_WINDOW_BACK, key, texts([quota.limit.get(), bucket, cost]))
            }
            Rule::TokenBucket(rate) => {
                let terms = Terms::of(rate);
                let key = tag.state(policy.counters(), quota);
                (Script::FIRST_PAIR_BACK, key, texts([at, cost, terms.price, terms.repaid]))
            }
            Rule::SlidingLog(_) => return None,
            Rule::FixedWindow(_) => {
                let start = match quota.rule {
                    // Days, months and years are not all as long as their window says.
                    Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.window(at).start,
                    // It is whole again when its window ends.
                    _ => (at + reset_after).saturating_sub(quota.window),
                };
                let key = tag.state(policy.counters(), quota);
                (Script::FIRST_PAIR_BACK, key, texts([start, cost, 0, 0]))
            }
        };
        Some(Self { script: Some(script), key, arguments })
    }

    /// Whether it only reads its key, without a script.
    pub fn is_get(&self) -> bool {
        self.script.is_none()
    }

    /// What a person calls it.
    pub fn name(&self) -> &'static str {
        match self.script {
            None => "previous segment",
            Some(Script::FIRST_WINDOW | Script::FIRST_FIXED | Script::FIRST_BUCKET) => "charge first",
            Some(_) => "give back",
        }
    }

    /// The command; `time` is decided by instead of TIME, us: tests only.
    pub fn command(&self, by: By, time: Option<Micros>) -> Cmd {
        let Some(script) = self.script else {
            let mut get = redis::cmd("GET");
            get.arg(&self.key);
            return get;
        };
        let mut cmd = named(by, script);
        cmd.arg(1).arg(&self.key);
        cmd.arg(&self.arguments);
        if let Some(time) = time.filter(|_| script != Script::FIRST_WINDOW_BACK) {
            cmd.arg(time);
        }
        cmd
    }
}

fn texts<const COUNT: usize>(numbers: [u64; COUNT]) -> Vec<String> {
    numbers.map(|number| number.to_string()).into()
}

/// Reads the reply to [`Single::charge`].
pub fn charged(reply: Value) -> Option<Charged> {
    let Value::Array(values) = reply else { return None };
    let mut values = values.into_iter();
    let at = unsigned(&values.next()?)?;
    let Some(charged) = values.next() else { return Some(Charged::Elsewhen(at)) };
    Some(Charged::Here { at, charged: unsigned(&charged)? == 1, segment: values.next().unwrap_or(Value::Nil) })
}

/// The window of `quota` at `at` from its previous and current segments.
pub fn window(quota: &Quota, at: Micros, previous: Value, current: Value) -> Option<SlidingWindow> {
    history(Grid::new(quota.window), counter_width(quota.limit.get()), at, &[previous, current, Value::Nil])
}
