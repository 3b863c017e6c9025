//! Counts the hits of a request as the reference does, for its metrics.

use super::decide::Verdict;
use super::plan::{Action, Counted, Plan};
use crate::config::envoy::EnvoyRules;
use crate::engine::{Decision, Engine, Reason};

/// Counts the hits of all counted descriptors, if the node has the metrics of the reference.
pub(super) fn count(engine: &Engine, rules: &EnvoyRules, plan: &Plan, verdicts: &[Verdict]) {
    let Some(near) = rules.near_limit else { return };
    for (counted, verdict) in plan.counted().zip(verdicts) {
        let Counted { check, labels: Some(labels), action, .. } = counted else { continue };
        if matches!(action, Action::Refund | Action::Settle(_)) {
            continue;
        }
        let counts = engine.reference().rule(labels, rules.rules);
        let is_shadow = verdict.decision.as_ref().is_some_and(|decision| decision.reason == Reason::Shadow);
        counts.total_hits.add(check.cost);
        let charged = charged(verdict, check.cost);
        if verdict.over || is_shadow {
            counts.over_limit.add(check.cost.saturating_sub(charged));
        } else {
            counts.within_limit.add(check.cost);
        }
        if is_shadow {
            counts.shadow_mode.add(check.cost.saturating_sub(charged));
        }
        counts
            .near_limit
            .add(verdict.decision.as_ref().map_or(0, |decision| hits_near(decision, charged, near)));
    }
}

/// The hits that fit: all or none, or those that a drain took.
fn charged(verdict: &Verdict, cost: u64) -> u64 {
    match &verdict.decision {
        Some(decision) if decision.parts.is_some() => decision.charged.min(cost),
        Some(decision) if decision.allowed && decision.reason != Reason::Shadow => cost,
        _ => 0,
    }
}

/// The part of the charged hits above the threshold.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the threshold is between 0 and the limit"
)]
fn hits_near(decision: &Decision, charged: u64, near: f64) -> u64 {
    let Some(binding) = decision.binding else { return 0 };
    let limit = decision.policy.quotas.get(binding.quota).map_or(0, |quota| quota.limit.get());
    let (threshold, after) = ((limit as f64 * near) as u64, limit.saturating_sub(binding.remaining));
    after.saturating_sub(threshold.max(after.saturating_sub(charged)))
}
