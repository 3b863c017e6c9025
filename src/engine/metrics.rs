//! Metrics of an engine and its store, computed on request. Absent parts have no series.

#![expect(clippy::cast_precision_loss, reason = "sizes, ages and offsets in us are far below 2^53")]

use super::{Comparison, Engine, LeaseCounts};
use crate::store::{MemoryStore, ShardReading};
use crate::telemetry::instrument::MICROS;
use crate::telemetry::metrics::{Labels, Metrics, single};

impl Engine {
    /// All counters and current gauges.
    pub fn metrics(&self) -> Metrics {
        let tally = &self.tally;
        let mut metrics = Metrics {
            prefilter_entries: single(self.prefilter.len() as f64),
            prefilter_denials: single(tally.prefilter_denials.total()),
            prefilter_evictions: single(self.prefilter.evictions()),
            ..Metrics::default()
        };
        self.read_checks(&mut metrics);
        self.read_candidates(&mut metrics);
        self.read_leases(&mut metrics);
        self.read_store(&mut metrics);
        self.read_embedded(&mut metrics);
        metrics
    }

    /// Reads the embedded store: the store itself, or the `local` fallback beside Redis.
    fn read_embedded(&self, metrics: &mut Metrics) {
        let embedded = self.embedded();
        metrics.store_capacity = single(embedded.max_keys() as f64);
        let policies = self.policies();
        let keys = policies.by_name.keys().map(|name| (labels("policy", name), embedded.keys_of(name) as f64));
        metrics.store_keys = keys.collect();
    }

    fn embedded(&self) -> &MemoryStore {
        self.store.embedded().unwrap_or(&self.fallback.memory)
    }

    /// Maximum number of keys and ids in the embedded store.
    pub fn max_keys(&self) -> usize {
        self.embedded().max_keys()
    }

    fn read_checks(&self, metrics: &mut Metrics) {
        let policies = self.policies();
        self.tally.know(policies.by_name.keys().map(String::as_str));
        for name in policies.by_name.keys() {
            let series = self.tally.policy(name).series();
            metrics.checks.extend(series.into_iter().map(|(labels, count)| {
                let (outcome, source, reason, door) = labels;
                let words = [
                    ("outcome", outcome.name()),
                    ("source", source.name()),
                    ("reason", reason.name()),
                    ("door", door.name()),
                ];
                let words = words.map(|(label, word)| (label, word.to_owned()));
                ([("policy", name.clone())].into_iter().chain(words).collect(), count)
            }));
        }
        for policy in policies.by_name.values() {
            let usual = policy.quotas.iter().map(|quota| &*quota.name);
            let counts = self.tally.policy(&policy.name).quotas.read(usual);
            metrics.denials.extend(
                counts
                    .into_iter()
                    .map(|(quota, count)| (vec![("policy", policy.name.clone()), ("quota", quota)], count)),
            );
        }
        let durations = self.tally.durations();
        metrics.check_duration = durations
            .map(|(source, histogram)| (labels("source", source.name()), histogram.read(MICROS)))
            .collect();
        let fallbacks = self.tally.fallbacks();
        metrics.fallback = fallbacks
            .map(|(mode, cause, count)| (vec![("mode", mode.name().into()), ("cause", cause.name().into())], count))
            .collect();
    }

    fn read_candidates(&self, metrics: &mut Metrics) {
        for (name, tally) in &*self.candidates() {
            metrics.candidate_checks.extend(Comparison::ALL.map(|comparison| {
                let verdict = ("verdict", comparison.name().to_owned());
                (vec![("policy", name.clone()), verdict], tally.count(comparison))
            }));
        }
    }

    fn read_leases(&self, metrics: &mut Metrics) {
        let LeaseCounts { bought, spent, returned, lost } = &self.leases.counts;
        let fates = [("bought", bought), ("spent", spent), ("returned", returned), ("lost", lost)];
        let fates = fates.map(|(fate, units)| (labels("fate", fate), units.total()));
        let is_leased = self.policies().by_name.values().any(|policy| policy.options.lease.is_some());
        if is_leased || fates.iter().any(|(_, units)| *units > 0) {
            metrics.leases_open = single(self.leases.open() as f64);
            metrics.lease_units = fates.into();
        }
    }

    fn read_store(&self, metrics: &mut Metrics) {
        let health = self.health();
        let up = |up| f64::from(u8::from(up));
        metrics.shard_up = health.shards.iter().map(|shard| (labels("shard", &shard.address), up(shard.up))).collect();
        if let Some(age) = health.topology_age {
            metrics.topology_age = single(age as f64 / MICROS);
            metrics.slots_without_owner = single(health.slots_without_owner as f64);
        }
        if let Some(checks) = self.store.checks_per_call() {
            metrics.store_checks_per_call = single(checks);
        }
        for shard in self.store.readings() {
            read_shard(shard, metrics);
        }
    }
}

fn read_shard(shard: ShardReading, metrics: &mut Metrics) {
    let ShardReading { address, queued, clock_offset, counts, is_connected: _ } = shard;
    let own = || labels("shard", &address);
    let with = |name, word: &'static str| [own(), labels(name, word)].concat();
    metrics.lane_queue_depth.extend([(own(), queued as f64)]);
    metrics.clock_offset.extend([(own(), clock_offset as f64 / MICROS)]);
    metrics.store_call_duration.extend([(own(), counts.calls)]);
    metrics
        .store_errors
        .extend(counts.errors.into_iter().map(|(kind, count)| (with("kind", kind), count)));
    metrics
        .store_retries
        .extend(counts.retries.into_iter().map(|(kind, count)| (with("kind", kind), count)));
}

fn labels(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}
