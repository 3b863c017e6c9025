//! The time of a client: one slow timer for all that it may take.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The timer of a connection, and its times in ticks. A tick is half of the shorter time.
#[derive(Debug)]
pub struct ClientTime {
    pub ticks: Interval,
    /// For a request, from its first byte to the last byte of its answer.
    pub request: u32,
    /// Between two requests. One tick more covers the tick that has begun.
    pub idle: u32,
}

impl ClientTime {
    pub fn new(request: Duration, idle: Duration) -> Self {
        let tick = request.min(idle) / 2;
        let ticks_in =
            |span: Duration| u32::try_from(span.as_nanos().div_ceil(tick.as_nanos().max(1))).unwrap_or(u32::MAX);
        let mut ticks = interval(tick);
        // Ticks that pass while the node works count as one.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        Self { ticks, request: ticks_in(request), idle: ticks_in(idle).saturating_add(1) }
    }
}
