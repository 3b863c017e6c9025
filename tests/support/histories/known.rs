//! The judge of the pre-filter: it only denies, and only where the store would (docs/guarantees.md,
//! The pre-filter is sound). It learns and forgets as the engine does.

use std::sync::Arc;
use std::time::Duration;

use tollgate::limit::time::Micros;
use tollgate::prefilter::{Prefilter, Question};
use tollgate::store::{Done, Generations, Over, Subject, Taken, Work};

/// What one node knows. Its own clock never steps back.
#[derive(Debug)]
pub struct Known {
    prefilter: Prefilter,
    /// The clock of the node, and the last instant of the store, us.
    clock: Micros,
    last: Micros,
}

impl Default for Known {
    fn default() -> Self {
        let prefilter = Prefilter::new(100, Duration::from_secs(60), Arc::new(Generations::default()));
        Self { prefilter, clock: 0, last: 0 }
    }
}

impl Known {
    /// Passes to an instant of the store.
    pub fn pass(&mut self, now: Micros) {
        self.clock = if self.clock == 0 { now } else { self.clock + now.saturating_sub(self.last) };
        self.last = now;
    }

    pub fn ask(&self, subject: &Subject) -> Question {
        self.prefilter.question(subject.fingerprint.slot(), self.clock)
    }

    /// Whether it denies this cost without the store.
    pub fn denies(&self, subject: &Subject, cost: u64) -> bool {
        self.prefilter.denial(subject.fingerprint, &subject.policy, cost, self.clock).is_some()
    }

    /// Mirrors the engine: `learn_or_fall_back` of `check.rs`, `charge_once` of `alone.rs`,
    /// `refund_within` of `refunds.rs` and `run_and_forget` of `holds.rs`.
    pub fn note(&self, subject: &Subject, question: Question, work: &Work, done: &Done) {
        let slot = subject.fingerprint.slot();
        let learn = |taken: &Taken| {
            self.prefilter.learn(subject.fingerprint, &subject.policy, question, taken, self.clock);
        };
        match (work, done) {
            (
                Work::Take(_) | Work::Look(_) | Work::Drain(_) | Work::Wait(_) | Work::Once { .. },
                Done::Taken(taken),
            ) => {
                learn(taken);
            }
            (Work::ReadTicks { .. }, Done::Ticks(taken, _)) => learn(taken),
            // Units of a lease may come back, so no denial is final.
            (Work::Lease { .. }, Done::Leased(taken, receipt)) => {
                let mut taken = taken.clone();
                taken.ruling.verdicts.pop();
                taken.tentative |= receipt.is_some();
                learn(&taken);
            }
            (Work::Once { cost, over, .. }, Done::Charged(charged)) if !charged.replayed => {
                let is_outdated = match over {
                    Over::Deny => self.denies(subject, *cost),
                    Over::Drain => self.prefilter.knows(subject.fingerprint),
                };
                if is_outdated {
                    self.prefilter.forget(slot);
                }
            }
            (Work::Wait(_), Done::Charged(charged)) if !charged.replayed => self.forget_known(subject),
            // Nothing was learned while units of the lease could come back.
            (Work::Return(_), _) | (Work::Settle { .. }, Done::Returned(..)) => {}
            (Work::Settle { .. }, _) => self.forget_known(subject),
            (work, _) if work.takes_back() => self.prefilter.forget(slot),
            _ => {}
        }
    }

    fn forget_known(&self, subject: &Subject) {
        if self.prefilter.knows(subject.fingerprint) {
            self.prefilter.forget(subject.fingerprint.slot());
        }
    }
}
