//! The core and the library by themselves: no server, no process. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// Each bad configuration reports its exact faults; each good one loads.
mod config_fixtures;

// The sliding window against an exact log, on every step of random histories.
mod sliding_window;

// Fixed windows, token buckets and sliding logs against naive models.
mod algorithms;

// Token buckets whose rates change, or differ between nodes.
mod changed_rates;

// Days, weeks, months and years of a time zone, across every clock change.
mod calendar;

// Refunds by id, by cost or of a reservation: exact, against naive models.
mod refund_models;

// The pre-filter against the store, over several nodes, with late and reordered answers.
mod prefilter;

// The capacity of the embedded store.
mod capacity;

// Lookups among list entries.
mod list_lookup;

// Random replies of a server to the store.
mod fuzz_replies;

// Mutated configurations and keys.
mod fuzz_text;

// The form of documents and comments.
mod prose;
