//! Reads the section `gates`.

use std::sync::Arc;

use super::gate::{Gate, Gates};
use super::matcher::any_network;
use super::node::Member;
use super::section::Section;
use super::settings::gate::{
    ANONYMOUS, CLIENT_FROM, DENY_STATUS, IDENTITY_HEADERS, MISSING_KEY, REQUEST_FROM, RULES, SHAPE, TRUSTED_PROXIES,
};

mod names;

mod rule;

mod template;

mod warnings;

pub(super) use rule::Known;

/// Reads `gates`.
pub(super) fn gates(root: &Section<'_>, known: &Known<'_>) -> Gates {
    let example = format!("{{edge: {}}}", SHAPE.example);
    let members = root.member("gates").and_then(|node| node.mapping(&example)).unwrap_or_default();
    let gates = members.iter().filter_map(|member| gate(member, known));
    Gates(gates.map(|gate| (gate.name.clone(), Arc::new(gate))).collect())
}

fn gate(member: &Member, known: &Known<'_>) -> Option<Gate> {
    let name = member.identifier("gate");
    let section = member.node.section(&SHAPE);
    let headers = |node| section.each(node, "[x-user]", |item| item.noted(names::header(item.text(names::HEADER)?)));
    let identity_headers = member.node.reading.checked(|| headers(IDENTITY_HEADERS.name));
    let sentence = "a gate needs `rules`, such as `rules: [{checks: [{policy: per-ip, key: \"{client_ip}\"}]}]`";
    let rules = section.required(RULES.name, sentence);
    Some(Gate {
        request_from: section.read(&REQUEST_FROM),
        client_from: section.read(&CLIENT_FROM),
        trusted_proxies: section.each(TRUSTED_PROXIES.name, "[127.0.0.1/32, 10.0.0.0/8]", any_network),
        deny_status: section.read(&DENY_STATUS),
        missing_key: section.read(&MISSING_KEY),
        anonymous: section.read(&ANONYMOUS),
        rules: rules.map(|node| rule::rules(node, identity_headers.as_deref(), known)).unwrap_or_default(),
        identity_headers: identity_headers.unwrap_or_default(),
        name: name?,
    })
}
