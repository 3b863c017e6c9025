//! The version of a set of policies: a hash of their meaning, not of their spelling.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::plans;
use crate::limit::hold::Hold;
use crate::limit::key::KeyType;
use crate::limit::lease::Lease;
use crate::limit::log::max_entries;
use crate::limit::matches::Matches;
use crate::limit::policy::Policy;
use crate::limit::quota::{Anchor, Quota, Rate, Rule};
use crate::limit::time::span_text;

/// 16 hexadecimal digits, equal for policies that decide alike.
///
/// Comments, spelling and the order of policies do not matter. The order of quotas does, since
/// answers list them so.
pub(super) fn version(policies: &BTreeMap<String, Arc<Policy>>) -> String {
    let text: String = policies.values().map(|policy| canonical(policy)).collect();
    blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect()
}

/// One line for each policy. Names hold neither spaces nor line ends, so no two policies produce
/// the same text.
fn canonical(policy: &Policy) -> String {
    let quotas = |policy: &Policy| policy.quotas.iter().map(quota).collect::<String>();
    let scalars = scalars(policy, quotas).into_iter().filter_map(|(name, text)| Some(format!(" {name}={}", text?)));
    let lists = lists(policy, quotas).map(|(name, entries)| format!(" {name}={entries:?}"));
    format!("{}{}{}\n", policy.name, scalars.collect::<String>(), lists.concat())
}

/// Each setting of a policy that is not a list, by the name in the configuration; none if it does
/// not apply. `quotas` writes the quotas of a policy.
pub fn scalars(policy: &Policy, quotas: impl Fn(&Policy) -> String) -> [(&'static str, Option<String>); 17] {
    let first = policy.quotas.first();
    let ticks = policy.ticks();
    let anchors = || policy.quotas.iter().filter_map(Quota::anchor);
    let options = &policy.options;
    let key = match policy.key_type {
        KeyType::Text => "text".to_owned(),
        KeyType::Ip { ipv6_prefix } => format!("ip, ipv6_prefix {ipv6_prefix}"),
    };
    let lease = |Lease { span, nodes, callers }: Lease| {
        let callers = callers.map(|callers| format!(", callers {callers}")).unwrap_or_default();
        format!("span {}, nodes {nodes}{callers}", span_text(span))
    };
    let hold = |Hold { ttl, in_flight, on_expiry }: Hold| {
        let places = in_flight.map_or_else(|| "any".to_owned(), |places| places.to_string());
        format!("ttl {}, in_flight {places}, on_expiry {}", span_text(ttl), on_expiry.name())
    };
    let flag = |is: bool| Some(is.to_string());
    let word = |word: &str| Some(word.to_owned());
    let or_none = |text: Option<String>| Some(text.unwrap_or_else(|| "none".to_owned()));
    [
        ("algorithm", word(policy.algorithm.name())),
        ("quotas", Some(quotas(policy))),
        ("anchor", anchors().next().map(Anchor::name).and_then(word)),
        ("timezone", options.zone.and_then(word)),
        ("max_entries", first.filter(|_| policy.keeps_metas()).map(|quota| max_entries(quota).to_string())),
        ("tick", ticks.map(|ticks| span_text(ticks.length()))),
        ("shared", ticks.and_then(|ticks| flag(ticks.shared))),
        ("strict", ticks.and_then(|ticks| flag(ticks.strict))),
        ("key", Some(key)),
        ("on_store_failure", word(policy.on_store_failure.name())),
        ("timeout", Some(format!("{:?}", policy.timeout))),
        ("shadow", flag(options.shadow)),
        ("inline", flag(options.inline)),
        ("durability", word(options.durability.name())),
        ("lease", or_none(options.lease.map(lease))),
        ("hold", or_none(options.hold.map(hold))),
        ("plans", plans::texts(policy, &quotas)),
    ]
}

/// The entries of each list of a policy. The quotas of an override belong to its entry.
pub fn lists(policy: &Policy, quotas: impl Fn(&Policy) -> String) -> [(&'static str, BTreeSet<String>); 3] {
    let lists = policy.options.lists.as_deref();
    [
        ("deny", entries(lists.map(|lists| &lists.deny), |_| String::new())),
        ("allow", entries(lists.map(|lists| &lists.allow), |_| String::new())),
        ("overrides", entries(lists.map(|lists| &lists.overrides), |(policy, _)| quotas(policy))),
    ]
}

fn entries<T>(list: Option<&Matches<T>>, text: impl Fn(&T) -> String) -> BTreeSet<String> {
    let entries = list.into_iter().flat_map(Matches::iter);
    entries.map(|(pattern, value)| format!("{pattern:?} {}", text(value))).collect()
}

/// With a leading blank.
pub(super) fn quota(quota: &Quota) -> String {
    format!(" {}={}", quota.name, terms(quota))
}

/// The counted terms of a quota, without its name. Contains no blank.
pub(super) fn terms(quota: &Quota) -> String {
    format!("{}/{}/{}", quota.limit, quota.window, rule(quota.rule))
}

/// Contains no blank.
fn rule(rule: Rule) -> String {
    match rule {
        Rule::SlidingWindow => "sliding".into(),
        Rule::FixedWindow(Anchor::Clock) => "clock".into(),
        Rule::FixedWindow(Anchor::FirstHit) => "first-hit".into(),
        Rule::FixedWindow(Anchor::Calendar(calendar)) => calendar.to_string(),
        Rule::TokenBucket(Rate { units, per }) => format!("{units}/{per}"),
        // The bound of a log does not change its counts.
        Rule::SlidingLog(_) => "log".into(),
        Rule::SlidingCounter(ticks) => {
            let flags = [(ticks.strict, "strict"), (ticks.shared, "shared")];
            let flags = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name);
            format!("ticks-of-{}{}", ticks.length(), flags.map(|name| format!("-{name}")).collect::<String>())
        }
    }
}
