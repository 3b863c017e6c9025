//! Advice on quotas that never deny, since another quota of their policy is full before them.

use super::Policies;
use crate::limit::quota::{Anchor, Quota, Rate, Rule};
use crate::limit::time::Micros;

impl Policies {
    /// A sentence for each quota that never denies.
    pub(super) fn idle_quotas(&self) -> impl Iterator<Item = String> {
        self.by_name.values().flat_map(|policy| {
            idle(&policy.quotas).map(|(idle, other)| {
                format!(
                    "policy `{}`: the quota `{}` ({idle}) never denies, since `{}` ({other}) is full before it. Lower \
                     its limit, or leave it out",
                    policy.name, idle.name, other.name
                )
            })
        })
    }
}

/// The quotas that never deny, each with one that is full before it.
fn idle(quotas: &[Quota]) -> impl Iterator<Item = (&Quota, &Quota)> {
    quotas.iter().filter_map(|quota| {
        let is_before = |other: &&Quota| most_counted(other, quota).is_some_and(|most| most <= quota.limit.get());
        let other = quotas.iter().filter(|other| other.name != quota.name).find(is_before)?;
        Some((quota, other))
    })
}

/// The most units that `quota` counts at a time if only `other` denies. None if there is no bound.
fn most_counted(other: &Quota, quota: &Quota) -> Option<u64> {
    let windows = match (other.rule, quota.rule) {
        (Rule::TokenBucket(slow), Rule::TokenBucket(fast)) => {
            return is_slower(slow, fast).then_some(other.limit.get());
        }
        (Rule::TokenBucket(_), _) | (_, Rule::TokenBucket(_)) => return None,
        // Charges count up to a 64th of the window longer.
        (Rule::SlidingWindow, _) => (quota.window + quota.window / 64).div_ceil(other.window),
        (Rule::SlidingLog(_), _) => quota.window.div_ceil(other.window),
        (Rule::SlidingCounter(ticks), _) => {
            let counted = |window: Micros| ticks.in_window(window) + u64::from(ticks.strict);
            counted(quota.window).div_ceil(counted(other.window).max(1))
        }
        // Windows from the epoch lie in each other.
        (Rule::FixedWindow(Anchor::Clock), Rule::FixedWindow(Anchor::Clock))
            if other.window.is_multiple_of(quota.window) || quota.window.is_multiple_of(other.window) =>
        {
            quota.window.div_ceil(other.window)
        }
        // Days, months and years may be longer than their nominal length.
        (Rule::FixedWindow(_), Rule::FixedWindow(Anchor::Calendar(_))) => {
            (quota.window + quota.window / 16).div_ceil(other.window) + 1
        }
        // One of them may begin within the other.
        (Rule::FixedWindow(_), _) => quota.window.div_ceil(other.window) + 1,
    };
    other.limit.get().checked_mul(windows)
}

/// Whether a bucket of `slow` never refills faster than one of `fast`.
fn is_slower(slow: Rate, fast: Rate) -> bool {
    let crossed = |one: Rate, other: Rate| u128::from(one.units.get()) * u128::from(other.per);
    crossed(slow, fast) <= crossed(fast, slow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, Source, load};

    /// The idle quotas of a policy, by name.
    fn idle_of(policy: &str) -> Vec<String> {
        let text = format!("policies: {{p: {{{policy}}}}}");
        let source = Source { origin: "my.yaml".into(), text, file: None };
        let policies = load(&source, &Overrides::default(), 7).unwrap().policies;
        idle(&policies.by_name["p"].quotas).map(|(quota, _)| quota.name.clone()).collect()
    }

    #[test]
    fn quotas_that_another_one_covers_are_idle() {
        for (policy, names) in [
            ("quotas: [100 per 1s, 100 per 1m]", vec!["1s"]),
            ("quotas: [200 per 1s, 100 per 1m]", vec!["1s"]),
            ("quotas: [99 per 1s, 100 per 1m]", vec![]),
            // The 64th of a minute is part of a 61st second.
            ("quotas: [10 per 1s, 600 per 1m]", vec![]),
            ("quotas: [10 per 1s, 610 per 1m]", vec!["1m"]),
            ("algorithm: sliding-log, quotas: [10 per 1s, 600 per 1m]", vec!["1m"]),
            ("algorithm: sliding-counter, quotas: [10 per 1s, 600 per 1m]", vec!["1m"]),
            ("algorithm: sliding-counter, strict: true, quotas: [10 per 1s, 300 per 1m]", vec![]),
            ("algorithm: fixed-window, quotas: [10 per 1s, 600 per 1m]", vec!["1m"]),
            ("algorithm: fixed-window, anchor: first-hit, quotas: [10 per 1s, 600 per 1m]", vec![]),
            ("algorithm: fixed-window, anchor: first-hit, quotas: [10 per 1s, 610 per 1m]", vec!["1m"]),
            ("algorithm: fixed-window, timezone: Europe/Berlin, quotas: [10 per 1h, 260 per 1d]", vec![]),
            ("algorithm: fixed-window, timezone: Europe/Berlin, quotas: [10 per 1h, 270 per 1d]", vec!["1d"]),
            (
                "algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 5}, {rate: 90 per 1m, burst: 9}]",
                vec!["1m"],
            ),
            ("algorithm: token-bucket, quotas: [{rate: 1 per 1s, burst: 9}, {rate: 90 per 1m, burst: 5}]", vec![]),
        ] {
            assert_eq!(idle_of(policy), names, "{policy}");
        }
    }
}
