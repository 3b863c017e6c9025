//! The settings that a reload changes, all at once, and those that only a restart changes.

use std::sync::Arc;

use super::fault::Faults;
use super::listen::is_beyond_loopback;
use super::resolve::default_request_timeout;
use super::resp::THROTTLE;
use super::settings::root;
use super::{Config, EnvoyConfig, EnvoyRules, Gates, Limits, Policies, ServerTls};
use crate::access::{Access, Scope};
use crate::timeouts::least_request_timeout;

/// The configuration in force. Every reader sees the parts of one reload.
#[derive(Debug, Clone, Default)]
pub struct Running {
    pub policies: Arc<Policies>,
    pub gates: Arc<Gates>,
    /// The origins of the nodes that the dashboard compares.
    pub dashboard_nodes: Arc<Vec<String>>,
    pub access: Access,
    /// The TLS settings of new connections, or `None` for plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// Envoy's rate limit service.
    pub envoy: Option<RunningEnvoy>,
}

/// The parts of Envoy's rate limit service that a reload changes.
#[derive(Debug, Clone)]
pub struct RunningEnvoy {
    pub rules: Arc<EnvoyRules>,
    /// Whether a control plane sends the rules.
    has_control_plane: bool,
    pub tls: Option<Arc<ServerTls>>,
}

impl From<&EnvoyConfig> for RunningEnvoy {
    fn from(config: &EnvoyConfig) -> Self {
        let has_control_plane = config.xds.is_some();
        Self { rules: config.rules.clone(), has_control_plane, tls: config.tls.clone().map(Arc::new) }
    }
}

impl From<&Config> for Running {
    fn from(config: &Config) -> Self {
        Self {
            policies: Arc::new(config.policies.clone()),
            gates: config.gates.clone(),
            dashboard_nodes: config.dashboard_nodes.clone(),
            access: config.access.clone(),
            tls: config.tls.clone().map(Arc::new),
            envoy: config.envoy.as_ref().map(RunningEnvoy::from),
        }
    }
}

impl From<Policies> for Running {
    /// These policies, for callers without tokens and TLS.
    fn from(policies: Policies) -> Self {
        Self { policies: Arc::new(policies), ..Self::default() }
    }
}

impl Running {
    /// The parts of `config`, which leaves those that wait for a restart as they are here.
    #[must_use]
    pub fn reloaded(&self, config: Config, restart_needed: &[&str]) -> Self {
        let waits = |setting| restart_needed.contains(&setting);
        let mut policies = config.policies;
        if waits(root::RESP.name)
            && let Some(throttle) = self.policies.by_name.get(THROTTLE)
        {
            // The door stays open until the restart, and its commands need their policy.
            policies.by_name.entry(THROTTLE.to_owned()).or_insert_with(|| throttle.clone());
        }
        let is_other_source =
            |next: &EnvoyConfig| self.envoy.as_ref().map(|envoy| envoy.has_control_plane) != Some(next.xds.is_some());
        let keeps_rules = self.envoy.is_some() && config.envoy.as_ref().is_none_or(is_other_source);
        if keeps_rules {
            // The rules go on until the restart, and need the policies of their limits.
            let of_envoy = self.policies.by_name.iter().filter(|(_, policy)| policy.is_of_envoy());
            policies.by_name.extend(of_envoy.map(|(name, policy)| (name.clone(), policy.clone())));
        }
        Self {
            policies: Arc::new(policies),
            gates: config.gates,
            dashboard_nodes: config.dashboard_nodes,
            access: if waits(root::AUTH.name) { self.access.clone() } else { config.access },
            tls: match config.tls {
                Some(tls) if !waits(root::TLS.name) => Some(Arc::new(tls)),
                _ => self.tls.clone(),
            },
            envoy: match (&self.envoy, config.envoy) {
                (Some(before), Some(next)) => Some(RunningEnvoy {
                    rules: if keeps_rules { before.rules.clone() } else { next.rules },
                    has_control_plane: before.has_control_plane,
                    tls: match next.tls {
                        Some(tls) if asks_clients(Some(&tls)) == asks_clients(before.tls.as_deref()) => {
                            Some(Arc::new(tls))
                        }
                        _ => before.tls.clone(),
                    },
                }),
                _ => self.envoy.clone(),
            },
        }
    }

    /// The settings besides the policies that differ from `before`.
    pub fn changed_settings(&self, before: &Self) -> Vec<&'static str> {
        let changed = [
            (root::AUTH.name, before.access != self.access),
            (root::TLS.name, before.tls != self.tls),
            (root::GATES.name, before.gates != self.gates),
            (root::DASHBOARD.name, before.dashboard_nodes != self.dashboard_nodes),
        ];
        changed.into_iter().filter(|(_, is_changed)| *is_changed).map(|(name, _)| name).collect()
    }
}

/// Whether a listener asks for client certificates; none without TLS.
fn asks_clients(tls: Option<&ServerTls>) -> Option<bool> {
    tls.map(ServerTls::asks_clients)
}

impl Config {
    /// Returns the configuration if a node that runs with `running` can apply it.
    ///
    /// # Errors
    /// When calls that wait for the store would be cut off. Only a restart changes the longest
    /// duration of a call.
    pub fn fits(self, running: &Self) -> Result<Self, Faults> {
        let (least, given) = (least_request_timeout(self.policies.longest_timeout()), running.limits.request_timeout);
        if least <= given {
            return Ok(self);
        }
        let sentence = format!(
            "with the longest `timeout` of a policy calls may take {least:?}, and this node cuts them off after {given:?}: \
             restart it, since no reload changes `limits`"
        );
        Err(Faults::of_source(&self.policies.origin, sentence).read_from(self.files))
    }

    /// The top-level settings that differ from `running` and that no reload applies.
    pub fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let Self {
            listen,
            admin_listen,
            metrics_listen,
            resp,
            store,
            max_keys,
            prefilter,
            expected_nodes,
            shutdown,
            telemetry,
            limits,
            tls,
            envoy,
            overrides_file,
            access: _,
            policies: _,
            gates: _,
            dashboard_nodes: _,
            files: _,
            warnings: _,
        } = self;
        let asks = |tls: &Option<ServerTls>| asks_clients(tls.as_ref());
        let fixed_of_envoy = |envoy: &Option<EnvoyConfig>| {
            let fixed = |envoy: &EnvoyConfig| {
                let EnvoyConfig { listen, connection_age, http_listen, xds, tls, rules: _ } = envoy;
                (*listen, *connection_age, *http_listen, xds.clone(), asks(tls))
            };
            envoy.as_ref().map(fixed)
        };
        let settings = [
            (root::LISTEN.name, *listen != running.listen),
            (root::ADMIN_LISTEN.name, *admin_listen != running.admin_listen),
            (root::METRICS_LISTEN.name, *metrics_listen != running.metrics_listen),
            (root::RESP.name, *resp != running.resp),
            (root::AUTH.name, self.locks_out(running)),
            // No mistake in a file may turn off TLS, or client certificates, on a running node.
            (root::TLS.name, asks(tls) != asks(&running.tls)),
            (root::STORE.name, *store != running.store || *max_keys != running.max_keys),
            (root::PREFILTER.name, *prefilter != running.prefilter),
            (root::FALLBACK.name, *expected_nodes != running.expected_nodes),
            (root::LIMITS.name, *limits != running.limits && !self.limits_follow(running)),
            (root::ENVOY.name, fixed_of_envoy(envoy) != fixed_of_envoy(&running.envoy)),
            (root::OVERRIDES.name, *overrides_file != running.overrides_file),
            (root::SHUTDOWN.name, *shutdown != running.shutdown),
            (root::TELEMETRY.name, *telemetry != running.telemetry),
        ];
        settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Whether the limits differ only by defaults that the policies imply.
    fn limits_follow(&self, running: &Self) -> bool {
        let follows = |config: &Self| config.limits.request_timeout == default_request_timeout(&config.policies);
        let as_running = Limits { request_timeout: running.limits.request_timeout, ..self.limits };
        as_running == running.limits && follows(self) && follows(running)
    }

    /// Whether other machines can reach an address for checks.
    pub fn is_public(&self) -> bool {
        is_beyond_loopback(self.listen) || self.resp.is_some_and(|resp| is_beyond_loopback(resp.listen))
    }

    /// Whether its tokens would lock all clients out where `running` listens. A configuration that
    /// listens on loopback needs no tokens.
    fn locks_out(&self, running: &Self) -> bool {
        let access = &self.access;
        let needs_token = |envoy: &EnvoyConfig| {
            is_beyond_loopback(envoy.listen) && !envoy.tls.as_ref().is_some_and(ServerTls::asks_clients)
        };
        let needs_tokens = running.is_public() || running.envoy.as_ref().is_some_and(needs_token);
        needs_tokens && !access.lists(Scope::Check) && !access.allow_anonymous
            || running.admin_listen.is_some_and(is_beyond_loopback) && !access.has_operators()
    }
}
