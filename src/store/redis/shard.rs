//! One primary as its lane knows it: its address, whether it is up, and where its clock is.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisResult;

use super::check::Declared;
use super::metrics::ShardMetrics;
use super::server::{Address, LookedOver};
use super::shared::Shared;
use super::told::TOLERANCE;
use crate::clock::Clock;
use crate::config::Credentials;
use crate::deadline::within;
use crate::limit::policy::Durability;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::telemetry::limiter::Limiter;
use crate::workers::Workers;

/// How long each key has a call of its own after one could not share one, us: most slots have moved by then.
const PARTED: Micros = MICROS_PER_SECOND;

/// A server that has refused all that it was asked for so long is not up, us. Most failovers take less.
pub const REFUSES: Micros = MICROS_PER_SECOND;

/// A primary as its lane knows it. Written by the driver, read by whoever asks.
#[derive(Debug)]
pub struct Shard {
    pub address: Address,
    shared: Arc<Shared>,
    /// Whether there is a connection, and the server answers.
    connected: AtomicBool,
    /// Since when it has executed nothing that it was asked, since its cluster is down or it is loading its data, us by
    /// this node's clock; 0: it executes what it is asked.
    refusing: Arc<AtomicU64>,
    /// The shard's TIME minus this node's clock, us.
    offset: AtomicI64,
    /// When it last answered anything, us by this node's clock.
    heard: AtomicU64,
    /// Whether it is one of a cluster, where keys that a call declares must be of one slot.
    cluster: AtomicBool,
    /// Until when each key has a call of its own, us by this node's clock.
    parted: AtomicU64,
    /// What the calls of this lane wait for.
    pub durability: Durability,
    pub metrics: Arc<ShardMetrics>,
    pub looked_over: Arc<LookedOver>,
    /// Of a WAIT that it refuses.
    pub complaints: Limiter,
}

impl Shard {
    /// Not up yet, with its clock believed to be this node's.
    pub fn new(address: Address, shared: Arc<Shared>) -> Self {
        let (connected, offset, heard) = (AtomicBool::new(false), AtomicI64::new(0), AtomicU64::new(0));
        let (cluster, parted) = (AtomicBool::new(false), AtomicU64::new(0));
        let metrics = Arc::new(ShardMetrics::new(shared.checks_per_call.clone()));
        Self {
            address,
            shared,
            connected,
            refusing: Arc::default(),
            offset,
            heard,
            cluster,
            parted,
            durability: Durability::Primary,
            metrics,
            looked_over: Arc::default(),
            complaints: Limiter::default(),
        }
    }

    /// The same for a policy that waits for a replica; both count together, and warn once.
    pub fn durable_twin(&self) -> Self {
        let twin = Self::new(self.address.clone(), self.shared.clone());
        let (metrics, looked_over, refusing) = (self.metrics.clone(), self.looked_over.clone(), self.refusing.clone());
        Self { durability: Durability::Replica, metrics, looked_over, refusing, ..twin }
    }

    /// Whether it is connected and executes what it is asked.
    pub fn is_up(&self) -> bool {
        self.is_connected() && !self.is_refusing()
    }

    /// Whether there is a connection, and the server answers.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Whether it is connected and has refused nothing since it executed something.
    pub fn is_well(&self) -> bool {
        self.is_connected() && self.refusing.load(Ordering::Relaxed) == 0
    }

    /// Whether it has executed nothing for longer than a failover takes.
    pub fn is_refusing(&self) -> bool {
        let since = self.refusing.load(Ordering::Relaxed);
        since > 0 && self.now() >= since + REFUSES
    }

    /// Notes that it executed nothing of what it was asked, or says that it would not.
    pub fn refuse(&self) {
        // Whoever is first has it.
        let _ = self.refusing.compare_exchange(0, self.now().max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that it executed something, or says that it would.
    pub fn accept(&self) {
        if self.refusing.load(Ordering::Relaxed) > 0 {
            self.refusing.store(0, Ordering::Relaxed);
        }
    }

    pub fn set_cluster(&self, cluster: bool) {
        self.cluster.store(cluster, Ordering::Relaxed);
    }

    /// Whether a call for several keys declares them.
    pub fn declared(&self) -> Declared {
        if self.cluster.load(Ordering::Relaxed) { Declared::No } else { Declared::Yes }
    }

    /// Whether several keys may share a call.
    pub fn may_bundle(&self) -> bool {
        self.now() >= self.parted.load(Ordering::Relaxed)
    }

    /// Notes that a key could not be decided in one call with others; for a while each has its own.
    pub fn keep_apart(&self) {
        self.parted.store(self.now() + PARTED, Ordering::Relaxed);
    }

    /// Where the shard's TIME is believed to be now, us.
    pub fn shard_now(&self) -> Micros {
        self.shard_time(self.now())
    }

    /// What the shard's TIME is believed to be at an instant of this node's clock, us.
    pub fn shard_time(&self, instant: Micros) -> Micros {
        instant.saturating_add_signed(self.offset())
    }

    /// The shard's TIME minus this node's clock as it is believed, us.
    pub fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// How long an answer may take.
    pub fn overdue(&self) -> Duration {
        self.shared.overdue()
    }

    /// How long a server may say nothing although it was asked before its connection is given up: two timeouts in
    /// a row.
    pub fn patience(&self) -> Duration {
        self.overdue() * 2
    }

    /// Notes that the server answers.
    pub fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Whether it has answered anything since `instant`, us by this node's clock.
    pub fn heard_since(&self, instant: Micros) -> bool {
        self.heard.load(Ordering::Relaxed) >= instant
    }

    /// What the server answers, which may take it `longer` than other answers; none when it has said nothing at all for
    /// too long. One that is only slow is not given up while it answers what was asked before.
    pub async fn awaited<T>(
        &self,
        answer: impl Future<Output = RedisResult<T>>,
        longer: Duration,
    ) -> Option<RedisResult<T>> {
        let (mut answer, most) = (pin!(answer), self.patience() + longer);
        let mut left = most;
        loop {
            if let Some(answer) = within(self.clock(), left, &mut answer).await {
                if answer.is_ok() {
                    self.hear();
                }
                return Some(answer);
            }
            let silent = Duration::from_micros(self.now().saturating_sub(self.heard.load(Ordering::Relaxed)));
            left = most.checked_sub(silent).filter(|left| !left.is_zero())?;
        }
    }

    /// How the server lets this node in.
    pub fn credentials(&self) -> &Credentials {
        &self.shared.credentials
    }

    /// See [`Shared::time`].
    pub fn time(&self) -> Option<Micros> {
        self.shared.time()
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Has the topology asked for soon.
    pub fn doubt(&self) {
        self.shared.doubt.notify_one();
    }

    /// Whether one that tells of nodes with these ids is of another cluster than the one that is known.
    pub fn is_strange(&self, ids: &BTreeSet<String>) -> bool {
        self.shared.are_strange(ids).unwrap_or(false)
    }

    /// Who drives its lane.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// This node's clock, us.
    pub fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    /// Learns from a TIME that was read between two instants of this node's clock: the offset lies within
    /// `time - received ..= time - sent`, and moves only as far as it must.
    pub fn learn_offset(&self, time: Micros, sent: Micros, received: Micros) {
        let (low, high) = (time.cast_signed() - received.cast_signed(), time.cast_signed() - sent.cast_signed());
        let offset = self.offset.load(Ordering::Relaxed);
        if offset < low || offset > high {
            let learned = offset.clamp(low.min(high), high);
            self.offset.store(learned, Ordering::Relaxed);
            // Before it has answered, its clock was only believed to be this node's.
            if self.heard_since(1) && learned.abs_diff(offset) > TOLERANCE {
                self.step();
            }
        }
    }

    /// Ends what is known of the keys in `slot`: something was taken back there.
    pub fn forget(&self, slot: u16) {
        self.shared.generations.raise(slot);
    }

    /// Its clock has stepped: what is known by its instants, and what they are compared with, ends. Which slots are its
    /// own it does not know; of the others' keys the store is asked once more.
    fn step(&self) {
        (0..SLOTS).for_each(|slot| self.shared.generations.raise(slot));
    }
}
