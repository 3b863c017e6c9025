//! Operations of a store on the counts of one key, and their results.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::limit::decision::{Ruling, Verdict};
pub use crate::limit::drain::Over;
use crate::limit::history::{Charge, Note};
use crate::limit::hold::{End, HoldState, MAX_TTL, Renewal, Settlement};
use crate::limit::lease::{Lease, Sold, SoldEnd};
pub use crate::limit::line::Line;
use crate::limit::line::MAX_WAIT_MS;
use crate::limit::policy::Policy;
use crate::limit::quota::Quota;
use crate::limit::receipt::{LeaseReceipt, Receipt};
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros, micros};
use crate::store::StoreError;

/// One operation: an atomic step, decided by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Decides costs in order and charges the allowed ones.
    Take(SmallVec<[u64; 2]>),
    /// Peeks: decides a cost without charging it.
    Look(u64),
    /// Charges a cost, or as much of it as fits in each quota.
    Drain(u64),
    /// Charges a cost as `over` says unless the id's record shows an earlier charge. Without a
    /// record, cost 0 peeks and leaves none.
    Once { id: Id, cost: u64, over: Over },
    /// Charges a cost at the first instant at which it fits, if the check waits so long.
    Wait(Box<Waiting>),
    /// Reserves a cost, at least 1. The charge may be given back for the next `hold` us. Until then
    /// no answer about the key is final.
    Reserve { cost: u64, hold: Micros },
    /// Decides costs in order; the last one buys a lease. Its units may be returned for the next
    /// `hold` us. Until then no answer about the key is final.
    Lease { costs: SmallVec<[u64; 2]>, hold: Micros },
    /// Sells a lease to a caller, unless the record of its id shows an earlier sale.
    Sell(Box<Sale>),
    /// Takes back the part of a charge that still counts.
    GiveBack(Receipt),
    /// Takes back unspent units of a lease, unless its mark has ended.
    Return(Box<LeaseReceipt>),
    /// Takes back a cost from the oldest charge upward, separately in each quota.
    Refund(u64),
    /// Takes back the charge of an id, once. The charge of a hold is settled with cost 0.
    RefundOnce(Arc<str>),
    /// Ends the hold of an id. A cost below its charge gives the rest back, a cost above it drains
    /// the rest. Without a cost the charge stays. Under a policy without holds it ends the lease of
    /// a caller, which returns the units beyond the cost.
    Settle { id: Arc<str>, cost: Option<u64> },
    /// Takes back the charge of an id, and forgets the id. It changes nothing once the charge was
    /// refunded or settled.
    Undo(Arc<str>),
    /// Extends the open hold of an id to its whole time to live.
    Renew(Arc<str>),
    /// Reads the open holds that expire last.
    ReadHolds,
    /// Drops all current counts of the policy and ends its holds, whatever quotas made them. The
    /// logs of these other quotas are named, since each has a key of its own.
    Reset(Box<[Quota]>),
    /// Reads the portion with this number of a log's entries, newest first.
    ReadLog(usize),
    /// Reads the ticks of a sliding counter that count at the instant `at`, us, and peeks by them.
    /// The embedded store reads its clock instead.
    ReadTicks { at: Micros, cost: u64 },
}

/// A check that waits for its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub cost: u64,
    pub line: Line,
    pub id: Option<Id>,
}

/// The sale of a lease to a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    pub id: Id,
    /// Without units it peeks, and only an earlier sale has a lease.
    pub units: u64,
    /// How long the units may be spent after the sale, us. A fixed window may end before.
    pub span: Micros,
    /// How long units may be returned after the sale, us. Until then no answer about the key is
    /// final.
    pub hold: Micros,
}

impl Sale {
    /// How long a record is kept after the time of returns, us, so that retries get their answer.
    const KEPT: Micros = 60_000_000;

    /// The sale of `units` by a lease of the policy.
    pub fn new(policy: &Policy, lease: Lease, id: Arc<str>, units: u64) -> Self {
        let hold = lease.hold(policy.timeout);
        Self { id: Id { name: id, life: Some(hold + Self::KEPT), repeated: true }, units, span: lease.span, hold }
    }
}

/// The caller's name for one check, so that a retry charges once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    /// 1 to 64 bytes.
    pub name: Arc<str>,
    /// How long its record is kept, us; by default the policy's longest window. An id with a life
    /// of its own serves retries only.
    pub life: Option<Micros>,
    /// Whether the caller has sent it before, and has no answer.
    pub repeated: bool,
}

impl Id {
    /// Whether no earlier check can have its record.
    pub fn is_new(&self) -> bool {
        self.life.is_some() && !self.repeated
    }

    /// How long the store keeps the record, us.
    pub fn record_life(&self, policy: &Policy) -> Micros {
        self.life.unwrap_or_else(|| record_life(policy))
    }
}

impl<T: AsRef<str>> From<T> for Id {
    fn from(name: T) -> Self {
        Self { name: name.as_ref().into(), life: None, repeated: false }
    }
}

impl Work {
    /// How long a reservation may be given back, us. A caller decides within `timeout`, and gives
    /// back within the same time again.
    pub fn hold(timeout: Duration) -> Micros {
        2 * micros(timeout)
    }

    /// The costs that the script charges; a peek charges 0.
    pub fn costs(&self) -> &[u64] {
        match self {
            Self::Take(costs) | Self::Lease { costs, .. } => costs,
            Self::Look(_) => &[0],
            Self::Wait(waiting) => std::slice::from_ref(&waiting.cost),
            Self::Drain(cost) | Self::Once { cost, .. } | Self::Reserve { cost, .. } => std::slice::from_ref(cost),
            Self::Sell(sale) => std::slice::from_ref(&sale.units),
            Self::GiveBack(_) | Self::Return(_) | Self::Refund(_) | Self::RefundOnce(_) | Self::Reset(_) => &[],
            Self::Undo(_) | Self::Settle { .. } | Self::Renew(_) | Self::ReadHolds => &[],
            Self::ReadLog(_) | Self::ReadTicks { .. } => &[],
        }
    }

    /// The costs that the answer is about. For a peek this is its cost, not the charge.
    pub fn asked(&self) -> &[u64] {
        match self {
            Self::Look(cost) | Self::ReadTicks { cost, .. } => std::slice::from_ref(cost),
            _ => self.costs(),
        }
    }

    /// Whether it may charge, or writes what a replica must have.
    pub fn charges(&self) -> bool {
        matches!(
            self,
            Self::Take(_)
                | Self::Drain(_)
                | Self::Once { .. }
                | Self::Wait(_)
                | Self::Reserve { .. }
                | Self::Lease { .. }
                | Self::Sell(_)
                | Self::Settle { .. }
                | Self::Renew(_)
        )
    }

    /// How long after the decision its charges are recorded, us: [`Policy::ahead`] for checks and
    /// leases, else 0. Peeks share the script of checks.
    pub fn ahead(&self, policy: &Policy) -> Micros {
        match self {
            Self::Take(_) | Self::Look(_) | Self::Lease { .. } | Self::Sell(_) => policy.ahead(),
            _ => 0,
        }
    }

    /// Whether it charges if everything fits. A list of zeros does not.
    pub fn may_charge(&self) -> bool {
        match self {
            Self::Take(costs) | Self::Lease { costs, .. } => costs.iter().any(|cost| *cost > 0),
            _ => self.charges(),
        }
    }

    /// The id of a check, if it has one.
    pub fn id(&self) -> Option<&Id> {
        match self {
            Self::Once { id, .. } => Some(id),
            Self::Sell(sale) => Some(&sale.id),
            Self::Wait(waiting) => waiting.id.as_ref(),
            _ => None,
        }
    }

    /// Whether it follows the steps of holds under this policy.
    pub fn is_held(&self, policy: &Policy) -> bool {
        policy.options.hold.is_some() || matches!(self, Self::Undo(_))
    }

    /// Whether it sells or ends the lease of a caller.
    pub fn is_of_caller(&self, policy: &Policy) -> bool {
        matches!(self, Self::Sell(_)) || matches!(self, Self::Settle { .. }) && policy.options.hold.is_none()
    }

    /// Whether it only reduces counts.
    pub fn takes_back(&self) -> bool {
        match self {
            Self::GiveBack(_) | Self::Return(_) | Self::Refund(_) | Self::RefundOnce(_) | Self::Reset(_) => true,
            // Most settles do.
            Self::Undo(_) | Self::Settle { .. } => true,
            _ => false,
        }
    }
}

/// The verdicts on the costs of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub ruling: Ruling,
    /// Decision time by the store's clock, us. It orders the replies of one shard.
    pub at: Micros,
    /// A reservation may be open on the key, so a denied cost may fit a moment later.
    pub tentative: bool,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The verdicts on the costs of a `Take`, a `Look` or a `Drain`, or on an uncharged `Once`.
    Taken(Taken),
    /// The verdict on a reservation, and its receipt if it was made.
    Reserved(Taken, Option<Receipt>),
    /// The verdicts on the costs of a `Lease`, and its receipt if units were bought.
    Leased(Taken, Option<Box<LeaseReceipt>>),
    /// The verdict on the units of a sale, or on cost 0 for an earlier one; and the lease, if there
    /// is one.
    Sold(Taken, Option<Sold>),
    /// The verdict on cost 0 after the settle of a caller's lease.
    Returned(Taken, SoldEnd),
    /// The id's charge as decided, now or earlier.
    Charged(Box<Charged>),
    /// The id belongs to a charge of another cost or `over`; for a check, with the policy of the
    /// quotas that it charged.
    Reused(Option<Arc<Policy>>),
    /// The verdict on cost 0 after the refund, and the refunded units: the largest amount of any
    /// quota.
    Refunded(Taken, u64),
    /// A portion of a log.
    Page(LogPage),
    /// The verdict on cost 0 after a settle, or that on the drain of its rest. None: the id has no
    /// hold.
    Settled(Taken, Option<Settlement>),
    Renewed(Renewal),
    /// The number of open holds, and those that expire last.
    Holds(u64, Vec<OpenHold>),
    /// The verdict on a peek, and the ticks that count, newest first: each start as users see it,
    /// and its count.
    Ticks(Taken, Vec<(u64, u64)>),
}

/// A part of a log's entries, newest first. It may contain expired entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The instant of the read by the store's clock, us.
    pub at: Micros,
    pub charges: Vec<Charge>,
    pub notes: Vec<Note>,
}

impl Done {
    /// Whether an operation that may charge has charged; for an id, now or earlier.
    pub fn is_charge(&self) -> bool {
        match self {
            Self::Taken(taken) | Self::Reserved(taken, _) | Self::Leased(taken, _) => {
                taken.ruling.verdicts.iter().any(|verdict| verdict.charged() > 0)
            }
            Self::Charged(_) | Self::Settled(_, Some(_)) | Self::Renewed(Renewal::Open(_)) => true,
            Self::Sold(_, sold) => sold.is_some(),
            Self::Returned(..) | Self::Settled(_, None) | Self::Renewed(_) | Self::Holds(..) => false,
            Self::Reused(_) | Self::Refunded(..) | Self::Page(_) | Self::Ticks(..) => false,
        }
    }

    /// The verdicts on costs.
    ///
    /// # Errors
    /// If the operation was of another kind.
    pub fn taken(self) -> Result<Taken, StoreError> {
        match self {
            Self::Taken(taken) => Ok(taken),
            _ => Err(StoreError::Unknown("the answer is to another question".into())),
        }
    }

    /// The instant of the step by the store's clock, us; unknown for a record's answer.
    pub fn at(&self) -> Option<Micros> {
        match self {
            Self::Taken(taken) | Self::Reserved(taken, _) | Self::Leased(taken, _) => Some(taken.at),
            Self::Refunded(taken, _) | Self::Settled(taken, _) => Some(taken.at),
            Self::Sold(taken, _) | Self::Returned(taken, _) => Some(taken.at),
            Self::Renewed(_) | Self::Holds(..) => None,
            Self::Charged(_) | Self::Reused(_) | Self::Page(_) | Self::Ticks(..) => None,
        }
    }
}

/// An open hold, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenHold {
    pub id: Arc<str>,
    /// us since the check.
    pub age: Micros,
    /// The units of its charge.
    pub cost: u64,
    /// us until it expires without a renewal.
    pub expires_in: Micros,
    pub meta: Option<Arc<str>>,
}

/// A charge with an id, as it was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charged {
    /// The policy, with the quotas that decided.
    pub policy: Arc<Policy>,
    pub verdict: Verdict,
    /// Whether an earlier call made the charge.
    pub replayed: bool,
    /// Whether a refund by the id, or the expiry of its hold, has taken the charge back since.
    pub refunded: bool,
}

impl Charged {
    /// How its hold ended, if it did.
    pub fn end(&self) -> Option<End> {
        match self.verdict.places.as_ref()?.hold? {
            HoldState::Ended(end) => Some(end),
            HoldState::Open(_) => None,
        }
    }
}

/// Bounds of the life of an id's record, us: at least 5 minutes, at most a day. Between them the
/// longest window applies.
const RECORD: (Micros, Micros) = (300_000_000, 86_400_000_000);

/// How long the store keeps the record of an id without a life of its own, us.
fn record_life(policy: &Policy) -> Micros {
    longest_window(policy).clamp(RECORD.0, RECORD.1)
}

/// How long the record of a reset lasts, us: as long as a charge can count, and as long as the record
/// of a charge by any plan, override or file.
pub fn longest_life(policy: &Policy) -> Micros {
    (2 * longest_window(policy)).max(RECORD.1 + MAX_TTL + MAX_WAIT_MS * MICROS_PER_MILLI) + MICROS_PER_SECOND
}

fn longest_window(policy: &Policy) -> Micros {
    policy.quotas.iter().map(|quota| quota.window).max().unwrap_or_default()
}
