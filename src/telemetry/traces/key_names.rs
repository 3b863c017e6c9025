//! The names of keys in traces and for operators.
//!
//! A key is named by a keyed hash, unless the configuration asks for clear text. A plain hash of an
//! address can be reversed by hashing all addresses.

use std::env::VarError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use crate::telemetry::otlp::InvalidVariable;

/// The secret of the hashes. Nodes with the same secret write the same hash for a key. Without one,
/// each node has its own.
const SECRET: &str = "TOLLGATE_KEY_HASH_SECRET";

/// Names the keys of checks.
pub struct KeyNames {
    secret: [u8; 32],
    /// Whether everyone who sees the hash of a key may see the key.
    pub in_clear: bool,
}

impl KeyNames {
    /// Reads the secret from the environment.
    ///
    /// # Errors
    /// The secret is not UTF-8.
    pub fn from_environment(in_clear: bool) -> Result<Self, InvalidVariable> {
        match std::env::var(SECRET) {
            Ok(secret) if !secret.is_empty() => Ok(Self::new(Some(&secret), in_clear)),
            Err(VarError::NotUnicode(_)) => Err(InvalidVariable::new(SECRET, "must be UTF-8")),
            Ok(_) | Err(VarError::NotPresent) => Ok(Self::new(None, in_clear)),
        }
    }

    /// Without a secret it uses a random one.
    pub fn new(secret: Option<&str>, in_clear: bool) -> Self {
        let secret = match secret {
            Some(secret) => blake3::derive_key("tollgate 2026 key hashes in traces", secret.as_bytes()),
            None => random(),
        };
        Self { secret, in_clear }
    }

    /// The keyed hash of a key, in hexadecimal.
    pub fn hash(&self, policy: &str, key: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        // A policy's name has no zero byte.
        hasher.update(policy.as_bytes()).update(&[0]).update(key.as_bytes());
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

impl Default for KeyNames {
    /// Hashes by a random secret.
    fn default() -> Self {
        Self::new(None, false)
    }
}

impl fmt::Debug for KeyNames {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "KeyNames {{ in_clear: {} }}", self.in_clear)
    }
}

/// A secret from the system's randomness, by way of the seeds of the standard library's maps.
pub(in crate::telemetry) fn random() -> [u8; 32] {
    let mut secret = [0; 32];
    for part in secret.chunks_exact_mut(8) {
        part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
    }
    blake3::derive_key("tollgate 2026 random secret", &secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_secret_policy_and_key() {
        let names = KeyNames::new(Some("s"), false);
        assert_eq!(names.hash("p", "k"), KeyNames::new(Some("s"), true).hash("p", "k"));
        assert_eq!(names.hash("p", "k").len(), 16);
        for other in [names.hash("p", "l"), names.hash("q", "k"), KeyNames::default().hash("p", "k")] {
            assert_ne!(names.hash("p", "k"), other);
        }
        assert!(!format!("{names:?}").contains("secret"));
    }
}
