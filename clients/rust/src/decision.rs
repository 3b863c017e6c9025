use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The part of a node that decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// The shared counters.
    Store,
    /// The node's cache of denials.
    Prefilter,
    /// The policy's `on_store_failure`.
    Fallback,
    /// A deny list or an allow list.
    List,
    /// Units that the node or this client had bought before.
    Lease,
    /// A denial of a node that this client remembers.
    Client,
    /// A value of a newer node.
    #[serde(untagged)]
    Other(String),
}

/// The reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The cost fits.
    Ok,
    /// The cost does not fit now.
    OverLimit,
    /// The cost can never fit.
    CostExceedsLimit,
    /// The store did not decide, and the policy's `on_store_failure` is fixed.
    StoreUnavailable,
    /// The check would have been denied, but the policy is on trial.
    Shadow,
    /// An allow list has the key.
    AllowListed,
    /// A deny list has the key.
    DenyListed,
    /// The charge of this id was given back: a new attempt needs a new id.
    Refunded,
    /// As many holds of the key are open as the policy allows.
    InFlight,
    /// The hold of this id has expired, and its charge was given back.
    Expired,
    /// A value of a newer node.
    #[serde(untagged)]
    Other(String),
}

/// The answer to a check.
///
/// `limit`, `remaining`, `reset_after_ms` and `quota` are those of the binding quota, which has the
/// least remaining units. They are absent if the node read no counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the caller may proceed.
    pub allowed: bool,
    /// The policy that decided.
    pub policy: String,
    /// The key of the check.
    pub key: String,
    /// The cost of the check, in units.
    pub cost: u64,
    /// Units that the store has certainly charged.
    pub charged: u64,
    /// Units of a drain that did not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed: Option<u64>,
    /// Time until the start of a check that waits, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_in_ms: Option<u64>,
    /// The limit of the binding quota, in units.
    pub limit: Option<u64>,
    /// The remaining units of the binding quota.
    pub remaining: Option<u64>,
    /// Time until the cost fits, in ms: 0 if allowed, absent if it can never fit or a list denies.
    pub retry_after_ms: Option<u64>,
    /// Time until the binding quota is whole again without further traffic, in ms.
    pub reset_after_ms: Option<u64>,
    /// The name of the binding quota.
    pub quota: Option<String>,
    /// The part that decided.
    pub source: Source,
    /// The reason of the decision.
    pub reason: Reason,
    /// Each quota of the policy. A denial of the pre-filter may have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaState>,
    /// How the node decided without the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
    /// Whether an earlier check with this id made the decision.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
    /// Whether the charge of the id was refunded. A new charge needs a new id.
    #[serde(default, skip_serializing_if = "is_false")]
    pub refunded: bool,
    /// The hold that the check opened, or that its id opened before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldState>,
    /// How long bought units of the key may be spent at most, in ms. Absent if it sells no leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_span_ms: Option<u64>,
}

impl Decision {
    /// Whether the hold of a repeated id has ended, so that no work may begin.
    pub(crate) fn has_ended_hold(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.ended.is_some())
    }

    /// The time until a denied cost fits. Nothing if it never does.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }
}

/// One quota of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuotaState {
    /// The configured name.
    pub name: String,
    /// Units that fit in a window, or the burst of a token bucket.
    pub limit: u64,
    /// The length of the window, in ms.
    pub window_ms: u64,
    /// The remaining units.
    pub remaining: u64,
    /// Time until the quota is whole again without further traffic, in ms.
    pub reset_after_ms: u64,
    /// Units that the quota took of a drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged: Option<u64>,
}

/// The hold of an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HoldState {
    /// Time until the hold expires unless it is renewed, in ms; 0 after its end.
    pub expires_in_ms: u64,
    /// Open holds of the key, this one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// The most open holds of the key, if the policy bounds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
    /// The end of the hold of a repeated id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<HoldEnd>,
}

/// The end of a hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HoldEnd {
    /// It was settled.
    Settled,
    /// It was not renewed in time.
    Expired,
    /// The counts of its key were reset.
    Reset,
    /// No node knows it.
    UnknownId,
    /// A value of a newer node.
    #[serde(untagged)]
    Other(String),
}

/// The answer to a settle, with the counts after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SettleAnswer {
    /// False if the id has no hold.
    pub settled: bool,
    /// Why it is not settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<HoldEnd>,
    /// Units that the hold has charged.
    #[serde(default)]
    pub charged: u64,
    /// Units that count again.
    #[serde(default)]
    pub refunded: u64,
    /// Units above the charge that did not fit.
    #[serde(default)]
    pub owed: u64,
    /// Whether an earlier settle made the answer.
    #[serde(default)]
    pub replayed: bool,
    /// The limit of the binding quota, in units.
    pub limit: Option<u64>,
    /// The remaining units of the binding quota.
    pub remaining: Option<u64>,
    /// Time until a unit fits, in ms.
    pub retry_after_ms: Option<u64>,
    /// Time until the binding quota is whole again, in ms.
    pub reset_after_ms: Option<u64>,
    /// The name of the binding quota.
    pub quota: Option<String>,
    /// The part that answered.
    pub source: Source,
    /// Each quota of the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaState>,
}

/// The answer to a purchase.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(Serialize))]
pub(crate) struct LeaseAnswer {
    /// The units; 0 denies the purchase.
    pub granted: u64,
    /// How long they may be spent after the call was sent, in ms.
    pub spend_within_ms: u64,
    /// The pause after a denied purchase, in ms.
    pub retry_after_ms: Option<u64>,
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    pub reset_after_ms: Option<u64>,
    pub quota: Option<String>,
    #[serde(default)]
    pub quotas: Vec<QuotaState>,
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RenewAnswer {
    /// Whether the hold is open.
    pub renewed: bool,
    /// Time until it expires, in ms.
    #[serde(default)]
    pub expires_in_ms: u64,
    /// Why it is not renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<HoldEnd>,
}

/// How a node decided without the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fallback {
    /// The policy's `on_store_failure`.
    pub mode: String,
    /// The reason why the store did not decide.
    pub cause: String,
}

/// The verdict on checks that are charged together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AllAnswer {
    /// Whether all checks are allowed. Only then they are charged.
    pub allowed: bool,
    /// The positions of the denied checks, from 0.
    pub denied_by: Vec<usize>,
    /// The longest wait of the denied checks, in ms. Absent if one can never fit.
    pub retry_after_ms: Option<u64>,
    /// The verdict of each check.
    pub results: Vec<Decision>,
}

/// The decision for cost 0 after a refund.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RefundAnswer {
    /// The state after the refund.
    #[serde(flatten)]
    pub decision: Decision,
    /// The most units that any quota got back.
    pub refunded: u64,
}

/// The counts of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// The decision that a check would get.
    #[serde(flatten)]
    pub decision: Decision,
    /// The newest charges of a sliding log, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    /// The largest causes in a sliding log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_metas: Vec<TopMeta>,
    /// The ticks of a sliding counter that are not 0, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ticks: Vec<Tick>,
    /// The newest open holds, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<UsageHold>,
    /// The number of open holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// The most open holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
}

/// An open hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UsageHold {
    /// The id of its check.
    pub id: String,
    /// The age of the hold, in ms.
    pub age_ms: u64,
    /// The units of its check.
    pub cost: u64,
    /// Time until it expires, in ms.
    pub expires_in_ms: u64,
    /// The cause of its charge.
    pub meta: Option<String>,
}

/// A charge in a sliding log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// The age of the charge, in ms.
    pub age_ms: u64,
    /// The units of the charge.
    pub cost: u64,
    /// The cause of the charge.
    pub meta: Option<String>,
}

/// A cause of charges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopMeta {
    /// The cause.
    pub meta: String,
    /// The total of its units.
    pub cost: u64,
    /// The number of its charges.
    pub count: u64,
}

/// A counter of a sliding counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tick {
    /// The start in seconds since 1970, or in ms if a tick is no whole number of seconds.
    pub at: u64,
    /// The units.
    pub count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}
