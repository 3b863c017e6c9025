//! Reads requests: bodies, their checks, and queries.
//!
//! `parse.rs` reads valid bodies fast. It leaves all others to `explain.rs`, which reports every
//! fault.

pub(super) mod body;

pub(super) mod explain;

pub(super) mod fields;

mod members;

pub(super) mod parse;

pub(super) mod query;

mod quotas;

mod raw;
