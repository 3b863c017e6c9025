//! One primary as its lane knows it: its address, whether it is up, and its clock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use crate::deadline::within;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Durability;
use crate::limit::slot::SLOTS;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::redis::connect::preflight::Preflight;
use crate::store::redis::lane::health::Charging;
use crate::store::redis::lane::metrics::ShardMetrics;
use crate::store::redis::lane::refused_kinds::CallKind;
use crate::store::redis::lane::shared::Shared;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::call::TOLERANCE;
use crate::store::redis::protocol::check::Declared;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::telemetry::limiter::Limiter;

/// How long each key has a call of its own after a shared call failed, us. Most slots have moved by
/// then.
const SHARING_DISABLED: Micros = MICROS_PER_SECOND;

/// A primary as its lane knows it. The driver writes this state, and callers read it.
#[derive(Debug)]
pub struct Shard {
    pub address: Address,
    pub shared: Arc<Shared>,
    /// Whether there is a connection, and the server answers.
    connected: AtomicBool,
    /// Why there is no connection.
    away: ArcSwapOption<Failure>,
    /// Whether it makes the charges that callers request.
    pub charging: Arc<Charging>,
    /// The shard's TIME minus this node's clock, us.
    offset: AtomicI64,
    /// When it last answered anything, us by this node's clock.
    heard: AtomicU64,
    /// Whether it belongs to a cluster, where all keys that a call declares must share a slot.
    cluster: AtomicBool,
    /// Until when each key has a call of its own, us by this node's clock.
    sharing_disabled_until: AtomicU64,
    /// Whether the server refuses EVALSHA, so that calls carry the source.
    sends_sources: AtomicBool,
    /// Whether another server is the primary by now, so that the connections must close.
    closed: Arc<watch::Sender<bool>>,
    /// The durability of the charges in this lane.
    pub durability: Durability,
    pub metrics: Arc<ShardMetrics>,
    pub preflight: Arc<Preflight>,
    /// Limits the log lines about a refused WAIT.
    pub complaints: Limiter,
    /// Limits the log lines about unknown errors.
    pub refusals: Limiter,
    /// Limits the log lines about its connections, as [`Shared::events`] does for all shards.
    events: Arc<Limiter>,
}

impl Shard {
    /// Creates a shard that is not up yet. Its clock counts as equal to this node's. `events` limits
    /// the log lines about its connections.
    pub fn new(address: Address, shared: Arc<Shared>, events: Arc<Limiter>) -> Self {
        let (connected, offset, heard) = (AtomicBool::new(false), AtomicI64::new(0), AtomicU64::new(0));
        let (cluster, sharing_disabled_until) = (AtomicBool::new(false), AtomicU64::new(0));
        let metrics = Arc::new(ShardMetrics::new(shared.checks_per_call.clone()));
        Self {
            address,
            shared,
            connected,
            away: ArcSwapOption::empty(),
            charging: Arc::default(),
            offset,
            heard,
            cluster,
            sharing_disabled_until,
            sends_sources: AtomicBool::new(false),
            closed: Arc::default(),
            durability: Durability::Primary,
            metrics,
            preflight: Arc::default(),
            complaints: Limiter::default(),
            refusals: Limiter::default(),
            events,
        }
    }

    /// Returns a twin for policies that wait for a replica. Both share their metrics and warnings.
    pub fn durable_twin(&self) -> Self {
        let twin = Self::new(self.address.clone(), self.shared.clone(), self.events.clone());
        let (metrics, preflight) = (self.metrics.clone(), self.preflight.clone());
        let (charging, closed) = (self.charging.clone(), self.closed.clone());
        Self { durability: Durability::Replica, metrics, preflight, charging, closed, ..twin }
    }

    /// Whether it is connected and makes the charges that callers request.
    pub fn is_up(&self) -> bool {
        self.is_connected() && !self.is_refusing()
    }

    /// Returns why it is not up; none while it is.
    pub fn reason(&self) -> Option<String> {
        let why = match (self.is_connected(), self.is_refusing()) {
            (true, false) => return None,
            (true, true) => self.charging.why(),
            (false, _) => self.away.load_full(),
        };
        Some(why.map_or_else(|| "there is no connection yet".to_owned(), |why| why.to_string()))
    }

    /// Returns why calls of a kind fail, though it may be up.
    pub fn refused_kind(&self) -> Option<String> {
        self.charging.refused_kinds.reason(self.now())
    }

    /// Whether there is a connection, and the server answers.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub fn set_connected(&self, connected: bool) {
        // The rights of the user may have changed.
        self.sends_sources.store(false, Ordering::Relaxed);
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// Closes its connections at once and for good.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Waits until it must close its connections.
    pub async fn closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Notes why there is no connection.
    pub fn blame(&self, why: &Failure) {
        self.away.store(Some(Arc::new(why.clone())));
    }

    /// Whether it is connected, and no refusal hints at another owner of its slots.
    pub fn is_well(&self) -> bool {
        self.is_connected() && !self.charging.may_be_elsewhere()
    }

    /// Whether it has made no charge for longer than a failover takes.
    pub fn is_refusing(&self) -> bool {
        self.charging.is_refusing()
    }

    /// Notes that it did not make a charge, or that it announces a refusal.
    pub fn refuse(&self, why: &Failure) {
        self.charging.refuse(why, self.now());
    }

    /// Notes that it did not make a charge of this key. A corrupt value does not concern the shard.
    pub fn refuse_key(&self, key: Fingerprint, why: &Failure) {
        match why.kind {
            Kind::Key => self.charging.refuse_key(key, why, self.now()),
            _ => self.refuse(why),
        }
    }

    /// Notes that it refused a call of this kind for a key, if the call has one.
    pub fn refuse_kind(&self, kind: CallKind, key: Option<Fingerprint>, why: &Failure) {
        self.charging.refused_kinds.refuse(kind, key, why, self.now());
    }

    /// Notes that it made a call of this kind.
    pub fn accept_kind(&self, kind: CallKind, key: Option<Fingerprint>) {
        if self.charging.refused_kinds.accept(kind, key, self.now()) {
            tracing::info!(shard = %self.address, %kind, "the shard makes calls of the kind again");
        }
    }

    /// Notes that it has made a charge.
    pub fn accept(&self) {
        self.log_up(self.charging.accept());
    }

    /// Notes that a probe has written.
    pub fn accept_probe(&self) {
        self.log_up(self.charging.accept_probe(self.now()));
    }

    /// If the log may have a line about its connections now, returns how many lines about them it
    /// did not have.
    pub fn may_log_event(&self) -> Option<u64> {
        let now = self.now();
        let suppressed = self.events.pass(now)?;
        Some(suppressed + self.shared.events.pass(now)?)
    }

    fn log_up(&self, was_down: bool) {
        if was_down {
            tracing::info!(shard = %self.address, "the shard is up: it makes charges again");
        }
    }

    /// Logs, once, that it is down.
    pub fn log_down(&self) {
        if self.charging.must_be_logged() {
            let why = self.charging.why();
            let reason = why.as_ref().map(|why| why.for_log()).unwrap_or_default();
            tracing::warn!(shard = %self.address, %reason, "the shard is down: it makes no charges");
        }
    }

    /// Logs, once for each, the kinds of calls that it refuses.
    pub fn log_refused_kinds(&self) {
        for (kind, why) in self.charging.refused_kinds.to_log(self.now()) {
            let reason = why.for_log();
            tracing::warn!(shard = %self.address, %kind, %reason, "the shard refuses calls of a kind");
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
    pub fn may_share(&self) -> bool {
        self.now() >= self.sharing_disabled_until.load(Ordering::Relaxed)
    }

    /// Notes that a shared call could not decide a key. For a while each key has a call of its own.
    pub fn disable_sharing(&self) {
        self.sharing_disabled_until.store(self.now() + SHARING_DISABLED, Ordering::Relaxed);
    }

    /// Whether calls carry the source of their script.
    pub fn sends_sources(&self) -> bool {
        self.sends_sources.load(Ordering::Relaxed)
    }

    /// Notes that the server refuses EVALSHA.
    pub fn send_sources(&self) {
        self.sends_sources.store(true, Ordering::Relaxed);
    }

    /// Returns the expected TIME of the shard now, us.
    pub fn shard_now(&self) -> Micros {
        self.shard_time(self.now())
    }

    /// Returns the expected TIME of the shard at an instant of this node's clock, us.
    pub fn shard_time(&self, instant: Micros) -> Micros {
        instant.saturating_add_signed(self.offset())
    }

    /// Returns the estimate of the shard's TIME minus this node's clock, us.
    pub fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// How long a server that owes an answer may stay silent before its connection is given up.
    /// This is two response timeouts.
    pub fn silence_limit(&self) -> Duration {
        self.shared.response_timeout() * 2
    }

    /// Notes that the server answers.
    pub fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Whether it has answered anything since `instant`, us by this node's clock.
    pub fn heard_since(&self, instant: Micros) -> bool {
        self.heard.load(Ordering::Relaxed) >= instant
    }

    /// Waits for an answer, which may take `longer` than others. Returns none when the server has
    /// stayed silent for too long. A slow server is kept while it answers earlier calls.
    pub async fn awaited<T>(
        &self,
        answer: impl Future<Output = Result<T, Failure>>,
        longer: Duration,
    ) -> Option<Result<T, Failure>> {
        let (mut answer, most) = (pin!(answer), self.silence_limit() + longer);
        let mut left = most;
        loop {
            if let Some(answer) = within(&self.shared.clock, left, &mut answer).await {
                if answer.is_ok() {
                    self.hear();
                }
                return Some(answer);
            }
            let silent = Duration::from_micros(self.now().saturating_sub(self.heard.load(Ordering::Relaxed)));
            left = most.checked_sub(silent).filter(|left| !left.is_zero())?;
        }
    }

    /// This node's clock, us.
    pub fn now(&self) -> Micros {
        self.shared.clock.now()
    }

    /// Learns from a TIME that was read between two instants of this node's clock. The offset lies
    /// within `time - received ..= time - sent`, and changes only as far as necessary.
    pub fn learn_offset(&self, time: Micros, sent: Micros, received: Micros) {
        let (low, high) = (time.cast_signed() - received.cast_signed(), time.cast_signed() - sent.cast_signed());
        let offset = self.offset.load(Ordering::Relaxed);
        if offset < low || offset > high {
            let learned = offset.clamp(low.min(high), high);
            self.offset.store(learned, Ordering::Relaxed);
            // Before the first answer, the offset was only an assumption.
            if self.heard_since(1) && learned.abs_diff(offset) > TOLERANCE {
                self.step();
            }
        }
    }

    /// Invalidates all known denials after the shard's clock has stepped: its instants are not
    /// comparable any more. The shard does not know its own slots. Keys of other shards cost one
    /// more call each.
    fn step(&self) {
        (0..SLOTS).for_each(|slot| self.shared.generations.moved(slot));
    }
}
