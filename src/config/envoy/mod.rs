//! Envoy's rate limit service: the section `envoy` and the files that it names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

mod unit;

mod yaml_1_1;

mod tree;

mod limits;

mod metadata;

mod descriptors;

pub use limits::{ZERO, of_requests};
pub use tree::{Descriptor, Domains, Level, Limit, OfKey, Rule, RuleKind};
pub use unit::Unit;

use super::fault::Reading;
use super::listen::{ENVOY_BEYOND_LOOPBACK, Listener};
use super::node::Node;
use super::section::Section;
use super::settings::envoy::{ALGORITHM, CONNECTION_AGE, COUNTING, DEADLINE, HEADERS, SHAPE};
use super::tls::{self, ServerTls};
use super::{Config, reader};
use crate::access::Access;
use crate::limit::policy::Policy;
use descriptors::DescriptorReader;
use limits::Counts;

named! {
    /// How the descriptors of one request count together.
    pub enum Counting {
        /// All are charged, or none is.
        AllOrNone = "all-or-none",
        /// Each is charged for itself, up to its limit.
        Independent = "independent",
    }
}

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

/// The policies that count limits, by name.
type LimitPolicies = BTreeMap<String, Arc<Policy>>;

/// Reads `envoy`; none without it, or after a fault. `access` is none after a fault in it. `known`
/// has the names of the policies.
pub(super) fn envoy(
    root: &Section<'_>,
    access: Option<&Access>,
    known: &[&str],
) -> Option<(EnvoyConfig, LimitPolicies)> {
    let section = root.member("envoy")?.section(&SHAPE);
    let what = "an IP address and a port, such as `127.0.0.1:8081`";
    let listen = section.required("listen", "`envoy` needs `listen`, such as `listen: 127.0.0.1:8081`");
    let listen = listen.and_then(|node| Some((node, node.parsed(what, |text| text.parse().ok())?)));
    let tls = section.member("tls").map(tls::of_envoy);
    // A client certificate stands for a token.
    if let (Some(access), Some((node, address))) = (access, listen)
        && !matches!(&tls, Some(tls) if tls.as_ref().is_none_or(ServerTls::asks_clients))
    {
        Listener::at(node, address).refuse_open(access, ENVOY_BEYOND_LOOPBACK);
    }
    let counts = Counts { algorithm: section.read(&ALGORITHM), deadline: section.read(&DEADLINE) };
    let mut policies: LimitPolicies =
        counts.shared_policies().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    let files = section
        .required("config", "`envoy` needs `config`, files or folders of descriptors, such as `config: [envoy/]`");
    let domains = files.map(|node| domains(node, counts, known, &mut policies)).unwrap_or_default();
    let rules = EnvoyRules {
        counting: section.read(&COUNTING),
        deadline: counts.deadline,
        headers: section.read(&HEADERS),
        domains,
    };
    let (_, listen) = listen?;
    let config = EnvoyConfig {
        listen,
        connection_age: section.read(&CONNECTION_AGE),
        tls: tls.flatten(),
        rules: Arc::new(rules),
    };
    Some((config, policies))
}

/// The domains of all files that `node` names.
fn domains(node: &Node, counts: Counts, known: &[&str], policies: &mut LimitPolicies) -> Domains {
    let (mut domains, mut first) = (Domains::new(), BTreeMap::new());
    for item in node.list("[envoy/]").unwrap_or_default() {
        for path in paths(item) {
            let Some(text) = text(item, &path) else { continue };
            let file: Arc<str> = path.display().to_string().into();
            let own = Rc::new(Reading::default());
            if let Some(root) = reader::read(&text, &own) {
                let mut reader = DescriptorReader { file: file.clone(), counts, known, policies };
                if let Some((node, name, level)) = reader.domain(&root) {
                    match first.get(name) {
                        Some(file) => {
                            node.note(format!("the domain `{name}` is already in {file}: a domain has one file"))
                        }
                        None => {
                            first.insert(name.to_owned(), file.clone());
                            domains.insert(name.to_owned(), level);
                        }
                    }
                }
            }
            node.reading.absorb(&file, &own);
        }
    }
    domains
}

/// The file that `item` names, or the YAML files of the folder, by name.
fn paths(item: &Node) -> Vec<PathBuf> {
    let Some(path) = item.path("a file or folder of descriptors, such as `envoy/`") else { return Vec::new() };
    if !path.is_dir() {
        return vec![path];
    }
    let found = item.reading.files.borrow_mut().folder(&path, is_descriptor_file);
    let found = found.map_err(|error| item.note_file_fault::<()>(&format!("cannot be read: {error}")));
    if found.as_ref().is_ok_and(Vec::is_empty) {
        item.note_file_fault::<()>("is a folder without a `.yaml` or `.yml` file");
    }
    found.unwrap_or_default()
}

fn is_descriptor_file(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn text(item: &Node, path: &Path) -> Option<String> {
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned());
    let read = item.reading.files.borrow_mut().read(path).and_then(utf8);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read.map_or_else(|error| item.note_file_fault(&format!("cannot be read (`{name}`): {error}")), Some)
}

impl Config {
    /// The number of Envoy's domains, and of their rules.
    pub fn envoy_counts(&self) -> Option<(usize, usize)> {
        let envoy = self.envoy.as_ref()?;
        let domains = &envoy.rules.domains;
        Some((domains.len(), domains.values().map(Level::rules).sum()))
    }
}
