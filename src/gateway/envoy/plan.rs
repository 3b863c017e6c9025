//! Finds the rule of each descriptor of a request, and turns it into a check.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use prost_types::Struct;

use super::find::{Entry, Found};
use super::key::{counter_key, id, policy_key};
use super::messages::{CurrentLimit, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use crate::config::Policies;
use crate::config::envoy::{Counting, EnvoyRules, Level, Limit, Rule, RuleKind, Unit, ZERO, of_requests};
use crate::engine::{Check, Door, Over, OwnQuotas, QuotaSpec};
use crate::limit::quota::MAX_UNITS;

/// The descriptors of a request with their rules, in order.
#[derive(Debug)]
pub(super) struct Plan(pub(super) Vec<Planned>);

/// The rule of a descriptor.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most descriptors are counted, so a box would only cost more")]
pub(super) enum Planned {
    /// No rule applies.
    Open,
    Unlimited,
    Counted(Counted),
}

/// The keys of a descriptor's entries that speak to the policy. They are no part of rules and keys.
/// They name a plan and the id of the check, and mark the end of the stream.
const PLAN: &str = "tollgate.plan";
const ID: &str = "tollgate.id";
const SETTLE: &str = "tollgate.settle";

/// The values of these entries.
#[derive(Debug, Default)]
struct Own<'a> {
    plan: Option<&'a str>,
    id: Option<&'a str>,
    settles: bool,
}

impl Planned {
    fn under(self, rule: &Rule) -> Self {
        match self {
            Self::Counted(counted) => {
                let (metadata, labels) = (rule.metadata.clone(), Some(rule.labels.clone()));
                Self::Counted(Counted { is_quota: rule.is_quota, metadata, labels, ..counted })
            }
            other => other,
        }
    }
}

/// A descriptor that the engine counts.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) check: Check,
    pub(super) action: Action,
    /// The limit as written; none under a policy of the configuration.
    pub(super) limit: Option<CurrentLimit>,
    /// Whether it denies the request only together with all others of its kind.
    pub(super) is_quota: bool,
    pub(super) metadata: Option<Arc<Struct>>,
    /// The labels of its rule in the metrics of the reference; none if the request brings the limit.
    pub(super) labels: Option<Arc<[String]>>,
}

/// How a descriptor is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// With the others of the request.
    Charge,
    /// For itself: a descriptor with its own hits may come from the end of a stream.
    ChargeAlone,
    /// Its own hits are 0.
    Look,
    /// By the id, if there is one.
    Refund,
    /// Ends the hold of the id, which has cost its own hits, or else its charge.
    Settle(Option<u64>),
}

impl Plan {
    /// # Errors
    /// The reason why the request is invalid.
    pub(super) fn new(
        rules: &EnvoyRules,
        policies: &Policies,
        request: &RateLimitRequest,
        within: Duration,
    ) -> Result<Self, String> {
        if request.domain.is_empty() {
            return Err("`domain` is empty: name a domain of the configuration".to_owned());
        }
        if request.descriptors.is_empty() {
            return Err("`descriptors` is empty: send at least one descriptor".to_owned());
        }
        // A limit of the request needs a known domain as well.
        let Some(level) = rules.domains.get(&request.domain) else {
            return Ok(Self(request.descriptors.iter().map(|_| Planned::Open).collect()));
        };
        let drains = rules.counting == Counting::Independent;
        let planner = Planner { request, level, policies, within, drains };
        let mut found = Vec::with_capacity(request.descriptors.len());
        for (place, descriptor) in request.descriptors.iter().enumerate() {
            found.push(planner.planned(descriptor).map_err(|fault| format!("descriptor {place}: {fault}"))?);
        }
        let mut plan = Self(without_replaced(found));
        plan.share_time();
        Ok(plan)
    }

    /// Calls that follow each other share the time of one. Looks are one call, or two.
    fn share_time(&mut self) {
        let has = |action| u32::from(self.counted().any(|counted| counted.action == action));
        let looks = has(Action::Look);
        let calls = (looks + has(Action::ChargeAlone) + has(Action::Charge)).max(2 * looks).max(1);
        for planned in &mut self.0 {
            if let Planned::Counted(Counted { check, .. }) = planned {
                check.within = check.within.map(|within| within / calls);
            }
        }
    }

    /// The counted descriptors, in order.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Counted> {
        self.0.iter().filter_map(|planned| match planned {
            Planned::Counted(counted) => Some(counted),
            Planned::Open | Planned::Unlimited => None,
        })
    }
}

/// Opens the descriptors whose rules another rule of the request replaces.
fn without_replaced(found: Vec<(Planned, Option<&Rule>)>) -> Vec<Planned> {
    let rules = found.iter().filter_map(|(_, rule)| *rule);
    let replaced: HashSet<&str> = rules.flat_map(|rule| rule.replaces.iter().map(String::as_str)).collect();
    let is_replaced = |rule: Option<&Rule>| rule.is_some_and(|rule| replaced.contains(rule.name.as_str()));
    found
        .into_iter()
        .map(|(planned, rule)| match planned {
            Planned::Counted(_) if is_replaced(rule) => Planned::Open,
            planned => planned,
        })
        .collect()
}

struct Planner<'a> {
    request: &'a RateLimitRequest,
    level: &'a Level,
    policies: &'a Policies,
    within: Duration,
    /// Whether each descriptor is charged for itself, up to its limit.
    drains: bool,
}

impl<'a> Planner<'a> {
    fn planned(&self, descriptor: &RateLimitDescriptor) -> Result<(Planned, Option<&'a Rule>), String> {
        let (mut own, mut entries) = (Own::default(), Vec::with_capacity(descriptor.entries.len()));
        for entry in &descriptor.entries {
            match (entry.key.as_str(), entry.value.as_str()) {
                (PLAN, plan) => own.plan = own.plan.or(Some(plan)),
                (ID, id) => own.id = own.id.or(Some(id)),
                (SETTLE, _) => own.settles = true,
                entry => entries.push(entry),
            }
        }
        if let Some(limit) = descriptor.limit {
            return Ok((self.of_request(descriptor, &entries, limit)?, None));
        }
        let Some(found) = self.level.find(&entries) else { return Ok((Planned::Open, None)) };
        let planned = match &found.rule.kind {
            RuleKind::Unlimited => Planned::Unlimited,
            RuleKind::Limit(limit) => self.limit(descriptor, &entries, &found, limit),
            RuleKind::Policy(policy) => Planned::Counted(self.by_policy(descriptor, &entries, policy, &own)?),
        };
        Ok((planned.under(found.rule), Some(found.rule)))
    }

    /// # Errors
    /// The policy has a hold, and the descriptor no id, or the other way round.
    fn by_policy(
        &self,
        descriptor: &RateLimitDescriptor,
        entries: &[Entry<'_>],
        policy: &str,
        own: &Own<'_>,
    ) -> Result<Counted, String> {
        let mut counted = self.counted(descriptor, policy.to_owned(), policy_key(entries), None, None);
        counted.check.plan = own.plan.map(Into::into);
        let has_hold = self.policies.by_name.get(policy).is_some_and(|policy| policy.options.hold.is_some());
        if own.settles && !has_hold {
            return Err(format!(
                "`{SETTLE}` ends a hold, and the policy `{policy}` has no `hold`: leave the entry out"
            ));
        }
        match (counted.action, own.id.filter(|id| !id.is_empty())) {
            (Action::Look, _) if !own.settles => {}
            (_, None) if has_hold => {
                return Err(format!(
                    "the policy `{policy}` has a `hold`: add an entry `{ID}` with the id of the request, such as the \
                     header `x-request-id`"
                ));
            }
            (_, None) => {}
            (action, Some(name)) => {
                counted.action = match action {
                    Action::Refund => action,
                    _ if own.settles => Action::Settle(descriptor.hits_addend.map(|_| counted.check.cost)),
                    Action::ChargeAlone if has_hold => Action::Charge,
                    _ => action,
                };
                counted.check.id = Some(id(name).into());
                // A drain opens no hold.
                if has_hold {
                    counted.check.over = Over::Deny;
                }
            }
        }
        Ok(counted)
    }

    fn limit(
        &self,
        descriptor: &RateLimitDescriptor,
        entries: &[Entry<'_>],
        found: &Found<'_>,
        limit: &Limit,
    ) -> Planned {
        let shown = CurrentLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.into(),
            name: found.rule.name.clone(),
        };
        let key = counter_key(&self.request.domain, entries, Some(found));
        Planned::Counted(self.counted(descriptor, limit.policy.clone(), key, None, Some(shown)))
    }

    /// The limit that the request itself brings.
    fn of_request(
        &self,
        descriptor: &RateLimitDescriptor,
        entries: &[Entry<'_>],
        limit: RateLimitOverride,
    ) -> Result<Planned, String> {
        let RateLimitOverride { requests_per_unit, unit } = limit;
        let unit = Unit::try_from(unit).map_err(|_| "the `unit` of its `limit` is unknown: expected SECOND to YEAR")?;
        let key = counter_key(&self.request.domain, entries, None);
        let shown = CurrentLimit { requests_per_unit, unit: unit.into(), name: String::new() };
        let (policy, quotas) = match requests_per_unit {
            0 => (ZERO.to_owned(), None),
            _ => (of_requests(unit), Some(vec![quota(requests_per_unit, unit)])),
        };
        Ok(Planned::Counted(self.counted(descriptor, policy, key, quotas, Some(shown))))
    }

    fn counted(
        &self,
        descriptor: &RateLimitDescriptor,
        policy: String,
        key: String,
        quotas: Option<Vec<QuotaSpec>>,
        limit: Option<CurrentLimit>,
    ) -> Counted {
        let own = descriptor.hits_addend;
        let action = match own {
            _ if descriptor.is_negative_hits => Action::Refund,
            Some(0) => Action::Look,
            Some(_) => Action::ChargeAlone,
            None => Action::Charge,
        };
        let hits = own.unwrap_or_else(|| u64::from(self.request.hits_addend.max(1)));
        let drains = action == Action::ChargeAlone || self.drains && action == Action::Charge;
        let check = Check {
            over: if drains { Over::Drain } else { Over::Deny },
            quotas: quotas.map(OwnQuotas::Written),
            within: Some(self.within),
            ..Check::new(policy, key, hits.min(MAX_UNITS), Door::Envoy)
        };
        Counted { check, action, limit, is_quota: false, metadata: None, labels: None }
    }
}

/// The quota of a request's limit, named as those of the configuration.
fn quota(requests_per_unit: u32, unit: Unit) -> QuotaSpec {
    let text = |text: &str| QuotaSpec::Text(text.to_owned());
    QuotaSpec::Members(vec![
        ("name".to_owned(), text(unit.name())),
        ("limit".to_owned(), QuotaSpec::Word(requests_per_unit.to_string())),
        ("per".to_owned(), QuotaSpec::Text(format!("{}s", unit.window() / 1_000_000))),
    ])
}
