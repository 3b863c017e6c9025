use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use tower_layer::Layer;

use crate::client::Client;
use crate::decision::Decision;
use crate::error::Error;
use crate::limit::{Answered, Key, Limit, OnFailure};
use crate::service::LimitService;

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
            look: false,
            once: false,
            skip: None,
            drain: None,
            refund: None,
            on_failure: OnFailure::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            body: None,
            on_error: None,
            grpc: false,
        };
        Self { client, limit: Arc::new(limit) }
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
        self.with(|limit| limit.policy = Some(Arc::new(policy)))
    }

    /// The partition key of a request. The default, also without a key and for an empty one, is
    /// [`remote_ip`](crate::remote_ip). It reads no header: behind a proxy, set a function that
    /// trusts the proxy.
    #[must_use]
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.key = Some(Key::Now(Arc::new(key))))
    }

    /// A key that has to be awaited, for example from a session store. The future cannot borrow the
    /// request: take what it needs before.
    #[must_use]
    pub fn key_async<F>(self, key: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<String>> + Send + 'static,
    {
        self.with(|limit| limit.key = Some(Key::Later(Arc::new(move |request| Box::pin(key(request))))))
    }

    /// The units of a request; the default is 1.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.cost = Some(Arc::new(cost)))
    }

    /// Whether the check charges nothing, and only denies a cost that does not fit. With
    /// [`LimitLayer::drain`] it limits usage that is known only after the response.
    #[must_use]
    pub fn look(self, look: bool) -> Self {
        self.with(|limit| limit.look = look)
    }

    /// Whether a request is charged once, also if the client repeats its check. See
    /// [`Check::once`](crate::Check::once).
    #[must_use]
    pub fn once(self, once: bool) -> Self {
        self.with(|limit| limit.once = once)
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

    /// Whether the charge of a request is given back after its response, for example to count failed
    /// logins only. The charge comes first, so parallel requests cannot exceed the limit.
    ///
    /// The function runs once, when the body of the response ends or its caller leaves. A charge can
    /// be given back for 5 minutes.
    #[must_use]
    pub fn refund(self, refund: impl Fn(&Parts, &Answered) -> bool + Send + Sync + 'static) -> Self {
        self.with(|limit| limit.refund = Some(Arc::new(refund)))
    }

    /// Whether the layer ends requests as gRPC does: a denial is `RESOURCE_EXHAUSTED`. By default it
    /// is 429, which clients of gRPC report as `UNAVAILABLE`, and may repeat.
    #[must_use]
    pub fn grpc(self, grpc: bool) -> Self {
        self.with(|limit| limit.grpc = grpc)
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
            .field("on_failure", &self.limit.on_failure)
            .field("status", &self.limit.status)
            .finish_non_exhaustive()
    }
}
