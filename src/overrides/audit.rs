//! The audit: one entry for each change that an operator makes, with its author and reason.
//!
//! The store of the overrides keeps the entries, each written together with its change. Each is
//! also a line in the log. Callers cause notices in any number, so these have a room of their own
//! beside the acts of operators, and few lines in the log.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::entry::Stored;
use crate::clock::unix_micros;
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::telemetry::limiter::Limiter;

/// How long an entry of the audit stays, us: 90 days.
pub const KEPT_FOR: Micros = 90 * 86_400 * MICROS_PER_SECOND;

/// The most acts that stay, and the most notices.
pub const KEPT: usize = 100_000;

/// The same for a node without a store for overrides, until it ends.
const KEPT_IN_MEMORY: usize = 1_000;

/// Lines of notices in the log in ten seconds.
static NOTICES: Limiter = Limiter::of(10);

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
        /// The end of a hold or lease by an operator.
        Settle = "settle",
        Reload = "reload",
        /// A node wrote back what the store of the overrides had lost.
        Restore = "restore",
        Login = "login",
        /// A key crossed a mark of its policy.
        Notice = "notice",
    }
}

impl Kind {
    /// Whether callers cause it in any number, without the rights of an operator.
    pub(super) fn is_of_callers(self) -> bool {
        matches!(self, Self::Login | Self::Notice)
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
    /// Writes the entry as a line of the log, of few notices.
    pub(super) fn log(&self) {
        let may_log = if self.kind == Kind::Notice { NOTICES.pass(unix_micros()) } else { Some(0) };
        let Some(suppressed) = may_log else { return };
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
            suppressed = Some(suppressed).filter(|count| *count > 0),
            "audit"
        );
    }
}

/// The newest entries of this process, each list with the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    acts: VecDeque<AuditEntry>,
    of_callers: VecDeque<AuditEntry>,
}

impl Recent {
    /// Adds an entry, and drops those of its room beyond `most` or of before `since` (us).
    pub(super) fn add(&mut self, entry: AuditEntry, most: usize, since: Micros) {
        let room = if entry.kind.is_of_callers() { &mut self.of_callers } else { &mut self.acts };
        room.push_back(entry);
        while room.len() > most || room.front().is_some_and(|oldest| oldest.at < since) {
            room.pop_front();
        }
    }

    /// The same for a node that keeps them only in memory.
    pub(super) fn add_to_memory(&mut self, entry: AuditEntry) {
        self.add(entry, KEPT_IN_MEMORY, 0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AuditEntry> {
        self.acts.iter().chain(&self.of_callers)
    }

    pub(super) fn newest(&self) -> u64 {
        [&self.acts, &self.of_callers]
            .into_iter()
            .filter_map(|room| room.back())
            .map(|entry| entry.version)
            .max()
            .unwrap_or(0)
    }

    /// Up to `most` entries below the version `before` that `is_wanted`, the newest first.
    pub(super) fn page(&self, before: u64, most: usize, is_wanted: impl Fn(&AuditEntry) -> bool) -> Vec<AuditEntry> {
        let is_wanted = |entry: &&AuditEntry| entry.version < before && is_wanted(entry);
        let rooms = [&self.acts, &self.of_callers].into_iter();
        let mut page: Vec<_> = rooms.flat_map(|room| room.iter().rev().filter(is_wanted).take(most)).cloned().collect();
        page.sort_by_key(|entry| std::cmp::Reverse(entry.version));
        page.truncate(most);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_and_logins_push_out_no_acts() {
        let mut recent = Recent::default();
        let mut add = |kind, versions: std::ops::Range<u64>| {
            for version in versions {
                let note = Note::of_node(kind, "x".to_owned(), String::new());
                recent.add(note.entry(version, version), 100, 0);
            }
        };
        add(Kind::Reset, 0..10);
        add(Kind::Notice, 10..500);
        add(Kind::Login, 500..1_000);
        add(Kind::Reload, 1_000..1_001);
        let versions = |page: Vec<AuditEntry>| page.iter().map(|entry| entry.version).collect::<Vec<_>>();
        assert_eq!(versions(recent.page(u64::MAX, 3, |_| true)), [1_000, 999, 998]);
        let acts = recent.page(u64::MAX, 100, |entry| !entry.kind.is_of_callers());
        assert_eq!(versions(acts), [1_000, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!((recent.iter().count(), recent.newest()), (111, 1_000));
    }
}
