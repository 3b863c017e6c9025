use std::time::Duration;

use derive_setters::Setters;
use serde::Serialize;
use uuid::Uuid;

use crate::decision::is_false;
use crate::hold::HoldName;

/// How a check charges a cost that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Over {
    /// Charges nothing. This is the default.
    Deny,
    /// Charges as much as fits, for usage that is known only afterwards.
    Drain,
}

/// Asks whether a key may spend a cost under a policy.
///
/// ```
/// # use tollgate_limiter::Check;
/// let check = Check::new("user-42").policy("sms").cost(3);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Setters)]
#[setters(strip_option)]
pub struct Check {
    /// A configured policy; the default is `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(into)]
    pub(crate) policy: Option<String>,
    #[setters(skip)]
    pub(crate) key: String,
    /// A plan of the configuration, whose quotas replace those of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(into)]
    pub(crate) plan: Option<String>,
    /// Units to charge, up to 10^15. The default is 1. Cost 0 charges nothing, and is never denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<u64>,
    /// The cause of the charge, up to 256 bytes. Policies with a sliding log keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(into)]
    meta: Option<String>,
    /// An id of up to 64 bytes. The node keeps it for the longest window of the policy, and charges
    /// it once. The node asks the store for each check with it. For retries of the client, use
    /// [`Check::once`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(into)]
    pub(crate) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(skip)]
    id_ttl_ms: Option<u64>,
    /// Whether an earlier call had the id.
    #[serde(skip_serializing_if = "is_false")]
    #[setters(skip)]
    repeated: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[setters(skip)]
    pub(crate) quotas: Vec<QuotaSpec>,
    /// How to charge a cost that does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<Over>,
    /// Whether to decide only, and charge nothing. The decision is that for the cost: a denial if
    /// it does not fit now.
    #[serde(skip_serializing_if = "is_false")]
    look: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(skip)]
    pub(crate) wait_ms: Option<u64>,
    /// Whether the client makes an id, so that its own retry charges nothing twice. The node keeps
    /// the id for the deadline and ten seconds more.
    #[serde(skip)]
    pub(crate) once: bool,
    #[serde(skip)]
    #[setters(skip)]
    pub(crate) traceparent: Option<String>,
}

impl Check {
    /// A check of 1 unit under the policy `default`. A key has 1 to 1024 bytes.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Quotas in place of those of the policy, which must have `inline: true`.
    #[must_use]
    pub fn quotas(mut self, quotas: impl IntoIterator<Item = QuotaSpec>) -> Self {
        self.quotas = quotas.into_iter().collect();
        self
    }

    /// The W3C trace context of the caller, of 55 characters in lower case. The client drops any
    /// other text.
    #[must_use]
    pub fn traceparent(mut self, traceparent: &str) -> Self {
        self.traceparent = is_trace_context(traceparent).then(|| traceparent.to_owned());
        self
    }

    /// Whether the check may change a counter.
    pub(crate) fn charges(&self) -> bool {
        self.cost != Some(0) && !self.look
    }

    pub(crate) fn is_drain(&self) -> bool {
        self.over == Some(Over::Drain)
    }

    pub(crate) fn units(&self) -> u64 {
        self.cost.unwrap_or(1)
    }

    /// Gives the check an id that serves retries only, for `life`.
    pub(crate) fn set_id(&mut self, life: Duration) {
        self.id = Some(Uuid::new_v4().simple().to_string());
        self.id_ttl_ms = Some(u64::try_from(life.as_millis()).unwrap_or(u64::MAX).clamp(1000, 86_400_000));
    }

    /// Gives the check of a hold an id, unless its caller did. It lives as long as the hold.
    pub(crate) fn set_hold_id(&mut self) {
        self.id.get_or_insert_with(|| Uuid::new_v4().simple().to_string());
    }

    pub(crate) fn hold_name(&self) -> HoldName {
        let name = HoldName::new(&*self.key, self.id.as_deref().unwrap_or_default());
        self.policy.iter().fold(name, HoldName::policy)
    }

    /// Whether its repetition differs, since the node has to look for its record.
    pub(crate) fn is_retry_safe(&self) -> bool {
        self.id_ttl_ms.is_some()
    }

    /// The same check, sent again.
    pub(crate) fn again(&self) -> Self {
        Self { repeated: self.is_retry_safe(), ..self.clone() }
    }

    /// The charge of units that are known after this check.
    pub(crate) fn after(&self, units: u64) -> Self {
        let (cost, over) = (Some(units), Some(Over::Drain));
        Self { cost, over, look: false, id: None, id_ttl_ms: None, ..self.clone() }
    }

    /// The refund of this check's charge, if it has an id.
    pub(crate) fn refund(&self) -> Option<Refund> {
        let refund = Refund::by_id(&*self.key, self.id.as_deref()?);
        Some(Refund { policy: self.policy.clone(), ..refund })
    }

    /// Whether a known denial of its key may answer it. An id of the caller may have a record, and a
    /// wait may outlast the denial.
    pub(crate) fn is_deniable(&self) -> bool {
        let may_have_record = self.id.is_some() && !self.is_retry_safe();
        self.units() > 0 && self.over != Some(Over::Drain) && self.wait_ms.is_none() && !may_have_record
    }

    /// Whether a lease may pay it. A node decides what has a record, a cause or quotas of its own. So
    /// the answer is about a check that has no id for its retry yet.
    pub(crate) fn is_leasable(&self) -> bool {
        let has_own = self.id.is_some() || self.meta.is_some() || self.plan.is_some() || !self.quotas.is_empty();
        self.charges() && !has_own && self.wait_ms.is_none() && self.over != Some(Over::Drain)
    }

    /// Its policy and its key.
    pub(crate) fn name(&self) -> (&str, &str) {
        (self.policy.as_deref().unwrap_or(DEFAULT_POLICY), &self.key)
    }

    /// The most bytes that the check has in JSON.
    pub(crate) fn bytes(&self) -> usize {
        const MEMBERS: usize = 192;
        const ESCAPED: usize = 6;
        let texts = [&self.policy, &self.plan, &self.meta, &self.id].into_iter().flatten().chain([&self.key]);
        let texts: usize = texts.map(String::len).sum();
        let quotas: usize = self.quotas.iter().map(|quota| MEMBERS + ESCAPED * quota.bytes()).sum();
        MEMBERS + ESCAPED * texts + quotas
    }
}

/// A quota that a check brings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Setters)]
#[setters(generate = false)]
pub struct QuotaSpec {
    /// The name of the quota in decisions. The default is its window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(generate, into, strip_option)]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
}

impl QuotaSpec {
    /// At most `limit` units in any window, such as `1h`.
    pub fn limit(limit: u64, per: impl Into<String>) -> Self {
        Self { limit: Some(limit), per: Some(per.into()), ..Self::default() }
    }

    /// A token bucket, filled at a rate such as `10 per 1s`.
    pub fn rate(rate: impl Into<String>, burst: u64) -> Self {
        Self { rate: Some(rate.into()), burst: Some(burst), ..Self::default() }
    }

    fn bytes(&self) -> usize {
        [&self.name, &self.per, &self.rate].into_iter().flatten().map(String::len).sum()
    }
}

/// Gives units back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Setters)]
#[setters(generate = false)]
pub struct Refund {
    /// The policy of the check; the default is `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[setters(generate, into, strip_option)]
    pub(crate) policy: Option<String>,
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
}

impl Refund {
    /// Gives back the charge of the check with this id, once.
    pub fn by_id(key: impl Into<String>, id: impl Into<String>) -> Self {
        Self { key: key.into(), id: Some(id.into()), ..Self::default() }
    }

    /// Gives back up to `units`, from the oldest charge that counts.
    pub fn by_cost(key: impl Into<String>, units: u64) -> Self {
        Self { key: key.into(), cost: Some(units), ..Self::default() }
    }
}

/// The policy of a check that names none.
pub(crate) const DEFAULT_POLICY: &str = "default";

const MAX_KEY: usize = 1024;

/// Returns the key as text, or `sha256:` and its hash if a node would not accept it.
///
/// Use it for keys of callers, for example from a header. Else a caller could choose a key that no
/// node counts.
pub fn safe_key(key: impl AsRef<[u8]>) -> String {
    let key = key.as_ref();
    match std::str::from_utf8(key) {
        Ok(text) if key.len() <= MAX_KEY => text.to_owned(),
        _ => {
            let hash = ring::digest::digest(&ring::digest::SHA256, key);
            hash.as_ref().iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
        }
    }
}

/// Whether `text` is `00-<32 digits>-<16 digits>-<2 digits>`, in lower-case hexadecimal (W3C Trace
/// Context). A caller of a service may choose any text. A node would reject a call with a faulty
/// one, so that its check would not count.
fn is_trace_context(text: &str) -> bool {
    let is_right = |(place, letter): (usize, u8)| match place {
        2 | 35 | 52 => letter == b'-',
        _ => matches!(letter, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 55 && text.bytes().enumerate().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_a_node_rejects_are_hashed() {
        for key in ["user-7", "", &"k".repeat(1024), "ü"] {
            assert_eq!(safe_key(key), key);
        }
        let long = safe_key("k".repeat(1025));
        assert!(long.starts_with("sha256:") && long.len() == 7 + 64, "{long}");
        assert_ne!(safe_key(b"\xff"), safe_key(b"\xfe"));
        assert_eq!(safe_key(b"\xff"), "sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89");
    }

    #[test]
    fn bytes_bound_the_length_in_json() {
        let odd = "\u{1}".repeat(50);
        let check = Check::new(&*odd)
            .policy(&*odd)
            .plan(&*odd)
            .cost(u64::MAX)
            .meta(&*odd)
            .id(&*odd)
            .quotas(vec![QuotaSpec::limit(u64::MAX, &*odd).name(&*odd), QuotaSpec::rate(&*odd, u64::MAX).name(&*odd)])
            .over(Over::Drain);
        let text = serde_json::to_string(&check).unwrap();
        assert!(text.len() <= check.bytes(), "{} > {}", text.len(), check.bytes());
    }

    #[test]
    fn check_that_may_be_refunded_is_paid_by_no_lease() {
        let mut check = Check::new("k").once(true);
        assert!(check.is_leasable());
        check.set_id(Duration::from_secs(1));
        assert!(!check.is_leasable());
    }

    #[test]
    fn only_the_exact_form_is_trace_context() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_trace_context(valid));
        for text in ["", "a\r\nx: y", &valid.to_uppercase(), &valid[1..], &"-".repeat(55), &"a".repeat(55)] {
            assert!(!is_trace_context(text), "{text}");
        }
        assert!(!is_trace_context(&format!("{valid}\n")));
    }
}
