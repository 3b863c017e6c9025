//! Nodes on a six-node cluster, one for all tests that break nothing. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// Two nodes admit exactly the limit: one call a check, none for a known denial.
mod exact_limits;

// Several keys, all charged or none, also under concurrent calls.
mod all_or_none;

// A check with an id charges once, however many retries follow.
mod idempotency;

// Refunds and resets: exact, immediate, and soon visible on the other nodes.
mod refunds;

// Checks of several keys that share one script call.
mod shared_calls;

// Calendar windows on every store.
mod calendar;

// Existing rate limiters as policies on each store, with their flaws fixed.
mod migrations;

// Faults of comparable services, each with a test.
mod regressions;

// The same, for charges.
mod charge_regressions;

// The documented Redis user has all permissions that a node needs, and no others.
mod acl;

// The metrics: all names, bounded series, in agreement with health and policies.
mod metrics;

// The rules, the dashboard and the manual name existing metrics.
mod alert_rules;

// Traces, as a real OTLP receiver gets them.
mod traces;

// All-or-nothing calls, ids, refunds and resets in metrics and traces.
mod write_telemetry;
