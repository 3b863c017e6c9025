//! Policies with the quotas of a request, each built once. Store calls and known denials depend on
//! the policy's address. So checks with equal quotas share both.

use std::num::NonZeroU64;
use std::sync::Arc;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::CheckError;
use crate::config::inline::{self, QuotaSpec};
use crate::limit::policy::{Algorithm, Policy};
use crate::limit::quota::{Quota, Rate};

/// Maximum number of cached policies. An evicted policy only loses its known denials.
const MAX_POLICIES: u64 = 10_000;

/// The quotas that a check brings.
#[derive(Debug, Clone)]
pub enum OwnQuotas {
    /// As a request writes them. Their counters are separate from those of the policy.
    Written(Vec<QuotaSpec>),
    /// Other numbers for the token bucket of the policy. A key has one debt, whatever the numbers.
    Bucket(Rate, NonZeroU64),
}

/// Keyed by the address of the configured policy and its quotas. An entry owns its configured
/// policy, so no other policy gets that address meanwhile.
#[derive(Debug)]
pub(super) struct InlinePolicies(Cache<(usize, Terms), Arc<Made>>);

/// Equal for quotas that produce equal answers.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Terms {
    Text(String),
    Bucket(Rate, NonZeroU64),
}

#[derive(Debug)]
struct Made {
    policy: Arc<Policy>,
    from: Arc<Policy>,
}

impl Default for InlinePolicies {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_POLICIES).eviction_policy(EvictionPolicy::lru()).build())
    }
}

impl InlinePolicies {
    /// Returns `policy` with the quotas of a check.
    ///
    /// # Errors
    /// If the policy accepts no such quotas, or the quotas are invalid.
    pub(super) fn policy(&self, policy: &Arc<Policy>, own: &OwnQuotas) -> Result<Arc<Policy>, CheckError> {
        if !policy.options.inline {
            return Err(CheckError::UnwantedQuotas);
        }
        match own {
            OwnQuotas::Written(written) => self.with_written(policy, written),
            OwnQuotas::Bucket(rate, burst) => self.with_bucket(policy, *rate, *burst),
        }
    }

    fn with_written(&self, policy: &Arc<Policy>, written: &[QuotaSpec]) -> Result<Arc<Policy>, CheckError> {
        let quotas = inline::quotas(policy, written).map_err(CheckError::InvalidQuotas)?;
        let name = (Arc::as_ptr(policy).addr(), Terms::Text(inline::text(&quotas)));
        let make = || Arc::new(Made { policy: Arc::new(inline::policy(policy, quotas)), from: policy.clone() });
        Ok(self.0.get_with(name, make).policy.clone())
    }

    fn with_bucket(&self, policy: &Arc<Policy>, rate: Rate, burst: NonZeroU64) -> Result<Arc<Policy>, CheckError> {
        let name = (Arc::as_ptr(policy).addr(), Terms::Bucket(rate, burst));
        if let Some(made) = self.0.get(&name) {
            return Ok(made.policy.clone());
        }
        let [configured] = &policy.quotas[..] else { return Err(CheckError::UnwantedQuotas) };
        if policy.algorithm != Algorithm::TokenBucket {
            return Err(CheckError::UnwantedQuotas);
        }
        let quota = Quota::bucket(configured.name.clone(), rate, burst).ok_or(CheckError::InexactBucket)?;
        let make = || Arc::new(Made { policy: Arc::new(inline::bucket(policy, quota)), from: policy.clone() });
        Ok(self.0.get_with(name, make).policy.clone())
    }

    /// Drops entries built from policies no longer in force, which may be large.
    pub(super) fn keep(&self, is_in_force: impl Fn(&Arc<Policy>) -> bool) {
        for (name, made) in &self.0 {
            if !is_in_force(&made.from) {
                self.0.invalidate(&*name);
            }
        }
        self.0.run_pending_tasks();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::policy::Options;
    use crate::limit::quota::Rule;

    #[test]
    fn derived_policies_do_not_keep_removed_policies_alive() {
        let quota = Quota { name: "1h".into(), limit: NonZeroU64::MIN, window: 3_600_000_000, rule: Rule::default() };
        let policy = |name: &str| {
            let plain = Policy::new(name, Algorithm::SlidingWindow, vec![quota.clone()], Duration::from_secs(1));
            Arc::new(Policy { options: Options { inline: true, ..Options::default() }, ..plain })
        };
        let (stays, goes, inline) = (policy("stays"), policy("goes"), InlinePolicies::default());
        let written = OwnQuotas::Written(vec![QuotaSpec::Text("7 per 1m".into())]);
        let made = [&stays, &goes].map(|policy| inline.policy(policy, &written).unwrap());
        inline.keep(|policy| Arc::ptr_eq(policy, &stays));
        assert_eq!(Arc::strong_count(&goes), 1);
        assert!(Arc::ptr_eq(&inline.policy(&stays, &written).unwrap(), &made[0]));
    }
}
