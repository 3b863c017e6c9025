//! The problems of checks that the engine rejects.

use std::sync::Arc;

use super::document::{Problem, ProblemType};
use super::violations::{MAX_EXPLAINED, Violation, Violations, did_you_mean, member};
use crate::config::Policies;
use crate::engine::{CheckError, QuotaFault};
use crate::limit::policy::Policy;
use crate::node::Node;

/// The most names that an answer lists for an unknown one.
const MAX_KNOWN: usize = 100;

/// Letters of an unknown name that the answer repeats. No policy has a longer name.
const MAX_NAME: usize = 64;

impl Node {
    /// The problem of the only check of a call.
    pub(in crate::http) fn refused(&self, error: &CheckError) -> Problem {
        Problem::no_decision(error, &self.engine.policies(), "")
    }

    /// The configured policy of that name.
    ///
    /// # Errors
    /// 404.
    pub(in crate::http) fn policy(&self, name: &str) -> Result<Arc<Policy>, Problem> {
        let policy = self.engine.policies().by_name.get(name).cloned();
        policy.ok_or_else(|| self.refused(&CheckError::UnknownPolicy(name.to_owned())))
    }
}

impl Problem {
    /// A check that the engine rejected. `at` points to the check in the body: empty, or
    /// `/checks/3`.
    pub(in crate::http) fn no_decision(error: &CheckError, policies: &Policies, at: &str) -> Self {
        let invalid = |member: &str, detail: String| Self::invalid_at(format!("{at}/{member}"), detail);
        let refused = |member: &str| invalid(member, format!("is refused: {error}"));
        match error {
            CheckError::UnknownPolicy(name) => Self::unknown_policy(name, policies),
            CheckError::IdReused | CheckError::SettledOtherwise => Self::new(ProblemType::ID_REUSED, error.to_string()),
            CheckError::StoreUnavailable(_) => Self::new(ProblemType::STORE_UNAVAILABLE, error.to_string()),
            CheckError::InvalidKey(_) => invalid("key", error.to_string()),
            CheckError::UnknownPlan { .. } => refused("plan"),
            CheckError::NoHolds(_) | CheckError::NoCallers(_) => refused("policy"),
            CheckError::ExceedsLease(_) => invalid("cost", error.to_string()),
            CheckError::InexactBucket => refused("quotas"),
            CheckError::CannotWait(_) => refused("wait_ms"),
            CheckError::NeedsId => {
                invalid("id", "is needed, since the policy has a `hold`: a settle ends the hold of this id".to_owned())
            }
            CheckError::IdTwice => invalid("id", "is given twice for this key: give each check its own".to_owned()),
            CheckError::UnwantedQuotas => {
                let detail =
                    "is only for policies with `inline: true`: leave it out, and the policy's own quotas count";
                invalid("quotas", detail.to_owned())
            }
            CheckError::InvalidQuotas(faults) => Self::invalid_quotas(faults, at),
        }
    }

    /// 422: the quotas of the object at `at` have these faults.
    pub(super) fn invalid_quotas(faults: &[QuotaFault], at: &str) -> Self {
        let mut violations = Violations::default();
        for QuotaFault { pointer, message } in faults {
            let pointer = pointer.iter().fold(format!("{at}/quotas"), |at, part| member(&at, part));
            violations.note(|| Violation::new(pointer, format!("is refused: {message}")));
        }
        Self::invalid(violations)
    }

    /// All rejections by the engine of checks that are charged together, each with its place.
    pub(in crate::http) fn no_decisions(refusals: &[(usize, CheckError)], policies: &Policies) -> Self {
        let mut problems = Problems::new(policies, 0);
        let problem = |(place, error): &(usize, CheckError)| {
            let mut problem = problems.of(*place, error);
            if problem.kind == ProblemType::UNKNOWN_POLICY {
                let violation = Violation::new(format!("/checks/{place}/policy"), problem.detail.clone());
                problem.violations.note(|| violation);
            }
            problem
        };
        let mut problems: Vec<Self> = refusals.iter().map(problem).collect();
        let mut violations = Violations::default();
        problems.iter_mut().for_each(|problem| violations.extend(std::mem::take(&mut problem.violations)));
        if problems.iter().any(|problem| problem.kind == ProblemType::INVALID_REQUEST) {
            return Self::invalid(violations);
        }
        // The other problems share one kind: unknown policies, or one check without a decision.
        let first = problems.into_iter().next().unwrap_or_else(|| Self::invalid(Violations::default()));
        Self { violations, ..first }
    }

    fn unknown_policy(name: &str, policies: &Policies) -> Self {
        let names = policies.by_name.values().filter(|policy| !policy.is_of_envoy()).map(|policy| &policy.name);
        Self::unknown(ProblemType::UNKNOWN_POLICY, name, names, |name| format!("the policy {name:?} is not configured"))
    }

    /// A name that the configuration lacks, with the `known` ones.
    pub(super) fn unknown<'a>(
        kind: &'static ProblemType,
        name: &str,
        known: impl Iterator<Item = &'a String> + Clone,
        sentence: fn(&str) -> String,
    ) -> Self {
        let hint = did_you_mean(name, known.clone().map(String::as_str));
        let known = Some(known.take(MAX_KNOWN).cloned().collect());
        let shown: String = name.chars().take(MAX_NAME).collect();
        Self { known, ..Self::new(kind, sentence(&shown) + &hint) }
    }
}

/// The engine's rejections of the checks of one call.
pub(in crate::http) struct Problems<'a> {
    policies: &'a Policies,
    /// Invalid checks that the answer may still explain.
    explained: usize,
    /// The member of the body that lists them.
    list: &'static str,
}

impl<'a> Problems<'a> {
    /// For a call that already has `explained` invalid checks.
    pub(in crate::http) fn new(policies: &'a Policies, explained: usize) -> Self {
        Self { policies, explained: MAX_EXPLAINED.saturating_sub(explained), list: "checks" }
    }

    /// The same for holds in another list.
    pub(in crate::http) fn in_list(self, list: &'static str) -> Self {
        Self { list, ..self }
    }

    /// The problem of the check at `place`.
    pub(in crate::http) fn of(&mut self, place: usize, error: &CheckError) -> Problem {
        let short = match error {
            CheckError::IdReused | CheckError::SettledOtherwise | CheckError::StoreUnavailable(_) => None,
            CheckError::UnknownPolicy(_) => {
                Some(Problem::new(ProblemType::UNKNOWN_POLICY, "the policy is not configured"))
            }
            CheckError::InvalidQuotas(misfits) => Some(Problem::unlisted(misfits.len())),
            CheckError::InvalidKey(_)
            | CheckError::UnknownPlan { .. }
            | CheckError::UnwantedQuotas
            | CheckError::CannotWait(_)
            | CheckError::InexactBucket
            | CheckError::NeedsId
            | CheckError::IdTwice
            | CheckError::NoCallers(_)
            | CheckError::ExceedsLease(_)
            | CheckError::NoHolds(_) => Some(Problem::unlisted(1)),
        };
        match (short, self.explained.checked_sub(1)) {
            (Some(short), None) => return short,
            (Some(_), Some(left)) => self.explained = left,
            (None, _) => {}
        }
        Problem::no_decision(error, self.policies, &format!("/{}/{place}", self.list))
    }
}
