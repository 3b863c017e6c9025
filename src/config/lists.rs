//! The lists `deny` and `allow` of a policy. They are not built yet, but what is written wrong is told already.

use std::net::IpAddr;

use ipnet::IpNet;

use super::fault::Faults;
use super::raw::Node;
use super::scalar::excerpt;
use super::section::{Section, Shape, not_yet};

const SHAPE: Shape =
    Shape { example: "{cidrs: [192.0.2.0/24]}", known: &["keys", "prefixes", "cidrs"], checked: &[], later: &[] };

/// Notes the list `key`, if there is one, and its faults.
pub(super) fn refuse(policy: &Section<'_>, key: &str, faults: &mut Faults) {
    let Some(member) = policy.whole(key) else { return };
    not_yet(member.place, &format!("`{key}`"), faults);
    let Some(section) = Section::open(&member.node, &SHAPE, faults) else { return };
    for texts in ["keys", "prefixes"] {
        let node = section.member(texts);
        let items = node.and_then(|node| node.list("[mallory]", faults)).unwrap_or_default();
        for item in items {
            item.text("a text", faults);
        }
    }
    let cidrs = section.member("cidrs").and_then(|node| node.list("[192.0.2.0/24]", faults));
    cidrs.unwrap_or_default().iter().for_each(|item| refuse_bad_cidr(item, faults));
}

fn refuse_bad_cidr(node: &Node, faults: &mut Faults) {
    let Some(text) = node.text("a network such as `192.0.2.0/24`", faults) else { return };
    if let Some(right) = fault_of_cidr(text) {
        faults.note(node.place, format!("`{}` is no network: {right}", excerpt(text)));
    }
}

/// What would be right instead of `text`; none if it is a network.
fn fault_of_cidr(text: &str) -> Option<String> {
    match text.parse::<IpNet>() {
        Ok(network) if network.trunc() == network => None,
        Ok(network) => Some(format!("did you mean `{}`?", network.trunc())),
        Err(_) => match text.parse::<IpAddr>() {
            Ok(address) => Some(format!("did you mean `{}`?", IpNet::from(address))),
            Err(_) => Some("write an address and a prefix length, such as `192.0.2.0/24`".to_owned()),
        },
    }
}
