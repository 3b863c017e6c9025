//! How the quotas of an algorithm are written.

use crate::limit::quota::Rule;

/// How the quotas of a policy are written and interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A limit per window, counted by this rule.
    Window(Rule),
    /// A limit per window by the clock; days, weeks, months and years follow this time zone.
    Clock(&'static str),
    /// A rate and a burst.
    Bucket,
}

impl Form {
    /// The zone that inline quotas count by.
    pub(super) fn zone(self) -> Option<&'static str> {
        match self {
            Self::Clock(zone) => Some(zone),
            Self::Window(_) | Self::Bucket => None,
        }
    }
}
