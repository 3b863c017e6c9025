//! The version of a set of policies: a hash of what they say, not of how it was written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::limit::key::KeyType;
use crate::limit::policy::{Durability, Policy};
use crate::limit::quota::{Anchor, Rate, Rule};

/// 16 hexadecimal digits, equal for policies that decide alike.
///
/// Comments, spelling and the order of policies do not matter; the order of quotas does, since answers list them so.
pub(super) fn version(policies: &BTreeMap<String, Arc<Policy>>) -> String {
    let text: String = policies.values().map(|policy| canonical(policy)).collect();
    blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect()
}

/// One line a policy. Names hold neither spaces nor line ends, so no two policies read the same.
fn canonical(policy: &Policy) -> String {
    let Policy { name, algorithm, quotas, key_type, on_store_failure, durability, timeout } = policy;
    let keys = match key_type {
        KeyType::Text => "text".to_owned(),
        KeyType::Ip { ipv6_prefix } => format!("ip/{ipv6_prefix}"),
    };
    let mut line = format!("{name} {} {keys} {}", algorithm.name(), on_store_failure.name());
    if *durability == Durability::Replica {
        line += " replica";
    }
    for quota in quotas {
        // Writing to a String cannot fail.
        let _ = write!(line, " {}={}/{}/{}", quota.name, quota.limit, quota.window, rule(quota.rule));
    }
    line + &format!(" {}us\n", timeout.as_micros())
}

/// Without a blank.
fn rule(rule: Rule) -> String {
    match rule {
        Rule::SlidingWindow => "sliding".into(),
        Rule::FixedWindow(Anchor::Clock) => "clock".into(),
        Rule::FixedWindow(Anchor::FirstHit) => "first-hit".into(),
        Rule::TokenBucket(Rate { units, per }) => format!("{units}/{per}"),
    }
}
