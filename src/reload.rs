//! Loading the configuration again while the node runs.
//!
//! A file with faults changes nothing: the running policies stay, and what is wrong is told in the log, to the caller
//! and by `GET /v1/policies`. One without faults is put into force whole, between two checks. What only a start
//! obeys (addresses, the store, ...) is compared with how the node was started, and told.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::Mutex;

use crate::access::Access;
use crate::clock::unix_micros;
use crate::config::{Config, Fault, Faults, Limits, ServerTls, Setup, Watched};
use crate::engine::{Changes, Engine};
use crate::limit::time::{MICROS_PER_SECOND, Micros};

mod watch;

/// From how long before its end on the log tells of a certificate, us. Whoever renews one in time does so before.
const ENDS_SOON: Micros = 3 * 86_400 * MICROS_PER_SECOND;

/// Loads the configuration again when it is asked to. One per node.
#[derive(Debug)]
pub struct Reloader {
    setup: Setup,
    /// Whether there is a file that can be read again.
    lasting: bool,
    engine: Arc<Engine>,
    /// What the node was started with.
    started: Config,
    /// Held while the file is read and put into force, so that an older reading never beats a newer one.
    reloading: Mutex<()>,
    /// The files as they were before they were last read: those of the configuration in force, and of one
    /// with faults since. One that could not be read differs from what is there.
    watched: ArcSwap<Vec<Watched>>,
    last: ArcSwap<LastReload>,
    access: ArcSwap<Access>,
    tls: ArcSwapOption<ServerTls>,
}

/// How the last reload went; the start counts as the first. Instants are in us since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastReload {
    /// When it was.
    pub tried_at: Micros,
    /// When the configuration in force was loaded.
    pub succeeded_at: Micros,
    /// Why the running policies stayed; none when it succeeded.
    pub faults: Vec<Fault>,
    /// The settings of the file that wait for a restart.
    pub restart_needed: Vec<&'static str>,
}

impl LastReload {
    pub fn successful(&self) -> bool {
        self.faults.is_empty()
    }
}

/// What a reload did.
#[derive(Debug, Clone)]
pub struct Reloaded {
    pub changes: Changes,
    /// The settings besides the policies that have changed and are in force.
    pub settings: Vec<&'static str>,
    /// The settings of the file that wait for a restart.
    pub restart_needed: Vec<&'static str>,
}

/// Why a reload changed nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReloadError {
    #[error("{0}: start the node with `tollgate serve FILE` to have something to load again")]
    NoFile(&'static str),
    #[error("{0}")]
    Faults(Faults),
}

impl Reloader {
    /// For a node that was started with `started`, as read from `setup`, and decides by `engine`.
    pub fn new(setup: Setup, started: Config, engine: Arc<Engine>) -> Self {
        let at = started.policies.loaded_at;
        warn_of_end(started.tls.as_ref(), at);
        warn_of_files(&started.warnings);
        if started.access.allow_anonymous && started.is_public() {
            tracing::warn!(
                "`auth.allow_anonymous`: everyone who reaches this node may check, refund and read what counts"
            );
        }
        let last = LastReload { tried_at: at, succeeded_at: at, faults: Vec::new(), restart_needed: Vec::new() };
        Self {
            lasting: setup.is_lasting(),
            setup,
            engine,
            reloading: Mutex::new(()),
            watched: ArcSwap::from_pointee(started.files.clone()),
            last: ArcSwap::from_pointee(last),
            access: ArcSwap::from_pointee(started.access.clone()),
            tls: ArcSwapOption::from_pointee(started.tls.clone()),
            started,
        }
    }

    /// What clients may take of the node, which no reload changes.
    pub fn limits(&self) -> &Limits {
        &self.started.limits
    }

    /// Loads the configuration again; `why` is for the log. It goes on when its caller goes: another one must not begin
    /// while this one may still be reading.
    ///
    /// # Errors
    /// When there is no file, or it has faults; then nothing has changed.
    pub async fn reload(self: &Arc<Self>, why: &'static str) -> Result<Reloaded, ReloadError> {
        let reloading = tokio::spawn(self.clone().load_again(why));
        reloading.await.unwrap_or_else(|error| Err(ReloadError::Faults(unread(&error))))
    }

    async fn load_again(self: Arc<Self>, why: &'static str) -> Result<Reloaded, ReloadError> {
        if !self.lasting {
            let from = match &self.setup.file {
                None => "the node runs by its built-in policies",
                Some(_) => "the configuration was read from a pipe or device, which cannot be read again",
            };
            tracing::warn!(why, from, "nothing to load again");
            return Err(ReloadError::NoFile(from));
        }
        let _reloading = self.reloading.lock().await;
        let before = self.look_again().await;
        let now = unix_micros();
        match self.load(now).await.and_then(|config| config.fits(&self.started)) {
            Ok(config) => {
                // Lists may be long, and take their time to compare and to free.
                let reloader = self.clone();
                let put = tokio::task::spawn_blocking(move || reloader.put_into_force(config, why)).await;
                put.map_err(|error| ReloadError::Faults(unread(&error)))
            }
            Err(faults) => {
                let known = |file: &Watched| !faults.files().iter().any(|read| read.path() == file.path());
                let others = before.into_iter().filter(known);
                self.watched.store(Arc::new(faults.files().iter().cloned().chain(others).collect()));
                let told: Vec<Fault> = faults.iter().cloned().collect();
                // What cannot be read is tried again and again.
                if why != watch::WHY || !faults.is_unread() || self.last.load().faults != told {
                    tracing::error!(why, %faults, "the configuration has faults: the running policies stay in force");
                }
                self.last.rcu(|last| LastReload { tried_at: now, faults: told.clone(), ..LastReload::clone(last) });
                Err(ReloadError::Faults(faults))
            }
        }
    }

    /// How the last reload went.
    pub fn last(&self) -> Arc<LastReload> {
        self.last.load_full()
    }

    /// Who may call what now.
    pub fn access(&self) -> Guard<Arc<Access>> {
        self.access.load()
    }

    /// How new connections are encrypted; none: not at all.
    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.load_full()
    }

    /// Reads the file on a thread that may wait for a disk.
    async fn load(&self, now: Micros) -> Result<Config, Faults> {
        let setup = self.setup.clone();
        let loading = tokio::task::spawn_blocking(move || setup.load_again(now)).await;
        loading.unwrap_or_else(|error| Err(unread(&error)))
    }

    fn put_into_force(&self, config: Config, why: &str) -> Reloaded {
        let restart_needed = config.needs_restart(&self.started);
        let at = config.policies.loaded_at;
        let version = config.policies.version.clone();
        self.watched.store(Arc::new(config.files));
        let waits = |setting| restart_needed.contains(&setting);
        let access = Some(config.access).filter(|_| !waits("auth"));
        let tls = config.tls.filter(|_| !waits("tls"));
        if let Some(access) = &access {
            warn_of_openings(&self.access.load(), access);
        }
        let settings = self.replace_settings(access, tls);
        warn_of_files(&config.warnings);
        warn_of_end(self.tls.load().as_deref(), at);
        let changes = self.engine.replace(config.policies);
        let last =
            LastReload { tried_at: at, succeeded_at: at, faults: Vec::new(), restart_needed: restart_needed.clone() };
        self.last.store(Arc::new(last));
        let names = |names: &[String]| names.join(",");
        tracing::info!(
            why,
            version,
            added = names(&changes.added),
            changed = names(&changes.changed),
            removed = names(&changes.removed),
            settings = settings.join(","),
            "the configuration was loaded again"
        );
        if !restart_needed.is_empty() {
            tracing::warn!(settings = restart_needed.join(","), "these settings have changed and need a restart");
        }
        Reloaded { changes, settings, restart_needed }
    }

    /// Puts them into force where they say something new; which did. What there is none of stays as it is.
    fn replace_settings(&self, access: Option<Access>, tls: Option<ServerTls>) -> Vec<&'static str> {
        let mut changed = Vec::new();
        if let Some(access) = access.filter(|access| **self.access.load() != *access) {
            self.access.store(Arc::new(access));
            changed.push("auth");
        }
        if tls.is_some() && self.tls.load().as_deref() != tls.as_ref() {
            self.tls.store(tls.map(Arc::new));
            changed.push("tls");
        }
        changed
    }

    /// The files as they are now. A file system that hangs holds up only who looks at it: that is done
    /// elsewhere as well.
    async fn look_again(&self) -> Vec<Watched> {
        let watched = self.watched.load_full();
        let known = watched.clone();
        let looked = tokio::task::spawn_blocking(move || watched.iter().map(Watched::look_again).collect());
        looked.await.unwrap_or_else(|_| Vec::clone(&known))
    }
}

/// Tells of a certificate that has ended at `now`, or soon will.
fn warn_of_end(tls: Option<&ServerTls>, now: Micros) {
    let Some(end) = tls.and_then(ServerTls::ends_at) else { return };
    let hours_left = end.saturating_sub(now) / (3_600 * MICROS_PER_SECOND);
    if end <= now {
        tracing::warn!("the certificate of `tls` has ended, and clients refuse it: renew `cert_file`");
    } else if end - now < ENDS_SOON {
        tracing::warn!(hours_left, "the certificate of `tls` ends soon: renew `cert_file`");
    }
}

/// Tells of files that others may write, or read although they hold a secret.
fn warn_of_files(warnings: &[String]) {
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
}

/// Tells what callers may do from now on that they could not do before.
fn warn_of_openings(before: &Access, now: &Access) {
    for opening in before.openings(now) {
        tracing::warn!("the configuration was loaded again with less access control: {opening}");
    }
}

/// Who was to read it has panicked, or the node ends.
fn unread(error: &tokio::task::JoinError) -> Faults {
    Faults::of_source("the configuration", format!("cannot be read: {error}"))
}
