//! A policy: a named rule, an algorithm and its quotas, plus options.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::key::{KeyType, NotAnAddress};
use super::lease::Lease;
use super::lists::{Found, List, Lists};
use super::notify::Notify;
use super::quota::{Quota, Rule};
use super::ticks::Ticks;
use super::time::Micros;

named! {
    /// How a policy counts. [`super::quota::Rule`] describes each of these.
    pub enum Algorithm {
        SlidingWindow = "sliding-window",
        FixedWindow = "fixed-window",
        TokenBucket = "token-bucket",
        SlidingLog = "sliding-log",
        SlidingCounter = "sliding-counter",
    }
}

impl Algorithm {
    /// The algorithm of a quota.
    #[must_use]
    pub fn of(quota: &Quota) -> Self {
        match quota.rule {
            Rule::SlidingWindow => Self::SlidingWindow,
            Rule::FixedWindow(_) => Self::FixedWindow,
            Rule::TokenBucket(_) => Self::TokenBucket,
            Rule::SlidingLog(_) => Self::SlidingLog,
            Rule::SlidingCounter(_) => Self::SlidingCounter,
        }
    }
}

named! {
    /// The answer to a check when the store fails or is too late.
    #[derive(Default)]
    pub enum OnStoreFailure {
        /// This node's embedded store decides, with its share of each limit.
        #[default]
        Local = "local",
        /// The check is allowed and not charged.
        Allow = "allow",
        /// The check is denied, with a retry_after of one second.
        Deny = "deny",
        /// The request fails with status 503.
        Error = "error",
    }
}

named! {
    /// Where a charge must be stored before its check is answered.
    #[derive(Default)]
    pub enum Durability {
        /// On the primary. A failover may lose the charge.
        #[default]
        Primary = "primary",
        /// On a replica as well. An allowed check waits for the acknowledgement.
        Replica = "replica",
    }
}

/// A named rule. Its name and its quotas' windows identify its counters, so a changed limit keeps
/// the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `[A-Za-z0-9_.-]`, 1 to 64 bytes.
    pub name: String,
    pub algorithm: Algorithm,
    /// 1 to 8 quotas of different windows and names, in configured order; none if a hold with places
    /// is the only limit.
    pub quotas: Vec<Quota>,
    /// How keys are normalised before they are counted.
    pub key_type: KeyType,
    pub on_store_failure: OnStoreFailure,
    /// How long a check waits for the store: the policy's own `timeout`, or else `store.timeout`.
    pub timeout: Duration,
    pub options: Options,
}

/// Optional behaviour of a policy; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Where a charge must be stored before an allowed check is answered.
    pub durability: Durability,
    /// Decides and counts, but always allows.
    pub shadow: bool,
    /// Accepts checks with their own quotas.
    pub inline: bool,
    /// Time zone of the clock windows in the quotas that a check brings.
    pub zone: Option<&'static str>,
    /// The policy's lists; absent without entries.
    pub lists: Option<Arc<Lists<Arc<Policy>>>>,
    /// The policy with the limits of each plan that it can count, by the names of the plans; absent
    /// without plans.
    pub plans: Option<Arc<BTreeMap<Box<str>, Arc<Policy>>>>,
    /// How nodes spend units locally.
    pub lease: Option<Lease>,
    /// Whether checks may wait in line. Else a caller could close a key for an hour.
    pub waits: bool,
    /// The most units in line; by default what the bucket repays in a minute
    /// ([`line::most`](super::line::most)).
    pub queue: Option<u64>,
    /// The receiver of notices about keys that cross a part of a limit.
    pub notify: Option<Arc<Notify>>,
    /// How checks hold places and charges until they are settled.
    pub hold: Option<Hold>,
    /// For a policy with the quotas of a request: the name under which its counters are stored.
    pub counters: Option<Box<str>>,
}

/// How a policy applies to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied<'a> {
    /// A list decides; nothing is counted.
    Listed(Listed),
    /// This policy counts the key: the policy itself, or that of an override.
    Counted(&'a Arc<Policy>),
}

/// The verdict of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Allow,
    Deny,
}

impl<T> List<'_, T> {
    /// The verdict without counting; none for an override.
    pub fn listed(&self) -> Option<Listed> {
        match self {
            Self::Deny => Some(Listed::Deny),
            Self::Allow => Some(Listed::Allow),
            Self::Override(_) => None,
        }
    }
}

/// How a policy applies to a key, and which entry of its lists is the reason.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// The normalised key.
    pub key: Cow<'a, str>,
    /// The entry that decides.
    pub found: Option<Found<'a, Arc<Policy>>>,
    pub applied: Applied<'a>,
}

impl Policy {
    /// A policy without options that counts keys as written, with the default `on_store_failure`.
    pub fn new(name: impl Into<String>, algorithm: Algorithm, quotas: Vec<Quota>, timeout: Duration) -> Self {
        let (key_type, on_store_failure, options) = Default::default();
        Self { name: name.into(), algorithm, quotas, key_type, on_store_failure, timeout, options }
    }

    /// How this policy applies to a key. `key` is normalised; `written` is the caller's spelling.
    pub fn applied<'a>(self: &'a Arc<Self>, key: &str, written: &str) -> Applied<'a> {
        self.applied_by(self.found(key, written).as_ref())
    }

    /// How this policy applies to a key as the caller wrote it, and why.
    ///
    /// # Errors
    /// If the key does not match the type of the policy's keys.
    pub fn explain<'a>(self: &'a Arc<Self>, written: &'a str) -> Result<Explanation<'a>, NotAnAddress> {
        let key = self.key_type.normalise(written)?;
        let found = self.found(&key, written);
        let applied = self.applied_by(found.as_ref());
        Ok(Explanation { key, found, applied })
    }

    /// The entry of the policy's lists that decides for a key. Arguments as for
    /// [`Policy::applied`].
    pub fn found(&self, key: &str, written: &str) -> Option<Found<'_, Arc<Self>>> {
        self.options.lists.as_ref()?.find(key, written)
    }

    fn applied_by<'a>(self: &'a Arc<Self>, found: Option<&Found<'a, Arc<Self>>>) -> Applied<'a> {
        let listed = found.and_then(|found| found.list.listed());
        match (listed, found.map(|found| &found.list)) {
            (Some(listed), _) => Applied::Listed(listed),
            (None, Some(List::Override(policy))) => Applied::Counted(policy),
            (None, _) => Applied::Counted(self),
        }
    }

    /// The policy that counts a key, whether or not a list decides for it. Arguments as for
    /// [`Policy::applied`].
    pub fn counting<'a>(self: &'a Arc<Self>, key: &str, written: &str) -> &'a Arc<Self> {
        let lists = self.options.lists.as_ref();
        lists.and_then(|lists| lists.overrides.find(key, written)).map_or(self, |(_, (policy, _))| policy)
    }

    /// The policies of its overrides, and itself.
    pub fn with_its_overrides(&self) -> impl Iterator<Item = &Self> {
        let lists = self.options.lists.iter();
        lists.flat_map(|lists| lists.overrides.iter().map(|(_, (policy, _))| &**policy)).chain([self])
    }

    /// The same policy with each override changed.
    #[must_use]
    pub fn with_overrides(mut self, mut change: impl FnMut(Self) -> Self) -> Self {
        self.options.lists = self.options.lists.map(|lists| {
            let Lists { deny, allow, overrides } = Arc::unwrap_or_clone(lists);
            let changed = |(policy, line)| (Arc::new(change(Arc::unwrap_or_clone(policy))), line);
            Arc::new(Lists { deny, allow, overrides: overrides.map(changed) })
        });
        self
    }

    /// The policy with the limits of a plan.
    pub fn plan(&self, name: &str) -> Option<&Arc<Self>> {
        self.options.plans.as_ref()?.get(name)
    }

    /// The names of its plans.
    pub fn plan_names(&self) -> impl Iterator<Item = &str> {
        self.options.plans.iter().flat_map(|plans| plans.keys().map(|name| &**name))
    }

    /// The most open holds of a key; none: any number.
    pub fn places(&self) -> Option<NonZeroU64> {
        self.options.hold?.in_flight
    }

    /// Whether its checks may wait in line: a token bucket knows the instant at which a cost fits, and
    /// nodes spend units of a lease locally, in no order.
    pub fn may_wait(&self) -> bool {
        self.options.waits && self.algorithm == Algorithm::TokenBucket && self.options.lease.is_none()
    }

    /// The same policy with `others` places fewer, and with as many entries of logs fewer. None if
    /// none is left.
    pub fn with_fewer_places(&self, others: u64) -> Option<Self> {
        let mut policy = self.clone();
        for quota in &mut policy.quotas {
            if let Rule::SlidingLog(most) = &mut quota.rule {
                let left = u64::from(most.get()).saturating_sub(others);
                *most = NonZeroU32::new(u32::try_from(left).ok()?)?;
            }
        }
        if let Some(hold) = &mut policy.options.hold
            && let Some(places) = hold.in_flight
        {
            hold.in_flight = Some(NonZeroU64::new(places.get().saturating_sub(others))?);
        }
        Some(policy)
    }

    /// The name under which the counters are stored. Quotas of a request have their own counters.
    pub fn counters(&self) -> &str {
        self.options.counters.as_deref().unwrap_or(&self.name)
    }

    /// How long after the decision a charge is recorded, us. A leased unit may be spent until then.
    /// Fixed windows and token buckets record no instants, so they need none.
    pub fn ahead(&self) -> Micros {
        match (&self.options.lease, self.algorithm) {
            (None, _) | (_, Algorithm::FixedWindow | Algorithm::TokenBucket) => 0,
            (Some(lease), Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter) => lease.span,
        }
    }

    /// How long units of `lease` may be spent after their call was sent, us. `resets` has us until
    /// each quota is full again, as of the sale.
    pub fn lease_lasts(&self, lease: Lease, resets: impl Iterator<Item = Micros>) -> Micros {
        lease.lasts(self.lease_ends(resets))
    }

    /// When a lease ends at the latest after its sale, us. Fixed windows end their leases.
    pub fn lease_ends(&self, resets: impl Iterator<Item = Micros>) -> Micros {
        resets.filter(|_| self.algorithm == Algorithm::FixedWindow).min().unwrap_or(Micros::MAX)
    }

    /// Whether the policy counts a limit of Envoy's and stands in no configuration.
    pub fn is_of_envoy(&self) -> bool {
        self.name.starts_with("envoy:")
    }

    /// Whether the policy stores the metas of charges.
    pub fn keeps_metas(&self) -> bool {
        self.algorithm == Algorithm::SlidingLog
    }

    /// The ticks of sliding counters, which all quotas share.
    pub fn ticks(&self) -> Option<Ticks> {
        self.quotas.first().and_then(Quota::ticks)
    }

    /// The ticks that a policy counts together with all other shared policies.
    pub fn shared_ticks(&self) -> Option<Ticks> {
        self.ticks().filter(|ticks| ticks.shared)
    }

    /// The place of the quota with the longest window, whose log stores the metas.
    pub fn longest(&self) -> usize {
        let windows = self.quotas.iter().enumerate();
        windows.max_by_key(|(_, quota)| quota.window).map_or(0, |(place, _)| place)
    }

    /// The same policy with each limit divided by the number of nodes, for the fallback `local`.
    pub fn share(&self, nodes: NonZeroU64) -> Self {
        let hold = self.options.hold.map(|hold| hold.share(nodes));
        let quotas = self.quotas.iter().map(|quota| quota.share(nodes)).collect();
        Self { quotas, options: Options { hold, ..self.options.clone() }, ..self.clone() }
    }
}
