//! Resolves the tree as written into the configuration, and notes every fault.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::policy::Policy;
use crate::limit::time::{MICROS_PER_SECOND, Micros};

use super::fault::Faults;
use super::files::Files;
use super::policy::policy;
use super::raw::{Node, Value};
use super::section::{Section, Shape};
use super::source::{Overrides, Source};
use super::store::{Stores, store};
use super::{Config, Policies, PrefilterConfig, Shutdown, TelemetryConfig, reader, version};
use super::{auth::auth, limits::limits, listen::listen, tls::tls};

const ROOT: Shape = Shape {
    example: "policies: {default: {quotas: [1000 per 1s]}}",
    known: &[
        "listen",
        "admin_listen",
        "store",
        "prefilter",
        "fallback",
        "auth",
        "tls",
        "limits",
        "shutdown",
        "telemetry",
        "policies",
    ],
    checked: &[],
};

const PREFILTER: Shape = Shape { example: "{max_keys: 1000000}", known: &["max_keys", "max_denial"], checked: &[] };

const FALLBACK: Shape = Shape { example: "{expected_nodes: 2}", known: &["expected_nodes"], checked: &[] };

const SHUTDOWN: Shape = Shape { example: "{timeout: 30s}", known: &["delay", "timeout"], checked: &[] };

const TELEMETRY: Shape =
    Shape { example: "{keep_denials: 0.1}", known: &["record_keys", "keep_denials"], checked: &[] };

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
    let root = Section::open(node, &ROOT, faults)?;
    let access = auth(&root, files, faults);
    let addresses = listen(&root, access.as_ref(), overrides, faults);
    let tls = tls(&root, files, faults);
    let store = store(&root, &overrides.store, files, faults);
    let prefilter = prefilter(&root, faults);
    let expected_nodes = expected_nodes(&root, faults);
    let shutdown = shutdown(&root, faults);
    let telemetry = telemetry(&root, faults);
    let timeout = store.as_ref().map_or(Duration::ZERO, |store| store.timeout);
    let policies = policies(&root, timeout, faults);
    let limits = limits(&root, policies.as_ref(), faults);
    let (listen, admin_listen) = addresses?;
    let Stores { config: store, max_keys, .. } = store?;
    Some(Config {
        listen,
        admin_listen,
        store,
        max_keys,
        prefilter: prefilter?,
        expected_nodes: expected_nodes?,
        shutdown: shutdown?,
        telemetry: telemetry?,
        tls: tls?,
        limits: limits?,
        access: access?,
        policies: policies?,
        files: Vec::new(),
        warnings: Vec::new(),
    })
}

fn prefilter(root: &Section<'_>, faults: &mut Faults) -> Option<PrefilterConfig> {
    let defaults = PrefilterConfig { max_keys: 1_000_000, max_denial: Duration::from_secs(60) };
    let Some(node) = root.member("prefilter") else { return Some(defaults) };
    let section = Section::open(node, &PREFILTER, faults)?;
    let max_keys = section.or("max_keys", defaults.max_keys, |node| node.integer(1..=100_000_000, faults));
    let range = 1_000..=86_400 * MICROS_PER_SECOND;
    let max_denial = section.or("max_denial", defaults.max_denial, |node| node.duration(range, faults));
    Some(PrefilterConfig { max_keys: max_keys?, max_denial: max_denial? })
}

fn expected_nodes(root: &Section<'_>, faults: &mut Faults) -> Option<NonZeroU64> {
    let Some(node) = root.member("fallback") else { return Some(NonZeroU64::MIN) };
    let section = Section::open(node, &FALLBACK, faults)?;
    section.or("expected_nodes", NonZeroU64::MIN, |node| NonZeroU64::new(node.integer(1..=10_000, faults)?))
}

fn shutdown(root: &Section<'_>, faults: &mut Faults) -> Option<Shutdown> {
    let defaults = Shutdown { delay: Duration::ZERO, timeout: Duration::from_secs(30) };
    let Some(node) = root.member("shutdown") else { return Some(defaults) };
    let section = Section::open(node, &SHUTDOWN, faults)?;
    let mut span = |key, default| section.or(key, default, |node| node.duration(0..=3_600 * MICROS_PER_SECOND, faults));
    let (delay, timeout) = (span("delay", defaults.delay), span("timeout", defaults.timeout));
    Some(Shutdown { delay: delay?, timeout: timeout? })
}

fn telemetry(root: &Section<'_>, faults: &mut Faults) -> Option<TelemetryConfig> {
    let defaults = TelemetryConfig::default();
    let Some(node) = root.member("telemetry") else { return Some(defaults) };
    let section = Section::open(node, &TELEMETRY, faults)?;
    let record_keys = section.or("record_keys", defaults.record_keys, |node| node.boolean(faults));
    let keep_denials = section.or("keep_denials", defaults.keep_denials, |node| node.ratio(faults));
    Some(TelemetryConfig { record_keys: record_keys?, keep_denials: keep_denials? })
}

/// The policies, still without their origin and time.
fn policies(root: &Section<'_>, timeout: Duration, faults: &mut Faults) -> Option<Policies> {
    let sentence = "`policies` is missing: write at least `policies: {default: {quotas: [1000 per 1s]}}`";
    let node = root.required("policies", sentence, faults)?;
    let Value::Mapping(members) = &node.value else {
        node.must_be("a mapping such as `{default: {quotas: [1000 per 1s]}}`", faults);
        return None;
    };
    if members.is_empty() {
        faults.note(node.place, "`policies` is empty: write at least `{default: {quotas: [1000 per 1s]}}`");
    }
    let read: Vec<Option<Policy>> = members.iter().map(|member| policy(member, timeout, faults)).collect();
    let read: Option<Vec<Policy>> = read.into_iter().collect();
    let by_name: BTreeMap<_, _> = read?.into_iter().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    Some(Policies { version: version::version(&by_name), by_name, origin: String::new(), loaded_at: 0 })
}
