use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method};

use crate::clock;
use crate::connections::{Call, Connections, Failure, Reply};
use crate::options::Address;
use crate::tls::Tls;

/// The time for which calls avoid a failed node. Half a second leaves room for the deadline of one
/// call, so that decisions return within a second of the node's return.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest wait for the answer to a question that no caller waits for.
const PATIENCE: Duration = Duration::from_secs(5);

/// One address of the list, with its own connections.
#[derive(Debug)]
pub(crate) struct Node {
    connections: Connections,
    health: Mutex<Health>,
    /// Whether a call has asked for the timeout of the node.
    is_known: AtomicBool,
}

#[derive(Debug, Default)]
struct Health {
    /// The end of a pause after a failure.
    avoid_until: Option<Instant>,
    /// The time of the newest response.
    answered: Option<Instant>,
}

impl Node {
    pub fn new(address: Address, authorization: Option<HeaderValue>, tls: Option<Tls>) -> Self {
        let connections = Connections::new(address, authorization, tls);
        Self { connections, health: Mutex::default(), is_known: AtomicBool::new(false) }
    }

    pub fn is_avoided(&self, now: Instant) -> bool {
        self.health().avoid_until.is_some_and(|until| until > now)
    }

    /// Whether a call may try the node.
    pub fn admit(&self, now: Instant) -> bool {
        self.health().admit(now)
    }

    /// Makes the next calls connect anew.
    pub fn close_idle(&self) {
        self.connections.close_idle();
    }

    /// Sends the call, and once more on a new connection if the first one breaks. `again` says that
    /// another node may have received it before.
    pub async fn ask(&self, until: Instant, call: &Call<'_>, again: bool) -> Result<Reply, Failure> {
        let began = clock::now();
        let mut answer = self.connections.exchange(until, call, again).await;
        let is_broken = matches!(answer, Err(Failure::Broken(_)));
        if is_broken && call.is_repeatable {
            self.close_idle();
            answer = self.connections.exchange(until, call, true).await;
        }
        let now = clock::now();
        match &answer {
            Ok(_) => self.health().respond(now),
            // One break is no failure of the node: it may have closed an idle connection.
            Err(_) if is_broken && !call.is_repeatable => {}
            Err(Failure::Deadline) => self.health().time_out(began, now),
            Err(_) => self.health().avoid(now),
        }
        answer
    }

    /// Asks once, after a silence, how long the node waits for its store.
    pub async fn timeout(&self) -> Option<Duration> {
        #[derive(serde::Deserialize)]
        struct Ready {
            timeout_ms: u64,
        }
        if self.is_known.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (method, target) = (Method::GET, "/health/ready");
        let call = Call { method, target, body: None, again: None, traceparent: None, is_repeatable: true };
        let reply = self.connections.exchange(clock::now() + PATIENCE, &call, false).await.ok()?;
        let Ready { timeout_ms } = serde_json::from_slice(&reply.body).ok()?;
        Some(Duration::from_millis(timeout_ms))
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health {
    /// After a pause it admits one call, and begins the next pause for all others.
    fn admit(&mut self, now: Instant) -> bool {
        match self.avoid_until {
            None => true,
            Some(until) if until <= now => {
                self.avoid_until = Some(now + PAUSE);
                true
            }
            Some(_) => false,
        }
    }

    /// Begins a pause, unless one is under way. So a slow failure of a trial delays the next trial
    /// no further.
    fn avoid(&mut self, now: Instant) {
        if self.avoid_until.is_none_or(|until| until <= now) {
            self.avoid_until = Some(now + PAUSE);
        }
    }

    /// A late response is no reason to avoid a node while it answers other calls.
    fn time_out(&mut self, began: Instant, now: Instant) {
        if self.answered.is_none_or(|answered| answered < began) {
            self.avoid(now);
        }
    }

    fn respond(&mut self, now: Instant) {
        self.answered = Some(now);
        self.avoid_until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn failed_node_gets_one_trial_in_each_pause() {
        let (start, mut health) = (clock::now(), Health::default());
        assert!(health.admit(start));
        health.avoid(start);
        assert!(!health.admit(start + 499 * MS));
        assert!(health.admit(start + 500 * MS));
        assert!(!health.admit(start + 501 * MS), "a second call during the trial");
        // The trial fails late, and the next one follows the first by one pause.
        health.avoid(start + 900 * MS);
        assert!(health.admit(start + 1000 * MS));
        health.respond(start + 1001 * MS);
        assert!(health.admit(start + 1001 * MS) && health.admit(start + 1001 * MS));
    }

    #[test]
    fn late_response_counts_only_if_the_node_answers_no_other_call() {
        let (start, mut health) = (clock::now(), Health::default());
        health.respond(start + 2 * MS);
        health.time_out(start + MS, start + 100 * MS);
        assert!(health.admit(start + 100 * MS));
        health.time_out(start + 3 * MS, start + 103 * MS);
        assert!(!health.admit(start + 103 * MS));
    }
}
