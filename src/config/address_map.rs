//! The addresses to dial in place of those that servers announce.

use std::collections::BTreeMap;

use super::node::Node;
use super::scalar::excerpt;
use super::url::address;

const EXAMPLE: &str = "{\"10.0.0.5:6379\": \"203.0.113.9:7001\"}";

/// Reads a mapping of `host:port` to `host:port`. Both become lower case.
pub(super) fn address_map(node: &Node) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    for member in node.mapping(EXAMPLE).unwrap_or_default() {
        let announced = valid(&member.key).map_err(|message| member.note(message));
        let text = member.node.text("an address such as `203.0.113.9:7001`");
        let dialed = text.and_then(|text| member.node.noted(valid(text)));
        if let (Ok(announced), Some(dialed)) = (announced, dialed)
            && map.insert(announced, dialed).is_some()
        {
            member.note(format!("`{}` is named twice: once is enough", excerpt(&member.key)));
        }
    }
    map
}

fn valid(text: &str) -> Result<String, String> {
    address(text).ok_or_else(|| {
        // A user and password may precede an `@`.
        let shown = if text.contains('@') { "the text".to_owned() } else { format!("`{}`", excerpt(text)) };
        format!("{shown} is not an address: write `host:port`, such as `10.0.0.5:6379`")
    })
}
