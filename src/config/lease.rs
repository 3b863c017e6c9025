//! `lease`: how the nodes buy units of a policy and spend them locally.

use std::num::NonZeroU64;

use super::node::{Member, Node};
use super::section::Section;
use super::settings::lease::{CALLERS, NODES, SHAPE, SPAN};
use super::settings::policy::LEASE;
use super::{Config, Policies, StoreConfig};
use crate::limit::lease::{AUTO, LEAST, Lease, MAX_CALLERS, MOST, SHARES};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{MAX_WINDOW, Quota, Rule};
use crate::limit::ticks::STEP_BACK;
use crate::limit::time::{MICROS_PER_MILLI, Micros, span_text};
use crate::limit::window::STEPS;

/// A lease as written: its member, the span without `auto`, the nodes, and the callers.
pub(super) struct LeaseSpec<'a> {
    member: &'a Member,
    span: Option<Micros>,
    nodes: NonZeroU64,
    callers: Option<NonZeroU64>,
}

/// Reads the member of a policy. `nodes` is the default. None without one, or after a fault.
pub(super) fn spec<'a>(policy: &Section<'a>, nodes: NonZeroU64) -> Option<LeaseSpec<'a>> {
    let member = policy.entry(LEASE.name)?;
    let section = member.node.section(&SHAPE);
    let span = |node: &Node| match node.text("`auto`, or a duration such as `500ms`")? {
        "auto" => None,
        text => node.span(text, &(MICROS_PER_MILLI..=MAX_WINDOW / MOST)),
    };
    let read = || {
        let callers = section.member(CALLERS.name).and_then(|node| node.integer(1..=MAX_CALLERS));
        (section.member(SPAN.name).and_then(span), section.read_or(&NODES, nodes.get()), callers)
    };
    let (span, nodes, callers) = member.node.reading.checked(read)?;
    Some(LeaseSpec { member, span, nodes: NonZeroU64::new(nodes)?, callers: callers.and_then(NonZeroU64::new) })
}

impl LeaseSpec<'_> {
    /// Adds the lease to a policy and its overrides. Notes everything that does not go with one.
    pub(super) fn added_to(self, policy: Policy) -> Policy {
        let (shortest, ticks) = (shortest_window(&policy), policy.ticks());
        // A new primary whose clock is behind still counts the charges ahead.
        let ahead = ticks.map_or(MAX_WINDOW, |ticks| ticks.ahead() * ticks.length() - STEP_BACK);
        let longest = whole_millis((shortest / MOST).min(ahead));
        let span = self.span.unwrap_or_else(|| whole_millis(shortest / AUTO).min(ahead).max(MICROS_PER_MILLI));
        let refuse = |sentence: &str| self.member.note(sentence);
        if longest == 0 {
            let other = if ticks.is_some() { "another `tick`" } else { "a larger `burst`" };
            refuse(&format!("no `span` is short enough for this policy: write {other}, or leave `lease` out"));
        } else if span > longest {
            let why = if longest == ahead {
                "since a sliding counter counts only so far ahead"
            } else {
                "an eighth of the shortest window"
            };
            let [span, longest] = [span, longest].map(span_text);
            refuse(&format!("a `span` of {span} is too long: write at most {longest}, {why}"));
        }
        if policy.options.inline {
            refuse("`lease` does not go with `inline`, since such checks have their own quotas: leave one of them out");
        }
        if ticks.is_some_and(|ticks| ticks.shared) {
            refuse("`lease` does not go with `shared`, since other programs do not count ahead: leave one of them out");
        }
        self.leased(policy, Lease { span, nodes: self.nodes, callers: self.callers })
    }

    /// The same policy and overrides with this lease.
    fn leased(&self, mut policy: Policy, lease: Lease) -> Policy {
        let buckets = policy.quotas.iter_mut().filter(|_| policy.algorithm == Algorithm::TokenBucket);
        for quota in buckets {
            match with_less_burst(quota, lease.span) {
                Some(less) => *quota = less,
                None => self.member.note(format!(
                    "a `span` of {} leaves nothing of the burst of the quota `{}`: write a larger `burst`, or a \
                     shorter `span`",
                    span_text(lease.span),
                    quota.name
                )),
            }
        }
        policy.options.lease = Some(lease);
        policy.with_overrides(|special| self.leased(special, lease))
    }
}

/// Quotas that replace those of a policy for some keys, and the lease that they may keep. Quotas
/// for which its span is too long have none: the store decides each check.
pub(super) fn instead(policy: &Policy, quotas: Vec<Quota>) -> (Vec<Quota>, Option<Lease>) {
    let Some(lease) = policy.options.lease else { return (quotas, None) };
    let leased: Option<Vec<Quota>> = match policy.algorithm {
        Algorithm::TokenBucket => quotas.iter().map(|quota| with_less_burst(quota, lease.span)).collect(),
        _ => Some(quotas.clone()),
    };
    let fits = |quotas: &Vec<Quota>| quotas.iter().all(|quota| lease.span <= quota.window / MOST);
    match leased.filter(fits) {
        Some(leased) => (leased, Some(lease)),
        None => (quotas, None),
    }
}

/// A token bucket without the units that refill in a span, which its nodes may hold. None if
/// nothing is left.
fn with_less_burst(quota: &Quota, span: Micros) -> Option<Quota> {
    let Rule::TokenBucket(rate) = quota.rule else { return None };
    let refill = (u128::from(rate.units.get()) * u128::from(span)).div_ceil(u128::from(rate.per));
    let burst = NonZeroU64::new(quota.limit.get().checked_sub(u64::try_from(refill).ok()?)?)?;
    Quota::bucket(quota.name.clone(), rate, burst)
}

/// The shortest window of a policy and its overrides, us.
fn shortest_window(policy: &Policy) -> Micros {
    let quotas = policy.with_its_overrides().flat_map(|policy| &policy.quotas);
    quotas.map(|quota| quota.window).min().unwrap_or(MAX_WINDOW)
}

/// The span in a form that a file can have, us.
fn whole_millis(span: Micros) -> Micros {
    span - span % MICROS_PER_MILLI
}

impl Config {
    /// Advice on leases that nothing sells.
    pub fn idle_leases(&self) -> impl Iterator<Item = String> {
        let is_embedded = matches!(self.store, StoreConfig::Embedded);
        self.policies.by_name.values().filter_map(move |policy| {
            let (Lease { nodes, callers, .. }, name) = (policy.options.lease?, &policy.name);
            if is_embedded && callers.is_none() {
                return Some(format!(
                    "policy `{name}`: the embedded store sells no leases to nodes, and charges count longer all the \
                     same. Leave `lease` out, configure `store.redis`, or write `callers`"
                ));
            }
            let limit = policy.quotas.iter().map(|quota| quota.limit.get()).min()?;
            // The fewest units that a buyer gets. A node buys beside a check of cost 1.
            let least = |buyers: NonZeroU64| LEAST.saturating_mul(SHARES).saturating_mul(buyers.get());
            let of_callers = callers.map(|callers| ("callers", callers, least(callers)));
            let of_nodes = (!is_embedded).then(|| ("nodes", nodes, 1 + least(nodes)));
            let (buyers, number, least) = of_callers.into_iter().chain(of_nodes).find(|(.., least)| limit < *least)?;
            Some(format!(
                "policy `{name}`: its limit of {limit} is too low to sell a lease. With `{buyers}: {number}` it must be \
                 at least {least}"
            ))
        })
    }
}

impl Policies {
    /// Advice on leases that leave much of a limit unused.
    pub(super) fn long_leases(&self) -> impl Iterator<Item = String> {
        self.by_name.values().filter_map(|policy| {
            let (span, shortest) = (policy.options.lease?.span, shortest_window(policy));
            // A charge counts for so long. A bucket's window without its lease was longer.
            let (window, counted) = match policy.algorithm {
                Algorithm::FixedWindow => return None,
                Algorithm::TokenBucket => (shortest + span, shortest + span),
                Algorithm::SlidingWindow => (shortest, shortest + shortest / STEPS + span),
                Algorithm::SlidingLog | Algorithm::SlidingCounter => (shortest, shortest + span),
            };
            let advised = whole_millis(window / AUTO).max(MICROS_PER_MILLI);
            // The window of a bucket is a rounded figure.
            (span > advised + MICROS_PER_MILLI).then(|| {
                format!(
                    "policy `{}`: a `lease` with a `span` of {} leaves {} % of the limit usable. Write at most {}, a 64th \
                     of the shortest window",
                    policy.name,
                    span_text(span),
                    100 * shortest / counted,
                    span_text(advised)
                )
            })
        })
    }
}
