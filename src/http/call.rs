//! A row of the table of calls, and the part of its description that the row does not imply.

use axum::http::Method;
use axum::routing::MethodRouter;

use super::node::Node;
use crate::access::Need;

/// One call of the API.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The right that the caller needs.
    pub(super) need: Need,
    pub(super) listener: Listener,
    /// The name of the call's span. Health and metrics are frequent, so they have none.
    pub(super) span: Option<&'static str>,
    pub(super) route: fn() -> MethodRouter<Node>,
    pub(super) operation: Operation,
}

/// The calls that a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// All calls, on the only listener.
    Whole,
    /// Checks, if operators have their own listener.
    Checks,
    /// Operator calls, if checks have their own listener.
    Admin,
}

/// The listeners that answer a call, if operators have their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listener {
    Both,
    Checks,
    Admin,
}

impl Listener {
    pub(super) fn has(self, surface: Surface) -> bool {
        match self {
            Self::Both => true,
            Self::Checks => surface != Surface::Admin,
            Self::Admin => surface != Surface::Checks,
        }
    }
}

/// The description of a call. Names are those of components in `openapi.json`.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) query: &'static [&'static str],
    /// The schema of the body.
    pub(super) body: Option<&'static str>,
    pub(super) answer: Answer,
    /// The schema of a denial with the status that the caller chose.
    pub(super) denial: Option<&'static str>,
    /// Statuses and responses beyond those that the row implies.
    pub(super) failures: &'static [(&'static str, &'static str)],
}

impl Operation {
    pub(super) const NONE: Self = Self {
        id: "",
        summary: "",
        description: "",
        query: &[],
        body: None,
        answer: Answer::json("", ""),
        denial: None,
        failures: &[],
    };
}

/// The answer with status 200.
pub(super) struct Answer {
    pub(super) description: &'static str,
    pub(super) media: &'static str,
    pub(super) schema: &'static str,
    /// Its header fields, besides the request's id.
    pub(super) fields: &'static [&'static str],
}

impl Answer {
    pub(super) const fn json(description: &'static str, schema: &'static str) -> Self {
        Self { description, media: "application/json", schema, fields: &[] }
    }

    /// A decision, with the fields of `headers.rs`.
    pub(super) const fn decision(description: &'static str, schema: &'static str) -> Self {
        let fields = &["RateLimit-Policy", "RateLimit", "Retry-After"];
        Self { fields, ..Self::json(description, schema) }
    }
}
