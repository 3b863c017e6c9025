use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use tower_layer::Layer;

use crate::client::Client;
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{Answered, Limit, OnFailure};
use crate::service::LimitService;

/// A tower layer that passes a request on if its check is allowed.
///
/// The default counts requests by address under the policy `default`, and answers denials by 429
/// and a problem document. Functions get the head of the request. In axum its extensions have what
/// outer layers found out, such as the user.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_client::{Client, LimitLayer, OnFailure, Options, safe_key};
/// # let client = Client::new(Options::default())?;
/// let limit = LimitLayer::new(client)
///     .policy("per-user")
///     .key(|request| request.headers.get("x-verified-user").map(safe_key))
///     .on_failure(OnFailure::Closed);
/// # Ok::<(), tollgate_client::InvalidOptions>(())
/// ```
#[derive(Clone)]
pub struct LimitLayer {
    client: Client,
    limit: Arc<Limit>,
}

impl LimitLayer {
    /// Limits requests by the decisions of the client.
    pub fn new(client: Client) -> Self {
        let limit = Limit {
            policy: None,
            key: None,
            cost: None,
            skip: None,
            drain: None,
            on_failure: OnFailure::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            body: None,
            on_error: None,
        };
        Self { client, limit: Arc::new(limit) }
    }

    /// A configured policy; the default is `default`.
    #[must_use]
    pub fn policy(self, policy: impl Into<String>) -> Self {
        self.with(|limit| limit.policy = Some(policy.into()))
    }

    /// The partition key of a request. The default, also without a key and for an empty one, is
    /// [`remote_ip`](crate::remote_ip). It reads no header: behind a proxy, set a function that
    /// trusts the proxy.
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.key = Some(Arc::new(key)))
    }

    /// The units of a request; the default is 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.cost = Some(Arc::new(cost)))
    }

    /// Whether a request passes uncounted.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.skip = Some(Arc::new(skip)))
    }

    /// Units that are known only after the response. They count as far as they fit.
    ///
    /// The function runs once, when the body of the response ends or its caller leaves.
    #[must_use]
    pub fn drain(self, drain: impl Fn(&Parts, &Answered) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.drain = Some(Arc::new(drain)))
    }

    /// The treatment of requests without a decision.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with(|limit| limit.on_failure = on_failure)
    }

    /// The status of a denial; the default is 429.
    #[must_use]
    pub fn status(self, status: StatusCode) -> Self {
        self.with(|limit| limit.status = status)
    }

    /// The text of a denial. The default is a problem document.
    #[must_use]
    pub fn body(self, text: impl Into<Bytes>) -> Self {
        let text = text.into();
        self.body_with(move |_, _| (HeaderValue::from_static("text/plain; charset=utf-8"), text.clone()))
    }

    /// The content type and the body of a denial.
    #[must_use]
    pub fn body_with(self, body: impl Fn(&Parts, &Decision) -> (HeaderValue, Bytes) + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.body = Some(Arc::new(body)))
    }

    /// A function that gets each failure, also those of charges after the response.
    #[must_use]
    pub fn on_error(self, on_error: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.on_error = Some(Arc::new(on_error)))
    }

    fn with(mut self, change: impl FnOnce(&mut Limit)) -> Self {
        change(Arc::make_mut(&mut self.limit));
        self
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService::new(self.client.clone(), self.limit.clone(), inner)
    }
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("client", &self.client)
            .field("policy", &self.limit.policy)
            .field("on_failure", &self.limit.on_failure)
            .field("status", &self.limit.status)
            .finish_non_exhaustive()
    }
}
