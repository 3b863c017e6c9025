//! What is known of one key that has nothing left: when the bucket will hold anything again, and when it will
//! hold enough for certain costs.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::policy::Policy;
use crate::limit::time::Micros;

/// Costs of which an instant is kept; the one learned first makes way.
const COSTS: usize = 4;

/// An empty bucket, valid for one version of its policy and one generation of its slot.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub policy: Arc<Policy>,
    pub slot: u16,
    pub generation: u32,
    /// The shard's TIME of the latest decision that it stands on, us.
    pub decided_at: Micros,
    /// When it will hold one unit again, by the shard's clock, us. Nobody can have charged anything before
    /// that, so answers that agree in it speak of the same state.
    pub opens_at: Micros,
    pub refills: SmallVec<[Refill; 2]>,
}

/// At which instant the bucket holds enough for one cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    pub cost: u64,
    /// Before this instant of the node's clock it is believed, us.
    pub believed_until: Micros,
    /// By the node's clock, and not before the truth, us.
    pub full_at: Micros,
    /// The binding quota's place in the policy.
    pub quota: u8,
    pub remaining: u64,
    /// When that quota is whole again, by the node's clock, us.
    pub reset_at: Micros,
}

impl Bucket {
    /// What is known of exactly this cost. Of a dearer one NO would be right as well, but not when it ends.
    pub fn refill(&self, cost: u64) -> Option<&Refill> {
        self.refills.iter().find(|refill| refill.cost == cost)
    }

    /// Whether both are about the same policy, generation and state.
    pub fn agrees(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy)
            && self.generation == other.generation
            && self.opens_at == other.opens_at
    }

    /// Before which instant of the node's clock any of this is believed, us.
    pub fn believed_until(&self) -> Micros {
        self.refills.iter().map(|refill| refill.believed_until).max().unwrap_or(0)
    }

    /// Takes in the costs of which `other` knows more. Both say the same of one unit; of a dearer cost, which another
    /// quota may bind, something may have been taken back between them.
    pub fn merge(&mut self, other: Self) {
        self.decided_at = self.decided_at.max(other.decided_at);
        other.refills.into_iter().for_each(|refill| self.add(refill));
    }

    /// Takes in one cost, unless what is known of it is believed as long.
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
