//! Stores and nodes on one Redis server. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// The counts of a key in Redis: one String, with a column for each sliding window.
mod window_columns;

// The same for fixed windows and token buckets.
mod pair_columns;

// The sliding log: no interval over the limit, its clock, its bounds, the callers of its charges.
mod sliding_log;

// Sliding counters beside other programs that use them: values, lifetimes, shared policies.
mod sliding_counter;

// The sliding window of both stores against an exact log.
mod sliding_window;

// Windows and buckets of both stores where clocks step.
mod algorithms;

// The embedded store and Redis answer alike, in every member, on every sequence.
mod stores_alike;

// Deny, allow and override: which entry decides for a key.
mod lists;

// Quotas in a check.
mod inline_quotas;

// Shadow policies.
mod shadow;

// `explain` names the keys in Redis.
mod explain;

// A reload ends the known denials of changed policies.
mod reload;

// Long responses do not delay other callers.
mod long_responses;

// The OpenAPI document matches the routes and real responses.
mod openapi;

// A corrupt value is rejected for its key alone, and a reset ends it.
mod corrupt_keys;

// Names and lifetimes of the keys in Redis.
mod keys;

// Redis with authentication: users, changed passwords, TLS.
mod auth;

// Nodes whose clocks are wrong, or jump.
mod clocks;

// Long random runs: no negative count, no key without an expiry, nothing left.
mod long_run;
