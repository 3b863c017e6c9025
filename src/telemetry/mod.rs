//! How a node tells what it does: metrics, traces, and the log: how often a line is logged, and its way out.
//!
//! A low layer: store, engine and surfaces count and time into [`instrument`]s of their own. What they hold is read
//! when somebody asks, and becomes the text of `GET /metrics` by the table of [`metrics::Metrics`]. A check that is
//! traced carries its [`traces`] context with it, which costs the others one look.

pub mod instrument;

pub mod metrics;

pub mod traces;

pub mod limiter;

pub mod log_queue;
