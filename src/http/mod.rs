//! The HTTP API. It decides nothing.
//!
//! `calls.rs` has one row for each call. A request passes `service.rs` (request id, panic guard,
//! connection, the rights of `tokens.rs` and the load limits of `shed.rs`). Then one handler parses
//! it (`request/`), asks the engine, and renders the decision (`answer.rs`, `headers.rs`). Each
//! failure becomes a problem document in `problem/`.

mod call;

mod calls;

mod openapi;

pub mod service;

mod caller;

mod node;

pub mod lifecycle;

mod tokens;

mod framing;

mod refusals;

mod request_id;

mod trace;

mod shed;

mod spurious_wakes;

mod check;

mod refund;

mod usage;

mod policies;

mod reload;

mod health;

mod metrics;

mod request;

mod answer;

mod json;

mod headers;

mod problem;

pub use call::Surface;
pub use caller::Caller;
pub use calls::description;
pub use lifecycle::Lifecycle;
pub use node::Node;
pub use refusals::Refusals;
pub use service::CheckService;
pub use shed::{Load, MAX_UNREAD_BYTES};
pub(crate) use spurious_wakes::suppress_spurious_wakes;
