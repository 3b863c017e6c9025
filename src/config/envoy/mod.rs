//! Envoy's rate limit service: the section `envoy` and the files that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub mod counting;

mod unit;

mod yaml_1_1;

mod tree;

mod key;

mod limits;

mod metadata;

mod descriptors;

#[cfg(test)]
mod tests;

pub use counting::Counting;
pub use key::{counter_key, policy_key};
pub use limits::{ZERO, of_requests};
pub use tree::{Domains, Entry, Found, Level, Limit, Rule, RuleKind};
pub use unit::Unit;

use super::fault::{Faults, Place};
use super::files::Files;
use super::listen::{ENVOY_BEYOND_LOOPBACK, refuse_open};
use super::raw::Node;
use super::section::Section;
use super::settings::envoy::{ALGORITHM, CONNECTION_AGE, COUNTING, DEADLINE, HEADERS, SHAPE};
use super::tls::{self, ServerTls};
use super::{Config, reader};
use crate::access::Access;
use crate::limit::policy::Policy;
use descriptors::DescriptorReader;
use limits::Counts;

/// The rate limit service of a node.
#[derive(Debug, Clone)]
pub struct EnvoyConfig {
    pub listen: SocketAddr,
    /// How long a connection stays, give or take a quarter.
    pub connection_age: Duration,
    pub tls: Option<ServerTls>,
    pub rules: Arc<EnvoyRules>,
}

/// The rules of the service. A reload replaces it as a whole.
#[derive(Debug, Clone)]
pub struct EnvoyRules {
    pub counting: Counting,
    /// How long a call waits for the store.
    pub deadline: Duration,
    /// Whether answers have rate limit fields.
    pub headers: bool,
    pub domains: Domains,
}

/// The parts of the configuration that the section depends on.
pub(super) struct Context<'a> {
    pub(super) access: Option<&'a Access>,
    /// The names of the policies as written.
    pub(super) known: BTreeSet<String>,
}

/// The policies that count limits, by name.
type LimitPolicies = BTreeMap<String, Arc<Policy>>;

/// Reads `envoy`; the inner None without it.
pub(super) fn envoy(
    root: &Section<'_>,
    context: &Context<'_>,
    files: &mut Files,
    faults: &mut Faults,
) -> Option<Option<(EnvoyConfig, LimitPolicies)>> {
    let Some(node) = root.member("envoy") else { return Some(None) };
    let section = Section::open(node, &SHAPE, faults)?;
    let sentence = "`envoy` needs `listen`, such as `listen: 127.0.0.1:8081`";
    let listen = section.required("listen", sentence, faults).and_then(|node| address(node, faults));
    let tls = match section.member("tls") {
        Some(node) => tls::of_envoy(node, files, faults).map(Some),
        None => Some(None),
    };
    // A client certificate stands for a token.
    if let (Some(access), Some(address), Some(tls)) = (context.access, listen, &tls)
        && !tls.as_ref().is_some_and(ServerTls::asks_clients)
    {
        refuse_open(address, access, ENVOY_BEYOND_LOOPBACK, faults);
    }
    let (algorithm, counting) = (section.read(&ALGORITHM, faults), section.read(&COUNTING, faults));
    let (deadline, headers) = (section.read(&DEADLINE, faults), section.read(&HEADERS, faults));
    let connection_age = section.read(&CONNECTION_AGE, faults);
    let counts = Counts {
        algorithm: algorithm.unwrap_or(ALGORITHM.kind.1),
        deadline: deadline.unwrap_or(Duration::from_micros(DEADLINE.kind.1)),
    };
    let mut policies: LimitPolicies =
        counts.shared_policies().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    let sentence = "`envoy` needs `config`, files or folders of descriptors, such as `config: [envoy/]`";
    let named = section.required("config", sentence, faults);
    let domains = named.and_then(|node| domains(node, counts, &context.known, &mut policies, files, faults));
    let rules = EnvoyRules { counting: counting?, deadline: deadline?, headers: headers?, domains: domains? };
    let (listen, _) = listen?;
    let config = EnvoyConfig { listen, connection_age: connection_age?, tls: tls?, rules: Arc::new(rules) };
    Some(Some((config, policies)))
}

fn address(node: &Node, faults: &mut Faults) -> Option<(SocketAddr, Place)> {
    let what = "an IP address and a port, such as `127.0.0.1:8081`";
    let text = node.text(what, faults)?;
    let address = text.parse().ok().or_else(|| node.refuse(what, faults))?;
    Some((address, node.place))
}

/// The domains of all files that `node` names.
fn domains(
    node: &Node,
    counts: Counts,
    known: &BTreeSet<String>,
    policies: &mut LimitPolicies,
    files: &mut Files,
    faults: &mut Faults,
) -> Option<Domains> {
    let (mut domains, mut first) = (Domains::new(), BTreeMap::new());
    for item in node.list("[envoy/]", faults)? {
        for path in paths(item, files, faults) {
            let Some(text) = text(item, &path, files, faults) else { continue };
            let file: Arc<str> = path.display().to_string().into();
            let mut own = Faults::new(&file);
            if let Some(root) = reader::read(&text, &mut own) {
                let reader = DescriptorReader { file: file.clone(), counts, known, policies, faults: &mut own };
                add_domain(reader, &root, &mut domains, &mut first);
            }
            faults.absorb(own);
        }
    }
    Some(domains)
}

fn add_domain(
    mut reader: DescriptorReader<'_>,
    root: &Node,
    domains: &mut Domains,
    first: &mut BTreeMap<String, Arc<str>>,
) {
    let Some((name, place, level)) = reader.domain(root) else { return };
    if let Some(file) = first.get(&name) {
        let sentence = format!("the domain `{name}` is already in {file}: a domain has one file");
        reader.faults.note(place, sentence);
        return;
    }
    first.insert(name.clone(), reader.file.clone());
    domains.insert(name, level);
}

/// The file that `item` names, or the YAML files of the folder, by name.
fn paths(item: &Node, files: &mut Files, faults: &mut Faults) -> Vec<PathBuf> {
    let Some(path) = files.path(item, "a file or folder of descriptors, such as `envoy/`", faults) else {
        return Vec::new();
    };
    if !path.is_dir() {
        return vec![path];
    }
    match files.folder(&path, is_descriptor_file) {
        Ok(found) if found.is_empty() => {
            item.note_file_fault::<()>("is a folder without a `.yaml` or `.yml` file", faults);
            found
        }
        Ok(found) => found,
        Err(error) => {
            item.note_file_fault::<()>(&format!("cannot be read: {error}"), faults);
            Vec::new()
        }
    }
}

fn is_descriptor_file(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn text(item: &Node, path: &Path, files: &mut Files, faults: &mut Faults) -> Option<String> {
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned());
    match files.read_path(path).and_then(utf8) {
        Ok(text) => Some(text),
        Err(error) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            item.note_file_fault(&format!("cannot be read (`{name}`): {error}"), faults)
        }
    }
}

impl Config {
    /// The number of Envoy's domains, and of their rules.
    pub fn envoy_counts(&self) -> Option<(usize, usize)> {
        let envoy = self.envoy.as_ref()?;
        let domains = &envoy.rules.domains;
        Some((domains.len(), domains.values().map(Level::rules).sum()))
    }
}
