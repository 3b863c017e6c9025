//! The audit: one entry for each change that an operator makes, with its author and reason.
//!
//! The store of the overrides keeps the entries, each written together with its change. Each is
//! also a line in the log.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::entry::Stored;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

/// How long an entry of the audit stays, us: 90 days.
pub const KEPT_FOR: Micros = 90 * 86_400 * MICROS_PER_SECOND;

/// The most entries that stay, of all changes.
pub const KEPT: usize = 100_000;

/// The most entries of a node without a store for overrides, until it ends.
const KEPT_IN_MEMORY: usize = 1_000;

named! {
    /// The subject of a change.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        Override = "override",
        /// The counts of a key, by `DELETE /v1/usage`.
        Reset = "reset",
        /// A refund with the rights of an operator.
        Refund = "refund",
        Reload = "reload",
        /// A node wrote back what the store of the overrides had lost.
        Restore = "restore",
        Login = "login",
        /// A key crossed a mark of its policy.
        Notice = "notice",
    }
}

/// One entry of the audit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The version of the change. It orders the entries, and no two changes of one override have
    /// the same.
    pub version: u64,
    /// us by the clock of the store.
    pub at: Micros,
    pub kind: Kind,
    /// The name of the token, or from where the call came.
    pub by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// `key:x`, `prefix:x` or `cidr:x`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Stored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Stored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An entry for a change that is no override; the store adds its time.
#[derive(Debug, Clone)]
pub struct Note {
    pub kind: Kind,
    pub by: String,
    pub policy: Option<String>,
    pub matched: Option<String>,
    pub reason: Option<String>,
}

impl Note {
    /// An act on a key under a policy.
    pub fn of_key(kind: Kind, by: String, policy: &str, key: &str) -> Self {
        Self { kind, by, policy: Some(policy.to_owned()), matched: Some(format!("key:{key}")), reason: None }
    }

    /// An act on the node.
    pub fn of_node(kind: Kind, by: String, reason: String) -> Self {
        Self { kind, by, policy: None, matched: None, reason: Some(reason) }
    }

    /// The entry of this version, at an instant in us.
    pub(super) fn entry(self, version: u64, at: Micros) -> AuditEntry {
        let Self { kind, by, policy, matched, reason } = self;
        AuditEntry { version, at, kind, by, policy, matched, before: None, after: None, reason }
    }
}

impl AuditEntry {
    /// Writes the entry as a line of the log.
    pub(super) fn log(&self) {
        let json = |stored: &Option<Stored>| stored.as_ref().and_then(|stored| serde_json::to_string(stored).ok());
        tracing::info!(
            target: "tollgate.audit",
            kind = self.kind.name(),
            by = self.by,
            policy = self.policy,
            r#match = self.matched,
            before = json(&self.before),
            after = json(&self.after),
            reason = self.reason,
            version = self.version,
            "audit"
        );
    }
}

/// The newest entries of this process, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<AuditEntry>);

impl Recent {
    /// Adds an entry, and drops those beyond `most` or of before `since` (us).
    pub(super) fn add(&mut self, entry: AuditEntry, most: usize, since: Micros) {
        self.0.push_back(entry);
        while self.0.len() > most || self.0.front().is_some_and(|oldest| oldest.at < since) {
            self.0.pop_front();
        }
    }

    /// The same for a node that keeps them only in memory.
    pub(super) fn add_to_memory(&mut self, entry: AuditEntry) {
        self.add(entry, KEPT_IN_MEMORY, 0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AuditEntry> {
        self.0.iter()
    }

    pub(super) fn newest(&self) -> u64 {
        self.0.back().map_or(0, |entry| entry.version)
    }

    /// Up to `most` entries below the version `before` that `is_wanted`, the newest first.
    pub(super) fn page(&self, before: u64, most: usize, is_wanted: impl Fn(&AuditEntry) -> bool) -> Vec<AuditEntry> {
        let older = self.0.iter().rev().filter(|entry| entry.version < before && is_wanted(entry));
        older.take(most).cloned().collect()
    }
}
