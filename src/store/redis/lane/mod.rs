//! A lane: the ordered stream of work towards one primary, over one connection.
//!
//! This file is the near end, which queues requests. The driver (`driver.rs`) owns the connection
//! and sends the queued requests (`session.rs`).
//!
//! A call that the server did not execute may be retried. The lane retries after NOSCRIPT, a TIME
//! outside the bounds, or a key missing from a shared call. The caller, which knows the slots,
//! retries after a redirection. A call may have executed if its connection broke or its answer is
//! late. The lane never repeats that call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::smallvec;

use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::ShardReading;
use crate::store::redis::lane::driver::Driver;
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::lane::shared::Shared;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::request::{KeyRequest, LaneSender, Piece};
use crate::telemetry::limiter::Limiter;

pub mod key_batch;

pub mod script_call;

pub mod pipeline;

pub mod metrics;

pub mod shared;

pub mod health;

mod refused_kinds;

mod driver;

mod queue;

mod replica_ack;

mod session;

mod shard;

/// How long a lane without slots is kept after a request for a slot that moves there, us.
const KEPT: Micros = 60 * MICROS_PER_SECOND;

/// The near end of a lane. The driver ends when the last clone is dropped. Each check clones it, so
/// it is one pointer.
#[derive(Debug, Clone)]
pub struct Lane(Arc<LaneState>);

#[derive(Debug)]
struct LaneState {
    sender: LaneSender,
    shard: Arc<Shard>,
    /// The connection for charges that wait for a replica, opened by the first of them. WAIT blocks
    /// all later calls on its connection and covers the charges of that connection only. Work
    /// without charges does not use it.
    durable: OnceLock<LaneSender>,
    /// The lane is kept until then even if its primary owns no slots, us by this node's clock.
    kept_until: AtomicU64,
}

impl Lane {
    /// Starts a lane towards `address`. It requests a new topology when its breaker opens. `events`
    /// limits the log lines about its connections.
    pub fn open(address: Address, shared: Arc<Shared>, events: Arc<Limiter>) -> Self {
        let shard = Arc::new(Shard::new(address, shared, events));
        let sender = Driver::start(shard.clone());
        Self(Arc::new(LaneState { sender, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }))
    }

    /// Queues a request. The answer arrives over the request's channel, also when the queue is
    /// full.
    pub fn send(&self, request: KeyRequest) {
        if request.asking {
            self.0.kept_until.store(self.0.shard.now() + KEPT, Ordering::Relaxed);
        }
        match needs_replica(&request) {
            false => self.0.sender.send(smallvec![request]),
            true => self.durable().send(smallvec![request]),
        }
    }

    /// Queues the requests of one caller, none of them behind ASKING. They stay together as far as
    /// they may share a pipeline.
    pub fn send_together(&self, requests: Piece) {
        let (durable, others): (Piece, Piece) = requests.into_iter().partition(needs_replica);
        if !others.is_empty() {
            self.0.sender.send(others);
        }
        if !durable.is_empty() {
            self.durable().send(durable);
        }
    }

    fn durable(&self) -> &LaneSender {
        self.0.durable.get_or_init(|| Driver::start(Arc::new(self.0.shard.durable_twin())))
    }

    /// Returns the state of its primary.
    pub fn shard(&self) -> &Shard {
        &self.0.shard
    }

    /// Whether both are the same lane, and not two lanes towards one address.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn address(&self) -> &Address {
        &self.0.shard.address
    }

    pub fn is_up(&self) -> bool {
        self.0.shard.is_up()
    }

    /// Closes its connections at once, since another server is the primary. The fate of calls in
    /// flight is unknown. Other requests are rejected, so that their callers retry elsewhere.
    pub fn close(&self) {
        self.0.shard.close();
    }

    /// Whether a recent request for a moving slot keeps this lane.
    pub fn is_kept(&self) -> bool {
        self.0.kept_until.load(Ordering::Relaxed) > self.0.shard.now()
    }

    /// Whether its drivers still run. Only a bug in this program ends them.
    pub fn is_driven(&self) -> bool {
        !self.0.sender.is_closed() && self.0.durable.get().is_none_or(|sender| !sender.is_closed())
    }

    /// Returns the metrics and the clock offset of the shard.
    pub fn read(&self) -> ShardReading {
        ShardReading {
            address: self.0.shard.address.to_string(),
            queued: self.0.sender.waiting()
                + self.0.durable.get().map_or(0, LaneSender::waiting)
                + self.0.shard.metrics.held(),
            clock_offset: self.0.shard.offset(),
            is_connected: self.0.shard.is_connected(),
            counts: self.0.shard.metrics.read(),
        }
    }
}

/// Whether a charge of this request waits for a replica.
fn needs_replica(request: &KeyRequest) -> bool {
    request.policy.options.durability == Durability::Replica && request.work.may_charge()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Credentials;
    use crate::store::redis::request::channel;
    use crate::workers::Workers;

    #[test]
    fn lane_is_driven_while_both_drivers_run() {
        let (clock, timeout) = (Clock::system(), Duration::from_secs(1));
        let shared = Arc::new(Shared::new(
            Credentials::default(),
            "ratelimit",
            clock,
            timeout,
            Arc::default(),
            Workers::default(),
            None,
        ));
        let shard = Arc::new(Shard::new(Address { host: "shard".into(), port: 7001 }, shared, Arc::default()));
        let ((sender, requests), (durable, durable_asks)) = (channel(1), channel(1));
        let lane = Lane(Arc::new(LaneState { sender, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }));
        assert!(lane.is_driven(), "nobody has asked for the other");
        lane.0.durable.set(durable).unwrap();
        assert!(lane.is_driven());
        drop(durable_asks);
        assert!(!lane.is_driven());
        drop(requests);
        assert!(!lane.is_driven());
    }
}
