//! `/v1/check/all`: charges several keys, or none.
//!
//! The engine sums costs per policy and key. It reserves key by key, in an order that all nodes
//! share. So of two calls with the same keys, one reserves the first key first and is allowed.
//! After the first denial, the engine gives the earlier reservations back. It only peeks at the
//! later keys, so that each check gets its own verdict.
//!
//! A reservation is a charge, so no call confirms it. A node that dies midway leaves charges that
//! admit less, never more. A reservation marks its key for twice the longest timeout. Reserving
//! ends within that timeout, and giving back within the same time again. So no pre-filter learns a
//! denial that a give-back would contradict. If this process gets no CPU, both phases last longer.
//! The excess is the delay of its timers plus the margin of `deadline.rs`. Other nodes may then
//! know a denial that has ended, for as long as their pre-filters believe it. The engine does not
//! give back a reservation whose fate is unknown, since the store may never have made it.

use std::sync::Arc;

use super::answer::missing_answer;
use super::request::metas;
use super::{Check, Engine};
use crate::store::Subject;
use crate::telemetry::traces;

mod answer;

mod call;

mod part;

pub use answer::{MultiCheck, RejectedCheck};
use call::Call;
use part::{Part, Place};

impl Engine {
    /// Charges all of `checks` or none, within twice the longest timeout of their policies. A call
    /// runs to its end even if the caller leaves.
    ///
    /// # Errors
    /// Every invalid check, or the first check without a decision under mode `error`.
    pub async fn check_all_or_none(self: &Arc<Self>, checks: &[Check]) -> Result<MultiCheck, Vec<RejectedCheck>> {
        let since = self.clock.now();
        let mut parts = self.parts(checks)?;
        parts.sort_by(|a, b| order(a.subject()).cmp(&order(b.subject())));
        let call = Call { engine: self.clone(), parts, _inflight: self.inflight_multi_key.subscribe() };
        tokio::spawn(traces::carried(call.answer(since)))
            .await
            .unwrap_or_else(|_| Err(vec![(0, missing_answer())]))
    }

    /// Waits until no [`Engine::check_all_or_none`] is running, including calls whose callers have
    /// left.
    pub async fn multi_checks_ended(&self) {
        self.inflight_multi_key.closed().await;
    }

    fn parts(&self, checks: &[Check]) -> Result<Vec<Part>, Vec<RejectedCheck>> {
        let (mut parts, mut rejected) = (Vec::<Part>::new(), Vec::new());
        for (number, check) in checks.iter().enumerate() {
            match self.resolve(check) {
                Ok(resolved) => {
                    let subject = &resolved.subject;
                    let place = Place { number, cost: check.cost, policy: subject.policy.clone() };
                    match parts.iter_mut().find(|part| part.subject().fingerprint == subject.fingerprint) {
                        Some(part) => part.add(check, place),
                        None => {
                            let metas = metas(subject, std::iter::once(check));
                            parts.push(Part { resolved, cost: check.cost, metas, places: vec![place] });
                        }
                    }
                }
                Err(error) => rejected.push((number, error)),
            }
        }
        if rejected.is_empty() { Ok(parts) } else { Err(rejected) }
    }
}

/// The order in which every node reserves.
fn order(subject: &Subject) -> (&str, &str) {
    (subject.policy.counters(), &subject.key)
}
