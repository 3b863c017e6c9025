//! The composition root: from a configuration to a node that answers, and its orderly end.
//!
//! On `stop` readiness says 503 for `shutdown.delay` while checks are still answered; then nothing more is
//! accepted, what was sent is answered, and each answer is the last one of its connection; what is still open
//! after `shutdown.timeout` is cut off.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::config::{Config, Shutdown, StoreConfig};
use crate::engine::Engine;
use crate::engine::fallback::FallbackStore;
use crate::http::lifecycle::Phase;
use crate::http::{Front, Lifecycle, Node, Surface};
use crate::limit::slot::Generations;
use crate::prefilter::Prefilter;
use crate::store::memory::MAX_KEYS;
use crate::store::{MemoryStore, RedisStore, Store};
use crate::telemetry::traces::{Misfit, Settings, Tracing};

mod connections;

mod greeting;

mod patience;

use connections::Connections;

/// How often what says nothing any more is freed.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Bounds of how long an answer of Redis may take before its connection is given up.
const OVERDUE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How long the start waits for the store.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// How long connections that look idle stay open after the last accept: a request may be on its way in them.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Where a node is reached.
#[derive(Debug)]
pub struct Listeners {
    /// Answers checks.
    pub checks: TcpListener,
    /// Answers operators; `checks` does when absent.
    pub admin: Option<TcpListener>,
}

impl Listeners {
    /// Listens where `config` says; port 0 takes a free one.
    ///
    /// # Errors
    /// When an address is taken or not ours.
    pub async fn bind(config: &Config) -> Result<Self, ServeError> {
        let admin = match config.admin_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        Ok(Self { checks: listen(config.listen).await?, admin })
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("cannot open the store: {0}")]
    Store(String),
    #[error(transparent)]
    Tracing(#[from] Misfit),
}

/// A node that has its store and its listeners, and is about to answer.
#[derive(Debug)]
pub struct Server {
    node: Node,
    listeners: Listeners,
    shutdown: Shutdown,
}

impl Server {
    /// Opens the store and puts the node together.
    ///
    /// # Errors
    /// When the store cannot be opened as configured. A store that is merely away is no error.
    pub async fn open(config: Config, listeners: Listeners) -> Result<Self, ServeError> {
        let clock = Clock::system();
        let tracing = start_tracing(&config, &clock)?;
        let generations = Arc::new(Generations::default());
        let store = open_store(&config, &clock, &generations).await?;
        let prefilter = Prefilter::new(config.prefilter.max_keys, config.prefilter.max_denial, generations);
        let fallback = FallbackStore::new(MemoryStore::new(clock.clone(), MAX_KEYS), config.expected_nodes);
        let engine = Arc::new(Engine::new(config.policies, prefilter, store, fallback, clock));
        let node = Node { engine, lifecycle: Lifecycle::default(), tracing };
        Ok(Self { node, listeners, shutdown: config.shutdown })
    }

    /// What a person wants to know now: where it listens, by which policies, and a line to try.
    pub fn greeting(&self) -> String {
        greeting::text(&self.node.engine, &self.listeners)
    }

    /// Answers until `stop` is ready, then ends in order.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { node, listeners: Listeners { checks, admin }, shutdown } = self;
        let surface = if admin.is_some() { Surface::Checks } else { Surface::Whole };
        let connections = Connections::new();
        let (front, admin_front) = (Front::new(node.clone(), surface), Front::new(node.clone(), Surface::Admin));
        tokio::select! {
            () = connections.accept(&checks, &front) => {}
            () = connections.accept_if_any(admin.as_ref(), &admin_front) => {}
            () = sweep(&node.engine) => {}
            () = drain(stop, &node.lifecycle, shutdown.delay) => {}
        }
        node.lifecycle.advance(Phase::Closing);
        connections.accept_waiting(&checks, &front);
        if let Some(admin) = &admin {
            connections.accept_waiting(admin, &admin_front);
        }
        drop((checks, admin));
        tokio::time::sleep(LAST_WORDS).await;
        if tokio::time::timeout(shutdown.timeout, connections.finish()).await.is_err() {
            tracing::warn!("some connections were cut off at the end of the shutdown timeout");
        }
        if let Some(tracing) = &node.tracing {
            tracing.stop().await;
        }
        tracing::info!("stopped");
    }
}

/// Starts to trace if the environment says where to.
fn start_tracing(config: &Config, clock: &Clock) -> Result<Option<Arc<Tracing>>, ServeError> {
    let Some(mut settings) = Settings::from_environment()? else { return Ok(None) };
    settings.record_keys = config.telemetry.record_keys;
    settings.keep_denials = config.telemetry.keep_denials;
    Ok(Some(Tracing::start(settings, clock.clone())?))
}

/// Opens the store that `config` names. One that is away is joined when it comes.
async fn open_store(config: &Config, clock: &Clock, generations: &Arc<Generations>) -> Result<Store, ServeError> {
    let StoreConfig::Redis(redis) = &config.store else {
        return Ok(Store::Memory(MemoryStore::new(clock.clone(), MAX_KEYS)));
    };
    // A connection is given up when no policy would wait for it any more; a very patient policy does not keep the
    // others waiting for one that is dead.
    let longest = config.policies.by_name.values().map(|policy| policy.timeout).max();
    let timeout = longest.unwrap_or_default().clamp(OVERDUE.0, OVERDUE.1);
    let store = RedisStore::open(redis, clock.clone(), timeout, generations.clone())
        .map_err(|error| ServeError::Store(error.to_string()))?;
    if tokio::time::timeout(FIRST_ANSWER, store.known()).await.is_err() {
        tracing::warn!("the store has not answered yet; checks are answered by the fallback until it does");
    }
    Ok(Store::Redis(store))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })
}

/// Waits for `stop` and then, not ready any more, for `delay`.
async fn drain(stop: impl Future<Output = ()>, lifecycle: &Lifecycle, delay: Duration) {
    stop.await;
    lifecycle.advance(Phase::Draining);
    tracing::info!(delay_ms = delay.as_millis(), "draining");
    tokio::time::sleep(delay).await;
}

async fn sweep(engine: &Arc<Engine>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let engine = engine.clone();
        if tokio::task::spawn_blocking(move || engine.sweep()).await.is_err() {
            tracing::error!("a sweep of the store panicked");
        }
    }
}
