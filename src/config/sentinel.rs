//! The sentinels of a store: the master's name, their addresses and their credentials.

use super::credentials::{self, Credentials};
use super::node::Node;
use super::settings::store_sentinel::{MASTER, NODES, SHAPE};
use super::url::host_and_port;

const DEFAULT_PORT: u16 = 26379;

const NODE: &str = "the address of a sentinel, such as `10.0.0.1:26379`";

/// The sentinels that report which server is the primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SentinelConfig {
    /// The name of the master in the sentinels' configuration.
    pub master: String,
    /// `host:port` of each sentinel, in the order written.
    pub nodes: Vec<String>,
    /// The credentials for the sentinels; the servers have their own.
    pub credentials: Credentials,
}

/// Reads `sentinel` of `store`; none after a fault.
pub(super) fn sentinel(node: &Node) -> Option<SentinelConfig> {
    let section = node.section(&SHAPE);
    let sentence = "`sentinel` needs `master` and `nodes`, such as `{master: mymaster, nodes: [\"10.0.0.1:26379\"]}`";
    let master = section.required(MASTER.name, sentence).and_then(Node::identifier);
    let nodes = section.required(NODES.name, sentence).map(nodes);
    let credentials = credentials::spec(node, &section);
    let credentials = credentials.and_then(|spec| node.reading.noted(credentials::credentials(&[], Some(spec))));
    Some(SentinelConfig { master: master?.to_owned(), nodes: nodes?, credentials: credentials? })
}

fn nodes(node: &Node) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    let empty = "`nodes` needs one or more sentinels: name all that watch the master";
    for item in node.filled_list("[\"10.0.0.1:26379\"]", empty) {
        let Some(address) = address(item) else { continue };
        if known.contains(&address) {
            item.note(format!("`{address}` is named twice: each sentinel has one vote"));
        }
        known.push(address);
    }
    known
}

fn address(node: &Node) -> Option<String> {
    if node.text(NODE)?.contains("://") {
        node.note("a sentinel is named by `host:port` alone: its user, password and TLS are beside `nodes`");
        return None;
    }
    let address = node.parsed(NODE, |text| host_and_port(text, DEFAULT_PORT));
    address.map(|(host, port)| format!("{host}:{port}"))
}
