//! The settings of sliding counters: `tick`, `shared` and `strict`.

use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rule};
use crate::limit::ticks::{MAX_TICKS, Ticks};
use crate::limit::time::{Micros, micros, span_text};

use super::Policies;
use super::node::Member;
use super::section::Section;
use super::settings::policy::{SHARED, STRICT, TICK};

/// The ticks of a policy; none after a fault. Only sliding counters have these settings.
pub(super) fn ticks(section: &Section<'_>, algorithm: Option<Algorithm>) -> Option<Ticks> {
    if algorithm.is_some_and(|algorithm| algorithm != Algorithm::SlidingCounter) {
        for name in [TICK.name, SHARED.name, STRICT.name] {
            if let Some(node) = section.member(name) {
                node.note(format!("`{name}` is for sliding counters: add `algorithm: sliding-counter`"));
            }
        }
    }
    let (tick, shared, strict) = (section.checked(&TICK), section.checked(&SHARED), section.checked(&STRICT));
    Some(Ticks::new(micros(tick?), strict?, shared?))
}

/// # Errors
/// The fault of a window that is no whole number of ticks, or has too many.
pub(super) fn check_parts(rule: Rule, window: Micros) -> Result<(), String> {
    let Rule::SlidingCounter(ticks) = rule else { return Ok(()) };
    let (tick, [shown, span]) = (ticks.length(), [ticks.length(), window].map(span_text));
    if !window.is_multiple_of(tick) {
        return Err(format!("the window `{span}` must be a whole number of ticks of {shown}"));
    }
    match ticks.in_window(window) <= MAX_TICKS {
        true => Ok(()),
        false => Err(format!(
            "the window `{span}` has more than {MAX_TICKS} ticks of {shown}: write a longer `tick`, up to 1h"
        )),
    }
}

/// The quotas of one policy, each with the longest window of all, which decides what is refunded.
pub(super) fn with_longest(mut quotas: Vec<Quota>) -> Vec<Quota> {
    let longest = quotas.iter().map(|quota| quota.window).max().unwrap_or_default();
    for quota in &mut quotas {
        if let Rule::SlidingCounter(ticks) = &mut quota.rule {
            *ticks = ticks.with_longest(longest);
        }
    }
    quotas
}

/// The policies, in which shared counters live for the longest window that counts them. Notes
/// shared policies of different ticks.
pub(super) fn with_shared_life(members: &[Member], policies: Vec<Policy>) -> Vec<Policy> {
    let shared = || policies.iter().filter_map(|policy| policy.shared_ticks().map(|ticks| (policy, ticks)));
    let Some((first, ticks)) = shared().next() else { return policies };
    for (policy, other) in shared().filter(|(_, other)| other.length() != ticks.length()) {
        let [one, two] = [ticks, other].map(|ticks| span_text(ticks.length()));
        let sentence = format!(
            "all `shared` policies have the same `tick`: `{}` has {one}, and `{}` has {two}",
            first.name, policy.name
        );
        members.iter().filter(|member| member.key == policy.name).for_each(|member| member.note(&*sentence));
    }
    let life = shared().map(|(policy, _)| longest_life(policy)).max().unwrap_or_default();
    let with_shared = |policy: Policy| match policy.shared_ticks() {
        Some(_) => with_life(policy, life),
        None => policy,
    };
    policies.into_iter().map(with_shared).collect()
}

/// The longest window, in ticks, by which this policy or one of its overrides counts a key. A check
/// may bring quotas of any window.
fn longest_life(policy: &Policy) -> u64 {
    if policy.options.inline {
        return MAX_TICKS;
    }
    policy.with_its_overrides().filter_map(Policy::ticks).map(Ticks::longest).max().unwrap_or_default()
}

fn with_life(mut policy: Policy, life: u64) -> Policy {
    for quota in &mut policy.quotas {
        if let Rule::SlidingCounter(ticks) = &mut quota.rule {
            *ticks = ticks.with_life(life);
        }
    }
    policy.with_overrides(|special| with_life(special, life))
}

impl Policies {
    /// Advice on policies that are valid, but may not count as their author expects. `may_check`
    /// returns whether a check may name this policy and plan.
    pub fn warnings(&self, may_check: impl Fn(&str, &str) -> bool) -> impl Iterator<Item = String> {
        let single_ticks = self.by_name.values().flat_map(|policy| {
            let fixed = |quota: &&Quota| {
                quota.ticks().is_some_and(|ticks| !ticks.strict && ticks.in_window(quota.window) == 1)
            };
            policy.quotas.iter().filter(fixed).map(|quota| {
                format!(
                    "policy `{}`: the quota `{}` has a window of one tick, which is a fixed window. Write a shorter `tick`, \
                     or `strict: true`",
                    policy.name, quota.name
                )
            })
        });
        single_ticks
            .chain(self.long_leases())
            .chain(self.idle_quotas())
            .chain(self.apart_plans(may_check))
            .chain(self.placeless_plans())
    }
}
