//! The client and its layer against real nodes. `TOLLGATE_BIN` names the binary of a node; the
//! default is `target/debug/tollgate`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::pin::Pin;
use std::task::{Context, Waker};

// Parts that the tests share.
mod node;

mod servers;

mod browser;

mod cases;

mod matching;

// The cases of clients/cases.json, which clients of all languages share.
mod client_cases;

mod layer_cases;

// The states of clients/outages.json.
mod outages;

// Nodes that fail under load.
mod faults;

// Types beside /openapi.json.
mod schema;

// Calls that only this client has to get right.
mod calls;

mod coalescing;

mod layer;

mod holds;

mod fake;

mod leases;

mod acquire;

mod late;

mod recipes;

mod example;

/// A future after its first poll. To drop it is to leave.
fn begun<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    future
}
