use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;

use crate::clock;
use crate::decision::{Decision, Source};
use crate::error::{Error, Problem};

/// The shortest time between two lines about failures.
const LINE_PAUSE: Duration = Duration::from_secs(1);

/// Bounds the memory, since a program may choose policies by the text of a caller.
const MAX_WARNINGS: usize = 100;

pub(crate) type OnDecision = Arc<dyn Fn(&Decision) + Send + Sync>;

/// The counts of a client since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Allowed decisions. Drains, settles and refunds are no decisions.
    pub allowed: u64,
    /// Denied decisions.
    pub denied: u64,
    /// All decisions by their source.
    pub sources: BTreeMap<Source, u64>,
    /// Requests that a layer passed without a decision.
    pub passed: u64,
    /// Checks and calls that no node answered, or that one rejected.
    pub failures: u64,
}

/// Counts and logs. A limiter that fails open would otherwise pass requests in silence.
pub(crate) struct Monitor {
    on_decision: Option<OnDecision>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stats: Stats,
    /// The mistakes that are logged.
    warned: HashSet<String>,
    outage: Option<Outage>,
    /// The time of the newest line.
    logged: Option<Instant>,
}

/// The failures since the last return of decisions.
#[derive(Debug)]
struct Outage {
    began: Instant,
    newest: Instant,
    failures: u64,
}

impl Monitor {
    pub fn new(on_decision: Option<OnDecision>) -> Self {
        Self { on_decision, state: Mutex::default() }
    }

    pub fn stats(&self) -> Stats {
        self.state().stats.clone()
    }

    pub fn decided(&self, decision: &Decision) {
        let line = {
            let mut state = self.state();
            *if decision.allowed { &mut state.stats.allowed } else { &mut state.stats.denied } += 1;
            match state.stats.sources.get_mut(&decision.source) {
                Some(count) => *count += 1,
                None => _ = state.stats.sources.insert(decision.source.clone(), 1),
            }
            state.returned(&decision.source)
        };
        if let Some(line) = line {
            write(&line);
        }
        if let Some(on_decision) = &self.on_decision {
            on_decision(decision);
        }
    }

    /// A request passes without a decision.
    pub fn passed(&self) {
        self.state().stats.passed += 1;
    }

    pub fn failed(&self, count: usize) {
        self.state().stats.failures += count as u64;
    }

    /// Counts the failure of a call that is no check.
    pub fn counted<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        answer.inspect_err(|_| self.failed(1))
    }

    /// Logs a failure that no caller sees: the first one, and then at most one a second.
    pub fn log(&self, what: &str, error: &Error) {
        let line = {
            let (mut state, now) = (self.state(), clock::now());
            let outage = state.outage.get_or_insert(Outage { began: now, newest: now, failures: 0 });
            outage.newest = now;
            outage.failures += 1;
            let more = if outage.failures > 1 { format!(" ({})", outage.summary(now)) } else { String::new() };
            if state.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LINE_PAUSE) {
                return;
            }
            state.logged = Some(now);
            format!("{what}: {error}{more}")
        };
        write(&line);
    }

    /// Warns of a mistake once.
    pub fn warn(&self, kind: &str, text: &str) {
        let mut state = self.state();
        if state.warned.len() < MAX_WARNINGS && state.warned.insert(kind.to_owned()) {
            drop(state);
            write(text);
        }
    }

    /// Warns of a problem that each further check would have, too.
    pub fn heed(&self, problem: &Problem) {
        let detail = &problem.detail;
        let until = "Until then its checks get no decision";
        match problem.status {
            _ if problem.name() == "unknown-policy" => {
                let known = problem.known[..problem.known.len().min(20)].join(", ");
                let text = format!("{detail} (the node has {known}): set `policy` to one of the node's. {until}");
                self.warn(detail, &text);
            }
            _ if problem.is_unknown_plan() => {
                self.warn(detail, &format!("{detail}: set `plan` to one of them. {until}"))
            }
            _ if problem.name() == "no-hold" => self.warn(detail, detail),
            status @ (401 | 403) => self.warn(
                "token",
                &format!("the node refused the token ({status} {detail}): set `token` to one that may make this call"),
            ),
            _ => {}
        }
    }

    /// `waited` is what a node had for its answer, and `timeout` what its store has.
    pub fn about_timeout(&self, waited: Duration, timeout: Duration) {
        if waited <= timeout {
            let (waited, timeout) = (waited.as_millis(), timeout.as_millis());
            let text = format!(
                "the deadline of {waited} ms is not above the node's timeout of {timeout} ms: set the deadline to at \
                 least {} ms",
                2 * timeout
            );
            self.warn("deadline", &text);
        }
    }

    /// A request that counts by the address of its peer.
    pub fn about_proxy(&self, headers: &HeaderMap) {
        if ["x-forwarded-for", "forwarded"].iter().any(|name| headers.contains_key(*name)) {
            self.warn(
                "proxy",
                "requests have X-Forwarded-For or Forwarded, but the key is the address of the peer, so all clients \
                 behind one proxy count as one: set `key` to `forwarded_ip` with the addresses of the proxies",
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Failures go on for a while beside decisions. So decisions return after a quiet second.
    fn returned(&mut self, source: &Source) -> Option<String> {
        let outage = self.outage.as_ref()?;
        let now = clock::now();
        let is_quiet = now.saturating_duration_since(outage.newest) >= LINE_PAUSE;
        if !is_quiet || matches!(source, Source::Client | Source::Lease) {
            return None;
        }
        let line = format!("decisions are back after {}", outage.summary(outage.newest));
        (self.outage, self.logged) = (None, Some(now));
        Some(line)
    }
}

impl Outage {
    fn summary(&self, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        match self.failures {
            1 => format!("1 failure in {seconds:.1} s"),
            failures => format!("{failures} failures in {seconds:.1} s"),
        }
    }
}

/// A program without a subscriber gets the line, too.
fn write(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        #[allow(clippy::print_stderr, reason = "no subscriber would show the line")]
        {
            eprintln!("tollgate: {text}");
        }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("state", &self.state).finish_non_exhaustive()
    }
}
