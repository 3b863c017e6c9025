//! The sentinels of a store: the master's name, their addresses and their credentials.

use super::credentials::{self, Credentials};
use super::fault::{Faults, Place};
use super::files::Files;
use super::raw::Node;
use super::section::Section;
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

/// Reads `sentinel` of `store`.
pub(super) fn sentinel(node: &Node, files: &mut Files, faults: &mut Faults) -> Option<SentinelConfig> {
    let section = Section::open(node, &SHAPE, faults)?;
    let sentence = "`sentinel` needs `master` and `nodes`, such as `{master: mymaster, nodes: [\"10.0.0.1:26379\"]}`";
    let master = section.required(MASTER.name, sentence, faults).and_then(|node| node.identifier(faults));
    let nodes = section.required(NODES.name, sentence, faults).and_then(|node| nodes(node, faults));
    let spec = credentials::spec(node.place, &section, files, faults);
    let credentials = spec.and_then(|spec| credentials::credentials(&[], Some(spec), faults));
    Some(SentinelConfig { master: master?.to_owned(), nodes: nodes?, credentials: credentials? })
}

fn nodes(node: &Node, faults: &mut Faults) -> Option<Vec<String>> {
    let items = node.list("[\"10.0.0.1:26379\"]", faults)?;
    if items.is_empty() {
        faults.note(node.place, "`nodes` needs one or more sentinels: name all that watch the master");
        return None;
    }
    let read: Vec<Option<(Place, String)>> =
        items.iter().map(|item| Some((item.place, address(item, faults)?))).collect();
    let read: Vec<_> = read.into_iter().collect::<Option<_>>()?;
    for (index, (place, address)) in read.iter().enumerate() {
        if read.iter().take(index).any(|(_, before)| before == address) {
            faults.note(*place, format!("`{address}` is named twice: each sentinel has one vote"));
            return None;
        }
    }
    Some(read.into_iter().map(|(_, address)| address).collect())
}

fn address(node: &Node, faults: &mut Faults) -> Option<String> {
    let text = node.text(NODE, faults)?;
    if text.contains("://") {
        faults.note(
            node.place,
            "a sentinel is named by `host:port` alone: its user, password and TLS are beside `nodes`",
        );
        return None;
    }
    match host_and_port(text, DEFAULT_PORT) {
        Some((host, port)) => Some(format!("{host}:{port}")),
        None => node.refuse(NODE, faults),
    }
}
