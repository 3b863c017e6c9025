//! Reads requests: bodies, their checks, and queries.
//!
//! `parse.rs` reads valid bodies fast. It leaves all others to `explain.rs`, which reports every
//! fault. For every body `explain.rs` would cost a known denial 18 % more instructions (ADR 34).
//! `refund.rs`, `hold.rs` and `lease.rs` read the bodies that are no checks.

pub(super) mod body;

pub(super) mod explain;

pub(super) mod bounds;

pub(super) mod lease;

mod members;

pub(super) mod overrides;

pub(super) mod hold;

pub(super) mod parse;

pub(super) mod query;

mod quotas;

mod raw;

pub(super) mod refund;

mod values;
