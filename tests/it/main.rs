#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on must fail")]

//! Stories about Tollgate as a whole: real servers, the real binary. One line says what each file shows.

mod harness;

// The pure core: never over, barely under, exact waits, on every step of random histories.
mod window_properties;

// The embedded store and Redis answer alike, in every member, on every sequence.
mod stores_alike;

// Names and lives of the keys in Redis.
mod redis_keys;

// The pre-filter against the store beside it, over several nodes, with answers late and out of order.
mod prefilter_sound;
