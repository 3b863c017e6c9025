//! Servers, networks and clients that fail or attack.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod budgets;
mod discovery;
mod doors;
mod health;
mod hostile_clients;
mod hostile_servers;
mod redirections;
mod refused_kinds;
mod sentinel;
mod servers;
mod slow_clients;
mod store_away;
mod telemetry;
mod turns;
mod under_load;
