//! From the node's clock, by which checks live, to the wall clock, by which traces of several machines are laid
//! side by side.

use std::time::SystemTime;

use crate::clock::{self, Clock, unix_micros};
use crate::limit::time::Micros;

/// How far apart the two were when the request began: the wall clock may be set, the other never steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments(i64);

impl Moments {
    pub(super) fn new(clock: &Clock) -> Self {
        Self(unix_micros().cast_signed() - clock.now().cast_signed())
    }

    pub(super) fn wall(self, instant: Micros) -> SystemTime {
        clock::wall(instant.saturating_add_signed(self.0))
    }
}
