use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::clock;
use crate::patience::within;

/// The most calls to one node at a time, also while it is silent.
const MAX_CALLS: usize = 64;

/// Shorter than the node's own, so that the node rarely closes a connection in use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds the memory of one response, in bytes.
const MAX_ANSWER: usize = 8 << 20;

/// The time for which calls avoid a failed node. Half a second leaves room for the deadline of one
/// call, so that decisions return within a second of the node's return.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest wait for the answer to a question that no caller waits for.
const PATIENCE: Duration = Duration::from_secs(5);

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

type Http = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// An HTTP request to whichever node answers.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub method: Method,
    /// Path and query.
    pub target: &'a str,
    pub body: Option<Bytes>,
    /// The body of a repetition, if it differs.
    pub again: Option<Bytes>,
    /// A valid trace context of the caller.
    pub traceparent: Option<&'a str>,
    /// Whether it may be sent twice.
    pub is_repeatable: bool,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub body: Bytes,
}

/// A call without a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The node certainly received nothing.
    #[error("the connection failed: {0}")]
    NotSent(Cause),
    /// The connection broke. The node may have received the call.
    #[error("the connection broke: {0}")]
    Broken(Cause),
    #[error("the deadline passed")]
    Deadline,
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// One address of the list, with its own connections.
#[derive(Debug)]
pub(crate) struct Node {
    /// The URL that precedes the path of each call.
    base: String,
    /// The fields of each call.
    headers: HeaderMap,
    pooled: Mutex<Http>,
    /// Connects anew for each call.
    fresh: Http,
    /// Has a permit for each further call.
    places: Semaphore,
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
    pub fn new(base: String, authorization: Option<HeaderValue>, tls: ClientConfig) -> Self {
        let user_agent = HeaderValue::from_static("tollgate-rust");
        let headers = [(USER_AGENT, Some(user_agent)), (AUTHORIZATION, authorization)];
        let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let connector = connector.wrap_connector(tcp);
        let http = |idle| {
            let mut builder = Client::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT).pool_max_idle_per_host(idle);
            builder.build(connector.clone())
        };
        Self {
            base,
            headers,
            pooled: Mutex::new(http(MAX_CALLS)),
            fresh: http(0),
            places: Semaphore::new(MAX_CALLS),
            health: Mutex::default(),
            is_known: AtomicBool::new(false),
        }
    }

    pub fn url(&self) -> &str {
        &self.base
    }

    pub fn is_avoided(&self, now: Instant) -> bool {
        lock(&self.health).avoid_until.is_some_and(|until| until > now)
    }

    /// Whether a call may try the node.
    pub fn admit(&self, now: Instant) -> bool {
        lock(&self.health).admit(now)
    }

    /// Closes idle connections, and keeps none from now on.
    pub fn close(&self) {
        lock(&self.pooled).clone_from(&self.fresh);
    }

    /// Sends the call, and once more on a new connection if the first one breaks. `again` says that
    /// another node may have received it before.
    pub async fn ask(&self, until: Instant, call: &Call<'_>, again: bool) -> Result<Reply, Failure> {
        let (began, pooled) = (clock::now(), lock(&self.pooled).clone());
        if !call.is_repeatable {
            // The runtime then polls for events. So it knows of connections that nodes have closed.
            tokio::task::yield_now().await;
        }
        let mut answer = self.exchange(&pooled, until, call, again).await;
        let is_broken = matches!(answer, Err(Failure::Broken(_)));
        if is_broken && call.is_repeatable {
            answer = self.exchange(&self.fresh, until, call, true).await;
        }
        let now = clock::now();
        match &answer {
            Ok(_) => lock(&self.health).respond(now),
            // One break is no failure of the node: it may have closed an idle connection.
            Err(_) if is_broken && !call.is_repeatable => {}
            Err(Failure::Deadline) => lock(&self.health).time_out(began, now),
            Err(_) => lock(&self.health).avoid(now),
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
        let reply = self.exchange(&self.fresh, clock::now() + PATIENCE, &call, false).await.ok()?;
        let Ready { timeout_ms } = serde_json::from_slice(&reply.body).ok()?;
        Some(Duration::from_millis(timeout_ms))
    }

    async fn exchange(&self, http: &Http, until: Instant, call: &Call<'_>, again: bool) -> Result<Reply, Failure> {
        let request = self.request(call, again).map_err(|cause| Failure::NotSent(cause.into()))?;
        let _place = timeout_at(until.into(), self.places.acquire()).await.map_err(|_| Failure::Deadline)?;
        let exchange = async {
            let answer = http.request(request).await.map_err(|error| match error.is_connect() {
                true => Failure::NotSent(error.into()),
                false => Failure::Broken(error.into()),
            });
            let (head, body) = answer?.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(Failure::Broken)?.to_bytes();
            Ok(Reply { status: head.status, body })
        };
        within(until, exchange).await.unwrap_or(Err(Failure::Deadline))
    }

    fn request(&self, call: &Call<'_>, again: bool) -> http::Result<Request<Full<Bytes>>> {
        let body = call.again.as_ref().filter(|_| again).or(call.body.as_ref());
        let mut request = Request::builder().method(&call.method).uri(format!("{}{}", self.base, call.target));
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(traceparent) = call.traceparent {
            request = request.header(TRACEPARENT, traceparent);
        }
        request.body(Full::new(body.cloned().unwrap_or_default()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
