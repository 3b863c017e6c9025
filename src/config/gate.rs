//! The gates as the node uses them: how a request that a proxy asks about becomes checks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::network::Network;

/// The gates, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gates(pub BTreeMap<String, Arc<Gate>>);

/// One gate: `/v1/gate/{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    pub name: String,
    pub request_from: RequestFrom,
    pub client_from: ClientFrom,
    /// The peers whose forwarded and identity headers count.
    pub trusted_proxies: Vec<Network>,
    /// The headers that may stand in keys, in lower case.
    pub identity_headers: Vec<String>,
    /// The status of a denial: 401, 403 or 429.
    pub deny_status: u16,
    pub missing_key: MissingKey,
    /// Whether trusted proxies need no token, and other peers are rejected.
    pub anonymous: bool,
    /// The first rule that matches decides.
    pub rules: Vec<GateRule>,
}

impl Gate {
    /// Whether a check of the gate may deny.
    pub fn enforces(&self) -> bool {
        self.rules.iter().flat_map(|rule| &rule.checks).any(|check| !check.is_shadow)
    }
}

named! {
    /// The source of the method, the host and the path.
    pub enum RequestFrom {
        /// `X-Forwarded-Method`, `X-Forwarded-Host` and `X-Forwarded-Uri`.
        Forwarded = "forwarded",
        /// `X-Original-Method`, `X-Original-URI` and `Host`.
        Original = "original",
        /// `X-Original-Method`, and host and path of `X-Original-URL`.
        OriginalUrl = "original-url",
        /// The request itself.
        Request = "request",
    }
}

named! {
    /// The source of the client's address.
    pub enum ClientFrom {
        XForwardedFor = "x-forwarded-for",
        XRealIp = "x-real-ip",
        /// The peer of the connection.
        Peer = "peer",
    }
}

named! {
    /// The result for a check whose key is missing.
    pub enum MissingKey {
        Deny = "deny",
        /// The gate skips the check.
        Allow = "allow",
        /// The check counts the client's address.
        ClientIp = "client_ip",
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRule {
    /// None: no key of the rule names it.
    pub name: Option<String>,
    /// The line in the file, from 1.
    pub line: usize,
    /// None: every request.
    pub matches: Option<RuleMatch>,
    /// The plan of each check, if the template has its values.
    pub plan: Option<Template>,
    /// The longest wait of a request in line.
    pub pace: Duration,
    /// All are charged or none. Empty: allowed, and nothing counts.
    pub checks: Vec<GateCheck>,
}

/// The requests of a rule. Every list that is not empty must contain the request's value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleMatch {
    /// In lower case, without port and final dot.
    pub hosts: Vec<String>,
    /// In upper case.
    pub methods: Vec<String>,
    /// None: every path.
    pub paths: Option<PathMatch>,
    /// Names in lower case, and their whole values.
    pub headers: Vec<(String, String)>,
}

impl RuleMatch {
    /// A method in upper case. Backends may ignore the case, so it makes no difference here.
    pub fn method(text: &str) -> Option<String> {
        let is_method = (1..=64).contains(&text.len()) && text.bytes().all(is_token);
        is_method.then(|| text.to_ascii_uppercase())
    }
}

/// Whether the byte may be in a token of HTTP (RFC 9110, 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The paths of a rule, as its backend reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMatch {
    /// If the case is ignored, in the form of [`PathMatch::fold`].
    pub patterns: Vec<PathPattern>,
    pub ignore_case: bool,
    /// Whether `/login;x=1` is `/login`.
    pub strip_parameters: bool,
}

impl PathMatch {
    /// The form that all texts share which differ in case only. Backends compare in upper or in
    /// lower case. So `\u{131}`, whose upper case is `I`, counts as `i`.
    pub fn fold(text: &str) -> String {
        text.to_uppercase().to_lowercase()
    }
}

/// Decoded paths, without a trailing `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPattern {
    Only(String),
    /// The path and all below it; empty for every path.
    Below(String),
}

impl PathPattern {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Only(text) | Self::Below(text) => text,
        }
    }

    pub(super) fn map(self, change: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Only(text) => Self::Only(change(&text)),
            Self::Below(text) => Self::Below(change(&text)),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateCheck {
    pub policy: String,
    pub key: Template,
    /// Whether the policy's keys are addresses.
    pub is_ip: bool,
    /// Whether the policy never denies.
    pub is_shadow: bool,
    /// 0 to 10^15 units.
    pub cost: u64,
}

/// The template of a key, with one part or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub Vec<KeyPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    Literal(String),
    ClientIp,
    /// An identity header, in lower case.
    Header(String),
    Host,
    Method,
    Rule,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_method_has_one_form() {
        assert_eq!(RuleMatch::method("post").as_deref(), Some("POST"));
        assert_eq!(RuleMatch::method("M-SEARCH").as_deref(), Some("M-SEARCH"));
        for text in ["", "PO ST", "POST,GET", "PÖST", &"A".repeat(65)] {
            assert_eq!(RuleMatch::method(text), None, "{text}");
        }
    }
}
