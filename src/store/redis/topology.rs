//! Which lane each slot belongs to: learned from the servers, corrected by their redirections.
//!
//! The table is swapped whole, so a reader never waits. A task of its own asks one node after the other for
//! CLUSTER SLOTS, every second and whenever something looks wrong, over a connection that no check uses: a
//! dead or frozen node costs the others nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};

use super::lane::Lane;
use super::server::{self, Address, Info, within};
use crate::clock::Clock;
use crate::limit::slot::{Generations, SLOTS};
use crate::store::ShardHealth;

/// How often the topology is asked for when nothing looks wrong.
const EVERY: Duration = Duration::from_secs(1);

/// How long a node may take to tell it, before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(250);

/// The least time between two questions.
const BREATH: Duration = Duration::from_millis(20);

/// What the servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// None has answered yet.
    Unknown,
    Single,
    Cluster,
}

/// Lanes by slot. Shared by the store and the task that keeps it current.
#[derive(Debug)]
pub struct Topology {
    table: ArcSwap<Table>,
    /// Held while the table is replaced, so that no change is lost.
    writing: Mutex<()>,
    kind: AtomicU8,
    seeds: Vec<Address>,
    clock: Clock,
    timeout: Duration,
    generations: Arc<Generations>,
    /// Wakes the task when something looks wrong.
    doubt: Notify,
    /// Whether the topology has been learned at least once.
    known: watch::Sender<bool>,
}

#[derive(Debug, Clone, Default)]
struct Table {
    lanes: BTreeMap<Address, Lane>,
    /// By slot; empty until the topology is known.
    owners: Vec<Option<Lane>>,
}

impl Topology {
    /// Starts to learn the topology from `seeds`.
    pub fn open(seeds: Vec<Address>, clock: Clock, timeout: Duration, generations: Arc<Generations>) -> Arc<Self> {
        let topology = Arc::new(Self {
            table: ArcSwap::default(),
            writing: Mutex::new(()),
            kind: AtomicU8::new(Kind::Unknown as u8),
            seeds,
            clock,
            timeout,
            generations,
            doubt: Notify::new(),
            known: watch::Sender::new(false),
        });
        tokio::spawn(Watcher { topology: Arc::downgrade(&topology), connection: None, turn: 0 }.run());
        topology
    }

    /// Waits until the topology has been learned.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    pub fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Relaxed) {
            kind if kind == Kind::Single as u8 => Kind::Single,
            kind if kind == Kind::Cluster as u8 => Kind::Cluster,
            _ => Kind::Unknown,
        }
    }

    /// The lane of the slot's primary, if it is known.
    pub fn owner(&self, slot: u16) -> Option<Lane> {
        self.table.load().owners.get(usize::from(slot))?.clone()
    }

    /// The lane towards a node that a redirection names, whether it owns slots or not.
    pub fn lane(&self, address: &Address) -> Lane {
        if let Some(lane) = self.table.load().lanes.get(address) {
            return lane.clone();
        }
        let _writing = self.lock();
        let mut table = Table::clone(&self.table.load());
        let lane = self.lane_in(&mut table, address);
        self.table.store(Arc::new(table));
        lane
    }

    /// Takes a server's word that the slot lives at `address` now.
    pub fn moved(&self, slot: u16, address: &Address) -> Lane {
        let _writing = self.lock();
        let mut table = Table::clone(&self.table.load());
        let lane = self.lane_in(&mut table, address);
        if let Some(owner) = table.owners.get_mut(usize::from(slot)) {
            *owner = Some(lane.clone());
        }
        self.table.store(Arc::new(table));
        self.generations.raise(slot);
        self.doubt();
        lane
    }

    /// Has the topology asked for soon.
    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// The primaries and whether they can be reached.
    pub fn shards(&self) -> Vec<ShardHealth> {
        let table = self.table.load();
        let owns = |lane: &&Lane| table.owners.iter().flatten().any(|owner| owner.address() == lane.address());
        let health = |lane: &Lane| ShardHealth { address: lane.address().to_string(), up: lane.is_up() };
        table.lanes.values().filter(owns).map(health).collect()
    }

    /// The seeds, none of which has answered yet.
    pub fn unknown_shards(&self) -> Vec<ShardHealth> {
        self.seeds.iter().map(|seed| ShardHealth { address: seed.to_string(), up: false }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // It guards no data of its own, so a panic elsewhere cannot have left any half-changed.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane_in(&self, table: &mut Table, address: &Address) -> Lane {
        let open = || Lane::open(address.clone(), self.clock.clone(), self.timeout);
        table.lanes.entry(address.clone()).or_insert_with(open).clone()
    }

    /// Replaces the table by what a server told; lanes that own nothing any more end.
    fn learn(&self, kind: Kind, ranges: &[(u16, u16, Address)]) {
        let _writing = self.lock();
        let old = self.table.load_full();
        let mut table = Table { lanes: BTreeMap::new(), owners: vec![None; usize::from(SLOTS)] };
        for (first, last, address) in ranges {
            let existing = old.lanes.get(address).cloned();
            let lane = match existing {
                Some(lane) => table.lanes.entry(address.clone()).or_insert(lane).clone(),
                None => self.lane_in(&mut table, address),
            };
            for slot in *first..=(*last).min(SLOTS - 1) {
                table.owners[usize::from(slot)] = Some(lane.clone());
            }
        }
        self.raise_changed(&old, &table);
        self.table.store(Arc::new(table));
        self.kind.store(kind as u8, Ordering::Relaxed);
        self.known.send_replace(true);
    }

    fn raise_changed(&self, old: &Table, new: &Table) {
        let address = |owner: &Option<Lane>| owner.as_ref().map(|lane| lane.address().clone());
        for ((slot, old), new) in (0..SLOTS).zip(&old.owners).zip(&new.owners) {
            if address(old) != address(new) {
                self.generations.raise(slot);
            }
        }
    }
}

/// The task that keeps the topology current; it ends with the store.
struct Watcher {
    topology: std::sync::Weak<Topology>,
    connection: Option<(Address, MultiplexedConnection)>,
    /// Whose turn it is to be asked after a failure.
    turn: usize,
}

impl Watcher {
    async fn run(mut self) {
        let mut complained = false;
        while let Some(topology) = self.topology.upgrade() {
            match self.ask(&topology).await {
                Ok(()) => complained = false,
                Err(error) => {
                    self.connection = None;
                    self.turn += 1;
                    if topology.kind() == Kind::Unknown && !std::mem::replace(&mut complained, true) {
                        tracing::warn!(%error, "no node of the store answers yet; trying on");
                    }
                }
            }
            let pause = if self.connection.is_some() { EVERY } else { BREATH * 5 };
            tokio::time::sleep(BREATH).await;
            // A doubt cuts the pause short. The store may end meanwhile; then so does this.
            let _ = tokio::time::timeout(pause, topology.doubt.notified()).await;
        }
    }

    async fn ask(&mut self, topology: &Topology) -> redis::RedisResult<()> {
        let (address, mut connection) = match self.connection.take() {
            Some(open) => open,
            None => {
                let address = self.next(topology);
                let connection = server::connect(&address, PATIENCE).await?;
                (address, connection)
            }
        };
        if topology.kind() == Kind::Unknown {
            let info: String = within(PATIENCE, redis::cmd("INFO").query_async(&mut connection)).await?;
            if !Info(&info).is_cluster() {
                topology.learn(Kind::Single, &[(0, SLOTS - 1, address.clone())]);
            }
        }
        if topology.kind() != Kind::Single {
            let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
            let reply = within(PATIENCE, slots.query_async(&mut connection)).await?;
            let empty = || redis::RedisError::from((redis::ErrorKind::Client, "the node knows no slots"));
            let owners = server::owners(&reply, &address).filter(|owners| !owners.is_empty()).ok_or_else(empty)?;
            topology.learn(Kind::Cluster, &owners);
        }
        self.connection = Some((address, connection));
        Ok(())
    }

    /// The next of the known nodes and the seeds.
    fn next(&self, topology: &Topology) -> Address {
        let table = topology.table.load();
        let known: Vec<&Address> = topology.seeds.iter().chain(table.lanes.keys()).collect();
        known[self.turn % known.len()].clone()
    }
}
