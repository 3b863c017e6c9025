//! The bounds of the values in requests.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::engine::{Id, MAX_ID_BYTES, Meta, Over};
use crate::limit::key::check_length;
use crate::limit::line::MAX_WAIT_MS;
use crate::limit::time::Micros;

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

/// Members of a check as written, of which some exclude others.
pub(in crate::http) struct Combined {
    pub(in crate::http) id: Option<Arc<str>>,
    pub(in crate::http) id_life: Option<Micros>,
    pub(in crate::http) repeated: bool,
    pub(in crate::http) look: bool,
    pub(in crate::http) over: Over,
    pub(in crate::http) cost: u64,
    /// us; 0 waits as little as none.
    pub(in crate::http) wait: Option<Micros>,
}

impl Combined {
    /// The first member that another one excludes, and why.
    pub(in crate::http) fn fault(&self) -> Option<(&'static str, &'static str)> {
        let is_drain = self.over == Over::Drain;
        match self {
            Self { id: None, id_life: Some(_), .. } => Some(("id_ttl_ms", "needs an `id`, whose record it bounds")),
            Self { id: None, repeated: true, .. } => Some(("repeated", "needs the `id` that was sent before")),
            Self { wait: Some(_), look: true, .. } => {
                Some(("wait_ms", "charges later, and a look never does: omit one"))
            }
            Self { wait: Some(_), .. } if is_drain => {
                Some(("wait_ms", "charges later, and a drain charges at once: omit one"))
            }
            Self { look: true, id: Some(_), .. } => Some(("look", "charges nothing, so it needs no `id`: omit one")),
            Self { look: true, cost: 0, .. } => Some(("look", "needs a cost from 1 on: a cost of 0 is never denied")),
            Self { look: true, .. } if is_drain => Some(("look", "charges nothing, and a drain always does: omit one")),
            _ => None,
        }
    }

    /// The wait, unless it is 0.
    pub(in crate::http) fn wait(&self) -> Option<Micros> {
        self.wait.filter(|wait| *wait > 0)
    }

    pub(in crate::http) fn id(&self) -> Option<Id> {
        let Self { id_life, repeated, .. } = *self;
        self.id.clone().map(|name| Id { name, life: id_life, repeated })
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

/// The `meta` that names the cause of a check, or `None` for an empty text.
pub(in crate::http) fn meta(text: &str) -> Meta {
    (!text.is_empty()).then(|| text.into())
}
