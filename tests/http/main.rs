//! One node with the embedded store, over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod batch;
mod capacity;
mod dashboard;
mod explain;
mod first_curl;
mod framing;
mod fuzz_requests;
mod holds;
mod invalid_requests;
mod leases;
mod lists;
mod live;
mod live_streams;
mod log_reader;
mod notices;
mod optional_members;
mod otlp_metrics;
mod overrides;
mod overrides_file;
mod plans;
mod rejected_calls;
mod reload;
mod scopes;
mod shutdown;
mod store_failure;
mod tls;
mod tokens;
mod weak_settings;
