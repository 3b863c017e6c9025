//! Counts rejected calls by their reason: the caller lacks the right, or sends malformed HTTP. For
//! each reason the log names a client from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::caller::Caller;
use crate::access::Refused;
use crate::clock::Clock;
use crate::telemetry::limiter::Limiter;
use crate::telemetry::metrics::Family;

/// The reason for a rejected call, as the metric and the log name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Reason {
    NoToken,
    UnknownToken,
    NeedsAdmin,
    NoAdminTokens,
    Page,
    MalformedHttp,
}

const REASONS: [(Reason, &str); 6] = [
    (Reason::NoToken, "no_token"),
    (Reason::UnknownToken, "unknown_token"),
    (Reason::NeedsAdmin, "needs_admin"),
    (Reason::NoAdminTokens, "no_admin_tokens"),
    (Reason::Page, "page"),
    (Reason::MalformedHttp, "malformed_http"),
];

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoToken => Self::NoToken,
            Refused::UnknownToken => Self::UnknownToken,
            Refused::NeedsAdmin => Self::NeedsAdmin,
            Refused::NoAdminTokens => Self::NoAdminTokens,
            Refused::Page => Self::Page,
        }
    }
}

/// The rejected calls of a node, on all its listeners.
#[derive(Debug, Clone)]
pub struct Refusals(Arc<Inner>);

impl Default for Refusals {
    fn default() -> Self {
        let (calls, handshakes) = Default::default();
        Self(Arc::new(Inner { calls, handshakes, clock: Clock::system() }))
    }
}

#[derive(Debug)]
struct Inner {
    /// By [`Reason`].
    calls: [(AtomicU64, Limiter); REASONS.len()],
    handshakes: (AtomicU64, Limiter),
    clock: Clock,
}

impl Refusals {
    /// Counts a call, and logs its client. The log omits the path, since a path may name a key.
    pub(super) fn call(&self, reason: Reason, caller: Caller) {
        let (count, limiter) = &self.0.calls[reason as usize];
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = limiter.pass(self.0.clock.now()) {
            let (_, reason) = REASONS[reason as usize];
            tracing::warn!(reason, client = caller.shown(), suppressed, "calls are refused");
        }
    }

    /// Counts a failed TLS handshake. The log omits clients that close without a word, as port
    /// probes do.
    pub fn handshake(&self, caller: Caller, error: &std::io::Error) {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let (count, limiter) = &self.0.handshakes;
        count.fetch_add(1, Ordering::Relaxed);
        let is_a_look = matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe);
        if !is_a_look && let Some(suppressed) = limiter.pass(self.0.clock.now()) {
            tracing::warn!(%error, client = caller.shown(), suppressed, "no TLS was agreed on");
        }
    }

    /// `tollgate_refused_calls_total`.
    pub(super) fn calls(&self) -> Family<u64> {
        let calls = REASONS.iter().zip(&self.0.calls);
        calls
            .map(|((_, reason), (count, _))| (vec![("reason", (*reason).to_owned())], count.load(Ordering::Relaxed)))
            .collect()
    }

    /// `tollgate_tls_handshakes_failed_total`.
    pub(super) fn handshakes(&self) -> u64 {
        self.0.handshakes.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_place() {
        for (place, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
