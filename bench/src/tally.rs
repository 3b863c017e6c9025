//! The counts of a run, without the warm-up.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use tollgate::limit::time::Micros;

use super::verdicts::{Failure, Verdicts};

/// Longest latency that is distinguished: an hour, us.
const LONGEST: u64 = 3_600_000_000;

#[derive(Debug)]
pub(super) struct Tally {
    /// Latencies in us. A call abandoned, or due and never sent, counts with its wait until the
    /// end.
    pub(super) latency: Histogram<u64>,
    pub(super) verdicts: Verdicts,
    /// Checks without a decision, by reason.
    pub(super) failures: BTreeMap<Failure, u64>,
    pub(super) asked: u64,
    /// Checks that were due before the end and never sent: the service could not follow the open
    /// loop.
    pub(super) behind: u64,
    pub(super) last: Micros,
}

impl Tally {
    /// # Errors
    /// Never, because the bounds are valid.
    pub(super) fn new() -> Result<Self, String> {
        let latency = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| error.to_string())?;
        Ok(Self { latency, verdicts: Verdicts::default(), failures: BTreeMap::new(), asked: 0, behind: 0, last: 0 })
    }

    /// Records the outcome of one call of `checks`, from `from` to `now`.
    pub(super) fn record(&mut self, from: Micros, now: Micros, checks: u64, outcome: Result<Verdicts, Failure>) {
        self.last = self.last.max(now);
        match outcome {
            Ok(verdicts) => {
                self.latency.saturating_record(now.saturating_sub(from).max(1));
                self.verdicts.add(verdicts);
                let refused = checks.saturating_sub(verdicts.allowed + verdicts.denied);
                if refused > 0 {
                    self.fail(Failure::Refused, refused);
                }
            }
            Err(failure) => self.fail(failure, checks),
        }
    }

    /// Records a call of `checks` that was sent at `from` and has no answer at `now`, the end. Its
    /// true wait is longer. A percentile without it would hide the pause that it waited for.
    pub(super) fn record_unanswered(&mut self, from: Micros, now: Micros, checks: u64) {
        self.latency.saturating_record(now.saturating_sub(from).max(1));
        self.fail(Failure::Unanswered, checks);
    }

    pub(super) fn record_unsent(&mut self, due: Micros, now: Micros, checks: u64) {
        self.latency.saturating_record(now.saturating_sub(due).max(1));
        self.behind += checks;
    }

    pub(super) fn merge(&mut self, other: Self) {
        // Both have the same bounds.
        let _ = self.latency.add(&other.latency);
        self.verdicts.add(other.verdicts);
        other.failures.into_iter().for_each(|(failure, checks)| self.fail(failure, checks));
        self.asked += other.asked;
        self.behind += other.behind;
        self.last = self.last.max(other.last);
    }

    pub(super) fn answered(&self) -> u64 {
        self.verdicts.allowed + self.verdicts.denied
    }

    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    fn fail(&mut self, failure: Failure, checks: u64) {
        *self.failures.entry(failure).or_default() += checks;
    }
}
