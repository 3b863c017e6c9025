//! The removals that a node knows. A part that has lost records gets them back from the nodes, and
//! a node that was away may still have a removed one: the version of the removal tells.

use std::collections::{BTreeSet, HashMap};

use super::audit::{KEPT, KEPT_FOR};
use super::entry::Name;
use crate::store::redis::registry::PARTS;

/// The most removals of a part.
const MOST: usize = KEPT / PARTS;

/// The removals of a part.
#[derive(Debug, Default)]
pub(super) struct Removals {
    by_name: HashMap<Name, u64>,
    by_version: BTreeSet<(u64, Name)>,
    dropped: u64,
}

impl Removals {
    /// The version of the removal of a name; 0 without one.
    pub(super) fn version(&self, name: &Name) -> u64 {
        self.by_name.get(name).copied().unwrap_or_default()
    }

    /// Notes a removal. Drops the oldest beyond the bounds.
    pub(super) fn note(&mut self, name: &Name, version: u64) {
        self.forget(name);
        self.by_name.insert(name.clone(), version);
        self.by_version.insert((version, name.clone()));
        let is_old = |removals: &Self| {
            let first = removals.by_version.first();
            first.is_some_and(|(first, _)| removals.by_name.len() > MOST || first + KEPT_FOR < version)
        };
        while is_old(self)
            && let Some((first, name)) = self.by_version.pop_first()
        {
            self.by_name.remove(&name);
            self.dropped = self.dropped.max(first);
        }
    }

    /// The name has an entry again.
    pub(super) fn forget(&mut self, name: &Name) {
        if let Some(version) = self.by_name.remove(name) {
            self.by_version.remove(&(version, name.clone()));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.by_name.iter().map(|(name, version)| (name, *version))
    }

    /// The greatest version among those that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}
