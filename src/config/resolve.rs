//! Resolves the tree as written into the configuration, and notes every fault.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::policy::Policy;
use crate::limit::time::Micros;

use super::counter;
use super::fault::Faults;
use super::files::Files;
use super::policy::policy;
use super::raw::{Node, Value};
use super::section::Section;
use super::source::{Overrides, Source};
use super::store::{Stores, store};
use super::{Config, Policies, PrefilterConfig, Shutdown, TelemetryConfig, reader, settings, version};
use super::{auth::auth, limits::limits, listen::listen, tls::tls};

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
    use settings::telemetry::{KEEP_DENIALS, RECORD_KEYS, SHAPE};
    let section = root.section("telemetry", &SHAPE, faults)?;
    let (record_keys, keep_denials) = (section.read(&RECORD_KEYS, faults), section.read(&KEEP_DENIALS, faults));
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
    let read = counter::with_shared_life(members, read?, faults);
    let by_name: BTreeMap<_, _> = read.into_iter().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
    Some(Policies { version: version::version(&by_name), by_name, origin: String::new(), loaded_at: 0 })
}
