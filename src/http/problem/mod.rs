//! Every failure as an `application/problem+json` answer (RFC 9457).

mod document;

mod engine;

mod faults;

mod kind;

mod reload;

mod requests;

mod suggest;

mod violations;

pub(super) use document::{Problem, panicked};
pub(super) use engine::Problems;
pub(super) use faults::FaultBody;
pub(super) use requests::{both, method_not_allowed};
pub(super) use violations::{MAX_EXPLAINED, Violation, Violations, member};
