//! One policy on a log, by the old and by the new file.

use super::changes::Changed;
use crate::cli::offline::{Decider, Marked, MarkedChecks, Outcome};
use crate::limit::drain::Over;
use crate::limit::time::Micros;

pub(super) struct PolicyDiff {
    changed: Changed,
    old: Decider,
    new: Decider,
    counts: Counts,
    newly_denied: Marked,
    newly_allowed: Marked,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Checks that both files decide.
    pub(super) checks: u64,
    /// Checks that each file denies.
    pub(super) denied: BeforeAfter,
    /// Refused checks among them: the key type of the file does not accept the key.
    pub(super) refused: BeforeAfter,
    /// Undecided checks: an embedded store was full of live keys.
    pub(super) undecided: u64,
}

/// A count by the old and by the new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BeforeAfter {
    pub(super) before: u64,
    pub(super) after: u64,
}

/// The results of one policy.
pub(super) struct Result {
    pub(super) changed: Changed,
    pub(super) counts: Counts,
    pub(super) newly_denied: MarkedChecks,
    pub(super) newly_allowed: MarkedChecks,
}

impl PolicyDiff {
    pub(super) fn new(changed: Changed, over: Over) -> Self {
        let [old, new] = [&changed.old, &changed.new].map(|policy| Decider::new(policy.clone(), over));
        let (newly_denied, newly_allowed) = (Marked::new(1), Marked::new(1));
        Self { changed, old, new, counts: Counts::default(), newly_denied, newly_allowed }
    }

    /// Decides one request at `now`, which never precedes the last request's time.
    pub(super) fn check(&mut self, now: Micros, written: &str, cost: u64) {
        let before = self.old.decide(now, written, cost);
        let after = self.new.decide(now, written, cost);
        let counts = &mut self.counts;
        let denied = |decider: &Decider, outcome: &Outcome<'_>| match outcome {
            // The caller gets an error, and no permission.
            Outcome::Refused => Some(true),
            Outcome::Undecided => None,
            Outcome::Decided { denied, .. } => Some(*denied && !decider.policy.options.shadow),
        };
        let (Some(was_denied), Some(is_denied)) = (denied(&self.old, &before), denied(&self.new, &after)) else {
            counts.undecided += 1;
            return;
        };
        counts.checks += 1;
        counts.denied.add(was_denied, is_denied);
        counts.refused.add(matches!(before, Outcome::Refused), matches!(after, Outcome::Refused));
        // The key that the new file counts.
        let key = match &after {
            Outcome::Decided { key, .. } => key,
            _ => written,
        };
        self.newly_denied.add(now, key, cost, is_denied && !was_denied);
        self.newly_allowed.add(now, key, cost, was_denied && !is_denied);
    }

    pub(super) fn end(self, top: usize) -> Result {
        let [newly_denied, newly_allowed] = [self.newly_denied, self.newly_allowed].map(|side| side.end(top));
        Result { changed: self.changed, counts: self.counts, newly_denied, newly_allowed }
    }
}

impl BeforeAfter {
    fn add(&mut self, before: bool, after: bool) {
        self.before += u64::from(before);
        self.after += u64::from(after);
    }
}
