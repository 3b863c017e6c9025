//! The results of checks, as attributes of their request or part.

use std::sync::{Arc, PoisonError};

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};

use super::Tracing;
use super::root::Root;

/// The result of a check.
#[derive(Debug)]
pub struct Answered<'a> {
    pub policy: &'a str,
    pub key: &'a str,
    pub cost: u64,
    /// For a drain: the units that were not charged.
    pub owed: Option<u64>,
    /// `None` if there is no decision.
    pub allowed: Option<bool>,
    /// The source and the reason, or `None` if the check was rejected as invalid.
    pub answer: Option<(&'static str, &'static str)>,
    /// The fallback's mode and cause.
    pub fallback: Option<(&'static str, &'static str)>,
}

impl Answered<'_> {
    /// Whether the result is a denial, a fallback or a failure. A caller's mistake is none of them.
    pub fn went_wrong(&self) -> bool {
        self.answer.is_some() && (self.allowed != Some(true) || self.fallback.is_some())
    }
}

/// Notes the result of a check on the current request or part, if it may be recorded.
pub fn answered<'a>(result: impl FnOnce() -> Answered<'a>) {
    Context::map_current(|context| {
        let Some(root) = context.get::<Arc<Root>>() else { return };
        match &root.tail {
            None if context.span().is_recording() => context.span().set_attributes(root.tracing.attributes(&result())),
            None => {}
            Some(tail) => {
                let result = result();
                if result.went_wrong() {
                    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only the first result counts, since an attribute has one value.
                    if !std::mem::replace(&mut tail.worth_keeping, true) {
                        tail.attributes.extend(root.tracing.attributes(&result));
                    }
                }
            }
        }
    });
}

impl Tracing {
    fn attributes(&self, result: &Answered<'_>) -> Vec<KeyValue> {
        let units = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
        let (policy, cost) = (result.policy.to_owned(), units(result.cost));
        let mut attributes = vec![KeyValue::new("tollgate.policy", policy), KeyValue::new("tollgate.cost", cost)];
        attributes.extend(result.owed.map(|owed| KeyValue::new("tollgate.owed", units(owed))));
        if let Some((source, reason)) = result.answer {
            attributes.extend([KeyValue::new("tollgate.source", source), KeyValue::new("tollgate.reason", reason)]);
        }
        attributes.extend(result.allowed.map(|allowed| KeyValue::new("tollgate.allowed", allowed)));
        attributes.push(KeyValue::new("tollgate.key_hash", self.keys.hash(result.policy, result.key)));
        attributes.extend(self.keys.in_clear.then(|| KeyValue::new("tollgate.key", result.key.to_owned())));
        if let Some((mode, cause)) = result.fallback {
            attributes.extend([
                KeyValue::new("tollgate.fallback.mode", mode),
                KeyValue::new("tollgate.fallback.cause", cause),
            ]);
        }
        attributes
    }
}
