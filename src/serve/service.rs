//! The protocol of a listener, with its calls.

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use futures_util::future::Either;
use tokio::time::sleep;

use super::envoy::{self, RateLimitService};
use crate::config::ServerTls;
use crate::gateway::resp;
use crate::http::{self, CheckService};
use crate::node::{ArrivingBody, Caller, Holdings, Unfit};
use crate::reload::Reloader;

/// The service of a listener, or of one of its connections.
#[derive(Debug, Clone)]
pub(super) enum Service {
    Http(HttpService),
    Resp(resp::Service),
}

/// A service over HTTP.
#[derive(Debug, Clone)]
pub(super) enum HttpService {
    Api(CheckService),
    /// With the age of its connections.
    Envoy(RateLimitService, Duration),
}

impl Service {
    /// The service of one connection.
    pub(super) fn with_caller(&self, caller: Caller, holdings: Arc<Holdings>) -> Self {
        match self {
            Self::Http(HttpService::Api(service)) => {
                Self::Http(HttpService::Api(service.with_caller(caller, holdings)))
            }
            Self::Http(HttpService::Envoy(service, age)) => {
                Self::Http(HttpService::Envoy(service.with_caller(caller, holdings), *age))
            }
            Self::Resp(service) => Self::Resp(service.with_caller(caller, holdings)),
        }
    }

    /// The TLS settings of new connections, or `None` for plain text.
    pub(super) fn tls(&self, reloader: &Reloader) -> Option<Arc<ServerTls>> {
        match self {
            Self::Http(HttpService::Envoy(..)) => reloader.running().envoy.as_ref()?.tls.clone(),
            _ => reloader.tls(),
        }
    }
}

impl HttpService {
    /// Answers every request. Without `has_room` the client has left too many answers unread.
    ///
    /// Each request moves its future. So it has no layer around the API, and a box around gRPC.
    pub(super) fn answer(
        self,
        request: Request<ArrivingBody>,
        has_room: bool,
    ) -> Either<impl Future<Output = Response>, Pin<Box<impl Future<Output = Response>>>> {
        match self {
            Self::Api(service) => Either::Left(service.answer(request, has_room)),
            Self::Envoy(service, _) => Either::Right(Box::pin(service.answer(request, has_room))),
        }
    }

    /// Answers a request that is rejected before it is served.
    pub(super) fn refuse(&self, unfit: Unfit) -> Response {
        match self {
            Self::Api(_) => http::refuse_request(unfit),
            Self::Envoy(..) => envoy::refuse_request(unfit),
        }
    }

    /// How long a connection stays. gRPC clients keep theirs for ever.
    pub(super) fn connection_age(&self) -> Option<Duration> {
        match self {
            Self::Api(_) => None,
            Self::Envoy(_, age) => Some(jittered(*age)),
        }
    }
}

/// The time, give or take a quarter, so that connections of one moment do not end in one moment.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().hash_one(0);
    let parts = u32::try_from(random % 513).unwrap_or(256);
    time * 3 / 4 + time * parts / 1024
}

/// Waits until the time has passed; without one it waits without end.
pub(super) async fn has_passed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}
