//! The doors besides the JSON API, each with real clients of its protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod rls;

mod proxy;

mod envoy;
mod envoy_connections;
mod envoy_proxy;
mod envoy_reference;
