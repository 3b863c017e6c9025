//! The judge of waits: a check repeated when its `retry_after` ends is allowed, and just before it is
//! denied, unless something came between (docs/guarantees.md, Exact waits).

use tollgate::limit::decision::Wait;
use tollgate::limit::policy::Options;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Work};

use super::engine::Answered;
use super::step::{Op, Step};

/// The last step, and the instant at which it should be allowed.
#[derive(Debug, Default)]
pub struct Waits {
    denied: Option<(Step, Micros, bool)>,
}

impl Waits {
    pub fn note(&mut self, step: &Step, answered: &Answered, stepped_back: bool) -> Result<(), String> {
        let before = self.denied.take();
        // After a step back a dead caller's place is free by that step later (docs/guarantees.md, Holds),
        // and ticks see no charge of a lease that is too far ahead.
        let is_late = |options: &Options| options.hold.is_some() || options.lease.is_some();
        if stepped_back && answered.calls.iter().any(|call| is_late(&call.policy.options)) {
            return Ok(());
        }
        let Some((is_allowed, wait)) = decided(step, answered) else { return Ok(()) };
        if let Wait::For(span @ 1..) = wait {
            self.denied = Some((step.clone(), step.now() + span, may_end_earlier(answered)));
        }
        let Some((then, end, is_longest)) = before else { return Ok(()) };
        if (then.file, then.by, &then.op) != (step.file, step.by, &step.op) || then.now() > step.now() {
            return Ok(());
        }
        let now = step.now();
        if now >= end && !is_allowed {
            return Err(format!("denied {} us after its wait of {} us: {wait:?}", now - end, end - then.now()));
        }
        // The answer has ms, and the queue of a line rounds its units, each up.
        let least = if matches!(step.op, Op::Wait { .. }) { 2000 } else { 1 };
        if now + least <= end && is_allowed && !is_longest {
            return Err(format!("allowed {} us before the end of its wait of {} us", end - now, end - then.now()));
        }
        Ok(())
    }
}

/// Whether a step that asks once for a charge is allowed, and else its wait.
fn decided(step: &Step, answered: &Answered) -> Option<(bool, Wait)> {
    match (&step.op, answered.all) {
        // Another key denies it in any case.
        (Op::All { refused: true, .. }, _) => return None,
        // The waits of checks that name different plans for one key are those of each alone
        // (docs/guarantees.md, Exact waits).
        (Op::All { checks, .. }, _) if checks.windows(2).any(|pair| pair[0].by != pair[1].by) => return None,
        (Op::All { .. }, Some((is_allowed, wait))) => return Some((is_allowed, wait)),
        _ => {}
    }
    let call = answered.calls.first().filter(|_| answered.calls.len() == 1)?;
    match (&call.work, &call.done) {
        (Work::Take(_) | Work::Look(_) | Work::Wait(_) | Work::Once { .. }, Done::Taken(taken)) => {
            let [verdict] = taken.ruling.verdicts.as_slice() else { return None };
            Some((verdict.allowed, verdict.retry_after))
        }
        (Work::Wait(_) | Work::Once { .. }, Done::Charged(charged)) if !charged.replayed => {
            Some((charged.verdict.allowed, charged.verdict.retry_after))
        }
        _ => None,
    }
}

/// While holds are open, the wait of a denial by quotas is the longest one (docs/holds.md, Good to
/// know): an expiry may give charges back before.
fn may_end_earlier(answered: &Answered) -> bool {
    let is_held = |done: &Done| match done {
        Done::Taken(taken) => taken
            .ruling
            .verdicts
            .iter()
            .any(|verdict| verdict.places.as_ref().is_some_and(|places| places.open > 0)),
        _ => false,
    };
    answered.calls.iter().any(|call| is_held(&call.done))
}
