//! One node with the embedded store, over HTTP. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// The first minutes with Tollgate: five checks pass, and the sixth reports when to retry.
mod first_curl;

// Invalid requests get a problem document and charge nothing.
mod invalid_requests;

// Members may be `null` where they may be absent, and integers have several notations.
mod optional_members;

// Lists close or open a policy, and see IPv4 addresses inside IPv6.
mod lists;

// Mutated requests get a response, or the node closes the connection.
mod fuzz_requests;

// The node rejects requests that HTTP parsers may understand differently.
mod framing;

// Rejected calls appear in logs and metrics.
mod rejected_calls;

// The node warns of files that others may write or read, and of reloads that let more callers in.
mod weak_settings;

// Many checks in one call.
mod batch;

// Policies decide when the store cannot.
mod store_failure;

// The embedded store has a capacity for each policy, and reports when it is full.
mod capacity;

// A shutdown loses no response.
mod shutdown;

// A reload applies policies to a running node, all or none, and keeps the counts.
mod reload;

// Listeners with TLS renew certificates of the node and of its clients while it runs.
mod tls;

// Tokens permit calls; a node without tokens listens on restricted addresses.
mod tokens;

// A log without a reader.
mod log_reader;
