use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::check::{Check, safe_key};
use crate::client::Client;
use crate::decision::Decision;
use crate::error::Error;

/// The treatment of a request without a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The request passes, without fields.
    #[default]
    Open,
    /// The request ends with 503.
    Closed,
}

type Function<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;
type Drain = Arc<dyn Fn(&Parts, &Answered) -> u64 + Send + Sync>;
type Refunds = Arc<dyn Fn(&Parts, &Answered) -> bool + Send + Sync>;
type Body = Arc<dyn Fn(&Parts, &Decision) -> (HeaderValue, Bytes) + Send + Sync>;
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;

/// The response to a request, for [`LimitLayer::drain`](crate::LimitLayer::drain) and
/// [`LimitLayer::refund`](crate::LimitLayer::refund).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Answered {
    /// Absent if the service ended without a response: it failed, or its caller left.
    pub status: Option<StatusCode>,
    /// The header fields of the service.
    pub headers: HeaderMap,
    /// The length of the body that was read, in bytes.
    pub bytes: u64,
}

/// The options of a layer.
#[derive(Clone)]
pub(crate) struct Limit {
    pub policy: Option<Function<String>>,
    pub key: Option<Key>,
    pub cost: Option<Function<u64>>,
    pub look: bool,
    pub once: bool,
    pub skip: Option<Function<bool>>,
    pub drain: Option<Drain>,
    pub refund: Option<Refunds>,
    pub on_failure: OnFailure,
    pub status: StatusCode,
    pub body: Option<Body>,
    pub on_error: Option<OnError>,
    pub grpc: bool,
}

#[derive(Clone)]
pub(crate) enum Key {
    Now(Function<Option<String>>),
    Later(Function<Pin<Box<dyn Future<Output = Option<String>> + Send>>>),
}

/// How long the charge of a request can be given back.
const REFUND_LIFE: Duration = Duration::from_secs(300);

impl Limit {
    /// The key of a request by the caller's function.
    pub async fn key(&self, request: &Parts) -> Option<String> {
        match &self.key {
            None => None,
            Some(Key::Now(key)) => key(request),
            Some(Key::Later(key)) => key(request).await,
        }
    }

    /// The check of a request. The key is that of the caller's function, if it returns one.
    pub fn check(&self, request: &Parts, key: Option<String>, client: &Client) -> Check {
        let key = key.filter(|key| !key.is_empty()).map(safe_key).or_else(|| {
            if self.key.is_none() {
                client.warnings().about_proxy(&request.headers);
            }
            remote_ip(request)
        });
        // A node rejects an empty key. So a request without an address ends with 400.
        let mut check = Check::new(key.unwrap_or_default()).once(self.once);
        check.policy = self.policy.as_ref().map(|policy| policy(request));
        check.cost = self.cost.as_ref().map(|cost| cost(request));
        if self.look || (check.cost == Some(0) && self.drain.is_some()) {
            // A cost of 0 is never denied, so the layer looks for one unit.
            check.cost = check.cost.filter(|cost| *cost > 0);
            check = check.look(true);
        } else if self.refund.is_some() {
            client.set_id(&mut check, REFUND_LIFE);
        }
        let mut traceparents = request.headers.get_all("traceparent").iter();
        if let (Some(traceparent), None) = (traceparents.next(), traceparents.next()) {
            check = check.traceparent(traceparent.to_str().unwrap_or_default());
        }
        check
    }

    pub fn report(&self, error: &Error) {
        if let Some(on_error) = &self.on_error {
            on_error(error);
        }
    }
}

/// The address of the peer, without its port, as axum's `ConnectInfo<SocketAddr>` has it, or a
/// `SocketAddr` among the extensions of the request. It reads no header.
///
/// Requests have it with `Router::into_make_service_with_connect_info::<SocketAddr>()`. A request
/// without an address ends with 400, unless it has a key.
pub fn remote_ip(request: &Parts) -> Option<String> {
    let peer = connect_info(request).or_else(|| request.extensions.get().copied())?;
    Some(peer.ip().to_canonical().to_string())
}

#[cfg(feature = "axum")]
fn connect_info(request: &Parts) -> Option<SocketAddr> {
    use axum::extract::ConnectInfo;
    use axum::extract::connect_info::MockConnectInfo;

    let extensions = &request.extensions;
    match extensions.get() {
        Some(ConnectInfo(peer)) => Some(*peer),
        None => extensions.get().map(|MockConnectInfo(peer)| *peer),
    }
}

#[cfg(not(feature = "axum"))]
fn connect_info(_: &Parts) -> Option<SocketAddr> {
    None
}
