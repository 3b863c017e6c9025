//! The version of a set of policies: a hash of their meaning, not of their spelling.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::lists::Line;
use crate::limit::log::max_entries;
use crate::limit::matches::Matches;
use crate::limit::policy::{Durability, Options, Policy};
use crate::limit::quota::{Anchor, Quota, Rate, Rule};

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
    let Policy { name, algorithm, quotas, key_type, on_store_failure, timeout, options } = policy;
    let keys = match key_type {
        KeyType::Text => "text".to_owned(),
        KeyType::Ip { ipv6_prefix } => format!("ip/{ipv6_prefix}"),
    };
    let mut line = format!("{name} {} {keys} {}", algorithm.name(), on_store_failure.name());
    line.extend(quotas.iter().map(quota));
    if policy.keeps_metas() {
        line.extend(quotas.first().map(|quota| format!(" up to {}", max_entries(quota))));
    }
    line + &format!(" {}us{}\n", timeout.as_micros(), optional_settings(options))
}

/// The optional settings; empty without any. The line and the order of list entries do not matter.
fn optional_settings(options: &Options) -> String {
    // A zone is written only if a quota depends on it, and that quota includes it.
    let Options { durability, shadow, inline, zone: _, lists, candidate, lease, counters: _ } = options;
    let replica = *durability == Durability::Replica;
    let set = [(replica, " replica"), (*shadow, " shadow"), (*inline, " inline")];
    let mut text: String = set.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if let Some(candidate) = candidate {
        text += " candidate";
        text.extend(candidate.quotas.iter().map(quota));
    }
    if let Some(lease) = lease {
        text += &format!(" lease {}/{}", lease.span, lease.nodes);
    }
    let Some(lists) = lists else { return text };
    let listed = |name, list: &Matches<Line>| entries(list.iter().map(|(pattern, _)| format!(" {name} {pattern:?}")));
    text += &listed("deny", &lists.deny);
    text += &listed("allow", &lists.allow);
    text += &entries(lists.overrides.iter().map(|(pattern, (policy, _))| {
        let quotas: String = policy.quotas.iter().map(quota).collect();
        format!(" override {pattern:?}{quotas}")
    }));
    text
}

fn entries(entries: impl Iterator<Item = String>) -> String {
    let mut entries: Vec<String> = entries.collect();
    entries.sort();
    entries.concat()
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
