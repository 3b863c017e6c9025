//! The denials that the client makes itself.
//!
//! The pre-filter of a node says only what is final: until its `retry_after_ms` no node allows a
//! check of that cost, or of a higher one. So the client may repeat such a denial without a call.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::check::{Check, DEFAULT_POLICY};
use crate::decision::{Decision, Source};

/// The most denials that a client keeps.
const MAX_DENIALS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

#[derive(Debug)]
pub(crate) struct Denials {
    /// The longest time in which a denial is repeated without asking a node.
    fresh_for: Duration,
    /// The denials by their names. The oldest are dropped first.
    kept: Mutex<LruCache<String, Denial>>,
}

#[derive(Debug, Clone)]
struct Denial {
    /// As a node made it. Its waits count from `sent`.
    decision: Decision,
    plan: Option<String>,
    sent: Instant,
    /// The end of the wait.
    until: Instant,
    fresh_until: Instant,
}

/// A denial that the client may repeat.
#[derive(Debug)]
pub(crate) struct Known {
    pub decision: Decision,
    /// Whether it needs no call. Otherwise a node may know better: a limit may be higher by now.
    pub is_fresh: bool,
}

impl Denials {
    pub fn new(fresh_for: Duration) -> Self {
        Self { fresh_for, kept: Mutex::new(LruCache::new(MAX_DENIALS)) }
    }

    /// The denial that a check would get from any node at `now`.
    pub fn of(&self, check: &Check, now: Instant) -> Option<Known> {
        let kept = self.lock();
        // Without any, checks pay for nothing else.
        if kept.is_empty() || !check.is_deniable() {
            return None;
        }
        let denial = kept.peek(&name_of(check))?;
        // A plan has quotas of its own.
        let applies = check.units() >= denial.decision.cost && check.plan == denial.plan && now < denial.until;
        applies.then(|| Known { decision: denial.at(check, now), is_fresh: now < denial.fresh_until })
    }

    /// Learns from the answer to a check that was sent at `sent`, and forgets what it disproves.
    pub fn learn(&self, check: &Check, decision: &Decision, sent: Instant) {
        if self.fresh_for.is_zero() || !check.is_deniable() {
            return;
        }
        let wait = decision.retry_after_ms.filter(|ms| *ms > 0 && decision.source == Source::Prefilter);
        match wait {
            Some(ms) if !decision.allowed => {
                let until = sent + Duration::from_millis(ms);
                let fresh_until = until.min(sent + self.fresh_for);
                let (decision, plan) = (decision.clone(), check.plan.clone());
                let denial = Denial { decision, plan, sent, until, fresh_until };
                self.lock().put(name_of(check), denial);
            }
            _ if decision.allowed => _ = self.lock().pop(&name_of(check)),
            _ => {}
        }
    }

    /// Forgets the denials of a key under a policy. Denials by quotas of checks stay, since
    /// refunds and resets do not reach them.
    pub fn forget(&self, policy: Option<&str>, key: &str) {
        self.lock().pop(&name(policy, key));
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, Denial>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Denial {
    fn at(&self, check: &Check, now: Instant) -> Decision {
        let passed = u64::try_from(now.duration_since(self.sent).as_millis()).unwrap_or(u64::MAX);
        let later = |ms: Option<u64>| ms.map(|ms| ms.saturating_sub(passed));
        Decision {
            cost: check.units(),
            source: Source::Client,
            // A wait of 0 would be a promise.
            retry_after_ms: later(self.decision.retry_after_ms).map(|ms| ms.max(1)),
            reset_after_ms: later(self.decision.reset_after_ms),
            ..self.decision.clone()
        }
    }
}

fn name_of(check: &Check) -> String {
    let mut name = name(check.policy.as_deref(), &check.key);
    if !check.quotas.is_empty() {
        // Writing to a string never fails.
        let _ = write!(name, "{:?}", check.quotas);
    }
    name
}

/// One name for each pair, whatever letters they have.
fn name(policy: Option<&str>, key: &str) -> String {
    let policy = policy.unwrap_or(DEFAULT_POLICY);
    format!("{}:{}:{policy}{key}", policy.len(), key.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Over;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    fn denied(check: &Check, source: &str, retry_after_ms: u64) -> Decision {
        serde_json::from_value(serde_json::json!({
            "allowed": false, "policy": "default", "key": check.key, "cost": check.units(), "charged": 0, "limit": 5,
            "remaining": 0, "retry_after_ms": retry_after_ms, "reset_after_ms": 60_000, "quota": "1m",
            "source": source, "reason": "over_limit"
        }))
        .unwrap()
    }

    fn learned(check: &Check, retry_after_ms: u64) -> (Denials, Instant) {
        let (denials, now) = (Denials::new(Duration::from_secs(1)), clock::now());
        denials.learn(check, &denied(check, "prefilter", retry_after_ms), now);
        (denials, now)
    }

    #[test]
    fn denial_answers_equal_and_higher_costs_until_its_wait_is_over() {
        let check = Check::new("k").cost(2);
        let (denials, now) = learned(&check, 5000);
        let known = denials.of(&check.clone().cost(3), now + 400 * MS).unwrap();
        assert!(known.is_fresh);
        let Decision { cost, retry_after_ms, reset_after_ms, source, .. } = known.decision;
        assert_eq!((cost, retry_after_ms, reset_after_ms, source), (3, Some(4600), Some(59_600), Source::Client));
        assert!(denials.of(&check.clone().cost(1), now).is_none(), "a lower cost may fit");
        assert!(!denials.of(&check, now + 1000 * MS).unwrap().is_fresh);
        assert!(denials.of(&check, now + 5000 * MS).is_none());
    }

    #[test]
    fn only_final_denials_of_plain_checks_are_learned() {
        let check = Check::new("k");
        for (source, wait) in [("store", 5000), ("fallback", 5000), ("prefilter", 0)] {
            let denials = Denials::new(Duration::from_secs(1));
            denials.learn(&check, &denied(&check, source, wait), clock::now());
            assert!(denials.of(&check, clock::now()).is_none(), "{source} {wait}");
        }
        let (denials, now) = learned(&check, 5000);
        for other in [
            check.clone().id("a"),
            check.clone().cost(0),
            check.clone().over(Over::Drain),
            check.clone().policy("other"),
            check.clone().plan("pro"),
            Check::new("l"),
        ] {
            assert!(denials.of(&other, now).is_none(), "{other:?}");
        }
        assert!(denials.of(&check.clone().policy("default").look(true), now).is_some());
        assert!(denials.of(&check.clone().once(true), now).is_some());
    }

    #[test]
    fn refund_and_allowed_check_end_a_denial() {
        let check = Check::new("k");
        let (denials, now) = learned(&check, 5000);
        denials.forget(None, "k");
        assert!(denials.of(&check, now).is_none());
        denials.learn(&check, &denied(&check, "prefilter", 5000), now);
        denials.learn(&check, &Decision { allowed: true, ..denied(&check, "store", 0) }, now);
        assert!(denials.of(&check, now).is_none());
    }

    #[test]
    fn oldest_denials_are_dropped() {
        let (denials, now) = (Denials::new(Duration::from_secs(1)), clock::now());
        let check = |number: usize| Check::new(number.to_string());
        for number in 0..3 * MAX_DENIALS.get() {
            denials.learn(&check(number), &denied(&check(number), "prefilter", 5000), now);
        }
        assert_eq!(denials.lock().len(), MAX_DENIALS.get());
        assert!(denials.of(&check(0), now).is_none());
        assert!(denials.of(&check(3 * MAX_DENIALS.get() - 1), now).is_some());
    }
}
