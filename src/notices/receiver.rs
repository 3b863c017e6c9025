//! A receiver of notices: an HTTP server of somebody else, which may be slow, away or wrong.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ring::hmac;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{sleep, timeout};

use super::bounded::Bounded;
use super::queue::Queue;
use super::{Body, Fate, Notice, State};
use crate::clock::Clock;
use crate::limit::time::instant;
use crate::telemetry::limiter::Limiter;

/// Notices under way to one receiver.
const AT_ONCE: usize = 16;

/// Longest time for one notice.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a failure, which doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The most tries of a notice, which take about a quarter of an hour.
const TRIES: u32 = 20;

/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(30);

pub(super) type Client = hyper_util::client::legacy::Client<Bounded<HttpsConnector<HttpConnector>>, Full<Bytes>>;

/// A client that trusts the authorities of this machine.
pub(super) fn client() -> Option<Client> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // The provider has the default versions, so there is a client.
    let config =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    let config = config.ok()?.with_root_certificates(roots).with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    let mut builder = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(AT_ONCE);
    Some(builder.build(Bounded(connector)))
}

/// A notice, and how often it was sent.
struct Sending {
    notice: Notice,
    tries: u32,
}

/// The result of a try.
enum Tried {
    Sent,
    Rejected(StatusCode),
    /// The receiver may take it later.
    Failed(String),
}

/// Sends the notices of a queue to their receiver, some at a time. Never returns.
pub(super) async fn deliver(client: Client, queue: Arc<Queue>, state: Arc<State>) {
    let (log, clock) = (Limiter::default(), Clock::system());
    let (mut waiting, mut pause) = (Vec::new(), Duration::ZERO);
    loop {
        if waiting.is_empty() {
            waiting.push(Sending { notice: queue.pop().await, tries: 0 });
        }
        while waiting.len() < AT_ONCE
            && let Some(notice) = queue.try_pop()
        {
            waiting.push(Sending { notice, tries: 0 });
        }
        let sent = waiting.drain(..).map(async |sending| (post(&client, &sending.notice).await, sending));
        let mut has_sent = false;
        for (tried, Sending { notice, tries }) in join_all(sent).await {
            let reason = match tried {
                Tried::Sent => {
                    has_sent = true;
                    state.ended(&notice, Fate::Sent);
                    continue;
                }
                Tried::Rejected(status) => {
                    state.ended(&notice, Fate::Failed);
                    status.to_string()
                }
                Tried::Failed(reason) if tries + 1 == TRIES => {
                    state.ended(&notice, Fate::Failed);
                    reason
                }
                Tried::Failed(reason) => {
                    let (policy, receiver) = (notice.policy.clone(), notice.to.origin.clone());
                    waiting.push(Sending { notice, tries: tries + 1 });
                    warn(&log, &clock, &policy, &receiver, &reason);
                    continue;
                }
            };
            warn(&log, &clock, &notice.policy, &notice.to.origin, &reason);
        }
        pause = match (waiting.is_empty(), has_sent) {
            (true, _) => Duration::ZERO,
            (false, true) => FIRST_PAUSE,
            (false, false) => (2 * pause).clamp(FIRST_PAUSE, LONGEST_PAUSE),
        };
        sleep(pause).await;
    }
}

fn warn(log: &Limiter, clock: &Clock, policy: &str, receiver: &str, reason: &str) {
    if let Some(suppressed) = log.pass(clock.now()) {
        tracing::warn!(policy, receiver, reason, suppressed, "a notice was not delivered");
    }
}

async fn post(client: &Client, notice: &Notice) -> Tried {
    let request = match request(notice) {
        Ok(request) => request,
        Err(error) => return Tried::Failed(error.to_string()),
    };
    match timeout(TIMEOUT, client.request(request)).await {
        Err(_) => Tried::Failed("no answer within 10 seconds".to_owned()),
        Ok(Err(error)) => Tried::Failed(shown(&error)),
        Ok(Ok(response)) => match response.status() {
            status if status.is_success() => Tried::Sent,
            status if is_temporary(status) => Tried::Failed(status.to_string()),
            status => Tried::Rejected(status),
        },
    }
}

/// Whether the receiver may take the notice later.
fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

fn request(notice: &Notice) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let Notice { id, policy, key, quota, mark, limit, remaining, at, to } = notice;
    let (mark, limit, remaining, at) = (*mark, *limit, *remaining, instant(*at));
    let body = Body { id, policy, key, quota, mark, limit, remaining, at };
    // No member can fail.
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &to.secret), &body);
    let signature: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Request::post(&to.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .header("x-tollgate-signature", format!("sha256={signature}"))
        .body(Full::from(body))
}

/// An error with its cause.
fn shown(error: &hyper_util::client::legacy::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
