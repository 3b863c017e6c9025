//! The results of checks, as attributes of their request or part.
//!
//! A key is named by a keyed hash, unless the configuration asks for clear text. A plain hash of an
//! address can be reversed by hashing all addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};

use super::root::Root;
use super::{Settings, Tracing};

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
        attributes.extend(self.keys.name(result.policy, result.key));
        if let Some((mode, cause)) = result.fallback {
            attributes.extend([
                KeyValue::new("tollgate.fallback.mode", mode),
                KeyValue::new("tollgate.fallback.cause", cause),
            ]);
        }
        attributes
    }
}

/// Names the keys of checks.
#[derive(Debug)]
pub(super) struct KeyNames {
    secret: [u8; 32],
    clear: bool,
}

impl KeyNames {
    pub(super) fn new(settings: &Settings) -> Self {
        let secret = match &settings.hash_secret {
            Some(secret) => blake3::derive_key("tollgate 2026 key hashes in traces", secret.as_bytes()),
            None => random(),
        };
        Self { secret, clear: settings.record_keys }
    }

    /// `tollgate.key_hash`, and `tollgate.key` if the configuration asks for it.
    pub(super) fn name(&self, policy: &str, key: &str) -> impl Iterator<Item = KeyValue> {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        // A policy's name has no zero byte.
        hasher.update(policy.as_bytes()).update(&[0]).update(key.as_bytes());
        let hash = hasher.finalize().to_hex();
        let clear = self.clear.then(|| KeyValue::new("tollgate.key", key.to_owned()));
        [KeyValue::new("tollgate.key_hash", hash[..16].to_owned())].into_iter().chain(clear)
    }
}

/// A secret from the system's randomness, by way of the seeds of the standard library's maps.
fn random() -> [u8; 32] {
    let mut secret = [0; 32];
    for part in secret.chunks_exact_mut(8) {
        part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
    }
    blake3::derive_key("tollgate 2026 random secret", &secret)
}
