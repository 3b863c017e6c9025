//! What users see, told by stories: each starts the real program and talks to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod harness;

// The first minutes with Tollgate: five are allowed, the sixth is told when to come again.
mod first_curl;

// Whatever a caller sends wrong is answered by a problem document, and charges nothing.
mod bad_input;

// Many checks in one call.
mod batch;

// What a policy says when the store cannot.
mod store_failure;

// The end of a node loses no answer.
mod shutdown;

// Exit codes and output of the commands.
mod cli;
