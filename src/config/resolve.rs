//! Loads a configuration: resolves the tree as written, and notes every fault.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::policy::Policy;
use crate::limit::time::Micros;

use super::counter;
use super::dashboard::dashboard;
use super::envoy::{RuleSet, envoy};
use super::fault::{Faults, Reading};
use super::files::Files;
use super::gates::{Known, gates};
use super::node::Node;
use super::plans::add_plans;
use super::policy::{Defaults, policy};
use super::resp::{THROTTLE, refuse_unfit, throttle};
use super::section::Section;
use super::setting::Values;
use super::settings::limits::{IDLE_TIMEOUT, MAX_CONNECTIONS, REQUEST_TIMEOUT};
use super::source::{Overrides, Source, is_standard_input};
use super::store::{Stores, store};
use super::watched::{Watched, is_other};
use super::{
    Config, Limits, Policies, PrefilterConfig, Shutdown, StoreConfig, TRACE_ID, TelemetryConfig, reader, settings,
    version,
};
use super::{auth::auth, listen::listen, listen::metrics_listen, resp::resp, tls::tls};
use crate::timeouts::least_request_timeout;

/// The file and the command line's overrides.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// None: the text, or the built-in example.
    pub file: Option<PathBuf>,
    /// The text in place of a file, or of a file that cannot be read again.
    pub text: Option<Source>,
    pub overrides: Overrides,
}

impl Setup {
    /// Loads the configuration; `now` is in us since the Unix epoch.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn load(&self, now: Micros) -> Result<Config, Faults> {
        match (&self.text, &self.file) {
            (Some(text), _) => load(text, &self.overrides, now),
            (None, Some(file)) => load(&Source::read(file)?, &self.overrides, now),
            (None, None) => built_in(&self.overrides, now),
        }
    }

    /// Keeps the text of a pipe, which the rules of a control plane are loaded beside.
    ///
    /// # Errors
    /// When it cannot be read or is not UTF-8.
    pub fn with_text(self) -> Result<Self, Faults> {
        let text = match self.file.as_deref().filter(|path| !is_lasting(path)) {
            Some(pipe) => Some(Source::read(pipe)?),
            None => self.text,
        };
        Ok(Self { text, ..self })
    }

    /// The same with other rules of a control plane.
    #[must_use]
    pub fn with_rules(&self, rules: Option<Arc<RuleSet>>) -> Self {
        Self { overrides: Overrides { rules, ..self.overrides.clone() }, ..self.clone() }
    }

    /// Like [`Setup::load`], for a running node: it never waits for a writer of a pipe.
    ///
    /// # Errors
    /// As [`Setup::load`].
    pub fn load_again(&self, now: Micros) -> Result<Config, Faults> {
        match self.file.as_deref().filter(|path| self.text.is_none() && !is_lasting(path)) {
            None => self.load(now),
            Some(path) => {
                let faults = Faults::of_source(&path.display().to_string(), "it is no file");
                Err(faults.read_from(vec![Watched::look(path)]))
            }
        }
    }

    /// Whether the file can be read again: a pipe, such as `/dev/stdin`, is read only once.
    pub fn is_lasting(&self) -> bool {
        self.file.as_deref().map_or(self.text.is_some(), is_lasting)
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
    let reading = Rc::new(Reading::beside(Files::beside(source)));
    let root = reader::read(&source.text, &reading);
    let config = root.and_then(|root| resolve(&root.section(&settings::root::SHAPE), overrides));
    let (files, warnings) = reading.files.borrow_mut().watched();
    match reading.conclude(&source.origin, config) {
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

fn resolve(root: &Section<'_>, overrides: &Overrides) -> Option<Config> {
    let reading = &root.node.reading;
    // Also those of faulty policies.
    let names: Vec<&str> =
        root.member("policies").map_or(&[][..], Node::members).iter().map(|member| &*member.key).collect();
    let throttle = root.member("resp").map(|_| THROTTLE);
    let of_tokens: Vec<&str> = names.iter().copied().chain(throttle).collect();
    let access = reading.checked(|| auth(root, &of_tokens));
    let (listen, admin_listen) = listen(root, access.as_ref(), overrides);
    let resp = resp(root, access.as_ref());
    let tls = root.member("tls").and_then(tls);
    let store = store(root, &overrides.store);
    let expected_nodes = expected_nodes(root);
    let defaults = Defaults {
        timeout: store.as_ref().map_or(Duration::ZERO, |store| store.timeout),
        nodes: expected_nodes.unwrap_or(NonZeroU64::MIN),
    };
    let policies = policies(root, defaults, resp.is_some());
    let received = overrides.rules.as_deref();
    let (envoy, of_envoy) = envoy(root, access.as_ref(), &names, received).unzip();
    let policies = policies.map(|policies| with_limits(policies, of_envoy.unwrap_or_default()));
    let limits = limits(root, policies.as_ref());
    let gates = gates(root, &Known { names: &names, policies: policies.as_ref() });
    let overrides_file = overrides_file(root, store.as_ref());
    Some(Config {
        listen,
        admin_listen,
        metrics_listen: metrics_listen(root),
        resp,
        tls,
        prefilter: prefilter(root),
        expected_nodes: expected_nodes?,
        shutdown: shutdown(root),
        telemetry: telemetry(root),
        limits,
        envoy,
        gates: Arc::new(gates),
        dashboard_nodes: Arc::new(dashboard(root)),
        overrides_file,
        access: access?,
        policies: policies?,
        max_keys: store.as_ref()?.max_keys,
        store: store?.config,
        files: Vec::new(),
        warnings: Vec::new(),
    })
}

fn prefilter(root: &Section<'_>) -> PrefilterConfig {
    use settings::prefilter::{MAX_DENIAL, MAX_KEYS, SHAPE};
    let section = root.section("prefilter", &SHAPE);
    PrefilterConfig { max_keys: section.read(&MAX_KEYS), max_denial: section.read(&MAX_DENIAL) }
}

fn expected_nodes(root: &Section<'_>) -> Option<NonZeroU64> {
    use settings::fallback::{EXPECTED_NODES, SHAPE};
    NonZeroU64::new(root.section("fallback", &SHAPE).read(&EXPECTED_NODES))
}

fn overrides_file(root: &Section<'_>, stores: Option<&Stores>) -> Option<PathBuf> {
    use settings::overrides::{FILE, SHAPE};
    let section = root.section("overrides", &SHAPE);
    let node = section.member(FILE.name)?;
    if stores.is_some_and(|stores| stores.config != StoreConfig::Embedded) {
        node.note("`file` is for the embedded store: Redis keeps the overrides beside the counts, so leave it out");
    }
    node.path("a file such as `overrides.jsonl`")
}

fn shutdown(root: &Section<'_>) -> Shutdown {
    use settings::shutdown::{DELAY, SHAPE, TIMEOUT};
    let section = root.section("shutdown", &SHAPE);
    Shutdown { delay: section.read(&DELAY), timeout: section.read(&TIMEOUT) }
}

fn telemetry(root: &Section<'_>) -> TelemetryConfig {
    use settings::telemetry::{KEEP_DENIALS, RECORD_KEYS, SHAPE, TRACE_URL};
    let section = root.section("telemetry", &SHAPE);
    TelemetryConfig {
        record_keys: section.read(&RECORD_KEYS),
        keep_denials: section.read(&KEEP_DENIALS),
        trace_url: section.member(TRACE_URL.name).and_then(trace_url),
    }
}

/// A browser opens it, so other schemes are faults.
fn trace_url(node: &Node) -> Option<String> {
    const WORDS: &str = "a URL with `{trace_id}`, such as `http://127.0.0.1:16686/trace/{trace_id}`";
    node.parsed(WORDS, |text| {
        let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme))?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let is_plain = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '<' | '>' | '\\' | '`');
        let is_url = !authority.is_empty() && !authority.contains(TRACE_ID) && rest.matches(TRACE_ID).count() == 1;
        (is_url && text.chars().all(is_plain)).then(|| text.to_owned())
    })
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

fn limits(root: &Section<'_>, policies: Option<&Policies>) -> Limits {
    let section = root.section("limits", &settings::limits::SHAPE);
    let default = policies.map_or(REQUEST_TIMEOUT.kind.default(), default_request_timeout);
    let request_timeout = section.read_or(&REQUEST_TIMEOUT, default);
    let least = policies.map_or(Duration::ZERO, |policies| least_request_timeout(policies.longest_timeout()));
    if let Some(node) = section.member("request_timeout").filter(|_| request_timeout < least) {
        node.note(
            "`request_timeout` must be at least six times the longest `timeout` of a policy, or calls that wait \
             for the store are cut off",
        );
    }
    let (max_connections, idle_timeout) = (section.read(&MAX_CONNECTIONS), section.read(&IDLE_TIMEOUT));
    Limits { max_connections, request_timeout, idle_timeout }
}

/// The policies, with those that count Envoy's limits.
fn with_limits(mut policies: Policies, limits: BTreeMap<String, Arc<Policy>>) -> Policies {
    policies.by_name.extend(limits);
    Policies { version: version::version(&policies.by_name), ..policies }
}

/// The policies, still without their origin and time; none after a fault in one. `with_throttle`:
/// Redis clients need theirs.
fn policies(root: &Section<'_>, defaults: Defaults, with_throttle: bool) -> Option<Policies> {
    let sentence = "`policies` is missing: write at least `policies: {default: {quotas: [1000 per 1s]}}`";
    let only_envoy = root.member("policies").is_none() && root.member("envoy").is_some();
    let node = if only_envoy { None } else { Some(root.required("policies", sentence)?) };
    let members = node.map_or(Some(&[][..]), |node| node.mapping("{default: {quotas: [1000 per 1s]}}"))?;
    if let Some(node) = node.filter(|_| members.is_empty()) {
        node.note("`policies` is empty: write at least `{default: {quotas: [1000 per 1s]}}`");
    }
    let read: Vec<Policy> = members.iter().filter_map(|member| policy(member, defaults)).collect();
    if read.len() < members.len() {
        return None;
    }
    let mut read = counter::with_shared_life(members, read);
    let placeless_plans = add_plans(root, &mut read);
    if with_throttle {
        match read.iter().zip(members).find(|(policy, _)| policy.name == THROTTLE) {
            Some((policy, member)) => refuse_unfit(member, policy),
            None => read.extend(throttle(defaults.timeout)),
        }
    }
    let by_name: BTreeMap<_, _> = read.into_iter().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    Some(Policies { version: version::version(&by_name), by_name, placeless_plans, ..Policies::default() })
}
