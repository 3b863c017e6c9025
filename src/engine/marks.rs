//! The marks of a policy that answers to checks cross.

use std::sync::Arc;

use super::check::Resolved;
use super::{Answer, Decision, Engine, Kind, Note, Reason, Source};
use crate::limit::notify::Notify;
use crate::notices::{Crossing, Notices};

impl Engine {
    /// Queues a notice for each mark that these answers to one key have crossed.
    pub(super) fn note_marks(&self, resolved: &Resolved, answers: &[Answer]) {
        if let Some(notify) = &resolved.subject.policy.options.notify {
            self.find_marks(notify, resolved, answers);
        }
    }

    fn find_marks(&self, notify: &Arc<Notify>, resolved: &Resolved, answers: &[Answer]) {
        let counted = || answers.iter().flatten().filter(|decision| is_by_store(decision));
        let (key, at) = (&resolved.subject.key, self.clock.now());
        let Some(last) = counted().rfind(|decision| decision.charged > 0).or_else(|| counted().next_back()) else {
            return;
        };
        for (place, (quota, state)) in last.policy.quotas.iter().zip(&last.quotas).enumerate() {
            let limit = quota.limit.get();
            let after = limit.saturating_sub(state.remaining);
            // Another node may have bought the units that cross a mark.
            let before = match last.policy.options.lease {
                Some(_) => 0,
                None => after.saturating_sub(counted().map(|decision| charged(decision, place)).sum()),
            };
            // Where nothing remains, a charge has crossed the last mark.
            let is_denied = state.remaining > 0 && counted().any(|decision| denies(decision, place));
            let crossed = notify.crossed(limit, before, after);
            let at_end = notify.marks.last().filter(|mark| is_denied && **mark == 100).copied();
            let (policy, remaining, reset_after) = (&*last.policy.name, state.remaining, state.reset_after);
            for mark in crossed.chain(at_end) {
                let crossing = Crossing { policy, key, quota, remaining, reset_after, mark, at };
                self.notices.crossed(crossing, notify);
            }
        }
    }

    /// The notices of the node.
    pub fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Sends notices, each after its entry in the audit. Never returns.
    pub async fn deliver_notices(&self) {
        let mut delivery = self.notices.delivery();
        loop {
            let notice = delivery.next().await;
            let note = Note::of_key(Kind::Notice, THIS_NODE.to_owned(), &notice.policy, &notice.key);
            let reason = format!("{} % of {}", notice.mark, notice.quota);
            self.note(Note { reason: Some(reason), ..note }).await;
            delivery.send(notice).await;
        }
    }
}

/// The author of a notice in the audit.
const THIS_NODE: &str = "this node";

fn is_by_store(decision: &Decision) -> bool {
    matches!(decision.source, Source::Store | Source::Lease) && !decision.replayed
}

/// The units that the quota took.
fn charged(decision: &Decision, place: usize) -> u64 {
    decision.parts.as_ref().and_then(|parts| parts.get(place)).copied().unwrap_or(decision.charged)
}

/// Whether the quota had no room for the cost.
fn denies(decision: &Decision, place: usize) -> bool {
    matches!(decision.reason, Reason::OverLimit | Reason::Shadow)
        && decision.binding.is_some_and(|binding| binding.quota == place)
}
