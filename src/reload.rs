//! Reloads the configuration while the node runs.
//!
//! A file with faults changes nothing: the running policies stay. The log, the caller's response
//! and `GET /v1/policies` report the faults. A valid file takes effect as a whole, between two
//! checks. Settings that need a restart (addresses, the store, ...) are compared with those of the
//! start and reported.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::Mutex;

use crate::clock::unix_micros;
use crate::config::{
    Config, Fault, Faults, Limits, RuleSet, Running, ServerTls, Setup, TelemetryConfig, Watched, XdsConfig,
    is_standard_input,
};
use crate::engine::{Changes, Engine, Kind, Note};
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::telemetry::instrument::Count;
use crate::telemetry::limiter::Limiter;

mod watch;

/// The log warns of a certificate's end this long before it, us. Timely renewals happen earlier.
const ENDS_SOON: Micros = 3 * 86_400 * MICROS_PER_SECOND;

/// The reason of a reload by a control plane, for the log.
const RECEIVED: &str = "the control plane has sent rules";

/// Log lines about accepted sets of a control plane, and about rejected ones, in ten seconds.
const LINES: u64 = 10;

/// The author of reloads that no call asks for, in the audit.
pub const ON_NODE: &str = "the machine of the node";

/// Reloads the configuration on request. One per node.
#[derive(Debug)]
pub struct Reloader {
    setup: Setup,
    /// Whether there is a file that can be read again.
    lasting: bool,
    engine: Arc<Engine>,
    /// The configuration of the start.
    started: Config,
    /// Locked while the file is read and put into force, so an older reading never replaces a newer
    /// one.
    reloading: Mutex<()>,
    /// The files as they were before the last reading. They belong to the configuration in force,
    /// and to a faulty one since. The entry of an unreadable file differs from the file on the
    /// disk.
    watched: ArcSwap<Vec<Watched>>,
    last: ArcSwap<LastReload>,
    /// The warnings of the last load.
    warnings: ArcSwap<Vec<String>>,
    /// The rules of a control plane that are in force.
    received: ArcSwapOption<RuleSet>,
    loads: Loads,
    /// Limit the log lines about the sets of a control plane.
    acceptances: Limiter,
    refusals: Limiter,
}

/// How often a configuration was loaded, and how often it had faults.
#[derive(Debug, Default)]
pub struct Loads {
    pub successes: Count,
    pub errors: Count,
}

/// The result of the last reload, where the start counts as the first. Instants are in us since the
/// Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReload {
    /// The instant of the last attempt.
    pub tried_at: Micros,
    /// The instant at which the configuration in force was loaded.
    pub succeeded_at: Micros,
    /// The faults that kept the running policies; empty after a success.
    pub faults: Vec<Fault>,
    /// Changed settings that wait for a restart.
    pub restart_needed: Vec<&'static str>,
}

impl LastReload {
    fn success(at: Micros, restart_needed: Vec<&'static str>) -> Self {
        Self { tried_at: at, succeeded_at: at, faults: Vec::new(), restart_needed }
    }

    pub fn successful(&self) -> bool {
        self.faults.is_empty()
    }
}

/// The result of a successful reload.
#[derive(Debug, Clone)]
pub struct Reloaded {
    pub changes: Changes,
    /// Settings besides the policies that have changed and are in force.
    pub settings: Vec<&'static str>,
    /// Changed settings that wait for a restart.
    pub restart_needed: Vec<&'static str>,
}

/// The reason why a reload changed nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReloadError {
    #[error("{0}: start the node with `tollgate serve FILE` to have something to load again")]
    NoFile(&'static str),
    #[error("{0}")]
    Faults(Faults),
}

impl Reloader {
    /// A reloader for a node that read `started` from `setup` and decides by `engine`.
    pub fn new(setup: Setup, started: Config, engine: Arc<Engine>) -> Self {
        let at = started.policies.loaded_at;
        warn_of_end(started.tls.as_ref(), at);
        warn_of_files(&started.warnings);
        started
            .access
            .warnings()
            .chain(started.gates.warnings())
            .for_each(|warning| tracing::warn!("{warning}"));
        if started.access.allow_anonymous && started.is_public() {
            tracing::warn!(
                "`auth.allow_anonymous`: everyone who reaches this node may check, refund and read what counts"
            );
        }
        let loads = Loads::default();
        // Without the rules of its control plane a configuration is no success yet.
        if started.envoy.as_ref().is_none_or(|envoy| envoy.xds.is_none()) {
            loads.successes.add(1);
        }
        Self {
            lasting: setup.is_lasting(),
            setup,
            engine,
            reloading: Mutex::new(()),
            watched: ArcSwap::from_pointee(started.files.clone()),
            last: ArcSwap::from_pointee(LastReload::success(at, Vec::new())),
            warnings: ArcSwap::from_pointee(started.warnings.clone()),
            received: ArcSwapOption::empty(),
            loads,
            acceptances: Limiter::of(LINES),
            refusals: Limiter::of(LINES),
            started,
        }
    }

    /// The settings for keys and traces, which no reload changes.
    pub fn telemetry(&self) -> &TelemetryConfig {
        &self.started.telemetry
    }

    /// When the node read its first configuration, us by the wall clock.
    pub fn started_at(&self) -> Micros {
        self.started.policies.loaded_at
    }

    /// The limits for clients, which no reload changes.
    pub fn limits(&self) -> &Limits {
        &self.started.limits
    }

    /// Reloads the configuration; `why` is for the log, and `by` for the audit. The reload continues
    /// if its caller is dropped: another one must not begin while this one may still read.
    ///
    /// # Errors
    /// There is no file, or it has faults. Then nothing has changed.
    pub async fn reload(self: &Arc<Self>, why: &'static str, by: &str) -> Result<Reloaded, ReloadError> {
        let (reloader, note) = (self.clone(), Note::of_node(Kind::Reload, by.to_owned(), why.to_owned()));
        let reloading = tokio::spawn(async move {
            let reloaded = reloader.clone().load_again(why, None).await?;
            reloader.engine.note(note).await;
            Ok(reloaded)
        });
        reloading.await.unwrap_or_else(|error| Err(ReloadError::Faults(unread(&error))))
    }

    /// Puts the rules of a control plane into force, with the rest of the configuration as it is
    /// now. The rules that stay keep their counts.
    ///
    /// # Errors
    /// The rules or the configuration have faults. Then nothing has changed.
    pub async fn receive(self: &Arc<Self>, rules: RuleSet) -> Result<(), ReloadError> {
        if self.received.load().as_deref() == Some(&rules) {
            return Ok(());
        }
        let reloading = tokio::spawn(self.clone().load_again(RECEIVED, Some(Arc::new(rules))));
        reloading.await.unwrap_or_else(|error| Err(ReloadError::Faults(unread(&error)))).map(drop)
    }

    async fn load_again(
        self: Arc<Self>,
        why: &'static str,
        offered: Option<Arc<RuleSet>>,
    ) -> Result<Reloaded, ReloadError> {
        if !self.lasting && offered.is_none() {
            let from = match &self.setup.file {
                None => "the node runs by its built-in policies",
                Some(path) if is_standard_input(path) => {
                    "the configuration was read from standard input, which cannot be read again"
                }
                Some(_) => "the configuration was read from a pipe or device, which cannot be read again",
            };
            tracing::warn!(why, from, "nothing to load again");
            return Err(ReloadError::NoFile(from));
        }
        let _reloading = self.reloading.lock().await;
        let before = self.look_again().await;
        let now = unix_micros();
        let rules = offered.clone().or_else(|| self.received.load_full());
        match self.load(now, rules).await.and_then(|config| config.fits(&self.started)) {
            Ok(config) => {
                self.loads.successes.add(1);
                // Long lists take time to compare and to free.
                let reloader = self.clone();
                let put = tokio::task::spawn_blocking(move || reloader.put_into_force(config, why)).await;
                if put.is_ok() && offered.is_some() {
                    self.received.store(offered);
                }
                put.map_err(|error| ReloadError::Faults(unread(&error)))
            }
            Err(faults) => {
                self.loads.errors.add(1);
                let known = |file: &Watched| !faults.files().iter().any(|read| read.path() == file.path());
                let others = before.into_iter().filter(known);
                self.watched.store(Arc::new(faults.files().iter().cloned().chain(others).collect()));
                let told: Vec<Fault> = faults.iter().cloned().collect();
                // The watcher retries an unreadable file at each look, so this logs each fault
                // once.
                if (why != watch::WHY || !faults.is_unread() || self.last.load().faults != told)
                    && let Some(suppressed) = self.may_log(why, &self.refusals)
                {
                    tracing::error!(
                        why, %faults, suppressed,
                        "the configuration has faults: the running policies stay in force"
                    );
                }
                self.last.rcu(|last| LastReload { tried_at: now, faults: told.clone(), ..LastReload::clone(last) });
                Err(ReloadError::Faults(faults))
            }
        }
    }

    /// The result of the last reload.
    pub fn last(&self) -> Arc<LastReload> {
        self.last.load_full()
    }

    /// The configuration in force.
    pub fn running(&self) -> Guard<Arc<Running>> {
        self.engine.running()
    }

    /// The TLS settings of new connections, or `None` for plain text.
    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        self.running().tls.clone()
    }

    /// How often the configuration was loaded.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// The control plane that sends rules, if there is one.
    pub fn control_plane(&self) -> Option<Arc<XdsConfig>> {
        self.started.envoy.as_ref()?.xds.clone()
    }

    /// Reads the file, beside these rules of a control plane, on a thread that may wait for a disk.
    async fn load(&self, now: Micros, rules: Option<Arc<RuleSet>>) -> Result<Config, Faults> {
        let setup = self.setup.with_rules(rules);
        let loading = tokio::task::spawn_blocking(move || setup.load_again(now)).await;
        loading.unwrap_or_else(|error| Err(unread(&error)))
    }

    fn put_into_force(&self, mut config: Config, why: &str) -> Reloaded {
        let restart_needed = config.needs_restart(&self.started);
        let at = config.policies.loaded_at;
        let version = config.policies.version.clone();
        self.watched.store(Arc::new(std::mem::take(&mut config.files)));
        let warnings = std::mem::take(&mut config.warnings);
        let before = self.running();
        let next = before.reloaded(config, &restart_needed);
        next.access.warnings().chain(next.gates.warnings()).for_each(|warning| tracing::warn!("{warning}"));
        for opening in before.access.openings(&next.access) {
            tracing::warn!("the configuration was loaded again with less access control: {opening}");
        }
        let settings = next.changed_settings(&before);
        // The warnings of files come with each load of the file, and sets come often.
        let are_known = **self.warnings.load() == warnings;
        if why != RECEIVED || !are_known {
            warn_of_files(&warnings);
            self.warnings.store(Arc::new(warnings));
        }
        warn_of_end(next.tls.as_deref(), at);
        let changes = self.engine.replace(next);
        self.last.store(Arc::new(LastReload::success(at, restart_needed.clone())));
        let names = |names: &[String]| names.join(",");
        if let Some(suppressed) = self.may_log(why, &self.acceptances) {
            tracing::info!(
                why,
                version,
                added = names(&changes.added),
                changed = names(&changes.changed),
                removed = names(&changes.removed),
                settings = settings.join(","),
                suppressed,
                "the configuration was loaded again"
            );
        }
        if !restart_needed.is_empty() {
            tracing::warn!(settings = restart_needed.join(","), "these settings have changed and need a restart");
        }
        Reloaded { changes, settings, restart_needed }
    }

    /// Whether a load has its line in the log, and how many had none before it. A control plane may
    /// send any number of sets.
    fn may_log(&self, why: &str, lines: &Limiter) -> Option<u64> {
        if why == RECEIVED { lines.pass(unix_micros()) } else { Some(0) }
    }

    /// The files as they are now. A blocking thread looks at them, so a file system that hangs
    /// delays only the caller.
    async fn look_again(&self) -> Vec<Watched> {
        let watched = self.watched.load_full();
        let known = watched.clone();
        let looked = tokio::task::spawn_blocking(move || watched.iter().map(Watched::look_again).collect());
        looked.await.unwrap_or_else(|_| Vec::clone(&known))
    }
}

/// Warns of a certificate that has ended at `now`, or ends soon.
fn warn_of_end(tls: Option<&ServerTls>, now: Micros) {
    let Some(end) = tls.and_then(|tls| tls.ends_at) else { return };
    let hours_left = end.saturating_sub(now) / (3_600 * MICROS_PER_SECOND);
    if end <= now {
        tracing::warn!("the certificate of `tls` has ended, and clients refuse it: renew `cert_file`");
    } else if end - now < ENDS_SOON {
        tracing::warn!(hours_left, "the certificate of `tls` ends soon: renew `cert_file`");
    }
}

/// Warns of files that other users may write, of secrets that they may read, and of members without
/// effect.
fn warn_of_files(warnings: &[String]) {
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
}

/// The fault of a reading that panicked, or that the end of the node cancelled.
fn unread(error: &tokio::task::JoinError) -> Faults {
    Faults::of_source("the configuration", format!("cannot be read: {error}"))
}
