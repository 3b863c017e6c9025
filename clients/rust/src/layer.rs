use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use derive_setters::Setters;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use tower_layer::Layer;

use crate::check::{Check, safe_key};
use crate::client::Client;
use crate::decision::Decision;
use crate::error::Error;
use crate::options::InvalidOptions;
use crate::service::LimitService;

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
type Answer<T> = Arc<dyn Fn(&Parts, &Answered) -> T + Send + Sync>;
type KeyFunction = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;
type Body = Arc<dyn Fn(&Parts, &Decision) -> (HeaderValue, Bytes) + Send + Sync>;

#[derive(Clone)]
enum Key {
    Now(Function<Option<String>>),
    Later(Function<Pin<Box<dyn Future<Output = Option<String>> + Send>>>),
}

/// How long the charge of a request can be given back.
const REFUND_LIFE: Duration = Duration::from_secs(300);

/// A tower layer that passes a request on if its check is allowed.
///
/// The default counts requests by address under the policy `default`, and answers denials by 429
/// and a problem document. The service finds the [`Decision`] among the extensions of a request
/// that passes. Functions get the head of the request. In axum its extensions have what
/// outer layers found out, such as the user.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Client, LimitLayer, OnFailure, Options, safe_key};
/// # let client = Client::new(Options::default())?;
/// let limit = LimitLayer::new(client)
///     .policy("per-user")
///     .key(|request| request.headers.get("x-verified-user").map(safe_key))
///     .on_failure(OnFailure::Closed);
/// # Ok::<(), tollgate_limiter::InvalidOptions>(())
/// ```
#[derive(Clone, Setters)]
#[setters(generate = false)]
pub struct LimitLayer {
    pub(crate) client: Client,
    policy: Option<Function<String>>,
    plan: Option<Function<Option<String>>>,
    key: Option<Key>,
    cost: Option<Function<u64>>,
    pub(crate) skip: Option<Function<bool>>,
    pub(crate) drain: Option<Answer<u64>>,
    pub(crate) refund: Option<Answer<bool>>,
    pub(crate) body: Option<Body>,
    on_error: Option<OnError>,
    /// Whether a request holds its cost, and a place, until its response has ended or its caller has
    /// left. The service finds a [`HoldHandle`](crate::HoldHandle) among the extensions, and may set
    /// the true cost. The policy needs a hold. It excludes `look`, `drain` and `refund`.
    #[setters(generate)]
    pub(crate) hold: bool,
    /// Whether the check charges nothing, and only denies a cost that does not fit. With
    /// [`LimitLayer::drain`] it limits usage that is known only after the response.
    #[setters(generate)]
    look: bool,
    /// Whether a request is charged once, also if the client repeats its check. See
    /// [`Check::once`](crate::Check::once).
    #[setters(generate)]
    once: bool,
    /// Whether the layer ends requests as gRPC does: a denial is `RESOURCE_EXHAUSTED`. By default it
    /// is 429, which clients of gRPC report as `UNAVAILABLE`, and may repeat.
    #[setters(generate)]
    pub(crate) grpc: bool,
    /// The treatment of requests without a decision.
    #[setters(generate)]
    pub(crate) on_failure: OnFailure,
    /// The status of a denial; the default is 429.
    #[setters(generate)]
    pub(crate) status: StatusCode,
}

impl LimitLayer {
    /// Limits requests by the decisions of the client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            policy: None,
            plan: None,
            key: None,
            cost: None,
            skip: None,
            drain: None,
            refund: None,
            body: None,
            on_error: None,
            hold: false,
            look: false,
            once: false,
            grpc: false,
            on_failure: OnFailure::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// A configured policy; the default is `default`.
    #[must_use]
    pub fn policy(self, policy: impl Into<String>) -> Self {
        let policy = policy.into();
        self.policy_of(move |_| policy.clone())
    }

    /// The policy of a request, for example by the plan of its caller.
    #[must_use]
    pub fn policy_of(self, policy: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        Self { policy: Some(Arc::new(policy)), ..self }
    }

    /// A plan of the configuration, whose quotas replace those of the policy.
    #[must_use]
    pub fn plan(self, plan: impl Into<String>) -> Self {
        let plan = plan.into();
        self.plan_of(move |_| Some(plan.clone()))
    }

    /// The plan of a request, if it has one.
    #[must_use]
    pub fn plan_of(self, plan: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { plan: Some(Arc::new(plan)), ..self }
    }

    /// The partition key of a request. The default, also without a key and for an empty one, is
    /// [`remote_ip`]. It reads no header: behind a proxy, set [`forwarded_ip`].
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { key: Some(Key::Now(Arc::new(key))), ..self }
    }

    /// A key that has to be awaited, for example from a session store. The future cannot borrow the
    /// request: take what it needs before.
    #[must_use]
    pub fn key_async<F>(self, key: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        Self { key: Some(Key::Later(Arc::new(move |request| Box::pin(key(request))))), ..self }
    }

    /// The units of a request; the default is 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Whether a request passes uncounted.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { skip: Some(Arc::new(skip)), ..self }
    }

    /// Units that are known only after the response. They count as far as they fit.
    ///
    /// The function runs once, when the body of the response ends or its caller leaves.
    #[must_use]
    pub fn drain(self, drain: impl Fn(&Parts, &Answered) -> u64 + Send + Sync + 'static) -> Self {
        Self { drain: Some(Arc::new(drain)), ..self }
    }

    /// Whether the charge of a request is given back after its response, for example to count failed
    /// logins only. The charge comes first, so parallel requests cannot exceed the limit.
    ///
    /// The function runs once, when the body of the response ends or its caller leaves. A charge can
    /// be given back for 5 minutes.
    #[must_use]
    pub fn refund(self, refund: impl Fn(&Parts, &Answered) -> bool + Send + Sync + 'static) -> Self {
        Self { refund: Some(Arc::new(refund)), ..self }
    }

    /// The text of a denial. The default is a problem document.
    #[must_use]
    pub fn body(self, text: impl Into<Bytes>) -> Self {
        let text = text.into();
        self.body_with(move |_, _| (HeaderValue::from_static("text/plain; charset=utf-8"), text.clone()))
    }

    /// A value that is the body of a denial as JSON.
    #[must_use]
    pub fn body_json(self, value: &impl serde::Serialize) -> Self {
        // A value without JSON, such as a map whose keys are no texts, becomes null.
        let text = Bytes::from(serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec()));
        self.body_with(move |_, _| (HeaderValue::from_static("application/json"), text.clone()))
    }

    /// The content type and the body of a denial.
    #[must_use]
    pub fn body_with(self, body: impl Fn(&Parts, &Decision) -> (HeaderValue, Bytes) + Send + Sync + 'static) -> Self {
        Self { body: Some(Arc::new(body)), ..self }
    }

    /// A function that gets each failure, also those of calls after the response. By default the
    /// client logs the first one, and then at most one a second: by `tracing`, or to the standard
    /// error of a program without a subscriber.
    #[must_use]
    pub fn on_error(self, on_error: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self { on_error: Some(Arc::new(on_error)), ..self }
    }

    /// The check of a request. The key is that of the caller's function, if it returns one.
    pub(crate) async fn check(&self, request: &Parts) -> Check {
        let key = match &self.key {
            None => None,
            Some(Key::Now(key)) => key(request),
            Some(Key::Later(key)) => key(request).await,
        };
        let key = key.filter(|key| !key.is_empty()).map(safe_key).or_else(|| {
            if self.key.is_none() {
                self.client.monitor().about_proxy(&request.headers);
            }
            remote_ip(request)
        });
        // A node rejects an empty key. So a request without an address ends with 400.
        let mut check = Check::new(key.unwrap_or_default()).once(self.once && !self.hold);
        check.policy = self.policy.as_ref().map(|policy| policy(request));
        check.plan = self.plan.as_ref().and_then(|plan| plan(request));
        check.cost = self.cost.as_ref().map(|cost| cost(request));
        if self.hold {
            // Its id is that of the hold.
        } else if self.look || (check.cost == Some(0) && self.drain.is_some()) {
            // A cost of 0 is never denied, so the layer looks for one unit.
            check.cost = check.cost.filter(|cost| *cost > 0);
            check = check.look(true);
        } else if self.refund.is_some() {
            check.set_id(REFUND_LIFE);
        }
        let mut traceparents = request.headers.get_all("traceparent").iter();
        if let (Some(traceparent), None) = (traceparents.next(), traceparents.next()) {
            check = check.traceparent(traceparent.to_str().unwrap_or_default());
        }
        check
    }

    pub(crate) fn report(&self, what: &str, error: &Error) {
        match &self.on_error {
            Some(on_error) => on_error(error),
            None => self.client.monitor().log(what, error),
        }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    /// # Panics
    /// If options exclude each other: `hold` beside `look`, `drain` or `refund`, or `look` beside
    /// `refund`.
    fn layer(&self, inner: S) -> LimitService<S> {
        let follows = self.drain.is_some() || self.refund.is_some();
        assert!(!(self.hold && (self.look || follows)), "hold settles the cost: remove look, drain and refund");
        assert!(!(self.look && self.refund.is_some()), "look charges nothing to refund: use one of them");
        LimitService { limit: Arc::new(self.clone()), inner }
    }
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The response to a request, for [`LimitLayer::drain`] and [`LimitLayer::refund`].
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

/// The address of the peer, without its port, as axum's `ConnectInfo<SocketAddr>` has it, or a
/// `SocketAddr` among the extensions of the request. It reads no header.
///
/// Requests have it with `Router::into_make_service_with_connect_info::<SocketAddr>()`. A request
/// without an address ends with 400, unless it has a key.
pub fn remote_ip(request: &Parts) -> Option<String> {
    let peer = connect_info(request).or_else(|| request.extensions.get().copied())?;
    Some(peer.ip().to_canonical().to_string())
}

/// A function for [`LimitLayer::key`] behind proxies: addresses or networks, such as `10.0.0.0/8`.
///
/// It reads `X-Forwarded-For` from the end, and returns the first address that none of these proxies
/// has. If the peer is no such proxy, it returns the address of the peer, as [`remote_ip`] does.
///
/// # Errors
/// A proxy is neither an address nor a network.
pub fn forwarded_ip<T: AsRef<str>>(proxies: impl IntoIterator<Item = T>) -> Result<Box<KeyFunction>, InvalidOptions> {
    let trusted = proxies.into_iter().map(|proxy| network(proxy.as_ref())).collect::<Result<Vec<_>, _>>()?;
    Ok(Box::new(move |request: &Parts| {
        let is_proxy = |address: &str| address.parse().is_ok_and(|ip| trusted.iter().any(|network| has(*network, ip)));
        let mut client = remote_ip(request)?;
        let lines = request.headers.get_all("x-forwarded-for").iter().filter_map(|line| line.to_str().ok());
        let hops: Vec<&str> = lines.flat_map(|line| line.split(',')).collect();
        for hop in hops.into_iter().rev() {
            if !is_proxy(&client) {
                break;
            }
            client = plain(hop.trim());
        }
        Some(client)
    }))
}

/// An address without its port, brackets and zone. Other texts stay as they are.
fn plain(text: &str) -> String {
    let bare = text.trim_matches(['[', ']']).split('%').next().unwrap_or_default();
    let address = text.parse::<SocketAddr>().map(|peer| peer.ip()).or_else(|_| bare.parse());
    address.map_or_else(|_| text.to_owned(), |address| address.to_canonical().to_string())
}

fn network(text: &str) -> Result<(IpAddr, u8), InvalidOptions> {
    let fault = || InvalidOptions(format!("proxy `{text}` must be an address or a network such as 10.0.0.0/8"));
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address = address.parse::<IpAddr>().map_err(|_| fault())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), str::parse).ok().filter(|bits| *bits <= most).ok_or_else(fault)?;
    Ok((address, bits))
}

fn has((network, bits): (IpAddr, u8), address: IpAddr) -> bool {
    let (apart, width) = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => (u128::from(network.to_bits() ^ address.to_bits()), 32),
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits() ^ address.to_bits(), 128),
        _ => return false,
    };
    apart.checked_shr(width - u32::from(bits)).unwrap_or(0) == 0
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(peer: &str, forwarded: &[&str]) -> Option<String> {
        let key = forwarded_ip(["10.0.0.0/8", "2001:db8::1"]).unwrap();
        let mut request = http::Request::builder().extension(format!("{peer}:80").parse::<SocketAddr>().unwrap());
        for line in forwarded {
            request = request.header("x-forwarded-for", *line);
        }
        key(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn address_behind_trusted_proxies_is_the_first_that_is_no_proxy() {
        for (peer, forwarded, key) in [
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("10.1.2.3", &["198.51.100.1"], "198.51.100.1"),
            ("10.1.2.3", &["6.6.6.6, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
            ("10.1.2.3", &["6.6.6.6", "198.51.100.1:4711"], "198.51.100.1"),
            ("[2001:db8::1]", &["[2001:db8::7]:443"], "2001:db8::7"),
            ("[2001:db8::2]", &["198.51.100.1"], "2001:db8::2"),
            ("10.1.2.3", &["fe80::1%eth0"], "fe80::1"),
            ("10.1.2.3", &[], "10.1.2.3"),
        ] {
            assert_eq!(key_of(peer, forwarded).as_deref(), Some(key), "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn proxy_must_be_an_address_or_a_network() {
        for proxy in ["", "proxy", "10.0.0.0/33", "10.0.0.0/x", "::/129"] {
            let fault = forwarded_ip([proxy]).err().unwrap();
            assert!(fault.to_string().contains(proxy), "{fault}");
        }
        assert!(forwarded_ip(["0.0.0.0/0", "::/0", "192.0.2.1"]).is_ok());
    }
}
