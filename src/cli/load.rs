//! From a file, or from nothing, to a configuration.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::unix_micros;
use crate::config::{Config, Policies, PrefilterConfig, Shutdown, StoreConfig};
use crate::limit::key::KeyType;
use crate::limit::policy::{Algorithm, OnStoreFailure, Policy};
use crate::limit::quota::{Quota, span_text};

/// Reads `file`, or the built-in policies without one.
///
/// # Errors
/// Every fault of the file, one a line.
pub(super) fn config(file: Option<&Path>) -> Result<Config, String> {
    match file {
        Some(file) => Err(format!("{}: configuration files are not supported yet", file.display())),
        None => Ok(built_in()),
    }
}

fn built_in() -> Config {
    let policies = [policy("default", &[(1000, 1), (5000, 10), (7000, 15)]), policy("five-per-minute", &[(5, 60)])];
    let version = blake3::hash(format!("{policies:?}").as_bytes()).to_hex();
    Config {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7070)),
        admin_listen: None,
        store: StoreConfig::Embedded,
        prefilter: PrefilterConfig { max_keys: 1_000_000, max_denial: Duration::from_secs(60) },
        expected_nodes: NonZeroU64::MIN,
        shutdown: Shutdown { delay: Duration::ZERO, timeout: Duration::from_secs(30) },
        policies: Policies {
            by_name: BTreeMap::from(policies.map(|policy| (policy.name.clone(), Arc::new(policy)))),
            version: version[..16].into(),
            origin: "built-in".into(),
            loaded_at: unix_micros(),
        },
    }
}

/// Quotas as (units, seconds).
fn policy(name: &str, quotas: &[(u64, u64)]) -> Policy {
    let quota = |&(limit, seconds): &(u64, u64)| {
        let window = seconds * 1_000_000;
        Quota { name: span_text(window), limit: NonZeroU64::new(limit).unwrap_or(NonZeroU64::MIN), window }
    };
    Policy {
        name: name.into(),
        algorithm: Algorithm::SlidingWindow,
        quotas: quotas.iter().map(quota).collect(),
        key_type: KeyType::Text,
        on_store_failure: OnStoreFailure::Local,
        timeout: Duration::from_millis(100),
    }
}
