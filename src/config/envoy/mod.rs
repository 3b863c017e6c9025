//! Envoy's rate limit service: the section `envoy` and the files that it names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
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

mod xds;

pub use limits::{ZERO, of_requests};
pub use tree::{Descriptor, Domains, Level, Limit, OfKey, Rule, RuleKind};
pub use unit::Unit;
pub use xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RuleSet, XdsConfig, XdsTls};

use super::fault::{Reading, UNREADABLE};
use super::files::begins_with;
use super::listen::{ENVOY_BEYOND_LOOPBACK, Listener};
use super::node::{Node, Value};
use super::section::Section;
use super::settings::envoy::{
    ALGORITHM, CONNECTION_AGE, COUNTING, DEADLINE, HEADERS, HTTP_LISTEN, METRICS, NEAR_LIMIT, SHAPE,
};
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

/// As the last part of a path: every file of the folder and of those below, as the reference reads
/// them. The second one includes names that begin with a dot.
pub const ALL: &str = "**";
pub const ALL_AND_HIDDEN: &str = ".**";

/// The rate limit service of a node.
#[derive(Debug, Clone)]
pub struct EnvoyConfig {
    pub listen: SocketAddr,
    /// How long a connection stays, give or take a quarter.
    pub connection_age: Duration,
    pub tls: Option<ServerTls>,
    /// The address of the reference's calls over HTTP.
    pub http_listen: Option<SocketAddr>,
    /// The control plane, unless files have the rules.
    pub xds: Option<Arc<XdsConfig>>,
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
    /// The part of a limit above which hits are near it, for the metrics of the reference. None:
    /// there are no such metrics.
    pub near_limit: Option<f64>,
    /// Number of rules.
    pub rules: usize,
    /// Whether a control plane has sent no rules yet. The domains are then empty.
    pub awaited: bool,
    pub domains: Domains,
}

/// The policies that count limits, by name.
type LimitPolicies = BTreeMap<String, Arc<Policy>>;

/// Reads `envoy`; none without it, or after a fault. `access` is none after a fault in it. `known`
/// has the names of the policies, and `received` the rules of a control plane.
pub(super) fn envoy(
    root: &Section<'_>,
    access: Option<&Access>,
    known: &[&str],
    received: Option<&RuleSet>,
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
    let named = section
        .required("config", "`envoy` needs `config`, files or folders of descriptors, such as `config: [envoy/]`");
    let mut all =
        AllDomains { counts, known, policies: &mut policies, domains: Domains::new(), first: BTreeMap::new() };
    let (plane, files) = match named {
        Some(node) if matches!(node.value, Value::Mapping(_)) => (Some(node), None),
        named => (None, named),
    };
    files.into_iter().for_each(|node| all.read(node));
    if let (Some(node), Some(rules)) = (plane, received) {
        all.receive(node, rules);
    }
    let domains = all.domains;
    let near_limit = section.read(&NEAR_LIMIT);
    let rules = EnvoyRules {
        counting: section.read(&COUNTING),
        deadline: counts.deadline,
        headers: section.read(&HEADERS),
        near_limit: section.read(&METRICS).then_some(near_limit),
        rules: domains.values().map(Level::rules).sum(),
        awaited: plane.is_some() && received.is_none(),
        domains,
    };
    let xds = plane.and_then(xds::xds).map(Arc::new);
    let http_listen = section.member(HTTP_LISTEN.name).and_then(|node| node.parsed(what, |text| text.parse().ok()));
    let (_, listen) = listen?;
    let config = EnvoyConfig {
        listen,
        connection_age: section.read(&CONNECTION_AGE),
        tls: tls.flatten(),
        http_listen,
        xds,
        rules: Arc::new(rules),
    };
    Some((config, policies))
}

/// The domains of all files or resources.
struct AllDomains<'a> {
    counts: Counts,
    known: &'a [&'a str],
    policies: &'a mut LimitPolicies,
    domains: Domains,
    /// The file or resource of each domain.
    first: BTreeMap<String, Arc<str>>,
}

impl AllDomains<'_> {
    /// Reads the files that `node` names.
    fn read(&mut self, node: &Node) {
        for item in node.list("[envoy/]").unwrap_or_default() {
            for path in paths(item) {
                let Some(text) = text(item, &path) else { continue };
                let own = Rc::new(Reading::default());
                let root = reader::read(&text, &own);
                self.add(node, path.display().to_string().into(), &own, root);
            }
        }
    }

    /// Reads the resources of the control plane that `node` names.
    fn receive(&mut self, node: &Node, RuleSet(resources): &RuleSet) {
        for resource in resources {
            let own = Rc::new(Reading::default());
            let root = resource.tree(&own);
            self.add(node, resource.label(), &own, Some(root));
        }
    }

    /// Adds the domain of a file or resource, whose faults become those of `node`.
    fn add(&mut self, node: &Node, file: Arc<str>, own: &Reading, root: Option<Node>) {
        if let Some(root) = root {
            let (counts, known, policies) = (self.counts, self.known, &mut *self.policies);
            let mut reader = DescriptorReader { file: file.clone(), counts, known, policies };
            if let Some((node, name, level)) = reader.domain(&root) {
                match self.first.get(name) {
                    Some(first) => {
                        node.note(format!("the domain `{name}` is already in {first}: a domain has one file"));
                    }
                    None => {
                        self.first.insert(name.to_owned(), file.clone());
                        self.domains.insert(name.to_owned(), level);
                    }
                }
            }
        }
        node.reading.absorb(&file, own);
    }
}

/// The file that `item` names, or the files of the folder, by name.
fn paths(item: &Node) -> Vec<PathBuf> {
    let Some(path) = item.path("a file or folder of descriptors, such as `envoy/`") else { return Vec::new() };
    let whole = path.parent().zip(path.file_name().and_then(OsStr::to_str));
    let whole = whole.filter(|(_, last)| [ALL, ALL_AND_HIDDEN].contains(last));
    let files = &item.reading.files;
    let (found, kind) = match whole {
        Some((folder, last)) => (files.borrow_mut().tree(folder, last == ALL_AND_HIDDEN), "file"),
        None if path.is_dir() => (files.borrow_mut().folder(&path, is_descriptor_file), "`.yaml` or `.yml` file"),
        None => return vec![path],
    };
    let found = found.map_err(|error| item.note_file_fault::<()>(&format!("{UNREADABLE}{error}")));
    if found.as_ref().is_ok_and(Vec::is_empty) {
        item.note_file_fault::<()>(&format!("is a folder without a {kind}"));
    }
    found.unwrap_or_default()
}

fn is_descriptor_file(path: &Path) -> bool {
    !begins_with(path, ".") && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn text(item: &Node, path: &Path) -> Option<String> {
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned());
    let read = item.reading.files.borrow_mut().read(path).and_then(utf8);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read.map_or_else(|error| item.note_file_fault(&format!("cannot be read (`{name}`): {error}")), Some)
}

impl Config {
    /// The number of Envoy's domains, and of their rules. None if a control plane has them.
    pub fn envoy_counts(&self) -> Option<(usize, usize)> {
        let envoy = self.envoy.as_ref().filter(|envoy| !envoy.rules.awaited)?;
        Some((envoy.rules.domains.len(), envoy.rules.rules))
    }
}
