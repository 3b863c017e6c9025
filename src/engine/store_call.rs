//! A call of the store on behalf of checks.

use std::time::Duration;

use crate::limit::time::Micros;
use crate::store::{Meta, Subject};

/// The costs that the store decides for one subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreCall<'a> {
    pub(super) subject: &'a Subject,
    /// Units, in order.
    pub(super) costs: &'a [u64],
    /// As for [`crate::store::Store::charge`].
    pub(super) metas: &'a [Meta],
    /// Units that the first call buys.
    pub(super) units: Option<u64>,
    /// The deadline for answers, us.
    pub(super) until: Micros,
}

impl StoreCall<'_> {
    /// The first `costs` costs, and the rest.
    pub(super) fn split_at(self, costs: usize) -> (Self, Self) {
        let (first, rest) = self.costs.split_at(costs);
        let (noted, not_yet) = self.metas.split_at(costs.min(self.metas.len()));
        (
            Self { costs: first, metas: noted, ..self },
            Self { costs: rest, metas: not_yet, units: None, ..self },
        )
    }

    /// The time left at `now` (us).
    pub(super) fn left(&self, now: Micros) -> Duration {
        Duration::from_micros(self.until.saturating_sub(now))
    }
}
