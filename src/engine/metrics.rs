//! Metrics of an engine and its store, computed on request. Absent parts have no series.

#![expect(clippy::cast_precision_loss, reason = "sizes, ages and offsets in us are far below 2^53")]

use std::collections::BTreeMap;

use super::tally::OTHERS;
use super::{Engine, LeaseCounts};
use crate::store::{MemoryStore, ShardReading};
use crate::telemetry::instrument::{Count, MICROS};
use crate::telemetry::metrics::{Labels, Metrics, single};

/// Counts by the labels of their series.
type Sums = BTreeMap<Labels, u64>;

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
        self.read_policies(&mut metrics);
        self.read_answers(&mut metrics);
        self.read_leases(&mut metrics);
        let notices = self.notices.counts().into_iter();
        metrics.notices = notices
            .map(|((policy, fate), count)| (vec![("policy", policy), ("fate", fate.to_owned())], count))
            .collect();
        self.read_overrides(&mut metrics);
        self.read_store(&mut metrics);
        metrics.store_capacity = single(self.embedded().max_keys() as f64);
        metrics
    }

    /// The embedded store: the store itself, or the `local` fallback beside Redis.
    fn embedded(&self) -> &MemoryStore {
        self.store.embedded().unwrap_or(&self.fallback.memory)
    }

    /// Maximum number of keys and ids in the embedded store.
    pub fn max_keys(&self) -> usize {
        self.embedded().max_keys()
    }

    /// Reads the counts of each policy that has some. Beyond a number of policies they are sums.
    fn read_policies(&self, metrics: &mut Metrics) {
        let (policies, embedded) = (self.policies(), self.embedded());
        let (mut checks, mut units, mut operations, mut denials) = <(Sums, Sums, Sums, Sums)>::default();
        let (mut ended, mut open) = (Sums::default(), BTreeMap::<Labels, f64>::default());
        let mut keys = BTreeMap::<_, usize>::default();
        for (label, tally) in self.tally.labelled(policies.by_name.keys().map(String::as_str)) {
            let own = || labels("policy", label);
            let with = |labels: &[(&'static str, &str)]| -> Labels {
                own().into_iter().chain(labels.iter().map(|(name, word)| (*name, (*word).to_owned()))).collect()
            };
            for ((outcome, source, reason, door), count) in tally.series() {
                let (outcome, source) = (("outcome", outcome.name()), ("source", source.name()));
                let series = with(&[outcome, source, ("reason", reason.name()), ("door", door.name())]);
                *checks.entry(series).or_default() += count;
            }
            for (outcome, count) in tally.units() {
                *units.entry(with(&[("outcome", outcome)])).or_default() += count;
            }
            for (operation, completion, count) in tally.operations() {
                let series = with(&[("operation", operation.name()), ("outcome", completion.name())]);
                *operations.entry(series).or_default() += count;
            }
            for (end, count) in tally.ended_holds() {
                *ended.entry(with(&[("end", end.name())])).or_default() += count;
            }
            if tally.ended_holds().next().is_some() {
                *open.entry(own()).or_default() += tally.open_holds();
            }
            let usual = policies.by_name.get(&*tally.name).map_or(&[][..], |policy| &policy.quotas[..]);
            for (quota, count) in tally.quotas.read(usual.iter().map(|quota| &*quota.name)) {
                let quota = if label == OTHERS { OTHERS } else { &quota };
                *denials.entry(with(&[("quota", quota)])).or_default() += count;
            }
            *keys.entry(own()).or_default() += embedded.keys_of(&tally.name);
        }
        metrics.checks = checks.into_iter().collect();
        metrics.units = units.into_iter().collect();
        metrics.operations = operations.into_iter().collect();
        metrics.holds = ended.into_iter().collect();
        metrics.holds_open = open.into_iter().collect();
        metrics.denials = denials.into_iter().collect();
        metrics.store_keys = keys.into_iter().map(|(labels, keys)| (labels, keys as f64)).collect();
    }

    fn read_answers(&self, metrics: &mut Metrics) {
        let durations = self.tally.durations();
        metrics.check_duration = durations
            .map(|(source, histogram)| (labels("source", source.name()), histogram.read(MICROS)))
            .collect();
        if let Some(waits) = self.tally.waits() {
            metrics.waits = single(waits.read(MICROS));
        }
        let fallbacks = self.tally.fallbacks();
        metrics.fallback = fallbacks
            .map(|(mode, cause, count)| (vec![("mode", mode.name().into()), ("cause", cause.name().into())], count))
            .collect();
    }

    fn read_overrides(&self, metrics: &mut Metrics) {
        let counts = self.overrides.counts();
        metrics.overrides = counts.iter().map(|(policy, count)| (labels("policy", policy), *count as f64)).collect();
        if let Some(lag) = self.overrides.lag() {
            metrics.overrides_lag = single(lag as f64 / MICROS);
        }
        let missing = self.overrides.missing();
        let lost = |policy: &str| missing.get(policy).copied().unwrap_or_default();
        metrics.overrides_lost = counts.keys().map(|policy| (labels("policy", policy), lost(policy) as f64)).collect();
        if !counts.is_empty() {
            metrics.overrides_restored = single(self.overrides.restored());
        }
        if self.policies().by_name.values().any(|policy| policy.plan_names().next().is_some()) {
            metrics.unknown_plans = single(self.tally.unknown_plans.total());
        }
    }

    fn read_leases(&self, metrics: &mut Metrics) {
        let holders = [("node", &self.leases.counts), ("caller", self.leases.counts_of_callers())];
        let fates: Vec<_> = holders.into_iter().flat_map(|(holder, counts)| fates(holder, counts)).collect();
        let is_leased = self.policies().by_name.values().any(|policy| policy.options.lease.is_some());
        if is_leased || fates.iter().any(|(_, units)| *units > 0) {
            metrics.leases_open = single(self.leases.open() as f64);
            metrics.lease_units = fates;
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
        if let Some(redis) = self.store.redis() {
            metrics.store_checks_per_call = single(redis.checks_per_call());
            redis.readings().into_iter().for_each(|shard| read_shard(shard, metrics));
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

/// The units of a holder by their fate. No node knows what callers lose.
fn fates(holder: &str, counts: &LeaseCounts) -> Vec<(Labels, u64)> {
    let LeaseCounts { bought, spent, returned, lost } = counts;
    let fates = [("bought", bought), ("spent", spent), ("returned", returned), ("lost", lost)];
    let known = fates.into_iter().filter(|(fate, _)| holder == "node" || *fate != "lost");
    let series =
        |(fate, units): (&str, &Count)| (vec![("fate", fate.to_owned()), ("holder", holder.to_owned())], units.total());
    known.map(series).collect()
}

fn labels(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}
