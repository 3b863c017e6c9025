//! The audit: the acts of operators, each with the name of the token.

use super::Engine;

/// An operator's act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The counts of a key were forgotten.
    Reset,
    /// A refund with the rights of an operator.
    Refund,
    Reload,
    /// A token opened the live view.
    Login,
    /// A key crossed a mark of its policy.
    Notice,
}

/// An entry of the audit.
#[derive(Debug, Clone)]
pub struct Note {
    pub kind: Kind,
    /// The name of the token, or from where the call came.
    pub by: String,
    pub policy: Option<String>,
    /// `key:x`.
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
}

impl Engine {
    /// Adds an entry to the audit.
    pub async fn note(&self, note: Note) {
        let Note { kind, by, policy, matched, reason } = note;
        tracing::info!(target: "tollgate.audit", ?kind, by, policy, r#match = matched, reason, "audit");
    }
}
