//! The doors of real nodes: forward auth, Envoy and Redis clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod resp;
