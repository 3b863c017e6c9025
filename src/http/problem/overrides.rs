//! The reasons why an override has not changed.

use serde_json::Value;

use super::document::{Problem, ProblemType};
use crate::http::overrides::entry_json;
use crate::overrides::{ChangeError, MAX_ENTRIES};

impl Problem {
    /// 409, 422 or 503: the change was not made. `now` is us by the clock of the overrides, and
    /// `plans` are those of the policy.
    pub(in crate::http) fn not_changed<'a>(
        error: &ChangeError,
        now: u64,
        plans: impl Iterator<Item = &'a str>,
    ) -> Self {
        match error {
            ChangeError::NoKeeper => {
                let detail = "this node counts in memory and has no file for overrides: write `overrides: {file: \
                              overrides.jsonl}` in its configuration, or use Redis";
                Self::new(ProblemType::NO_OVERRIDES, detail)
            }
            ChangeError::Match { kind, fault } => {
                Self::invalid_at(format!("/match/{kind}"), format!("is refused: {fault}"))
            }
            ChangeError::Quotas(faults) => Self::invalid_quotas(faults, ""),
            ChangeError::Plan(name) => {
                let known: Vec<&str> = plans.collect();
                let detail = match &known[..] {
                    [] => format!(
                        "{name:?} is no plan of this policy, which has none: name some under `plans` in the file"
                    ),
                    known => format!("{name:?} is no plan of this policy: there are {}", known.join(", ")),
                };
                Self::invalid_at("/plan", detail)
            }
            ChangeError::Stale(present) => {
                let detail = match present {
                    Some(entry) => format!("the override has version {}: read it, and send that", entry.version),
                    None => "there is no override for this match: leave `if_version` out, or send 0".to_owned(),
                };
                let entry = present.as_ref().map_or(Value::Null, |entry| entry_json(entry, now));
                Self { entry: Some(Box::new(entry)), ..Self::new(ProblemType::OVERRIDE_CHANGED, detail) }
            }
            ChangeError::NoHold => {
                let detail = "needs a policy with `hold`: this one counts no holds";
                Self::invalid_at("/in_flight", detail)
            }
            ChangeError::Lower(wider, less) => {
                let detail = format!(
                    "this is less than the keys have now by {wider}: {less}. Send `lower: true` (`--lower`) if it is \
                     meant so"
                );
                Self::new(ProblemType::LOWER_LIMIT, detail)
            }
            ChangeError::Full => {
                let detail = format!("there are {MAX_ENTRIES} overrides, the most that may be: remove some first");
                Self::new(ProblemType::TOO_MANY_OVERRIDES, detail)
            }
            ChangeError::Unavailable(why) => Self::new(ProblemType::STORE_UNAVAILABLE, why.as_str()),
        }
    }

    /// 503: a node that starts does not have the overrides yet.
    pub(in crate::http) fn not_loaded() -> Self {
        Self::new(ProblemType::STORE_UNAVAILABLE, "the overrides are not loaded yet: ask again, or another node")
    }

    /// 503: the audit cannot be read.
    pub(in crate::http) fn no_audit(why: &str) -> Self {
        Self::new(ProblemType::STORE_UNAVAILABLE, why)
    }
}
