//! Checks that wait for a lane's answer. A caller gives up by dropping the call, and its checks then
//! count as timed out.

use crate::store::redis::lane::Lane;
use crate::store::redis::protocol::address::Address;
use crate::store::{Done, StoreError};

/// The next step of a request.
pub enum Next {
    Done(Done),
    /// Ask the owner of the slot.
    Owner,
    /// Ask this node, behind ASKING.
    Asking(Address),
}

/// Checks that wait for a lane's answer. A caller gives up by dropping the call, and the checks
/// then count as timed out.
pub struct Unanswered<'a> {
    lane: Option<&'a Lane>,
    checks: usize,
}

impl<'a> Unanswered<'a> {
    pub fn new(lane: &'a Lane, checks: usize) -> Self {
        Self { lane: Some(lane), checks }
    }

    /// Ends the wait, and counts a failure.
    pub fn over(mut self, next: &Result<Next, StoreError>) {
        if let (Some(lane), Err(error)) = (self.lane.take(), next) {
            lane.shard().metrics.failed(error, self.checks);
        }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            lane.shard().metrics.failed(&StoreError::Timeout, self.checks);
        }
    }
}

/// The lanes that checks wait for. A caller gives up by dropping the call, and the checks then
/// count as timed out.
pub struct AllUnanswered {
    pub lanes: Vec<Lane>,
    /// For each waiting check, the index of its lane.
    places: Vec<Option<usize>>,
}

impl AllUnanswered {
    pub fn new(checks: usize) -> Self {
        Self { lanes: Vec::new(), places: vec![None; checks] }
    }

    /// Notes that a check waits for a lane. Returns the index of the lane.
    pub fn wait(&mut self, check: usize, lane: Lane) -> usize {
        let at = self.lanes.iter().position(|known| known.is(&lane)).unwrap_or_else(|| {
            self.lanes.push(lane);
            self.lanes.len() - 1
        });
        self.places[check] = Some(at);
        at
    }

    /// Ends the wait of a check. Returns the lane that it waited for.
    pub fn end(&mut self, check: usize) -> Option<Lane> {
        self.places[check].take().map(|at| self.lanes[at].clone())
    }
}

impl Drop for AllUnanswered {
    fn drop(&mut self) {
        let lanes = self.places.iter().flatten().map(|at| &self.lanes[*at]);
        lanes.for_each(|lane| lane.shard().metrics.failed(&StoreError::Timeout, 1));
    }
}
