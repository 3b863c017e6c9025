//! Stores and nodes on one Redis server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod algorithms;
mod auth;
mod changed_rates;
mod clocks;
mod corrupt_keys;
mod drain;
mod drain_answers;
mod explain;
mod histories;
mod holds;
mod inline_quotas;
mod keys;
mod lists;
mod live;
mod long_responses;
mod long_run;
mod looks;
mod lost_overrides;
mod many_overrides;
mod notices;
mod observe;
mod openapi;
mod override_histories;
mod overrides;
mod pair_columns;
mod reload;
mod shadow;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod stores_alike;
mod waiting;
mod window_columns;
