//! Policies with the quotas of a request, each made once: what asks under equal quotas shares its calls and what
//! the pre-filter knows, which both are kept by the policy's address.

use std::sync::Arc;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use super::CheckError;
use crate::config::inline::{self, Written};
use crate::limit::policy::Policy;

/// Kept at most; one that is made again only has to be learned anew.
const MAX_POLICIES: u64 = 10_000;

/// Made from the configured policy at an address, with quotas that read so. An entry holds the policy that it was
/// made from, so that its address is not another one's as long as the entry is there.
#[derive(Debug)]
pub(super) struct InlinePolicies(Cache<(usize, String), Arc<Made>>);

#[derive(Debug)]
struct Made {
    policy: Arc<Policy>,
    _from: Arc<Policy>,
}

impl Default for InlinePolicies {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_POLICIES).eviction_policy(EvictionPolicy::lru()).build())
    }
}

impl InlinePolicies {
    /// `policy` with the quotas of a request.
    ///
    /// # Errors
    /// When the policy takes none, or they are wrong.
    pub(super) fn policy(&self, policy: &Arc<Policy>, written: &[Written]) -> Result<Arc<Policy>, CheckError> {
        if !policy.options.inline {
            return Err(CheckError::UnwantedQuotas);
        }
        let quotas = inline::quotas(policy, written).map_err(CheckError::InvalidQuotas)?;
        let name = (Arc::as_ptr(policy).addr(), inline::text(&quotas));
        let make = || Arc::new(Made { policy: Arc::new(inline::policy(policy, quotas)), _from: policy.clone() });
        Ok(self.0.get_with(name, make).policy.clone())
    }
}
