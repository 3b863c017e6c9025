//! How many costs one call may carry.

use crate::limit::policy::{Algorithm, Policy};

/// The most costs in one call. The server does nothing else meanwhile.
pub const COSTS: usize = 1000;

/// The most different costs in one call for a sliding log with one quota. For several quotas this
/// is divided by their number. For each cost, the server searches each quota's log for the instant
/// at which it fits. A search lasts up to 0.1 ms.
const SEARCHES: usize = 64;

/// The distinct costs of a call, as far as a limit applies to them.
pub struct Different {
    pub known: Vec<u64>,
    most: usize,
}

impl Different {
    pub fn of(policy: &Policy) -> Self {
        Self { known: Vec::new(), most: most_different(policy) }
    }

    pub fn has_room(&self, costs: &[u64]) -> bool {
        self.known.len() + costs.len() <= self.most
            || self.known.len() + costs.iter().filter(|cost| !self.known.contains(cost)).count() <= self.most
    }

    pub fn add(&mut self, costs: &[u64]) {
        for cost in costs.iter().filter(|_| self.most < usize::MAX) {
            if !self.known.contains(cost) {
                self.known.push(*cost);
            }
        }
    }
}

/// Returns how many different costs one call for a policy may carry.
fn most_different(policy: &Policy) -> usize {
    match policy.algorithm {
        Algorithm::SlidingLog => (SEARCHES / policy.quotas.len().max(1)).max(1),
        _ => usize::MAX,
    }
}

/// Returns how many of the costs, from the first on, one call may carry.
pub fn first_part(policy: &Policy, costs: &[u64]) -> usize {
    let most = most_different(policy);
    if costs.len() <= most {
        return costs.len();
    }
    let mut known = Vec::with_capacity(most);
    let fits = |cost: &&u64| {
        let is_known = known.contains(*cost);
        if !is_known {
            known.push(**cost);
        }
        known.len() <= most
    };
    costs.iter().take_while(fits).count()
}
