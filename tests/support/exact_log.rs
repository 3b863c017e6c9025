//! The sliding window against a log that keeps every admitted cost.

use proptest::prelude::*;
use tollgate::limit::decision::{Wait, decide};
use tollgate::limit::policy::Policy;
use tollgate::limit::state::State;
use tollgate::limit::time::Micros;

#[derive(Default)]
pub struct Log(Vec<(Micros, u64)>);

impl Log {
    pub fn since(&self, after: Micros) -> u64 {
        self.0.iter().filter(|(at, _)| *at > after).map(|(_, cost)| cost).sum()
    }

    /// The most in any interval as long as `window` that contains `now`.
    pub fn densest(&self, window: Micros, now: Micros) -> u64 {
        let ends = self.0.iter().map(|(at, _)| *at).filter(|at| *at >= now && *at < now + window);
        let within =
            |end: Micros| self.0.iter().filter(|(at, _)| *at > end - window && *at <= end).map(|(_, cost)| cost).sum();
        ends.map(within).max().unwrap_or(0)
    }
}

/// Guarantees 1, 2 and 3 for one call's verdicts.
pub fn judge(
    policy: &Policy,
    log: &mut Log,
    now: Micros,
    verdicts: impl Iterator<Item = (u64, bool)>,
) -> Result<(), TestCaseError> {
    for (cost, allowed) in verdicts {
        if allowed && cost > 0 {
            log.0.push((now, cost));
            for quota in &policy.quotas {
                prop_assert!(log.densest(quota.window, now) <= quota.limit.get(), "over {quota:?}");
            }
        } else if !allowed {
            let over = policy.quotas.iter().any(|quota| {
                let reach = 65 * quota.window.div_ceil(64);
                log.since(now - reach) + cost > quota.limit.get()
            });
            prop_assert!(over, "{cost} denied without need by {policy:?}");
        }
    }
    Ok(())
}

/// Guarantee 5: denied 1 us before the end of the wait, allowed at it.
pub fn exact_wait(policy: &Policy, windows: &[State], now: Micros, cost: u64, wait: Wait) -> Result<(), TestCaseError> {
    let asked_at = |instant| decide(policy, &mut windows.to_vec(), instant, &[cost]).verdicts[0].allowed;
    match wait {
        Wait::NONE => prop_assert!(asked_at(now)),
        Wait::For(span) => prop_assert!(!asked_at(now + span - 1) && asked_at(now + span)),
        Wait::Never => prop_assert!(policy.quotas.iter().any(|quota| cost > quota.limit.get())),
    }
    Ok(())
}
