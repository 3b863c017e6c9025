//! Converts the node's clock, which times checks, to the wall clock, by which traces of several
//! machines align.

use std::time::SystemTime;

use crate::clock::{self, Clock, unix_micros};
use crate::limit::time::Micros;

/// The wall clock minus the node's clock at the start of the request, us. The wall clock may be
/// set; the node's never steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallTime(i64);

impl WallTime {
    pub(super) fn new(clock: &Clock) -> Self {
        Self(unix_micros().cast_signed() - clock.now().cast_signed())
    }

    pub(super) fn at(self, instant: Micros) -> SystemTime {
        clock::wall(instant.saturating_add_signed(self.0))
    }
}
