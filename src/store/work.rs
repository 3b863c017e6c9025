//! What a store can be asked to do with the counts of one key, and what it says then.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::limit::amend::Receipt;
use crate::limit::decision::{Taken, Verdict};
use crate::limit::policy::Policy;
use crate::limit::time::{Micros, micros};
use crate::store::StoreError;

/// One piece of work; each is one step, decided by the clock of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Decides costs in order and charges what it allows.
    Take(SmallVec<[u64; 2]>),
    /// Tells what a cost would be told, and charges nothing.
    Look(u64),
    /// Charges a cost unless the id's record says that this has been done. Without a record cost 0 looks, and leaves
    /// none.
    Once { id: Arc<str>, cost: u64 },
    /// Charges a cost, at least 1, for now: it may be given back for the next `hold` us, and until then nothing
    /// that is said of the key is final.
    Reserve { cost: u64, hold: Micros },
    /// Takes back what of a charge still counts.
    GiveBack(Receipt),
    /// Takes back a cost from the oldest charge upward, from each quota for itself.
    Refund(u64),
    /// Takes back the charge of an id, once.
    RefundOnce(Arc<str>),
    /// Forgets what now counts of the policy's quotas.
    Reset,
}

impl Work {
    /// How long a reservation may be given back, us: whoever decides within `timeout` gives back within the same again.
    pub fn hold(timeout: Duration) -> Micros {
        2 * micros(timeout)
    }

    /// What the script is told to charge; a look charges nothing.
    pub fn costs(&self) -> &[u64] {
        match self {
            Self::Take(costs) => costs,
            Self::Look(_) => &[0],
            Self::Once { cost, .. } | Self::Reserve { cost, .. } => std::slice::from_ref(cost),
            Self::GiveBack(_) | Self::Refund(_) | Self::RefundOnce(_) | Self::Reset => &[],
        }
    }

    /// The costs that it is answered for: a look's is told, not charged.
    pub fn asked(&self) -> &[u64] {
        match self {
            Self::Look(cost) => std::slice::from_ref(cost),
            _ => self.costs(),
        }
    }

    /// Whether it may charge.
    pub fn charges(&self) -> bool {
        matches!(self, Self::Take(_) | Self::Once { .. } | Self::Reserve { .. })
    }

    /// Whether it only takes away.
    pub fn takes_back(&self) -> bool {
        matches!(self, Self::GiveBack(_) | Self::Refund(_) | Self::RefundOnce(_) | Self::Reset)
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The verdicts on the costs of a `Take` or a `Look`, or on one of a `Once` that was not charged.
    Taken(Taken),
    /// The verdict on a reservation, and if it was made, what is needed to give it back.
    Reserved(Taken, Option<Receipt>),
    /// The id's charge as it was decided, now or earlier.
    Charged(Box<Charged>),
    /// The id stands for a charge of another cost.
    Reused,
    /// What was taken back, the most of any quota, units; and the verdict on cost 0 after that.
    Refunded(Taken, u64),
}

impl Done {
    /// Whether something was charged by work that may charge, now or, of an id, earlier.
    pub fn is_charge(&self) -> bool {
        match self {
            Self::Taken(taken) | Self::Reserved(taken, _) => {
                taken.ruling.verdicts.iter().any(|verdict| verdict.allowed && verdict.cost > 0)
            }
            Self::Charged(_) => true,
            Self::Reused | Self::Refunded(..) => false,
        }
    }

    /// The verdicts on costs.
    ///
    /// # Errors
    /// When something else was asked.
    pub fn taken(self) -> Result<Taken, StoreError> {
        match self {
            Self::Taken(taken) => Ok(taken),
            _ => Err(StoreError::Unknown("the answer is to another question".into())),
        }
    }

    /// The instant of the step by the clock of the store, us; of what a record says it is not known.
    pub fn at(&self) -> Option<Micros> {
        match self {
            Self::Taken(taken) | Self::Reserved(taken, _) | Self::Refunded(taken, _) => Some(taken.at),
            Self::Charged(_) | Self::Reused => None,
        }
    }
}

/// A charge with an id, in the words of its decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charged {
    /// With the quotas by which it was decided.
    pub policy: Arc<Policy>,
    pub verdict: Verdict,
    /// Whether it had been charged before.
    pub replayed: bool,
    /// Whether a refund by the id has taken it back since.
    pub refunded: bool,
}

/// Bounds of how long an id's record is kept, us: at least 5 minutes, at most a day; between them the longest window.
const RECORD: (Micros, Micros) = (300_000_000, 86_400_000_000);

/// How long the record of an id is kept, us.
pub fn record_life(policy: &Policy) -> Micros {
    longest_window(policy).clamp(RECORD.0, RECORD.1)
}

/// How long a charge can count at most, us: until then a reset must be known.
pub fn longest_life(policy: &Policy) -> Micros {
    2 * longest_window(policy) + 1_000_000
}

fn longest_window(policy: &Policy) -> Micros {
    policy.quotas.iter().map(|quota| quota.window).max().unwrap_or_default()
}
