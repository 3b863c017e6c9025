//! Counts rejected calls by their reason: the caller lacks the right, or sends malformed HTTP. For
//! each reason the log names a client from time to time.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::access::{Refused, Rejected};
use crate::clock::Clock;
use crate::telemetry::instrument::Count;
use crate::telemetry::limiter::Limiter;
use crate::telemetry::metrics::Family;

/// The client of a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Caller {
    pub address: Option<IpAddr>,
    /// The connection uses TLS.
    pub encrypted: bool,
    /// The address of this node that the client has reached.
    pub local: Option<SocketAddr>,
}

impl Caller {
    /// The client's address for the log.
    fn shown(&self) -> String {
        self.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    }
}

/// The rejected calls of a node, on all its listeners.
#[derive(Debug, Clone)]
pub struct Refusals(Arc<Inner>);

impl Default for Refusals {
    fn default() -> Self {
        let (refused, malformed, malformed_resp, handshakes) = Default::default();
        Self(Arc::new(Inner { refused, malformed, malformed_resp, handshakes, clock: Clock::system() }))
    }
}

#[derive(Debug)]
struct Inner {
    refused: [Counter; Refused::ALL.len()],
    malformed: Counter,
    malformed_resp: Counter,
    handshakes: Counter,
    clock: Clock,
}

/// A count, and the limiter of its line in the log.
#[derive(Debug, Default)]
struct Counter {
    count: Count,
    log: Limiter,
}

/// The reason of a request that is not right HTTP.
const MALFORMED: &str = "malformed_http";

/// The reason of bytes that are no commands of a Redis client.
const MALFORMED_RESP: &str = "malformed_resp";

impl Refusals {
    /// Counts a call without the right to make it.
    pub fn refused(&self, rejected: &Rejected, caller: Caller) {
        let reason = rejected.reason;
        self.call(&self.0.refused[reason as usize], reason.name(), caller, rejected.token.as_deref());
    }

    /// Counts a call that is malformed HTTP.
    pub fn malformed(&self, caller: Caller) {
        self.call(&self.0.malformed, MALFORMED, caller, None);
    }

    /// Counts a connection that ends because its bytes are no RESP.
    pub fn malformed_resp(&self, caller: Caller) {
        self.call(&self.0.malformed_resp, MALFORMED_RESP, caller, None);
    }

    /// The log omits the path, since a path may name a key.
    fn call(&self, Counter { count, log }: &Counter, reason: &str, caller: Caller, token: Option<&str>) {
        count.add(1);
        if let Some(suppressed) = log.pass(self.0.clock.now()) {
            tracing::warn!(reason, client = caller.shown(), token, suppressed, "calls are refused");
        }
    }

    /// Counts a failed TLS handshake. The log omits clients that close without a word, as port
    /// probes do.
    pub fn handshake(&self, caller: Caller, error: &std::io::Error) {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let Counter { count, log } = &self.0.handshakes;
        count.add(1);
        let is_a_look = matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe);
        if !is_a_look && let Some(suppressed) = log.pass(self.0.clock.now()) {
            tracing::warn!(%error, client = caller.shown(), suppressed, "no TLS was agreed on");
        }
    }

    /// `tollgate_refused_calls_total`.
    pub fn calls(&self) -> Family<u64> {
        let refused = Refused::ALL.map(Refused::name).into_iter().zip(&self.0.refused);
        let calls = refused.chain([(MALFORMED, &self.0.malformed), (MALFORMED_RESP, &self.0.malformed_resp)]);
        calls.map(|(reason, calls)| (vec![("reason", reason.to_owned())], calls.count.total())).collect()
    }

    /// `tollgate_tls_handshakes_failed_total`.
    pub fn handshakes(&self) -> u64 {
        self.0.handshakes.count.total()
    }
}
