//! The name of a check's key in a trace.
//!
//! It is a keyed hash, unless the configuration asks for clear text. A plain hash of an address can
//! be reversed by hashing all addresses.

use std::hash::{BuildHasher, RandomState};

use opentelemetry::KeyValue;

use super::Settings;

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
