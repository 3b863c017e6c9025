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

use smallvec::smallvec;

use super::ask::Ask;
use super::driver::Driver;
use super::inbox::{Inlet, Piece};
use super::server::Address;
use super::shard::Shard;
use super::shared::Shared;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::store::ShardReading;

/// How long a lane towards a primary that owns no slots is kept after it was asked about one that is moving there, us.
const KEPT: Micros = 60 * MICROS_PER_SECOND;

/// The near end of a lane. The driver ends when the last one is dropped. Each check takes one, so it is one pointer.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    inlet: Inlet,
    shard: Arc<Shard>,
    /// For what policies that wait for a replica may charge, opened when one asks first: WAIT holds up everything that
    /// comes behind it on its connection, and it is about the charges of that connection only. What charges nothing
    /// needs none.
    durable: OnceLock<Inlet>,
    /// Until when it is kept although its primary may own no slots yet, us by this node's clock.
    kept_until: AtomicU64,
}

impl Lane {
    /// Starts a lane towards `address`, which has the topology asked for when its breaker opens.
    pub fn open(address: Address, shared: Arc<Shared>) -> Self {
        let shard = Arc::new(Shard::new(address, shared));
        let inlet = Driver::start(shard.clone());
        Self(Arc::new(Entry { inlet, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }))
    }

    /// Queues an ask. Its answer comes over its channel, also when there is no room for it.
    pub fn ask(&self, ask: Ask) {
        if ask.asking {
            self.0.kept_until.store(self.0.shard.now() + KEPT, Ordering::Relaxed);
        }
        match needs_replica(&ask) {
            false => self.0.inlet.put(smallvec![ask]),
            true => self.durable().put(smallvec![ask]),
        }
    }

    /// Queues what a caller asks at once, none of it behind ASKING; as far as it may go out together, it does.
    pub fn ask_together(&self, asks: Piece) {
        let (durable, others): (Piece, Piece) = asks.into_iter().partition(needs_replica);
        if !others.is_empty() {
            self.0.inlet.put(others);
        }
        if !durable.is_empty() {
            self.durable().put(durable);
        }
    }

    fn durable(&self) -> &Inlet {
        self.0.durable.get_or_init(|| Driver::start(Arc::new(self.0.shard.durable_twin())))
    }

    /// Its primary as it is known.
    pub fn shard(&self) -> &Shard {
        &self.0.shard
    }

    /// Whether it is this very lane, not one to the same address before or after it.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
        !self.0.inlet.is_closed() && self.0.durable.get().is_none_or(|inlet| !inlet.is_closed())
    }

    /// What is known of the shard now.
    pub fn read(&self) -> ShardReading {
        ShardReading {
            address: self.0.shard.address.to_string(),
            queued: self.0.inlet.waiting()
                + self.0.durable.get().map_or(0, Inlet::waiting)
                + self.0.shard.metrics.held(),
            clock_offset: self.0.shard.offset(),
            counts: self.0.shard.metrics.read(),
        }
    }
}

/// Whether it waits for a replica to have what it charges.
fn needs_replica(ask: &Ask) -> bool {
    ask.policy.options.durability == Durability::Replica && ask.matter.may_charge()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::inbox::inbox;
    use super::*;
    use crate::clock::Clock;
    use crate::config::Credentials;
    use crate::workers::Workers;

    #[test]
    fn a_lane_is_driven_while_both_of_its_drivers_are_there() {
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
        let shard = Arc::new(Shard::new(Address { host: "shard".into(), port: 7001 }, shared));
        let ((inlet, asks), (durable, durable_asks)) = (inbox(1), inbox(1));
        let lane = Lane(Arc::new(Entry { inlet, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }));
        assert!(lane.is_driven(), "nobody has asked for the other");
        lane.0.durable.set(durable).unwrap();
        assert!(lane.is_driven());
        drop(durable_asks);
        assert!(!lane.is_driven());
        drop(asks);
        assert!(!lane.is_driven());
    }
}
