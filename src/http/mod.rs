//! The HTTP API. It decides nothing.
//!
//! `calls.rs` has one row for each call. A request passes `service.rs` (request id, panic guard,
//! connection, the checks of `head.rs` and the load limits of `shed.rs`). Then one handler parses
//! it (`request/`), asks the engine, and renders the decision (`answer.rs`, `headers.rs`). Each
//! failure becomes a problem document in `problem/`.

mod calls;

pub mod service;

mod head;

mod rights;

mod shed;

mod spurious_wakes;

mod check;

mod gate;

mod usage;

mod policies;

mod overrides;

mod reference;

mod explain;

mod holds;

mod lease;

mod health;

mod metrics;

mod live;

mod top;

mod dashboard;

mod request;

mod answer;

mod headers;

mod problem;

pub use calls::{GATE_PREFIX, Surface, description};
pub use head::bearer;
pub use live::publish;
pub use metrics::readings;
pub use service::{CheckService, trace_context};
pub use shed::{refuse_answer, refuse_request};
pub(crate) use spurious_wakes::suppress_spurious_wakes;
