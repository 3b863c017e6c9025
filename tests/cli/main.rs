//! The commands of the program, without a store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod commands;
mod diff;
mod envoy;
mod explain;
mod gates;
mod hostile_output;
mod logs;
mod proposals;
mod replay;

// `-` is standard input for every command that reads a configuration.
mod standard_input;

mod top;
