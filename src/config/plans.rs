//! `plans`: named sets of quotas. A check or an override may name one instead of the quotas of its
//! policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Policies;
use super::inline::{self, QuotaFault, QuotaSpec};
use super::node::{Member, Node, Value};
use super::section::Section;
use super::settings::plan;
use super::settings::root::PLANS;
use crate::limit::policy::Policy;
use crate::limit::quota::begin_anew;

/// A plan as written.
struct Plan<'a> {
    member: &'a Member,
    name: String,
    quotas: Vec<QuotaSpec>,
}

/// The policies, each with the plans that it can count: windows are nothing for a token bucket, and
/// a rate is nothing for a window. Notes a plan that no policy can count.
pub(super) fn with_plans(root: &Section<'_>, mut policies: Vec<Policy>) -> Vec<Policy> {
    for plan in root.member(PLANS.name).map(plans).unwrap_or_default() {
        let mut first = None;
        let mut is_counted = false;
        for policy in &mut policies {
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
    policies
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
    let section = member.node.section(&plan::SHAPE);
    let missing = "a plan needs `quotas`, such as `{quotas: [100 per 1m]}`";
    let quotas = section.required(plan::QUOTAS.name, missing)?.list("[100 per 1m]")?;
    Some(Plan { member, name: name?, quotas: quotas.iter().map(spec).collect() })
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
    /// The policy with the quotas of the plan.
    fn of(&self, policy: &Policy) -> Result<Policy, String> {
        let first = |faults: Vec<QuotaFault>| faults.into_iter().map(|fault| fault.message).next().unwrap_or_default();
        let quotas = inline::quotas(policy, &self.quotas).map_err(first)?;
        inline::instead(policy, quotas)
    }
}

/// The plans of a policy as text, for comparisons: `free 1m=100/60000000/sliding`.
pub(super) fn texts(policy: &Policy, quotas: impl Fn(&Policy) -> String) -> Option<String> {
    let plans: &BTreeMap<_, _> = policy.options.plans.as_deref()?;
    let texts: Vec<String> = plans.iter().map(|(name, plan)| format!("{name} {}", quotas(plan).trim())).collect();
    Some(texts.join(", "))
}
