//! The verdicts of a call, from the counts in its reply.

use redis::Value;
use smallvec::SmallVec;

use super::call::Call;
use super::refunds;
use super::reply::unsigned;
use super::states::states;
use crate::limit::decision::{decide, decide_roomy, look};
use crate::limit::policy::Algorithm;
use crate::limit::refunds::{Receipt, charge, is_tentative};
use crate::limit::time::Micros;
use crate::store::{Taken, Work};

impl Call<'_> {
    /// Returns the verdicts on the costs, and the receipt of a reservation that was made.
    pub fn taken(&self, time: Micros, values: &[Value]) -> Option<(Taken, Option<Receipt>)> {
        let quotas = &self.policy.quotas;
        let mut rest = values;
        if self.policy.algorithm == Algorithm::SlidingWindow {
            let (counted, state) = values.split_at_checked(quotas.len())?;
            if state.is_empty() {
                let counted = counted.iter().map(unsigned).collect::<Option<SmallVec<[u64; 3]>>>()?;
                let ruling = decide_roomy(self.policy, &counted, time, self.costs)?;
                let taken = Taken { ruling, at: time, tentative: false };
                let receipt = refunds::roomy_receipt(self, &taken);
                return Some((taken, receipt));
            }
            rest = state;
        }
        let mut states = states(self.policy, time, rest)?;
        let tentative = is_tentative(self.policy, &states, time);
        let (ruling, receipt) = match self.work {
            Work::Look(cost) => (look(self.policy, &states, time, *cost), None),
            Work::Reserve { cost, hold } => charge(self.policy, &mut states, time, *cost, time + hold),
            _ => (decide(self.policy, &mut states, time, self.costs), None),
        };
        Some((Taken { ruling, at: time, tentative }, receipt))
    }
}
