//! The other nodes that the dashboard compares.

use super::section::Section;
use super::settings::dashboard::{NODES, SHAPE};
use super::url::host_and_port;

const ORIGIN: &str = "the origin of a node, such as `http://10.0.0.2:7071`";

/// The most nodes that a page asks.
const MAX_NODES: usize = 64;

/// Reads `dashboard`: the origins of other nodes, as browsers write them.
pub(super) fn dashboard(root: &Section<'_>) -> Vec<String> {
    let section = root.section("dashboard", &SHAPE);
    let mut origins = section.each(NODES.name, "[\"http://10.0.0.2:7071\"]", |item| item.parsed(ORIGIN, origin));
    if let Some(node) = section.member(NODES.name).filter(|_| origins.len() > MAX_NODES) {
        node.note(format!("`nodes` must name at most {MAX_NODES} nodes"));
    }
    origins.sort();
    origins.dedup();
    origins
}

/// The origin in the form of a browser: lower case, and without the scheme's own port. It contains
/// nothing that could end a directive of a Content-Security-Policy.
pub(super) fn origin(text: &str) -> Option<String> {
    let (scheme, authority) = text.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let own_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let (host, port) = host_and_port(authority, own_port)?;
    Some(if port == own_port { format!("{scheme}://{host}") } else { format!("{scheme}://{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_the_form_of_browsers() {
        for (text, expected) in [
            ("http://10.0.0.2:7071", Some("http://10.0.0.2:7071")),
            ("HTTPS://Node-2.Example", Some("https://node-2.example")),
            ("https://node:443", Some("https://node")),
            ("http://node:80", Some("http://node")),
            ("http://[::1]:7071", Some("http://[::1]:7071")),
            ("http://node/", None),
            ("http://node/dashboard", None),
            ("http://me@node", None),
            ("http://node; script-src *", None),
            ("http://*", None),
            ("node:7071", None),
            ("redis://node:7071", None),
        ] {
            assert_eq!(origin(text).as_deref(), expected, "{text}");
        }
    }
}
