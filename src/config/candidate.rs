//! `candidate`: quotas that decide in the shadow beside those of a policy.

use std::sync::Arc;

use crate::limit::policy::{Durability, Options, Policy};
use crate::limit::quota::Quota;
use crate::limit::ticks::Ticks;

use super::Policies;
use super::quota::{self, Form};
use super::section::Section;
use super::settings::candidate;
use super::settings::policy::CANDIDATE;

/// The quotas of the candidate; none without one, or after a fault.
pub(super) fn quotas(policy: &Section<'_>, form: Form, ticks: Option<Ticks>) -> Option<Vec<Quota>> {
    let member = policy.entry(CANDIDATE.name)?;
    if ticks.is_some_and(|ticks| ticks.shared) {
        member.note("a `candidate` of shared counters would miss the charges of other programs: leave it out");
    }
    let section = member.node.section(&candidate::SHAPE);
    let missing = "a candidate needs `quotas`, such as `candidate: {quotas: [5 per 1s]}`";
    quota::quotas(section.required(candidate::QUOTAS.name, missing)?, form)
}

/// The candidate of a policy. It counts under a name of its own, which no policy can have. Its
/// charges wait for no replica, and it has no lists: their keys are decided alike.
pub(super) fn build(policy: &Policy, quotas: Vec<Quota>) -> Arc<Policy> {
    let options = Options { zone: policy.options.zone, durability: Durability::Primary, ..Options::default() };
    Arc::new(Policy { name: format!("{}~candidate", policy.name), quotas, options, ..policy.clone() })
}

impl Policies {
    /// Advice on candidates that change nothing.
    pub(super) fn idle_candidates(&self) -> impl Iterator<Item = String> {
        let idle = self.by_name.values().filter(|policy| {
            policy.options.candidate.as_ref().is_some_and(|candidate| candidate.quotas == policy.quotas)
        });
        idle.map(|policy| {
            format!("policy `{}`: the candidate has the quotas of the policy, so it changes nothing", policy.name)
        })
    }
}
