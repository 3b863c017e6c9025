//! Asks the nodes of a Tollgate rate limiter whether a request may pass.
//!
//! A [`Client`] checks keys against policies. A [`LimitLayer`] protects a tower service, for
//! example the routes of axum:
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tollgate_limiter::{Client, LimitLayer, Options};
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Options::default().nodes(["http://127.0.0.1:7070"]))?;
//! let app = Router::new()
//!     .route("/", get(async || "hello"))
//!     .layer(LimitLayer::new(client).policy("per-ip"));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each call ends within [`Options::deadline`]. It returns a decision, or an [`Error`]: a
//! [`Problem`] if the node rejects the call, else [`Unavailable`]. A denial is a decision, not an
//! error.
//!
//! The client repeats a check once after a broken connection. It is then charged twice at most, and
//! never allowed twice; [`Check::once`] makes it charged once. Concurrent checks share one call. A
//! denial that a node knows to be final is repeated without a call.
//!
//! The client needs the runtime of tokio, with its timer and its I/O. The feature `axum` is on by
//! default; without it the layer reads the address of a request from a `SocketAddr` among its
//! extensions.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// The path of a call, from its caller to a node.
mod options;

mod client;

mod check;

mod hold;

mod place;

mod denials;

mod lease;

mod lessee;

mod coalesce;

mod calls;

mod node;

mod patience;

mod fake;

// The answers.
mod decision;

mod error;

// The middleware.
mod layer;

mod service;

mod drain;

mod document;

mod fields;

// Small parts of the above.
mod clock;

mod monitor;

pub use check::{Check, Over, QuotaSpec, Refund, safe_key};
pub use client::Client;
pub use decision::{
    AllAnswer, Decision, Entry, Fallback, HoldEnd, HoldState, QuotaState, Reason, RefundAnswer, RenewAnswer,
    SettleAnswer, Source, Tick, TopMeta, Usage, UsageHold,
};
pub use error::{Error, Problem, Unavailable, Violation};
pub use fake::Fake;
pub use hold::{Hold, HoldHandle, HoldName};
pub use layer::{Answered, LimitLayer, OnFailure, forwarded_ip, remote_ip};
pub use monitor::Stats;
pub use options::{InvalidOptions, Options};
pub use service::{LimitService, ResponseBody};
