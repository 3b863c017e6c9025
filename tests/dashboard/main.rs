//! The page for operators, in a real browser, on real nodes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

mod browser;

mod load;

mod stories;

mod pictures;
