//! `plans`: named limits. A check or an override may name a plan, whose limits then count instead of
//! those of the policy.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::Policies;
use super::inline::{Limits, QuotaFault, QuotaSpec};
use super::node::{Member, Node, Value};
use super::scalar::unknown;
use super::section::Section;
use super::settings::plan::{IN_FLIGHT, POLICIES, QUOTAS, SHAPE};
use super::settings::plan_row;
use super::settings::root::PLANS;
use crate::limit::hold::MAX_PLACES;
use crate::limit::policy::Policy;
use crate::limit::quota::begin_anew;

/// A plan as written.
struct Plan<'a> {
    member: &'a Member,
    name: String,
    /// Under every policy without a row of its own; without them the plan is none of those.
    limits: Option<Limits>,
    /// By the name of the policy.
    rows: BTreeMap<String, (&'a Member, Limits)>,
}

/// Adds to each policy the plans that it can count: windows are nothing for a token bucket, and a
/// rate is nothing for a window. Notes a plan that no policy can count, and a row that its policy
/// cannot. Returns the names of plans whose places no policy counts.
pub(super) fn add_plans(root: &Section<'_>, policies: &mut [Policy]) -> Vec<String> {
    let known: Vec<String> = policies.iter().map(|policy| policy.name.clone()).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let plans = root.member(PLANS.name).map(|node| plans(node, &known)).unwrap_or_default();
    for plan in &plans {
        let mut first = None;
        let mut is_counted = false;
        for policy in &mut *policies {
            let row = plan.rows.get(&policy.name);
            let Some(limits) = row.map(|(_, limits)| limits).or(plan.limits.as_ref()) else { continue };
            let counting = match (row, limits.in_flight) {
                (Some(_), Some(_)) if policy.options.hold.is_none() => Err("`in_flight` needs `hold`".to_owned()),
                (None, Some(_)) if limits.quotas.is_none() && policy.options.hold.is_none() => {
                    Err("`in_flight` alone needs a policy with `hold`".to_owned())
                }
                _ => limits.instead_of(policy).map_err(first_of),
            };
            match (counting, row) {
                (Ok(counting), _) => {
                    let plans = policy.options.plans.get_or_insert_default();
                    Arc::make_mut(plans).insert(plan.name.as_str().into(), Arc::new(counting));
                    is_counted = true;
                }
                (Err(fault), Some((member, _))) => {
                    member.note(format!("the policy `{}` cannot count this: {fault}", policy.name));
                    is_counted = true;
                }
                (Err(fault), None) => first = first.or(Some(fault)),
            }
        }
        if let Some(fault) = first.filter(|_| !is_counted) {
            plan.member.note(format!("no policy can count the plan `{}`: {fault}", plan.name));
        }
    }
    let is_held = policies.iter().any(|policy| policy.options.hold.is_some());
    let has_places = |plan: &Plan<'_>| plan.limits.as_ref().is_some_and(|limits| limits.in_flight.is_some());
    let without_use = plans.into_iter().filter(|plan| has_places(plan) && !is_held);
    without_use.map(|plan| plan.name).collect()
}

/// The names of all plans.
pub(super) fn names(root: &Section<'_>) -> Vec<String> {
    let members = root.member(PLANS.name).and_then(|node| match &node.value {
        Value::Mapping(members) => Some(members),
        _ => None,
    });
    members.into_iter().flatten().map(|member| member.key.clone()).collect()
}

fn plans<'a>(node: &'a Node, known: &[&str]) -> Vec<Plan<'a>> {
    let members = node.mapping("{free: {quotas: [100 per 1m]}}").unwrap_or_default();
    if members.is_empty() && matches!(node.value, Value::Mapping(_)) {
        node.note("`plans` is empty: leave it out");
    }
    members.iter().filter_map(|member| plan(member, known)).collect()
}

fn plan<'a>(member: &'a Member, known: &[&str]) -> Option<Plan<'a>> {
    let name = member.identifier("plan");
    let section = member.node.section(&SHAPE);
    let (limits, rows) = member.node.reading.checked(|| (limits(&section), rows(&section, known)))?;
    let limits = Some(limits).filter(|limits| limits.quotas.is_some() || limits.in_flight.is_some());
    if limits.is_none() && rows.is_empty() {
        section.note_missing("a plan needs `quotas`, `in_flight` or `policies`, such as `{quotas: [100 per 1m]}`");
        return None;
    }
    Some(Plan { member, name: name?, limits, rows })
}

fn limits(section: &Section<'_>) -> Limits {
    let quotas = section.member(QUOTAS.name).and_then(|node| node.list("[100 per 1m]"));
    let quotas = quotas.map(|quotas| quotas.iter().map(spec).collect());
    let in_flight = section.member(IN_FLIGHT.name).and_then(|node| node.integer(1..=MAX_PLACES));
    Limits { quotas, in_flight: in_flight.and_then(NonZeroU64::new) }
}

fn rows<'a>(section: &Section<'a>, known: &[&str]) -> BTreeMap<String, (&'a Member, Limits)> {
    let members = section.member(POLICIES.name).and_then(|node| node.mapping("{export: {quotas: [10 per 1d]}}"));
    let mut rows = BTreeMap::new();
    for member in members.unwrap_or_default() {
        if !known.contains(&member.key.as_str()) {
            member.note(unknown("policy", &member.key, known));
            continue;
        }
        rows.insert(member.key.clone(), (member, limits(&member.node.section(&plan_row::SHAPE))));
    }
    rows
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

    /// Advice on plans with other windows than their policy, if a check may name both.
    pub(super) fn apart_plans(&self, may_check: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let mut advice = Vec::new();
        for policy in self.by_name.values() {
            for (name, plan) in policy.options.plans.iter().flat_map(|plans| plans.iter()) {
                if begin_anew(&policy.quotas, &plan.quotas) && may_check(&policy.name, name) {
                    advice.push(format!(
                        "policy `{}`: the plan `{name}` has a window of its own, whose counts begin anew: a key that \
                         changes its plan may get the sum of both once. If the plan is for other policies, write \
                         `policies: {{{}: {{}}}}` in it",
                        policy.name, policy.name
                    ));
                }
            }
        }
        advice
    }
}

fn first_of(faults: Vec<QuotaFault>) -> String {
    faults.into_iter().map(|fault| fault.message).next().unwrap_or_default()
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
