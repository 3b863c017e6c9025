//! The core and the library by themselves: no server, no process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod algorithms;
mod calendar;
mod capacity;
mod changed_rates;
mod config_fixtures;
mod fuzz_replies;
mod fuzz_text;
mod histories;
mod holds;
mod leases;
mod limitador;
mod list_lookup;
mod prefilter;
mod prose;
mod refund_models;
mod sliding_window;
mod waiting;
