//! Counts by the names of envoyproxy/ratelimit, for the dashboards and alerts that it has.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::instrument::{Count, Histogram};

/// Rules that may have counts although they are gone. Beyond it, and the rules in force, all counts
/// begin anew.
const GONE: usize = 1000;

/// The labels of a rule: the domain, and up to two keys.
pub type RuleLabels = Arc<[String]>;

/// The hits of a rule.
#[derive(Debug, Default)]
pub struct RuleCounts {
    pub total_hits: Count,
    pub near_limit: Count,
    pub over_limit: Count,
    pub within_limit: Count,
    pub shadow_mode: Count,
}

/// All counts of a node.
#[derive(Debug, Default)]
pub struct ReferenceCounts {
    /// Rules with equal labels share their counts.
    rules: ArcSwap<HashMap<RuleLabels, Arc<RuleCounts>>>,
    pub response_time: Histogram,
    /// Requests without a response: the store failed.
    pub redis_errors: Count,
    /// Requests without a response: they are invalid, or there are no rules yet.
    pub service_errors: Count,
}

impl ReferenceCounts {
    /// The counts of a rule, where `rules` are in force.
    pub fn rule(&self, labels: &RuleLabels, rules: usize) -> Arc<RuleCounts> {
        if let Some(counts) = self.rules.load().get(labels) {
            return counts.clone();
        }
        let added = Arc::new(RuleCounts::default());
        self.rules.rcu(|known| {
            let mut next = if known.len() >= rules + GONE { HashMap::new() } else { HashMap::clone(known) };
            next.entry(labels.clone()).or_insert_with(|| added.clone());
            next
        });
        self.rules.load().get(labels).cloned().unwrap_or(added)
    }

    /// The counts of all rules, by their labels.
    pub fn rules(&self) -> Vec<(RuleLabels, Arc<RuleCounts>)> {
        let mut rules: Vec<_> =
            self.rules.load().iter().map(|(labels, counts)| (labels.clone(), counts.clone())).collect();
        rules.sort_by(|(one, _), (other, _)| one.cmp(other));
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_gone_rules_are_bounded() {
        let counts = ReferenceCounts::default();
        let labels = |number: usize| RuleLabels::from([format!("d{number}")]);
        counts.rule(&labels(0), 1).total_hits.add(7);
        assert_eq!(counts.rule(&labels(0), 1).total_hits.total(), 7);
        for number in 0..=GONE {
            counts.rule(&labels(number), 1);
        }
        assert_eq!(counts.rules().len(), GONE + 1);
        counts.rule(&labels(GONE + 1), 1);
        assert_eq!(counts.rules().len(), 1);
    }
}
