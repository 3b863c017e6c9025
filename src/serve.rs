//! The composition root: builds a node from a configuration, runs it and shuts it down.
//!
//! On `stop` readiness returns 503 for `shutdown.delay`, while the node still answers checks. Then
//! it accepts no more connections. It answers the requests that it has, and each answer is the last
//! one of its connection. After `shutdown.timeout` it cuts off the open connections.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::MissedTickBehavior;

use crate::access::Reach;
use crate::clock::Clock;
use crate::config::{Config, Limits, Setup, Shutdown, StoreConfig};
use crate::engine::Engine;
use crate::engine::fallback::FallbackStore;
use crate::gateway::envoy::xds;
use crate::gateway::resp;
use crate::http::{CheckService, Surface, publish, readings};
use crate::limit::policy::Durability;
use crate::node::{Lifecycle, Load, Node, Phase, Refusals, Watchers};
use crate::prefilter::Prefilter;
use crate::reload::Reloader;
use crate::store::{Generations, MemoryStore, RedisStore, Store};
use crate::telemetry::metrics::{Exporter, revision};
use crate::telemetry::otlp::{self, InvalidVariable, Resource};
use crate::telemetry::traces::{KeyNames, Settings, Tracing};
use crate::timeouts;
use crate::workers::Workers;

mod connections;

mod service;

mod envoy;

mod rpc;

mod fragments;

mod framing;

mod greeting;

mod listen;

mod protocol;

use connections::{Connections, OpenConnections};
use envoy::RateLimitService;
use listen::{bind, listen, reach};
use service::{HttpService, Service};

/// The interval at which expired state is freed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The listeners of a node.
#[derive(Debug)]
struct Listeners {
    /// Serves checks.
    checks: TcpListener,
    /// Serves operators. If absent, `checks` does.
    admin: Option<TcpListener>,
    /// Serves Redis clients.
    resp: Option<TcpListener>,
    /// Serves Envoy.
    envoy: Option<TcpListener>,
    /// Serves the calls that the reference has over HTTP.
    reference: Option<TcpListener>,
    /// Serves metrics alone.
    metrics: Option<TcpListener>,
}

/// The reason why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[error("cannot open the file of the overrides, {}: {error}", path.display())]
    Overrides { path: PathBuf, error: io::Error },
    #[error("cannot open the store: {0}")]
    Store(String),
    #[error(transparent)]
    Telemetry(#[from] InvalidVariable),
}

/// A node with its store and its listeners, ready to run.
#[derive(Debug)]
pub struct Server {
    node: Node,
    listeners: Listeners,
    shutdown: Shutdown,
    limits: Limits,
    /// How long connections of Envoy stay.
    connection_age: Duration,
    workers: Workers,
    exporter: Option<Exporter>,
}

impl Server {
    /// Opens the store, builds the node and then listens where `config` says. The node may read
    /// `config` again from `setup`. Port 0 selects a free port. Earlier connections are refused, so
    /// that clients and load balancers use another node.
    ///
    /// # Errors
    /// An address is in use or not local, or the configured store cannot be opened. An unreachable
    /// store is no error.
    pub async fn open(setup: Setup, config: Config) -> Result<Self, ServeError> {
        let admin = config.admin_listen.map(bind).transpose()?;
        let resp = config.resp.map(|resp| bind(resp.listen)).transpose()?;
        let checks = bind(config.listen)?;
        let envoy = config.envoy.as_ref().map(|envoy| bind(envoy.listen)).transpose()?;
        let reference = config.envoy.as_ref().and_then(|envoy| envoy.http_listen).map(bind).transpose()?;
        let metrics = config.metrics_listen.map(bind).transpose()?;
        let connection_age = config.envoy.as_ref().map(|envoy| envoy.connection_age).unwrap_or_default();
        let address = |door: &Option<(_, TcpSocket)>| Some(door.as_ref()?.1.local_addr().ok()?.to_string());
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            revision = revision(),
            listen = checks.1.local_addr().ok().map(|address| address.to_string()),
            admin_listen = address(&admin),
            envoy = address(&envoy),
            resp = address(&resp),
            store = if config.store == StoreConfig::Embedded { "embedded" } else { "redis" },
            "starting"
        );
        let clock = Clock::system();
        let counting = clock.following();
        let workers = Workers::start().map_err(ServeError::Threads)?;
        let keys = Arc::new(KeyNames::from_environment(config.telemetry.record_keys)?);
        let resource = otlp::resource();
        let exporter = Exporter::from_environment(&resource)?;
        let tracing = start_tracing(&config, resource, keys.clone(), &clock)?;
        let generations = Arc::new(Generations::default());
        let store = open_store(&config, &clock, &counting, &generations, &workers).await?;
        let (registry, is_known) = match &store {
            Store::Redis(redis) => (Some(redis.registry()), redis.known().now_or_never().is_some()),
            Store::Memory(_) => (None, false),
        };
        let prefilter = Prefilter::new(config.prefilter.max_keys, config.prefilter.max_denial, generations);
        let fallback = MemoryStore::new(counting, config.max_keys).named("fallback");
        let fallback = FallbackStore::new(fallback, config.expected_nodes);
        let engine = Engine::new(&config, prefilter, store, fallback, clock);
        if let Some(registry) = registry {
            engine.overrides().open_registry(registry);
            // A store that has not answered will hardly do so now.
            let patience = if is_known { timeouts::STORE_START } else { Duration::ZERO };
            if tokio::time::timeout(patience, engine.overrides().load()).await.is_err() {
                tracing::warn!("the overrides are not loaded yet; the fallback answers checks until they are");
            }
        }
        if let Some(path) = &config.overrides_file {
            let opened = engine.overrides().open_file(path);
            opened.map_err(|error| ServeError::Overrides { path: path.clone(), error })?;
        }
        let (shutdown, limits) = (config.shutdown, config.limits);
        let lifecycle = Lifecycle::default();
        let reloader = Arc::new(Reloader::new(setup, config, engine.clone()));
        let node = Node {
            engine,
            lifecycle,
            load: Load::default(),
            refusals: Refusals::default(),
            reloader,
            tracing,
            keys,
            watchers: Watchers::default(),
        };
        if node.engine.overrides().is_loaded() {
            begin(&node);
        }
        let listeners = Listeners {
            checks: listen(checks)?,
            admin: admin.map(listen).transpose()?,
            resp: resp.map(listen).transpose()?,
            envoy: envoy.map(listen).transpose()?,
            reference: reference.map(listen).transpose()?,
            metrics: metrics.map(listen).transpose()?,
        };
        Ok(Self { node, listeners, shutdown, limits, connection_age, workers, exporter })
    }

    /// Lowers the number of connections of each listener to `connections`, if the configuration
    /// permits more.
    #[must_use]
    pub fn with_connections(mut self, connections: u64) -> Self {
        self.limits.max_connections = self.limits.max_connections.min(connections);
        self
    }

    /// The address that serves checks.
    ///
    /// # Errors
    /// The system does not report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listeners.checks.local_addr()
    }

    /// The text for the terminal: the addresses, the policies, and a command to try.
    pub fn greeting(&self) -> String {
        greeting::text(&self.node, &self.listeners)
    }

    /// The reloader of the configuration.
    pub fn reloader(&self) -> Arc<Reloader> {
        self.node.reloader.clone()
    }

    /// Serves until `stop` is ready, then shuts down.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { node, listeners, shutdown, limits, connection_age, workers, exporter } = self;
        let Listeners { checks, admin, resp, envoy, reference, metrics } = listeners;
        let surface = if admin.is_some() { Surface::Checks } else { Surface::Whole };
        let connections = |listener, service| Connections::new(listener, service, &node, workers.clone(), limits);
        let http = |listener, surface| {
            // The listener of metrics needs no token anywhere.
            let reach = if surface == Surface::Metrics { Reach::Loopback } else { reach(&listener) };
            let service = CheckService::new(node.clone(), surface, reach);
            connections(listener, Service::Http(HttpService::Api(service)))
        };
        let checks = http(checks, surface);
        let admin = admin.map(|listener| http(listener, Surface::Admin));
        let resp = resp.map(|listener| {
            let service = resp::Service::new(&node, reach(&listener));
            connections(listener, Service::Resp(service))
        });
        let envoy = envoy.map(|listener| {
            let service = RateLimitService::new(node.clone(), reach(&listener));
            connections(listener, Service::Http(HttpService::Envoy(service, connection_age)))
        });
        let reference = reference.map(|listener| http(listener, Surface::Reference));
        let metrics = metrics.map(|listener| http(listener, Surface::Metrics));
        let engine = node.engine.clone();
        let delivering = tokio::spawn(async move { engine.deliver_notices().await });
        tokio::select! {
            () = checks.accept() => {}
            () = accept_if_any(admin.as_ref()) => {}
            () = accept_if_any(resp.as_ref()) => {}
            () = accept_if_any(envoy.as_ref()) => {}
            () = accept_if_any(reference.as_ref()) => {}
            () = accept_if_any(metrics.as_ref()) => {}
            () = xds::follow(&node) => {}
            () = sweep(&node.engine) => {}
            () = node.engine.keep_overrides() => {}
            () = become_ready(&node) => {}
            () = observe(&node) => {}
            () = export(exporter.as_ref(), &node) => {}
            () = node.reloader.watch() => {}
            () = drain(stop, &node, shutdown.delay) => {}
        }
        node.lifecycle.advance(Phase::Closing);
        let all = [Some(checks), admin, resp, envoy, reference, metrics];
        let open: Vec<_> = all.into_iter().flatten().map(Connections::close).collect();
        tokio::time::sleep(timeouts::CLOSE_GRACE).await;
        let finished = async {
            join_all(open.into_iter().map(OpenConnections::end)).await;
            // Refunds the reservations of callers that have disconnected.
            node.engine.multi_checks_ended().await;
            node.engine.return_leases().await;
            // A receiver that is away keeps no node from its end.
            let _ = tokio::time::timeout(timeouts::LAST_NOTICES, node.engine.notices().ended()).await;
        };
        if tokio::time::timeout(shutdown.timeout, finished).await.is_err() {
            tracing::warn!("what was under way was cut off at the end of the shutdown timeout");
        }
        delivering.abort();
        let traced = async {
            if let Some(tracing) = &node.tracing {
                tracing.stop().await;
            }
        };
        let counted = async {
            if let Some(exporter) = &exporter {
                let node = node.clone();
                exporter.end(move || readings(&node)).await;
            }
        };
        tokio::join!(traced, counted);
        tracing::info!("stopped");
    }
}

/// Starts tracing if the environment names an endpoint.
fn start_tracing(
    config: &Config,
    resource: Resource,
    keys: Arc<KeyNames>,
    clock: &Clock,
) -> Result<Option<Arc<Tracing>>, ServeError> {
    let Some(mut settings) = Settings::from_environment()? else { return Ok(None) };
    settings.keep_denials = config.telemetry.keep_denials;
    Ok(Some(Tracing::start(settings, resource, keys, clock.clone())?))
}

/// Opens the store that `config` names. The embedded store decides by `counting`. The node starts
/// without an unreachable store and connects to it later.
async fn open_store(
    config: &Config,
    clock: &Clock,
    counting: &Clock,
    generations: &Arc<Generations>,
    workers: &Workers,
) -> Result<Store, ServeError> {
    let StoreConfig::Redis(redis) = &config.store else {
        if config.policies.by_name.values().any(|policy| policy.options.durability == Durability::Replica) {
            tracing::warn!(
                "a policy says `durability: replica`, but the embedded store has none: name Redis under `store`"
            );
        }
        return Ok(Store::Memory(MemoryStore::new(counting.clone(), config.max_keys)));
    };
    let timeout = timeouts::response_timeout(config.policies.longest_timeout());
    let store = RedisStore::open(redis, clock.clone(), timeout, generations.clone(), workers.clone(), None)
        .map_err(|error| ServeError::Store(error.to_string()))?;
    let ready = tokio::time::timeout(timeouts::STORE_START, store.ready()).await;
    // If only one shard is unreachable, its lane reports it.
    if ready.is_err() && store.known().now_or_never().is_none() {
        tracing::warn!("the store has not answered yet; checks are answered by the fallback until it does");
    }
    Ok(Store::Redis(store))
}

/// Accepts without end. Without a listener it waits without end.
async fn accept_if_any(connections: Option<&Connections>) {
    match connections {
        Some(connections) => connections.accept().await,
        None => std::future::pending().await,
    }
}

/// Makes the node ready once it has its overrides, unless it also waits for a control plane. Never
/// returns.
async fn become_ready(node: &Node) {
    node.engine.overrides().loaded().await;
    begin(node);
    std::future::pending().await
}

/// The node has its overrides. If it still waits for rules, their arrival makes it ready.
fn begin(node: &Node) {
    let needs_rules = node.reloader.control_plane().is_some_and(|xds| !xds.ready_without_rules);
    let awaits_them = || node.reloader.running().envoy.as_ref().is_some_and(|envoy| envoy.rules.awaited);
    if !needs_rules || !awaits_them() {
        node.lifecycle.advance(Phase::Serving);
    }
    node.engine.overrides().let_checks_pass();
}

/// Waits for `stop`, then for `delay` while readiness fails.
async fn drain(stop: impl Future<Output = ()>, node: &Node, delay: Duration) {
    stop.await;
    node.lifecycle.advance(Phase::Draining);
    // Their connections would stay open until the end.
    node.watchers.close();
    let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(delay_ms, "draining");
    tokio::time::sleep(delay).await;
}

async fn sweep(engine: &Arc<Engine>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let engine = engine.clone();
        if tokio::task::spawn_blocking(move || engine.sweep()).await.is_err() {
            tracing::error!("a sweep of the store panicked");
        }
    }
}

/// Sends the metrics to a collector, if there is one. Never returns.
async fn export(exporter: Option<&Exporter>, node: &Node) {
    let node = node.clone();
    match exporter {
        Some(exporter) => exporter.run(move || readings(&node)).await,
        None => std::future::pending().await,
    }
}

/// Ends each second of the live view just after the second of the clock.
async fn observe(node: &Node) {
    loop {
        tokio::time::sleep(node.engine.rest_of_second()).await;
        let (node, engine) = (node.clone(), node.engine.clone());
        tokio::spawn(async move { engine.find_expired_holds().await });
        if tokio::task::spawn_blocking(move || publish(&node)).await.is_err() {
            tracing::error!("a snapshot for the live view panicked");
        }
    }
}
