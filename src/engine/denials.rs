//! The denials of a policy by quota and by key, and the slow or denied checks to show.

use std::sync::{Arc, OnceLock};

use super::tally::OTHERS;
use super::{Answer, Decision, Door, Reason, Source};
use crate::limit::key::Fingerprint;
use crate::limit::time::{MICROS_PER_MILLI, Micros, micros};
use crate::live::recent::Recent;
use crate::live::recorders::{Cost, KeyChecks, Recorders};
use crate::store::Subject;
use crate::telemetry::instrument::Count;
use crate::telemetry::traces;

/// Quotas of one policy with counts of their own. Overrides may bring more.
const QUOTAS: usize = 16;

/// Counts the denials by quotas of requests, since no label comes from a caller.
const OF_REQUESTS: &str = "(request)";

/// Checks up to this are never slow: it is a tenth of the shortest timeout.
const QUICK: Micros = MICROS_PER_MILLI / 10;

/// Denials by the name of the binding quota.
#[derive(Debug, Default)]
pub struct QuotaCounts {
    named: OnceLock<Box<[OnceLock<Named>; QUOTAS]>>,
    others: Count,
}

/// Denials by one quota.
type Named = (Box<str>, Count);

impl QuotaCounts {
    fn add(&self, name: &str) {
        let named = self.named.get_or_init(Box::default);
        let mut slots = named.iter().map(|slot| slot.get_or_init(|| (name.into(), Count::default())));
        slots.find(|(known, _)| **known == *name).map_or(&self.others, |(_, count)| count).add(1);
    }

    /// All counts by name. The `usual` names have one from the start.
    pub fn read<'a>(&self, usual: impl Iterator<Item = &'a str>) -> Vec<(String, u64)> {
        let named = self.named.get().map_or(&[][..], |named| &named[..]);
        let named = named.iter().filter_map(OnceLock::get);
        let mut counts: Vec<_> = named.map(|(name, count)| (name.to_string(), count.total())).collect();
        for name in usual {
            if counts.iter().all(|(known, _)| known != name) {
                counts.push((name.to_owned(), 0));
            }
        }
        counts.extend(Some((OTHERS.to_owned(), self.others.total())).filter(|(_, count)| *count > 0));
        counts
    }
}

/// The checks of one key that were answered.
pub(super) struct Checked<'a> {
    pub(super) subject: &'a Subject,
    /// Identifies the policy and the key, whatever quotas a request brings.
    pub(super) named: Fingerprint,
    pub(super) door: Door,
}

impl Checked<'_> {
    /// Whether the checks took longer than a tenth of their policy's timeout.
    pub(super) fn is_slow(&self, took: Micros) -> bool {
        took > QUICK && took > micros(self.subject.policy.timeout) / 10
    }

    /// Counts a denial of the policy `name` by its quota, and by its key.
    pub(super) fn deny(
        &self,
        name: &Arc<str>,
        quotas: &QuotaCounts,
        recorders: &Recorders,
        (now, answer): (Micros, &Answer),
    ) {
        let Ok(decision) = answer else { return };
        if let Some(quota) = label(decision) {
            quotas.add(quota);
        }
        recorders.deny(self.named, (now, decision.cost), || self.key(name));
    }

    /// Counts the units of an allowed check of the policy `name` by its key.
    pub(super) fn use_up(&self, name: &Arc<str>, recorders: &Recorders, last: Cost) {
        recorders.used(self.named, last, || self.key(name));
    }

    fn key(&self, name: &Arc<str>) -> KeyChecks {
        KeyChecks::new(name.clone(), self.subject.key.clone())
    }

    /// Returns a slow or denied check of the policy `name`, to be shown.
    #[cold]
    pub(super) fn recent(
        &self,
        name: &Arc<str>,
        answer: &Answer,
        (source, reason): (Source, Reason),
        (at, took): (Micros, Micros),
    ) -> Recent {
        let decision = answer.as_ref().ok();
        let quota = decision.and_then(|decision| decision.policy.quotas.get(decision.binding?.quota));
        Recent {
            at,
            policy: name.clone(),
            key: Arc::clone(&self.subject.key),
            cost: decision.map(|decision| decision.cost),
            allowed: decision.is_some_and(|decision| decision.allowed),
            reason: reason.name(),
            source: source.name(),
            quota: quota.map(|quota| quota.name.as_str().into()),
            took,
            trace_id: traces::trace_id().map(Into::into),
        }
    }
}

/// The name of the binding quota in a metric.
fn label(decision: &Decision) -> Option<&str> {
    let binding = decision.binding.as_ref()?;
    if decision.policy.options.counters.is_some() && !decision.policy.is_of_envoy() {
        return Some(OF_REQUESTS);
    }
    decision.policy.quotas.get(binding.quota).map(|quota| &*quota.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_quotas_are_bounded() {
        let counts = QuotaCounts::default();
        assert_eq!(counts.read(["1s"].into_iter()), [("1s".to_owned(), 0)]);
        for number in 0..QUOTAS + 10 {
            (0..2).for_each(|_| counts.add(&format!("{number}s")));
        }
        let read = counts.read(["1s", "unused"].into_iter());
        let expected = (0..QUOTAS).map(|number| (format!("{number}s"), 2));
        let rest = [("unused".to_owned(), 0), (OTHERS.to_owned(), 20)];
        assert_eq!(read, expected.chain(rest).collect::<Vec<_>>());
    }
}
