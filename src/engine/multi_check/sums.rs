//! The waits of parts that share a key. Each id is charged by a call of its own, but all of them
//! must fit together. So a denied part waits until the sum of their costs fits, and until as many
//! places are free.

use std::sync::Arc;
use std::time::Duration;

use super::MultiCall;
use super::part::KeyGroup;
use crate::engine::Decision;
use crate::engine::answer::only_verdict;
use crate::engine::decision::limits_agree;
use crate::limit::decision::Wait;
use crate::limit::quota::MAX_UNITS;
use crate::store::{Subject, Work};

impl MultiCall {
    /// Lengthens the waits of denied required parts to those of the sums, within the time `left`. The
    /// call has given everything back.
    pub(super) async fn wait_for_sums(&self, decisions: &mut [Decision], left: Duration) {
        let parts = &self.parts[..self.required];
        for (place, part) in parts.iter().enumerate() {
            let is_alike = |other: &&KeyGroup| {
                let (own, other) = (part.subject(), other.subject());
                own.fingerprint == other.fingerprint && limits_agree(&own.policy, &other.policy)
            };
            let alike: Vec<&KeyGroup> = parts.iter().filter(is_alike).collect();
            let is_first = alike.first().is_some_and(|first| std::ptr::eq(*first, part));
            let denied = || (0..parts.len()).filter(|other| is_alike(&&parts[*other]) && !decisions[*other].allowed);
            if !is_first || alike.len() < 2 || denied().next().is_none() || decisions[place].fallback.is_some() {
                continue;
            }
            let denied: Vec<usize> = denied().collect();
            if let Some(wait) = self.wait_for_sum(&alike, left).await {
                for place in denied {
                    decisions[place].retry_after = decisions[place].retry_after.max(wait);
                }
            }
        }
    }

    /// The time until the costs of these parts fit together.
    async fn wait_for_sum(&self, parts: &[&KeyGroup], left: Duration) -> Option<Wait> {
        let subject = parts.first()?.subject();
        let cost = parts.iter().map(|part| part.cost).sum::<u64>().min(MAX_UNITS + 1);
        let others = parts.iter().filter(|part| part.cost > 0).count().saturating_sub(1) as u64;
        let Some(policy) = subject.policy.with_fewer_places(others) else { return Some(Wait::Never) };
        let subject = Subject { policy: Arc::new(policy), ..subject.clone() };
        let done = self.engine.run_within(&subject, Work::Look(cost), &[], left).await.ok()?;
        let verdict = only_verdict(done.taken().ok()?).ok()?;
        Some(if verdict.allowed { Wait::NONE } else { verdict.retry_after })
    }
}
