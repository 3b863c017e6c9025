//! Knowledge of one key with nothing left: when one unit fits again, and when certain costs fit.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::policy::Policy;
use crate::limit::time::Micros;

/// Maximum number of costs per key. A new cost replaces the oldest.
const COSTS: usize = 4;

/// Knowledge of a key. It is valid for one version of its policy and one generation of its slot.
#[derive(Debug, Clone)]
pub struct Known {
    pub policy: Arc<Policy>,
    pub slot: u16,
    pub generation: u32,
    /// The shard's TIME of the latest decision behind this knowledge, us.
    pub decided_at: Micros,
    /// When one unit fits again, by the shard's clock, us. No charge is possible before, so
    /// answers with the same instant describe the same state.
    pub opens_at: Micros,
    pub refills: SmallVec<[Refill; 2]>,
}

/// The instant at which one cost fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    pub cost: u64,
    /// The entry is believed before this instant of the node's clock, us.
    pub believed_until: Micros,
    /// By the node's clock and never too early, us.
    pub full_at: Micros,
    /// The binding quota's place in the policy.
    pub quota: u8,
    pub remaining: u64,
    /// When that quota is full again, by the node's clock, us.
    pub reset_at: Micros,
}

impl Known {
    /// Knowledge of exactly this cost. A larger cost is denied as well, but its wait is unknown.
    pub fn refill(&self, cost: u64) -> Option<&Refill> {
        self.refills.iter().find(|refill| refill.cost == cost)
    }

    /// Whether both describe the same policy, generation and state.
    pub fn agrees(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy)
            && self.generation == other.generation
            && self.opens_at == other.opens_at
    }

    /// The instant of the node's clock from which no entry is believed, us.
    pub fn believed_until(&self) -> Micros {
        self.refills.iter().map(|refill| refill.believed_until).max().unwrap_or(0)
    }

    /// Adds the costs of which `other` knows more. Both agree on one unit. They may differ on a
    /// larger cost bound by another quota, since a refund may lie between them.
    pub fn merge(&mut self, other: Self) {
        self.decided_at = self.decided_at.max(other.decided_at);
        other.refills.into_iter().for_each(|refill| self.add(refill));
    }

    /// Adds one cost, unless a known entry for it is believed as long.
    pub fn add(&mut self, refill: Refill) {
        if let Some(place) = self.refills.iter().position(|known| known.cost == refill.cost) {
            if self.refills[place].believed_until >= refill.believed_until {
                return;
            }
            self.refills.remove(place);
        } else if self.refills.len() == COSTS {
            self.refills.remove(0);
        }
        self.refills.push(refill);
    }
}
