//! Calls of one key, for slots that move.

use redis::Cmd;

use super::keys::Tag;
use super::script::{By, named, parameters};
use super::sources::Script;
use super::told::pair_numbers;
use crate::limit::bucket::Terms;
use crate::limit::policy::Policy;
use crate::limit::quota::{Anchor, Quota, Rule};
use crate::limit::time::Micros;

/// A call of one key. Its reply is read by whoever made it.
#[derive(Debug, Clone)]
pub struct Single {
    script: Script,
    key: String,
    arguments: Vec<String>,
}

impl Single {
    /// Charges `cost` to `quota`, whose state is a pair, if it has room. For `hold` us it may be given back. The reply
    /// is that to a reservation.
    pub fn charge_pair(tag: &Tag, policy: &Policy, quota: &Quota, now: Micros, cost: u64, hold: Micros) -> Self {
        let is_bucket = matches!(quota.rule, Rule::TokenBucket(_));
        let [first, second, third] = parameters(quota, pair_numbers(quota, now));
        Self {
            script: if is_bucket { Script::FIRST_BUCKET } else { Script::FIRST_FIXED },
            key: tag.state(policy.counters(), quota),
            // Of one quota, and one cost, once.
            arguments: vec![hold.to_string(), "1".into(), first, second, third, cost.to_string(), "1".into()],
        }
    }

    /// Gives back what was charged to `quota` at `at`, unless that is a log. `reset_after` is what the charge's answer
    /// said of it.
    pub fn back(tag: &Tag, policy: &Policy, quota: &Quota, at: Micros, cost: u64, reset_after: Micros) -> Option<Self> {
        let (script, key, arguments) = match quota.rule {
            Rule::TokenBucket(rate) => {
                let terms = Terms::of(rate);
                let key = tag.state(policy.counters(), quota);
                (Script::FIRST_PAIR_BACK, key, texts([at, cost, terms.price, terms.repaid]))
            }
            Rule::SlidingLog(_) | Rule::SlidingWindow => return None,
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
        Some(Self { script, key, arguments })
    }

    /// What a person calls it.
    pub fn name(&self) -> &'static str {
        match self.script {
            Script::FIRST_FIXED | Script::FIRST_BUCKET => "charge first",
            _ => "give back",
        }
    }

    /// The command; `time` is decided by instead of TIME, us: tests only.
    pub fn command(&self, by: By, time: Option<Micros>) -> Cmd {
        let mut cmd = named(by, self.script);
        cmd.arg(1).arg(&self.key);
        cmd.arg(&self.arguments);
        if let Some(time) = time {
            cmd.arg(time);
        }
        cmd
    }
}

fn texts<const COUNT: usize>(numbers: [u64; COUNT]) -> Vec<String> {
    numbers.map(|number| number.to_string()).into()
}
