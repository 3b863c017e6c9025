//! Every failure as an `application/problem+json` answer (RFC 9457).

mod document;

mod engine;

mod requests;

mod violations;

pub(super) use document::{Problem, panicked, write_fault};
pub(super) use engine::Problems;
pub(super) use requests::{both, method_not_allowed, not_found};
pub(super) use violations::{MAX_EXPLAINED, Violation, Violations, member};
