//! The gates: how a request that a proxy asks about becomes checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limit::network::Network;

use super::Policies;
use super::fault::Faults;
use super::matcher;
use super::raw::{Member, Node, Value};
use super::scalar::{excerpt, is_identifier};
use super::section::Section;
use super::settings::gate::{
    ANONYMOUS, CLIENT_FROM, DENY_STATUS, IDENTITY_HEADERS, MISSING_KEY, REQUEST_FROM, RULES, SHAPE, TRUSTED_PROXIES,
};

mod names;

mod rule;

mod template;

mod warnings;

pub use rule::{GateCheck, PathPattern, Rule, RuleMatch};
pub use template::{Part, Template};

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
    pub rules: Vec<Rule>,
}

named! {
    /// The source of the method, the host and the path.
    pub enum RequestFrom {
        /// `X-Forwarded-Method`, `X-Forwarded-Host` and `X-Forwarded-Uri`.
        Forwarded = "forwarded",
        /// `X-Original-Method`, `X-Original-URI` and `Host`.
        Original = "original",
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

/// Reads `gates`. `policies` is none after a fault in them.
pub(super) fn gates(root: &Section<'_>, policies: Option<&Policies>, faults: &mut Faults) -> Option<Gates> {
    let Some(node) = root.member("gates") else { return Some(Gates::default()) };
    let Value::Mapping(members) = &node.value else {
        node.must_be(&format!("a mapping such as `{{edge: {}}}`", SHAPE.example), faults);
        return None;
    };
    let known = Known { names: policy_names(root), policies };
    let read: Vec<Option<Gate>> = members.iter().map(|member| gate(member, &known, faults)).collect();
    let read: Option<Vec<Gate>> = read.into_iter().collect();
    Some(Gates(read?.into_iter().map(|gate| (gate.name.clone(), Arc::new(gate))).collect()))
}

/// The policies that a gate may name. The names are known even if a policy has a fault.
struct Known<'a> {
    names: Vec<&'a str>,
    policies: Option<&'a Policies>,
}

fn policy_names<'a>(root: &Section<'a>) -> Vec<&'a str> {
    match root.member("policies").map(|node| &node.value) {
        Some(Value::Mapping(members)) => members.iter().map(|member| member.key.as_str()).collect(),
        _ => Vec::new(),
    }
}

fn gate(member: &Member, known: &Known<'_>, faults: &mut Faults) -> Option<Gate> {
    let name = name(member, faults);
    let section = Section::open(&member.node, &SHAPE, faults)?;
    let (request_from, client_from) = (section.read(&REQUEST_FROM, faults), section.read(&CLIENT_FROM, faults));
    let trusted_proxies = section.or(TRUSTED_PROXIES.name, Vec::new(), |node| networks(node, faults));
    let identity_headers = section.or(IDENTITY_HEADERS.name, Vec::new(), |node| identity_headers(node, faults));
    let (deny_status, missing_key) = (section.read(&DENY_STATUS, faults), section.read(&MISSING_KEY, faults));
    let anonymous = section.read(&ANONYMOUS, faults);
    let sentence = "a gate needs `rules`, such as `rules: [{checks: [{policy: per-ip, key: \"{client_ip}\"}]}]`";
    let rules = section.required(RULES.name, sentence, faults);
    let rules = rules.and_then(|node| rule::rules(node, identity_headers.as_deref(), known, faults));
    Some(Gate {
        name: name?,
        request_from: request_from?,
        client_from: client_from?,
        trusted_proxies: trusted_proxies?,
        identity_headers: identity_headers?,
        deny_status: deny_status?,
        missing_key: missing_key?,
        anonymous: anonymous?,
        rules: rules?,
    })
}

fn name(member: &Member, faults: &mut Faults) -> Option<String> {
    let name = Some(&member.key).filter(|name| is_identifier(name)).cloned();
    if name.is_none() {
        let sentence = format!(
            "the gate name `{}` must be 1 to 64 of the letters `A-Z`, `a-z`, digits, `_`, `.` and `-`",
            excerpt(&member.key)
        );
        faults.note(member.place, sentence);
    }
    name
}

fn networks(node: &Node, faults: &mut Faults) -> Option<Vec<Network>> {
    let items = node.list("[127.0.0.1/32, 10.0.0.0/8]", faults)?;
    items
        .iter()
        .map(|item| matcher::any_network(item, faults))
        .collect::<Vec<_>>()
        .into_iter()
        .collect()
}

fn identity_headers(node: &Node, faults: &mut Faults) -> Option<Vec<String>> {
    let items = node.list("[x-user]", faults)?;
    items.iter().map(|item| names::header(item, faults)).collect::<Vec<_>>().into_iter().collect()
}
