//! The commands of the program, without a store. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "each layer uses a part")]
#[path = "../support/mod.rs"]
mod support;

// Exit codes and output of the commands.
mod commands;

// `explain` shows the decision for a key, and the responsible line of the file.
mod explain;

// Commands bound what they read and print, for fake nodes and endless files.
mod hostile_output;

// Replays the requests of a log against policies.
mod replay;

// `-` is standard input for every command that reads a configuration.
mod standard_input;
