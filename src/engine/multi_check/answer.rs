//! The answer to a multi-key call.

use crate::engine::{CheckError, Decision};
use crate::limit::decision::Wait;

/// The decisions of a multi-key call.
#[derive(Debug, Clone)]
pub struct MultiCheck {
    /// One decision per check, in order. All checks are charged if all are allowed; otherwise none
    /// is.
    pub decisions: Vec<Decision>,
}

impl MultiCheck {
    /// Whether no check is denied.
    pub fn allowed(&self) -> bool {
        self.decisions.iter().all(|decision| decision.allowed)
    }

    /// The longest wait of the denied checks; [`Wait::NONE`] if none is denied.
    pub fn retry_after(&self) -> Wait {
        let denied = self.decisions.iter().filter(|decision| !decision.allowed);
        denied.map(|decision| decision.retry_after).max().unwrap_or(Wait::NONE)
    }
}

/// The check that rejects the whole call, and the error.
pub type RejectedCheck = (usize, CheckError);
