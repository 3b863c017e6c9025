//! The bounds of the values in requests.

use std::ops::RangeInclusive;

use crate::engine::{MAX_ID_BYTES, Over};
use crate::limit::key::check_length;
use crate::limit::line::MAX_WAIT_MS;

/// The policy of a check that names none.
pub(in crate::http) const DEFAULT_POLICY: &str = "default";

/// The longest `meta`, bytes.
pub(in crate::http) const MAX_META_BYTES: usize = 256;

/// The bounds of `id_ttl_ms`: a second, and a day.
pub(in crate::http) const ID_TTL_MS: RangeInclusive<u64> = 1000..=86_400_000;

/// The bounds of `wait_ms`.
pub(in crate::http) const WAIT_MS: RangeInclusive<u64> = 0..=MAX_WAIT_MS;

/// The most checks of a batch.
pub(in crate::http) const MAX_BATCH: usize = 1000;

/// The most checks that are charged together.
pub(in crate::http) const MAX_ALL: usize = 16;

/// Checks that `id` is valid.
///
/// # Errors
/// The valid lengths.
pub(in crate::http) fn check_id(id: &str) -> Result<(), String> {
    match id.len() {
        1..=MAX_ID_BYTES => Ok(()),
        length => Err(format!("must have 1 to {MAX_ID_BYTES} bytes, not {length}")),
    }
}

/// Reads `over`.
///
/// # Errors
/// The valid words.
pub(in crate::http) fn over(word: &str) -> Result<Over, String> {
    let known = Over::WORDS.iter().find(|(name, _)| *name == word);
    known.map(|(_, over)| *over).ok_or_else(|| "must be \"deny\" or \"drain\"".into())
}

/// Checks that `key` is a valid partition key.
///
/// # Errors
/// The valid lengths.
pub(in crate::http) fn check_key(key: &str) -> Result<(), String> {
    check_length(key).map_err(|wrong| wrong.to_string())
}
