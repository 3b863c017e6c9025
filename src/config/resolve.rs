//! Loads a configuration: resolves the tree as written, and notes every fault.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::limit::policy::Policy;
use crate::limit::time::Micros;

use super::counter;
use super::dashboard::dashboard;
use super::envoy::{Context, envoy};
use super::fault::Faults;
use super::files::Files;
use super::gates::gates;
use super::policy::policy;
use super::raw::{Node, Value};
use super::resp::{THROTTLE, refuse_unfit, throttle};
use super::section::Section;
use super::setting::Kind;
use super::settings::limits::{IDLE_TIMEOUT, MAX_CONNECTIONS, REQUEST_TIMEOUT};
use super::source::{Overrides, Source, is_standard_input};
use super::store::{Stores, store};
use super::watched::{Watched, is_other};
use super::{
    Config, Limits, Policies, PrefilterConfig, Shutdown, TRACE_ID, TelemetryConfig, reader, settings, version,
};
use super::{auth::auth, listen::listen, resp::resp, tls::tls};
use crate::timeouts::least_request_timeout;

/// The file and the command line's overrides.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// None: the built-in example.
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

impl Setup {
    /// Loads the configuration; `now` is in us since the Unix epoch.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn load(&self, now: Micros) -> Result<Config, Faults> {
        match &self.file {
            Some(file) => load(&Source::read(file)?, &self.overrides, now),
            None => built_in(&self.overrides, now),
        }
    }

    /// Like [`Setup::load`], for a running node: it never waits for a writer of a pipe.
    ///
    /// # Errors
    /// As [`Setup::load`].
    pub fn load_again(&self, now: Micros) -> Result<Config, Faults> {
        match self.file.as_deref().filter(|path| !is_lasting(path)) {
            None => self.load(now),
            Some(path) => {
                let faults = Faults::of_source(&path.display().to_string(), "it is no file");
                Err(faults.read_from(vec![Watched::look(path)]))
            }
        }
    }

    /// Whether the file can be read again: a pipe, such as `/dev/stdin`, is read only once.
    pub fn is_lasting(&self) -> bool {
        self.file.as_deref().is_some_and(is_lasting)
    }
}

fn is_lasting(path: &Path) -> bool {
    !is_standard_input(path) && !is_other(path)
}

/// Loads the configuration from `source` and `overrides`; `now` is in us since the Unix epoch.
///
/// # Errors
/// Every fault at once, each with its place and its correction. A fault of YAML's syntax hides the
/// faults after it.
pub fn load(source: &Source, overrides: &Overrides, now: Micros) -> Result<Config, Faults> {
    let mut faults = Faults::new(&source.origin);
    let root = reader::read(&source.text, &mut faults);
    let mut files = Files::beside(source);
    let config = root.and_then(|root| resolve(&root, overrides, &mut files, &mut faults));
    let (files, warnings) = files.into_watched();
    match faults.conclude(config) {
        Ok(config) => {
            let policies = Policies { origin: source.origin.clone(), loaded_at: now, ..config.policies };
            Ok(Config { policies, files, warnings, ..config })
        }
        Err(faults) => Err(faults.read_from(files)),
    }
}

/// The configuration of a node without a file: `tollgate.example.yaml`.
///
/// # Errors
/// When an override is wrong.
pub fn built_in(overrides: &Overrides, now: Micros) -> Result<Config, Faults> {
    load(&Source::built_in(), overrides, now)
}

fn resolve(node: &Node, overrides: &Overrides, files: &mut Files, faults: &mut Faults) -> Option<Config> {
    let root = Section::open(node, &settings::root::SHAPE, faults)?;
    let access = auth(&root, files, faults);
    let addresses = listen(&root, access.as_ref(), overrides, faults);
    let resp = resp(&root, access.as_ref(), faults);
    let tls = tls(&root, files, faults);
    let store = store(&root, &overrides.store, files, faults);
    let prefilter = prefilter(&root, faults);
    let expected_nodes = expected_nodes(&root, faults);
    let shutdown = shutdown(&root, faults);
    let telemetry = telemetry(&root, faults);
    let timeout = store.as_ref().map_or(Duration::ZERO, |store| store.timeout);
    let policies = policies(&root, (timeout, expected_nodes), resp.is_some_and(|resp| resp.is_some()), faults);
    let context = Context { access: access.as_ref(), known: names(&root) };
    let envoy = envoy(&root, &context, files, faults);
    let (envoy, of_envoy) = envoy.map_or((None, None), |envoy| {
        let (config, policies) = envoy.unzip();
        (Some(config), policies)
    });
    let policies = policies.map(|policies| with_limits(policies, of_envoy.unwrap_or_default()));
    let limits = limits(&root, policies.as_ref(), faults);
    let gates = gates(&root, policies.as_ref(), faults);
    let dashboard_nodes = dashboard(&root, faults);
    let (listen, admin_listen) = addresses?;
    let Stores { config: store, max_keys, .. } = store?;
    Some(Config {
        listen,
        admin_listen,
        resp: resp?,
        store,
        max_keys,
        prefilter: prefilter?,
        expected_nodes: expected_nodes?,
        shutdown: shutdown?,
        telemetry: telemetry?,
        tls: tls?,
        limits: limits?,
        envoy: envoy?,
        access: access?,
        policies: policies?,
        gates: Arc::new(gates?),
        dashboard_nodes: Arc::new(dashboard_nodes?),
        files: Vec::new(),
        warnings: Vec::new(),
    })
}

fn prefilter(root: &Section<'_>, faults: &mut Faults) -> Option<PrefilterConfig> {
    use settings::prefilter::{MAX_DENIAL, MAX_KEYS, SHAPE};
    let section = root.section("prefilter", &SHAPE, faults)?;
    let (max_keys, max_denial) = (section.read(&MAX_KEYS, faults), section.read(&MAX_DENIAL, faults));
    Some(PrefilterConfig { max_keys: max_keys?, max_denial: max_denial? })
}

fn expected_nodes(root: &Section<'_>, faults: &mut Faults) -> Option<NonZeroU64> {
    use settings::fallback::{EXPECTED_NODES, SHAPE};
    let section = root.section("fallback", &SHAPE, faults)?;
    NonZeroU64::new(section.read(&EXPECTED_NODES, faults)?)
}

fn shutdown(root: &Section<'_>, faults: &mut Faults) -> Option<Shutdown> {
    use settings::shutdown::{DELAY, SHAPE, TIMEOUT};
    let section = root.section("shutdown", &SHAPE, faults)?;
    let (delay, timeout) = (section.read(&DELAY, faults), section.read(&TIMEOUT, faults));
    Some(Shutdown { delay: delay?, timeout: timeout? })
}

fn telemetry(root: &Section<'_>, faults: &mut Faults) -> Option<TelemetryConfig> {
    use settings::telemetry::{KEEP_DENIALS, RECORD_KEYS, SHAPE, TRACE_URL};
    let section = root.section("telemetry", &SHAPE, faults)?;
    let (record_keys, keep_denials) = (section.read(&RECORD_KEYS, faults), section.read(&KEEP_DENIALS, faults));
    let trace_url = section.or(TRACE_URL.name, None, |node| trace_url(node, faults).map(Some));
    Some(TelemetryConfig { record_keys: record_keys?, keep_denials: keep_denials?, trace_url: trace_url? })
}

/// A browser opens it, so other schemes are faults.
fn trace_url(node: &Node, faults: &mut Faults) -> Option<String> {
    const WORDS: &str = "a URL with `{trace_id}`, such as `http://127.0.0.1:16686/trace/{trace_id}`";
    let text = node.text(WORDS, faults)?;
    let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_plain = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '<' | '>' | '\\' | '`');
    let is_url = rest.is_some_and(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        !authority.is_empty() && !authority.contains(TRACE_ID) && rest.matches(TRACE_ID).count() == 1
    });
    if is_url && text.chars().all(is_plain) { Some(text.to_owned()) } else { node.refuse(WORDS, faults) }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS.kind.default(),
            request_timeout: REQUEST_TIMEOUT.kind.default(),
            idle_timeout: IDLE_TIMEOUT.kind.default(),
        }
    }
}

/// The default `request_timeout`: long enough for the policies.
pub(super) fn default_request_timeout(policies: &Policies) -> Duration {
    REQUEST_TIMEOUT.kind.default().max(least_request_timeout(policies.longest_timeout()))
}

fn limits(root: &Section<'_>, policies: Option<&Policies>, faults: &mut Faults) -> Option<Limits> {
    let section = root.section("limits", &settings::limits::SHAPE, faults)?;
    let (max_connections, idle) = (section.read(&MAX_CONNECTIONS, faults), section.read(&IDLE_TIMEOUT, faults));
    let default = policies.map_or(REQUEST_TIMEOUT.kind.default(), default_request_timeout);
    let request = section.read_or(&REQUEST_TIMEOUT, default, faults);
    let least = policies.map_or(Duration::ZERO, |policies| least_request_timeout(policies.longest_timeout()));
    if let (Some(node), Some(request)) = (section.member("request_timeout"), request)
        && request < least
    {
        let sentence = "`request_timeout` must be at least six times the longest `timeout` of a policy, or calls that wait \
                        for the store are cut off";
        faults.note(node.place, sentence);
    }
    Some(Limits { max_connections: max_connections?, request_timeout: request?, idle_timeout: idle? })
}

/// The names of the policies as written, also of faulty ones.
fn names(root: &Section<'_>) -> BTreeSet<String> {
    match root.member("policies").map(|node| &node.value) {
        Some(Value::Mapping(members)) => members.iter().map(|member| member.key.clone()).collect(),
        _ => BTreeSet::new(),
    }
}

/// The policies, with those that count Envoy's limits.
fn with_limits(mut policies: Policies, limits: BTreeMap<String, Arc<Policy>>) -> Policies {
    policies.by_name.extend(limits);
    Policies { version: version::version(&policies.by_name), ..policies }
}

/// The policies, still without their origin and time. `with_throttle`: Redis clients need theirs.
fn policies(
    root: &Section<'_>,
    (timeout, nodes): (Duration, Option<NonZeroU64>),
    with_throttle: bool,
    faults: &mut Faults,
) -> Option<Policies> {
    let nodes = nodes.unwrap_or(NonZeroU64::MIN);
    let sentence = "`policies` is missing: write at least `policies: {default: {quotas: [1000 per 1s]}}`";
    let node = root.required("policies", sentence, faults)?;
    let Value::Mapping(members) = &node.value else {
        node.must_be("a mapping such as `{default: {quotas: [1000 per 1s]}}`", faults);
        return None;
    };
    if members.is_empty() {
        faults.note(node.place, "`policies` is empty: write at least `{default: {quotas: [1000 per 1s]}}`");
    }
    let read: Vec<Option<Policy>> = members.iter().map(|member| policy(member, (timeout, nodes), faults)).collect();
    let read: Option<Vec<Policy>> = read.into_iter().collect();
    let mut read = counter::with_shared_life(members, read?, faults);
    if with_throttle {
        match read.iter().zip(members).find(|(policy, _)| policy.name == THROTTLE) {
            Some((policy, member)) => refuse_unfit(member, policy, faults),
            None => read.extend(throttle(timeout)),
        }
    }
    let by_name: BTreeMap<_, _> = read.into_iter().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    Some(Policies { version: version::version(&by_name), by_name, origin: String::new(), loaded_at: 0 })
}
