//! Checks that wait for a lane's answer.

use crate::store::StoreError;
use crate::store::redis::lane::Lane;

/// Checks that wait for a lane's answer. A caller gives up by dropping the call, and the checks
/// then count as timed out.
pub struct Unanswered {
    pub lane: Lane,
    checks: usize,
}

impl Unanswered {
    pub fn new(lane: Lane, checks: usize) -> Self {
        Self { lane, checks }
    }

    /// Ends the wait without a failure.
    pub fn answered(mut self) {
        self.checks = 0;
    }

    /// Ends the wait, and counts the failure.
    pub fn failed(mut self, error: StoreError) -> StoreError {
        self.lane.shard().metrics.failed(&error, std::mem::take(&mut self.checks));
        error
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.checks > 0 {
            self.lane.shard().metrics.failed(&StoreError::Timeout, self.checks);
        }
    }
}
