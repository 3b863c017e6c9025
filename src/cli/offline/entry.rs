//! The data of one line.

use std::borrow::Cow;

use crate::limit::time::Micros;

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// us since the epoch.
    pub(super) time: Micros,
    /// None when the line has no value for the key.
    pub(super) key: Option<Cow<'a, str>>,
    pub(super) cost: u64,
    /// Whether the filters let it count.
    pub(super) passes: bool,
}

/// The source of the cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cost {
    Always(u64),
    Field(String),
}
