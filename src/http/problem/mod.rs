//! Every failure as an `application/problem+json` answer (RFC 9457).

mod document;

mod engine;

mod gate;

mod overrides;

mod violations;

pub(super) use document::{Problem, both, method_not_allowed, panicked, write_fault};
pub(super) use engine::Problems;
pub(super) use gate::Denial;
pub(super) use violations::{MAX_EXPLAINED, Violation, Violations, member};
