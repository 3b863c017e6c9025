//! How far a node is on its way out, as its answers show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The phases of a node, in order; none is left backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Answers, and is ready for more.
    Serving,
    /// Answers, but readiness says 503, so that balancers send new traffic elsewhere.
    Draining,
    /// Accepts no connection; each answer is the last one of its connection.
    Closing,
}

/// The phase of one node, shared by what sets it and what shows it.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle(Arc<AtomicU8>);

impl Lifecycle {
    /// Moves on to `phase`, unless the node is there already or further.
    pub fn advance(&self, phase: Phase) {
        self.0.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Whether the node is at `phase` or further.
    pub fn reached(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Relaxed) >= phase as u8
    }
}
