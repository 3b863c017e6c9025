//! Telemetry: metrics, traces, and the limits and the queue of the log.
//!
//! This is a low layer: store, engine and surfaces count and time into [`instrument`]s of their
//! own. `GET /metrics` reads them and writes its text by the table of [`metrics::Metrics`]. A
//! traced check carries its [`traces`] context; other checks only look for one.

pub mod instrument;

pub mod reference;

pub mod metrics;

pub mod otlp;

pub mod traces;

pub mod limiter;

pub mod log_queue;
