//! The doors besides the JSON API, each by the real programs that use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod control_plane;

mod rls;

mod proxy;

mod addresses;
mod envoy;
mod envoy_connections;
mod envoy_holds;
mod envoy_proxy;
mod envoy_quotas;
mod envoy_ratelimit;
mod envoy_reference;
mod fuzz_gate;
mod gate;
mod pace;
mod proxies;
mod resp;
mod scopes;
mod source;
mod xds;
