use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::check::{Check, safe_key};
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
type Body = Arc<dyn Fn(&Parts, &Decision) -> (HeaderValue, Bytes) + Send + Sync>;
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;

/// The response to a request, for [`LimitLayer::drain`](crate::LimitLayer::drain).
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
    pub policy: Option<String>,
    pub key: Option<Function<Option<String>>>,
    pub cost: Option<Function<u64>>,
    pub skip: Option<Function<bool>>,
    pub drain: Option<Drain>,
    pub on_failure: OnFailure,
    pub status: StatusCode,
    pub body: Option<Body>,
    pub on_error: Option<OnError>,
}

impl Limit {
    pub fn check(&self, request: &Parts) -> Check {
        let key = self.key.as_ref().and_then(|key| key(request)).filter(|key| !key.is_empty());
        // A node rejects an empty key. So a request without an address ends with 400.
        let key = key.map(safe_key).or_else(|| remote_ip(request)).unwrap_or_default();
        let mut check = Check::new(key);
        check.policy.clone_from(&self.policy);
        check.cost = self.cost.as_ref().map(|cost| cost(request));
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
