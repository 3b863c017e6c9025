//! The addresses to dial in place of those that servers announce.

use std::collections::BTreeMap;

use super::fault::{Faults, Place};
use super::raw::{Node, Value};
use super::scalar::excerpt;
use super::url::address;

const EXAMPLE: &str = "{\"10.0.0.5:6379\": \"203.0.113.9:7001\"}";

/// Reads a mapping of `host:port` to `host:port`. Both become lower case.
pub(super) fn address_map(node: &Node, faults: &mut Faults) -> Option<BTreeMap<String, String>> {
    let Value::Mapping(members) = &node.value else {
        node.must_be(&format!("a mapping such as `{EXAMPLE}`"), faults);
        return None;
    };
    let (mut map, mut is_valid) = (BTreeMap::new(), true);
    for member in members {
        let announced = valid(member.place, &member.key, faults);
        let dialed = member
            .node
            .text("an address such as `203.0.113.9:7001`", faults)
            .and_then(|text| valid(member.node.place, text, faults));
        match announced.zip(dialed) {
            None => is_valid = false,
            Some((announced, dialed)) => {
                if map.insert(announced, dialed).is_some() {
                    faults.note(member.place, format!("`{}` is named twice: once is enough", excerpt(&member.key)));
                }
            }
        }
    }
    is_valid.then_some(map)
}

fn valid(place: Place, text: &str, faults: &mut Faults) -> Option<String> {
    let valid = address(text);
    if valid.is_none() {
        // A user and password may precede an `@`.
        let shown = if text.contains('@') { "the text".to_owned() } else { format!("`{}`", excerpt(text)) };
        faults.note(place, format!("{shown} is not an address: write `host:port`, such as `10.0.0.5:6379`"));
    }
    valid
}
