//! The state that all doors of a node share, and the phase of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::engine::Engine;
use crate::reload::Reloader;
use crate::telemetry::traces::{KeyNames, Tracing};

mod refusals;

mod watchers;

pub use crate::load::{
    Arrival, ArrivingBody, BodyError, Budget, ClientTime, Counted, Holdings, LIGHT, Load, NotRead, Present, Sizes,
    Unfit,
};
pub use refusals::{Caller, Refusals};
pub use watchers::{Event, MAX_WATCHERS, Subscriber, Watchers};

/// The state that all doors share.
#[derive(Debug, Clone)]
pub struct Node {
    pub engine: Arc<Engine>,
    pub lifecycle: Lifecycle,
    /// Records requests, if tracing is on.
    pub tracing: Option<Arc<Tracing>>,
    pub load: Load,
    pub refusals: Refusals,
    pub reloader: Arc<Reloader>,
    /// Names keys for operators, as in traces.
    pub keys: Arc<KeyNames>,
    pub watchers: Watchers,
}

/// The phases of a node, in order. A node never returns to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The node waits for its overrides or the rules of its control plane, and is not ready.
    Starting,
    /// The node answers and is ready for more.
    Serving,
    /// The node answers, but readiness returns 503, so that load balancers use other nodes.
    Draining,
    /// The node accepts no connections. Each answer is the last one of its connection.
    Closing,
}

/// The phase of one node, shared by its writers and readers.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle(Arc<State>);

#[derive(Debug, Default)]
struct State {
    phase: AtomicU8,
    changed: Notify,
}

impl Lifecycle {
    /// Advances to `phase`, unless the node has reached it.
    pub fn advance(&self, phase: Phase) {
        self.0.phase.fetch_max(phase as u8, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }

    /// Whether the node is ready for requests: it has all that it needs and does not drain.
    pub fn is_ready(&self) -> bool {
        self.reached(Phase::Serving) && !self.reached(Phase::Draining)
    }

    /// Whether the node has reached `phase`.
    pub fn reached(&self, phase: Phase) -> bool {
        self.0.phase.load(Ordering::Relaxed) >= phase as u8
    }

    /// Waits until the node has reached `phase`.
    pub async fn reaches(&self, phase: Phase) {
        loop {
            // Before the look, so that no change passes between the two.
            let changed = self.0.changed.notified();
            if self.reached(phase) {
                return;
            }
            changed.await;
        }
    }
}
