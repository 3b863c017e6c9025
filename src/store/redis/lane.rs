//! A lane: the ordered stream of work towards one primary, over one connection.
//!
//! This is its near end, which queues what is asked. At the far end is a driver (`driver.rs`), which owns the
//! connection and carries over it what was queued (`traffic.rs`).
//!
//! A call that the server says it did not execute may be asked again: by the lane itself when the script was
//! missing, TIME was elsewhere or one of several keys was not there, by the caller (who knows the slots) after a
//! redirection. A call whose connection broke, or that was not answered in time, may have been executed, and is never
//! sent again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;

use super::ask::Ask;
use super::driver::Driver;
use super::server::Address;
use super::shard::Shard;
use super::shared::Shared;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::{ShardReading, StoreError};

/// How long a lane towards a primary that owns no slots is kept after it was asked about one that is moving there, us.
const KEPT: Micros = 60 * MICROS_PER_SECOND;

/// The near end of a lane. The driver ends when the last one is dropped. Each check takes one, so it is one pointer.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    queue: mpsc::Sender<Ask>,
    shard: Arc<Shard>,
    /// For what policies that wait for a replica may charge, opened when one asks first: WAIT holds up everything that
    /// comes behind it on its connection, and it is about the charges of that connection only. What charges nothing
    /// needs none.
    durable: OnceLock<mpsc::Sender<Ask>>,
    /// Until when it is kept although its primary may own no slots yet, us by this node's clock.
    kept_until: AtomicU64,
}

impl Lane {
    /// Starts a lane towards `address`, which has the topology asked for when its breaker opens.
    pub fn open(address: Address, shared: Arc<Shared>) -> Self {
        let shard = Arc::new(Shard::new(address, shared));
        let queue = Driver::start(shard.clone());
        Self(Arc::new(Entry { queue, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }))
    }

    /// Queues an ask; its answer comes over its channel.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`].
    pub fn ask(&self, ask: Ask) -> Result<(), StoreError> {
        if ask.asking {
            self.0.kept_until.store(self.0.shard.now() + KEPT, Ordering::Relaxed);
        }
        let start = || Driver::start(Arc::new(self.0.shard.durable_twin()));
        let queue = match ask.policy.options.durability {
            Durability::Replica if ask.matter.may_charge() => self.0.durable.get_or_init(start),
            Durability::Replica | Durability::Primary => &self.0.queue,
        };
        queue.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unreachable("the lane has ended".into()),
        })
    }

    /// Its primary as it is known.
    pub fn shard(&self) -> &Shard {
        &self.0.shard
    }

    pub fn address(&self) -> &Address {
        &self.0.shard.address
    }

    pub fn is_up(&self) -> bool {
        self.0.shard.is_up()
    }

    /// Whether slots are moving to its primary, as far as it was asked lately.
    pub fn is_kept(&self) -> bool {
        self.0.kept_until.load(Ordering::Relaxed) > self.0.shard.now()
    }

    /// Whether its drivers are there, which only a fault of this program could end.
    pub fn is_driven(&self) -> bool {
        !self.0.queue.is_closed() && self.0.durable.get().is_none_or(|queue| !queue.is_closed())
    }

    /// What is known of the shard now.
    pub fn read(&self) -> ShardReading {
        ShardReading {
            address: self.0.shard.address.to_string(),
            queued: waiting(&self.0.queue) + self.0.durable.get().map_or(0, waiting) + self.0.shard.metrics.held(),
            clock_offset: self.0.shard.offset(),
            counts: self.0.shard.metrics.read(),
        }
    }
}

/// Asks that wait in a queue.
fn waiting(queue: &mpsc::Sender<Ask>) -> usize {
    queue.max_capacity() - queue.capacity()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Credentials;

    #[test]
    fn a_lane_is_driven_while_both_of_its_drivers_are_there() {
        let (clock, timeout) = (Clock::system(), Duration::from_secs(1));
        let shared = Arc::new(Shared::new(Credentials::default(), clock, timeout, Arc::default(), None));
        let shard = Arc::new(Shard::new(Address { host: "shard".into(), port: 7001 }, shared));
        let ((queue, asks), (durable, durable_asks)) = (mpsc::channel(1), mpsc::channel(1));
        let lane = Lane(Arc::new(Entry { queue, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }));
        assert!(lane.is_driven(), "nobody has asked for the other");
        lane.0.durable.set(durable).unwrap();
        assert!(lane.is_driven());
        drop(durable_asks);
        assert!(!lane.is_driven());
        drop(asks);
        assert!(!lane.is_driven());
    }
}
