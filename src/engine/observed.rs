//! The last 15 minutes, for operators. Once a second [`Engine::observe`] reads the counters that
//! checks fill anyway, and empties the tables of denied keys.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::snapshot::{ShardState, Snapshot, StoreState};
use super::tally::{Outcome, SHOWN, Totals};
use super::{Engine, Source};
use crate::limit::time::MICROS_PER_SECOND;
use crate::live::recent::{Recent, push_newest};
use crate::live::rings::{Checks, Rings, Second, ShardCalls, bounded_checks, bounded_shards, quantile};
use crate::live::space_saving::SpaceSaving;
use crate::live::top::{KeyCounts, TopKeys};
use crate::store::RedisStore;

/// Policies with holds in a snapshot. Configurations may have thousands.
const POLICIES: usize = 100;

/// Keys with open holds in a snapshot.
const HELD: usize = 20;

/// The last 15 minutes.
#[derive(Debug, Default)]
pub struct Observed {
    rings: Rings,
    denied: TopKeys,
    used: TopKeys,
    recent: VecDeque<Recent>,
    before: Before,
}

/// The counters at the last look.
#[derive(Debug, Default)]
struct Before {
    policies: BTreeMap<Arc<str>, Totals>,
    /// Durations by upper bound in us.
    durations: Vec<(f64, u64)>,
    shards: BTreeMap<Arc<str>, ShardCalls>,
}

impl Engine {
    /// The time until the current second ends.
    pub fn rest_of_second(&self) -> Duration {
        Duration::from_micros(MICROS_PER_SECOND - self.clock.now() % MICROS_PER_SECOND)
    }

    /// Notes the second that has just ended. Called once a second.
    pub fn observe(&self) {
        let mut observed = self.observed();
        let ended = (self.clock.now() / MICROS_PER_SECOND).saturating_sub(1);
        // A timer that fires early would note the same second again.
        let at = if observed.rings.newest() == Some(ended) { ended + 1 } else { ended };
        let checks = self.new_checks(&mut observed.before);
        let (p50, p99) = self.new_durations(&mut observed.before);
        let shards = self.new_calls(&mut observed.before);
        let (mut keys, mut used, mut recent) = (SpaceSaving::default(), SpaceSaving::default(), Vec::new());
        for table in self.tally.recorders.take() {
            keys.merge(table.denied);
            used.merge(table.used);
            recent.extend(table.recent);
        }
        // Each table has its own order.
        recent.sort_by_key(|recent| recent.at);
        recent.into_iter().for_each(|recent| push_newest(&mut observed.recent, recent));
        let (denied, allowed): (Vec<_>, Vec<_>) =
            checks.iter().partition(|checks| checks.outcome == Outcome::Denied.name());
        let denied = denied.into_iter().map(|checks| (checks.policy.clone(), checks.count));
        observed.denied.add(at, keys, denied);
        let allowed = allowed.into_iter().map(|checks| (checks.policy.clone(), checks.units));
        observed.used.add(at, used, allowed);
        let (checks, shards) = (bounded_checks(checks), bounded_shards(shards));
        observed.rings.add(Second { at, p50, p99, checks, shards });
    }

    /// The checks since the last look.
    fn new_checks(&self, before: &mut Before) -> Vec<Checks> {
        let (policies, mut new) = (self.tally.policies(), Vec::new());
        for policy in policies.values() {
            let totals = policy.totals();
            let last = std::mem::replace(before.policies.entry(policy.name.clone()).or_default(), totals);
            for (outcome, (totals, last)) in SHOWN.into_iter().zip(totals.iter().zip(&last)) {
                for (source, (total, last)) in Source::ALL.into_iter().zip(totals.iter().zip(last)) {
                    // A policy that was dropped and is back counts from zero.
                    let (count, units) = (total.0.saturating_sub(last.0), total.1.saturating_sub(last.1));
                    if count > 0 || units > 0 {
                        let (policy, source) = (policy.name.clone(), source.name());
                        new.push(Checks { policy, outcome, source, count, units });
                    }
                }
            }
        }
        if before.policies.len() > policies.len() {
            before.policies.retain(|name, _| policies.contains_key(&**name));
        }
        new
    }

    /// The median and the 99th percentile of the durations since the last look, us.
    fn new_durations(&self, before: &mut Before) -> (Option<u64>, Option<u64>) {
        let mut all: Vec<(f64, u64)> = Vec::new();
        for (_, durations) in self.tally.durations() {
            let buckets = durations.read(1.0).buckets;
            all.resize(buckets.len(), (0.0, 0));
            all.iter_mut().zip(buckets).for_each(|(all, (bound, count))| *all = (bound, all.1 + count));
        }
        let mut new = all.clone();
        new.iter_mut().zip(&before.durations).for_each(|(new, last)| new.1 -= last.1);
        before.durations = all;
        (quantile(&new, 0.5), quantile(&new, 0.99))
    }

    /// The calls to each shard since the last look.
    fn new_calls(&self, before: &mut Before) -> Vec<ShardCalls> {
        let last = std::mem::take(&mut before.shards);
        let readings = self.store.redis().map(RedisStore::readings).into_iter().flatten().map(|shard| ShardCalls {
            // All seconds share the name.
            shard: last.get_key_value(&*shard.address).map_or_else(|| shard.address.into(), |(name, _)| name.clone()),
            calls: shard.counts.calls.buckets.iter().map(|(_, count)| count).sum(),
            checks: shard.counts.checks,
            errors: shard.counts.errors.iter().map(|(_, count)| count).sum(),
        });
        before.shards = readings.map(|shard| (shard.shard.clone(), shard)).collect();
        let new = before.shards.values().map(|now| match last.get(&now.shard) {
            // A lane that was replaced counts from zero.
            Some(last) => ShardCalls {
                shard: now.shard.clone(),
                calls: now.calls.saturating_sub(last.calls),
                checks: now.checks.saturating_sub(last.checks),
                errors: now.errors.saturating_sub(last.errors),
            },
            None => now.clone(),
        });
        new.filter(|shard| shard.calls + shard.checks + shard.errors > 0).collect()
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The denials of the last `minutes`: 1, 5 or 15.
    pub fn denials(&self, minutes: u64) -> KeyCounts {
        self.observed().denied.of(minutes, self.clock.now() / MICROS_PER_SECOND)
    }

    /// The units of allowed checks in the last `minutes`: 1, 5 or 15.
    pub fn used(&self, minutes: u64) -> KeyCounts {
        self.observed().used.of(minutes, self.clock.now() / MICROS_PER_SECOND)
    }

    /// Up to `most` minutes that have ended, of the last six hours, the oldest first.
    pub fn minutes(&self, most: usize) -> Vec<Arc<Second>> {
        self.observed().rings.minutes(most)
    }

    /// The present, with the last `seconds` that have ended.
    pub fn snapshot(&self, seconds: u64) -> Snapshot {
        let now = self.clock.now();
        let (store, observed) = (self.store_state(), self.observed());
        // Up to the last noted second: on a busy machine another one may have ended meanwhile.
        let seconds = observed.rings.last(seconds);
        Snapshot {
            at: seconds.last().map_or_else(|| (now / MICROS_PER_SECOND).saturating_sub(1), |second| second.at),
            now,
            seconds,
            denials: observed.denied.of(1, now / MICROS_PER_SECOND),
            used: observed.used.of(1, now / MICROS_PER_SECOND),
            store,
            recent: observed.recent.iter().rev().cloned().collect(),
            holds: self.places_in_use(),
            held: self.tally.held_keys.heaviest(HELD),
        }
    }

    fn places_in_use(&self) -> Vec<(Arc<str>, f64)> {
        let policies = self.tally.policies();
        let used = policies.values().filter(|policy| policy.ended_holds().next().is_some());
        used.take(POLICIES).map(|policy| (policy.name.clone(), policy.open_holds())).collect()
    }

    fn store_state(&self) -> StoreState {
        let health = self.health();
        let mut readings: BTreeMap<String, _> = self
            .store
            .redis()
            .map(RedisStore::readings)
            .into_iter()
            .flatten()
            .map(|shard| (shard.address.clone(), shard))
            .collect();
        let servers = self.store.redis().map(RedisStore::servers).unwrap_or_default();
        let shards = health.shards.into_iter().map(|shard| {
            let reading = readings.remove(&shard.address);
            ShardState {
                errors: reading.as_ref().map(|reading| reading.counts.errors.iter().map(|(_, count)| count).sum()),
                breaker_open: reading.as_ref().map(|reading| !reading.is_connected),
                queued: reading.as_ref().map(|reading| reading.queued),
                clock_offset: reading.as_ref().map(|reading| reading.clock_offset),
                server: servers.get(&shard.address).cloned(),
                address: shard.address,
                up: shard.up,
                reason: shard.reason,
            }
        });
        StoreState {
            kind: health.kind,
            topology_age: health.topology_age,
            slots_without_owner: health.topology_age.map(|_| health.slots_without_owner),
            is_full: health.is_full,
            reason: health.reason.clone(),
            shards: shards.collect(),
        }
    }
}
