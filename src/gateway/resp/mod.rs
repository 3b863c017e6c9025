//! RESP: any Redis client may send `CL.THROTTLE`, as the module redis-cell answers it.
//!
//! ```text
//! bytes     decode.rs       commands that have arrived; or the end, if they are no RESP
//!           session.rs      the state of a connection: its right to check, its version
//!           commands.rs     one row for each command
//!           outcome.rs      the result of a command
//!           handshake.rs    those that clients send when they connect
//!           throttle.rs     CL.THROTTLE -> check; decision -> five numbers
//!           policy_check.rs TG.CHECK -> check; decision -> its answer
//!           holds.rs        TG.SETTLE, TG.RENEW
//!           keys.rs         DEL, EXISTS, TTL
//!           cluster.rs      the node as a cluster of one
//!           transaction.rs  MULTI, EXEC
//! checks    turn.rs         a turn: what has arrived is decided together, and answered in order
//! bytes     connection.rs   reads, writes, the time of a client, the end
//! ```

use std::sync::Arc;

use crate::access::Reach;
use crate::engine::Engine;
use crate::node::{Caller, Holdings, Node, Refusals};
use crate::reload::Reloader;
use crate::telemetry::traces::Tracing;

mod decode;

mod reply;

mod session;

mod commands;

mod outcome;

mod handshake;

mod throttle;

mod policy_check;

mod holds;

mod keys;

mod cluster;

mod transaction;

mod turn;

mod connection;

pub use connection::serve;

/// The door of one listener.
#[derive(Debug, Clone)]
pub struct Service {
    engine: Arc<Engine>,
    reloader: Arc<Reloader>,
    refusals: Refusals,
    tracing: Option<Arc<Tracing>>,
    reach: Reach,
    caller: Caller,
    holdings: Arc<Holdings>,
}

impl Service {
    pub fn new(node: &Node, reach: Reach) -> Self {
        let (engine, reloader) = (node.engine.clone(), node.reloader.clone());
        let (refusals, tracing) = (node.refusals.clone(), node.tracing.clone());
        let holdings = Holdings::new(&node.load, None);
        Self { engine, reloader, refusals, tracing, reach, caller: Caller::default(), holdings }
    }

    /// The service of one connection.
    #[must_use]
    pub fn with_caller(&self, caller: Caller, holdings: Arc<Holdings>) -> Self {
        Self { caller, holdings, ..self.clone() }
    }
}
