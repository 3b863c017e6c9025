//! Reads the section `gates`.

use std::sync::Arc;

use crate::limit::network::Network;

use super::Policies;
use super::fault::Faults;
use super::gate::{Gate, Gates};
use super::matcher;
use super::raw::{Member, Node, Value};
use super::scalar::{excerpt, is_identifier};
use super::section::Section;
use super::settings::gate::{
    ANONYMOUS, CLIENT_FROM, DENY_STATUS, IDENTITY_HEADERS, MISSING_KEY, REQUEST_FROM, RULES, SHAPE, TRUSTED_PROXIES,
};

mod names;

mod policies;

mod rule;

mod template;

mod warnings;

use policies::Known;

/// Reads `gates`. `policies` is none after a fault in them.
pub(super) fn gates(root: &Section<'_>, policies: Option<&Policies>, faults: &mut Faults) -> Option<Gates> {
    let Some(node) = root.member("gates") else { return Some(Gates::default()) };
    let Value::Mapping(members) = &node.value else {
        node.must_be(&format!("a mapping such as `{{edge: {}}}`", SHAPE.example), faults);
        return None;
    };
    let known = Known::new(root, policies);
    let read: Vec<Option<Gate>> = members.iter().map(|member| gate(member, &known, faults)).collect();
    let read: Option<Vec<Gate>> = read.into_iter().collect();
    Some(Gates(read?.into_iter().map(|gate| (gate.name.clone(), Arc::new(gate))).collect()))
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
