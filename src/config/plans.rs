//! `plans`: named limits. A check or an override may name a plan, whose limits then count instead of
//! those of the policy.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::Policies;
use super::inline::{self, QuotaFault, QuotaSpec};
use super::node::{Member, Node, Value};
use super::section::Section;
use super::settings::plan::{IN_FLIGHT, QUOTAS, SHAPE};
use super::settings::root::PLANS;
use crate::limit::hold::MAX_PLACES;
use crate::limit::policy::Policy;
use crate::limit::quota::begin_anew;

/// A plan as written.
struct Plan<'a> {
    member: &'a Member,
    name: String,
    /// Without them those of the policy count.
    quotas: Option<Vec<QuotaSpec>>,
    /// The places of a key under a policy with a hold; without them those of the policy count.
    in_flight: Option<NonZeroU64>,
}

/// Adds to each policy the plans that it can count: windows are nothing for a token bucket, and a
/// rate is nothing for a window. Notes a plan that no policy can count. Returns the names of plans
/// whose places no policy counts.
pub(super) fn add_plans(root: &Section<'_>, policies: &mut [Policy]) -> Vec<String> {
    let plans = root.member(PLANS.name).map(plans).unwrap_or_default();
    for plan in &plans {
        let mut first = None;
        let mut is_counted = false;
        for policy in &mut *policies {
            match plan.of(policy) {
                Ok(counting) => {
                    let plans = policy.options.plans.get_or_insert_default();
                    Arc::make_mut(plans).insert(plan.name.as_str().into(), Arc::new(counting));
                    is_counted = true;
                }
                Err(fault) => first = first.or(Some(fault)),
            }
        }
        if let Some(fault) = first.filter(|_| !is_counted) {
            plan.member.note(format!("no policy can count the plan `{}`: {fault}", plan.name));
        }
    }
    let is_held = policies.iter().any(|policy| policy.options.hold.is_some());
    let without_use = plans.into_iter().filter(|plan| plan.in_flight.is_some() && !is_held);
    without_use.map(|plan| plan.name).collect()
}

fn plans(node: &Node) -> Vec<Plan<'_>> {
    let members = node.mapping("{free: {quotas: [100 per 1m]}}").unwrap_or_default();
    if members.is_empty() && matches!(node.value, Value::Mapping(_)) {
        node.note("`plans` is empty: leave it out");
    }
    members.iter().filter_map(plan).collect()
}

fn plan(member: &Member) -> Option<Plan<'_>> {
    let name = member.identifier("plan");
    let section = member.node.section(&SHAPE);
    let read = || {
        let quotas = section.member(QUOTAS.name).and_then(|node| node.list("[100 per 1m]"));
        let quotas = quotas.map(|quotas| quotas.iter().map(spec).collect());
        let in_flight = section.member(IN_FLIGHT.name).and_then(|node| node.integer(1..=MAX_PLACES));
        (quotas, in_flight.and_then(NonZeroU64::new))
    };
    let (quotas, in_flight) = member.node.reading.checked(read)?;
    if quotas.is_none() && in_flight.is_none() {
        section.note_missing("a plan needs `quotas` or `in_flight`, such as `{quotas: [100 per 1m]}`");
        return None;
    }
    Some(Plan { member, name: name?, quotas, in_flight })
}

fn spec(node: &Node) -> QuotaSpec {
    match &node.value {
        Value::Empty | Value::Refused => QuotaSpec::Nothing,
        Value::Text { text, quoted: false } => QuotaSpec::Word(text.clone()),
        Value::Text { text, quoted: true } => QuotaSpec::Text(text.clone()),
        Value::List(_) => QuotaSpec::List,
        Value::Mapping(members) => {
            QuotaSpec::Members(members.iter().map(|member| (member.key.clone(), spec(&member.node))).collect())
        }
    }
}

impl Policies {
    /// Advice on plans whose places no policy counts.
    pub(super) fn placeless_plans(&self) -> impl Iterator<Item = String> {
        self.placeless_plans.iter().map(|name| {
            format!("the plan `{name}` has `in_flight`, which only a policy with `hold` counts: no policy has one")
        })
    }

    /// Advice on plans with other windows than their policy.
    pub(super) fn apart_plans(&self) -> impl Iterator<Item = String> {
        self.by_name.values().flat_map(|policy| {
            let plans = policy.options.plans.iter().flat_map(|plans| plans.iter());
            let apart = plans.filter(|(_, plan)| begin_anew(&policy.quotas, &plan.quotas));
            apart.map(|(name, _)| {
                format!(
                    "policy `{}`: the plan `{name}` has a window of its own, whose counts begin anew: a key that changes \
                     its plan may get the sum of both once",
                    policy.name
                )
            })
        })
    }
}

impl Plan<'_> {
    /// The policy with the limits of the plan.
    fn of(&self, policy: &Policy) -> Result<Policy, String> {
        let first = |faults: Vec<QuotaFault>| faults.into_iter().map(|fault| fault.message).next().unwrap_or_default();
        let quotas = match &self.quotas {
            Some(written) => inline::quotas(policy, written).map_err(first)?,
            None if policy.options.hold.is_none() => {
                return Err("`in_flight` alone needs a policy with `hold`".to_owned());
            }
            None => policy.quotas.clone(),
        };
        let mut planned = inline::instead(policy, quotas)?;
        if let Some(hold) = &mut planned.options.hold {
            hold.in_flight = self.in_flight.or(hold.in_flight);
        }
        Ok(planned)
    }
}

/// The plans of a policy as text, for comparisons: `free 1m=100/60000000/sliding, in_flight 20`.
pub(super) fn texts(policy: &Policy, quotas: impl Fn(&Policy) -> String) -> Option<String> {
    let plans: &BTreeMap<_, _> = policy.options.plans.as_deref()?;
    let texts = plans.iter().map(|(name, plan)| {
        let places = plan.places().map_or_else(String::new, |places| format!(", in_flight {places}"));
        format!("{name} {}{places}", quotas(plan).trim())
    });
    Some(texts.collect::<Vec<_>>().join(", "))
}
