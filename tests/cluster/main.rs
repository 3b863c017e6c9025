//! Nodes on a six-node cluster, one for all tests that break nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod alert_rules;
mod all_or_none;
mod calendar;
mod charge_regressions;
mod exact_limits;
mod holds;
mod idempotency;
mod leases;
mod live;
mod lost_overrides;
mod metrics;
mod migrations;
mod observe;
mod overrides;
mod refunds;
mod regressions;
mod shared_calls;
mod traces;
mod waiting;
mod write_telemetry;
