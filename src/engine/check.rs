//! One check: the engine resolves its policy and key. A list or a known denial decides it locally, or
//! else the store. If the store fails, the fallback answers. Checks of many keys take the same steps.

use std::sync::Arc;

use smallvec::SmallVec;

use super::answer::{Answer, CheckError, attributes, only};
use super::store_call::StoreCall;
use super::{Decision, Engine};
use crate::config::Policies;
use crate::config::inline::QuotaSpec;
use crate::limit::policy::{Applied, Listed, Policy};
use crate::limit::time::{Micros, micros};
use crate::store::{Meta, Subject};
use crate::telemetry::traces;

/// One question: may `key` spend `cost` more under `policy`, now?
#[derive(Debug, Clone)]
pub struct Check {
    pub policy: String,
    /// 1 to 1024 bytes, as the caller wrote it.
    pub key: String,
    /// 0 to 10^15 units; 0 only peeks.
    pub cost: u64,
    /// The cause of the charge, 1 to 256 bytes. Sliding logs store it.
    pub meta: Meta,
    /// Makes a retry safe, 1 to 64 bytes. After a charge, later checks with the same id get the
    /// same answer. A check with another cost, 0 included, is rejected.
    pub id: Option<Arc<str>>,
    /// The check's own quotas, for policies that accept them.
    pub quotas: Option<Vec<QuotaSpec>>,
}

/// The policy and the key of a check.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) subject: Subject,
    /// The verdict of a list. Nothing is counted then.
    pub(super) listed: Option<Listed>,
}

impl Resolved {
    /// The decision of a list, if one decides.
    pub(super) fn decide_by_list(&self, cost: u64) -> Option<Decision> {
        self.listed.map(|listed| Decision::by_list(self.subject.policy.clone(), listed, cost))
    }

    /// Whether both have the same policy and list verdict. Equal keys imply equal subjects then.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.subject.policy, &other.subject.policy) && self.listed == other.listed
    }
}

impl Engine {
    /// Decides one check, within the policy's timeout whatever the store does.
    ///
    /// # Errors
    /// If the policy is unknown, the key does not match its type, or the store fails under mode
    /// `error`.
    pub async fn check(&self, check: &Check) -> Answer {
        let resolved = self.resolve(check)?;
        let answer = match &check.id {
            None => self.check_without_id(&resolved, check).await,
            Some(id) => {
                let until = self.clock.now() + micros(resolved.subject.policy.timeout);
                Box::pin(self.check_with_id(&resolved, check, id, until)).await
            }
        };
        traces::answered(|| attributes(&resolved.subject, check.cost, answer.as_ref()));
        answer
    }

    /// Nearly all checks come here, and lists of one element cost as much as a known denial.
    async fn check_without_id(&self, resolved: &Resolved, check: &Check) -> Answer {
        let (subject, now) = (&resolved.subject, self.clock.now());
        let answer = match self.decide_locally(resolved, check.cost, now) {
            Some(decision) => Ok(decision),
            None => {
                let metas = metas(subject, std::iter::once(check));
                let until = now + micros(subject.policy.timeout);
                only(self.call_store(StoreCall { subject, costs: &[check.cost], metas: &metas, until }, now).await)
            }
        };
        self.finish(subject, answer, now)
    }

    /// Decides without the store at `now` (us): by a list, or by a known denial.
    pub(super) fn decide_locally(&self, resolved: &Resolved, cost: u64, now: Micros) -> Option<Decision> {
        resolved.decide_by_list(cost).or_else(|| {
            let Subject { policy, fingerprint, .. } = &resolved.subject;
            let denial = self.prefilter.denial(*fingerprint, policy, cost, now)?;
            Some(Decision::by_prefilter(policy.clone(), cost, denial))
        })
    }

    /// Applies shadow mode to an answer, and counts it for a check that began at `since` (us).
    pub(super) fn finish(&self, subject: &Subject, mut answer: Answer, since: Micros) -> Answer {
        answer.iter_mut().for_each(Decision::shadow);
        self.note_answers(subject, std::slice::from_ref(&answer), since);
        answer
    }

    /// Counts answers to checks that began at `since` (us).
    pub(super) fn note_answers(&self, subject: &Subject, answers: &[Answer], since: Micros) {
        self.tally.answered(&subject.policy, answers, self.clock.now().saturating_sub(since));
    }
}

impl Engine {
    pub(super) fn resolve(&self, check: &Check) -> Result<Resolved, CheckError> {
        let running = self.running.load();
        let policy = configured(&running.policies, &check.policy)?;
        let key = policy.key_type.normalise(&check.key)?;
        let own = check.quotas.as_ref().map(|quotas| self.inline.policy(policy, quotas)).transpose()?;
        let (policy, listed) = match policy.applied(&key, &check.key) {
            Applied::Listed(listed) => (policy, Some(listed)),
            // A check's own quotas beat an override.
            Applied::Counted(policy) => (own.as_ref().unwrap_or(policy), None),
        };
        Ok(Resolved { subject: self.subject(policy, &key), listed })
    }

    /// Resolves a key to the policy that counts it, even if a list decides for it.
    pub(super) fn resolve_counted(&self, policy: &str, key: &str) -> Result<Resolved, CheckError> {
        let running = self.running.load();
        let policy = configured(&running.policies, policy)?;
        let normalised = policy.key_type.normalise(key)?;
        let (counting, listed) = match policy.applied(&normalised, key) {
            Applied::Listed(listed) => (policy.counting(&normalised, key), Some(listed)),
            Applied::Counted(counting) => (counting, None),
        };
        Ok(Resolved { subject: self.subject(counting, &normalised), listed })
    }

    /// The subject for a normalised key under a policy.
    fn subject(&self, policy: &Arc<Policy>, key: &str) -> Subject {
        let fingerprint = self.fingerprinter.fingerprint(policy.counters(), key);
        Subject { policy: policy.clone(), key: key.into(), fingerprint }
    }
}

/// The configured policy of that name.
fn configured<'a>(policies: &'a Policies, name: &str) -> Result<&'a Arc<Policy>, CheckError> {
    policies.by_name.get(name).ok_or_else(|| CheckError::UnknownPolicy(name.to_owned()))
}

pub(super) fn costs(checks: &[&Check]) -> SmallVec<[u64; 1]> {
    checks.iter().map(|check| check.cost).collect()
}

/// The metas of one subject's checks, one each, if its policy stores them.
pub(super) fn metas<'a>(subject: &Subject, checks: impl Iterator<Item = &'a Check>) -> SmallVec<[Meta; 1]> {
    if subject.policy.keeps_metas() { checks.map(|check| check.meta.clone()).collect() } else { SmallVec::new() }
}
