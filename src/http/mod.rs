//! The HTTP surface: routes and handlers. It decides nothing.
//!
//! A request passes `front.rs` (request id, panic guard, connection, and the load limits of
//! `shed.rs`). Then one handler parses it (`request.rs`), asks the engine, and renders the decision
//! (`answer.rs`, `headers.rs`). Each failure becomes a problem document in `error.rs`.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};

use crate::engine::{CheckError, Engine};
use crate::reload::Reloader;
use crate::telemetry::traces::Tracing;

pub mod lifecycle;

mod access;

mod framing;

mod refusals;

pub mod front;

mod request_id;

mod trace;

mod shed;

mod check;

mod refund;

mod usage;

mod policies;

mod reload;

mod health;

mod metrics;

mod openapi;

mod body;

mod wakes;

mod request;

mod quotas;

mod inspect;

mod members;

mod violations;

mod faults;

mod query;

mod answer;

mod json;

mod headers;

mod error;

pub use front::{Caller, Front};
pub use lifecycle::Lifecycle;
pub use refusals::Refusals;
pub use shed::{Load, MAX_UNREAD_BYTES};
pub(crate) use wakes::quietly;

use error::Problem;

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub struct Node {
    pub engine: Arc<Engine>,
    pub lifecycle: Lifecycle,
    /// Records requests, if tracing is on.
    pub tracing: Option<Arc<Tracing>>,
    pub load: Load,
    pub refusals: Refusals,
    pub reloader: Arc<Reloader>,
}

impl Node {
    /// The problem of the only check of a call.
    fn refused(&self, error: &CheckError) -> Problem {
        Problem::no_decision(error, &self.engine.policies(), "")
    }
}

/// The calls that a listener answers. Every listener answers health and the interface's
/// description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// All calls, on the only listener.
    Whole,
    /// Checks, if operators have their own listener.
    Checks,
    /// Operator calls, if checks have their own listener.
    Admin,
}

/// The routes of one listener.
fn router(node: Node, surface: Surface) -> Router {
    let mut routes = Router::new()
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/openapi.json", get(openapi::openapi));
    if surface != Surface::Admin {
        routes = routes
            .route("/v1/check", post(check::one))
            .route("/v1/check/batch", post(check::batch))
            .route("/v1/check/all", post(check::all))
            .route("/v1/refund", post(refund::refund))
            .route("/v1/usage", get(usage::usage));
    }
    if surface != Surface::Checks {
        routes = routes
            .route("/v1/policies", get(policies::policies))
            .route("/v1/reload", post(reload::reload))
            .route("/metrics", get(metrics::metrics))
            .route("/v1/usage", delete(usage::reset));
    }
    routes
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(node)
}
