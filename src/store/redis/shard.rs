//! One primary as its lane knows it: its address, whether it is up, and where its clock is.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use super::metrics::ShardMetrics;
use super::server::Address;
use crate::clock::Clock;
use crate::limit::time::Micros;

/// A primary as its lane knows it. Written by the driver, read by whoever asks.
#[derive(Debug)]
pub struct Shard {
    pub address: Address,
    clock: Clock,
    /// Whether there is a connection.
    up: AtomicBool,
    /// The shard's TIME minus this node's clock, us.
    offset: AtomicI64,
    /// How long an answer may take before the connection is given up.
    timeout: Duration,
    pub metrics: ShardMetrics,
}

impl Shard {
    /// Not up yet, with its clock believed to be this node's.
    pub fn new(address: Address, clock: Clock, timeout: Duration, metrics: ShardMetrics) -> Self {
        Self { address, clock, up: AtomicBool::new(false), offset: AtomicI64::new(0), timeout, metrics }
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Where the shard's TIME is believed to be now, us.
    pub fn shard_now(&self) -> Micros {
        self.clock.now().saturating_add_signed(self.offset.load(Ordering::Relaxed))
    }

    /// The shard's TIME minus this node's clock as it is believed, us.
    pub fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// How long an answer may take before the connection is given up.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// This node's clock, us.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Learns from a TIME that was read between two instants of this node's clock: the offset lies within
    /// `time - received ..= time - sent`, and moves only as far as it must.
    pub fn learn_offset(&self, time: Micros, sent: Micros, received: Micros) {
        let (low, high) = (time.cast_signed() - received.cast_signed(), time.cast_signed() - sent.cast_signed());
        let offset = self.offset.load(Ordering::Relaxed);
        if offset < low || offset > high {
            self.offset.store(offset.clamp(low.min(high), high), Ordering::Relaxed);
        }
    }
}
