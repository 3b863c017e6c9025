//! Servers, networks and clients that fail or attack. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// Redis is absent or frozen: the node still decides, and uses the store again once it is back.
mod store_away;

// Health reports why a shard makes no charges, and a failure to connect names its cause.
mod health;

// An OTLP endpoint that is unavailable, and the log messages.
mod telemetry;

// Slow clients, and more of them than a node accepts.
mod slow_clients;

// Clients that do not read their responses: memory stays bounded, and other clients get responses.
mod hostile_clients;

// Hostile servers: endless replies, long errors, overlapping slots.
mod hostile_servers;

// Sentinels name the primary.
mod sentinel;

// Failovers and flushed scripts: the lane repeats only calls that the server did not execute.
mod redirections;

// Nodes rediscover a cluster whose nodes change.
mod discovery;

// A sequence of cluster faults under load: always a decision, no double charge, never over the
// limit.
mod under_load;
