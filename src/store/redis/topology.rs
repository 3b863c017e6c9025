//! Which lane each slot belongs to: learned from the servers, corrected by their redirections.
//!
//! The table is swapped whole, so a reader never waits. A task of its own asks for CLUSTER SLOTS, every second and
//! whenever something looks wrong, over connections that no check uses: a dead or frozen node costs the others
//! nothing. While something is wrong it asks one node after the other, those first whose lane is up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use super::lane::Lane;
use super::server::{self, Address, Info, within};
use super::shared::Shared;
use crate::clock::Clock;
use crate::limit::slot::SLOTS;
use crate::limit::time::Micros;
use crate::store::{ShardHealth, ShardReading};
use crate::telemetry::limiter::Limiter;
use crate::telemetry::metrics::Distribution;

/// How often the topology is asked for when nothing looks wrong.
const EVERY: Duration = Duration::from_secs(1);

/// How long a node may take to let this one in, and to answer, before the next one is asked: at first, and after
/// several failures. Nodes that are far away are found all the same.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(750));

/// The least time between two questions.
const BREATH: Duration = Duration::from_millis(20);

/// How often it is asked for while a primary cannot be reached: its replica may take over at any moment.
const WHILE_DOWN: Duration = Duration::from_millis(50);

/// The least time between two questions when a server did not let us in.
const REFUSED: Duration = Duration::from_millis(250);

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
    shared: Arc<Shared>,
    /// Whether the topology has been learned at least once.
    known: watch::Sender<bool>,
    /// When a node told it last, us by this node's clock.
    learned: AtomicU64,
    /// Why the node that was asked last did not tell it.
    trouble: ArcSwapOption<String>,
}

#[derive(Debug, Clone, Default)]
struct Table {
    lanes: Vec<Lane>,
    /// By slot, the owner's place in `lanes`, or [`NOBODY`]; empty until the topology is known. Places and not
    /// lanes, so that a copy of the table is one of 32 KiB.
    owners: Vec<u16>,
}

const NOBODY: u16 = u16::MAX;

impl Table {
    fn owner(&self, slot: u16) -> Option<&Lane> {
        self.lanes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    fn lane(&self, address: &Address) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.address() == address)
    }

    /// The lanes that own slots.
    fn primaries(&self) -> impl Iterator<Item = &Lane> {
        let mut owns = vec![false; self.lanes.len()];
        for owner in &self.owners {
            if let Some(owns) = owns.get_mut(usize::from(*owner)) {
                *owns = true;
            }
        }
        self.lanes.iter().zip(owns).filter_map(|(lane, owns)| owns.then_some(lane))
    }

    /// The lane towards `address` and its place; `open` opens it if there is none, since a node has one lane.
    fn place(&mut self, address: &Address, open: impl FnOnce() -> Lane) -> (u16, &Lane) {
        let place = self.lanes.iter().position(|lane| lane.address() == address).unwrap_or_else(|| {
            self.lanes.push(open());
            self.lanes.len() - 1
        });
        // A cluster has at most 1000 nodes.
        (u16::try_from(place).unwrap_or(NOBODY), &self.lanes[place])
    }
}

impl Topology {
    /// Starts to learn the topology from `seeds`.
    pub fn open(seeds: Vec<Address>, shared: Arc<Shared>) -> Arc<Self> {
        let topology = Arc::new(Self {
            table: ArcSwap::default(),
            writing: Mutex::new(()),
            kind: AtomicU8::new(Kind::Unknown as u8),
            seeds,
            shared,
            known: watch::Sender::new(false),
            learned: AtomicU64::new(0),
            trouble: ArcSwapOption::empty(),
        });
        let (watched, connections) = (Arc::downgrade(&topology), HashMap::new());
        let patience = PATIENCE.0;
        tokio::spawn(Watcher { topology: watched, connections, turn: 0, failures: 0, strangers: 0, patience }.run());
        topology
    }

    /// Waits until the topology has been learned.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
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
        self.table.load().owner(slot).cloned()
    }

    /// The lane towards a node that a redirection names, whether it owns slots or not.
    pub fn lane(&self, address: &Address) -> Lane {
        if let Some(lane) = self.table.load().lane(address) {
            return lane.clone();
        }
        let _writing = self.lock();
        let mut table = Table::clone(&self.table.load());
        let lane = table.place(address, || self.open_lane(address)).1.clone();
        self.table.store(Arc::new(table));
        lane
    }

    /// Takes a server's word that the slot lives at `address` now.
    pub fn moved(&self, slot: u16, address: &Address) {
        self.doubt();
        let _writing = self.lock();
        let mut table = Table::clone(&self.table.load());
        if table.owner(slot).is_some_and(|owner| owner.address() == address) {
            return;
        }
        let (place, _) = table.place(address, || self.open_lane(address));
        if let Some(owner) = table.owners.get_mut(usize::from(slot)) {
            *owner = place;
        }
        self.table.store(Arc::new(table));
        self.shared.generations.raise(slot);
    }

    /// Why nobody is known to own a slot.
    pub fn nobody(&self, slot: u16) -> String {
        let trouble = self.trouble.load();
        trouble
            .as_ref()
            .map_or_else(|| format!("no node is known to own slot {slot}"), |why| why.to_string())
    }

    /// Has the topology asked for soon.
    pub fn doubt(&self) {
        self.shared.doubt.notify_one();
    }

    /// The primaries and whether they can be reached.
    pub fn shards(&self) -> Vec<ShardHealth> {
        self.owners(|lane| ShardHealth { address: lane.address().to_string(), up: lane.is_up() })
    }

    /// How many slots no primary owns.
    pub fn slots_without_owner(&self) -> usize {
        self.table.load().owners.iter().filter(|owner| **owner == NOBODY).count()
    }

    /// How long ago a node told the topology last, us; none before the first time.
    pub fn age(&self) -> Option<Micros> {
        let is_known = *self.known.borrow();
        is_known.then(|| self.clock().now().saturating_sub(self.learned.load(Ordering::Relaxed)))
    }

    /// What is known of each primary.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.owners(Lane::read)
    }

    /// How many checks each script call carried, of all shards together.
    pub fn checks_per_call(&self) -> Distribution {
        self.shared.checks_per_call.read(1.0)
    }

    /// One for each lane that owns a slot, in the order of their addresses.
    fn owners<T>(&self, of: impl Fn(&Lane) -> T) -> Vec<T> {
        let table = self.table.load();
        let mut lanes: Vec<&Lane> = table.primaries().collect();
        lanes.sort_by_key(|lane| lane.address().to_string());
        lanes.into_iter().map(of).collect()
    }

    /// The seeds, none of which has answered yet.
    pub fn unknown_shards(&self) -> Vec<ShardHealth> {
        self.seeds.iter().map(|seed| ShardHealth { address: seed.to_string(), up: false }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // It guards no data of its own, so a panic elsewhere cannot have left any half-changed.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_lane(&self, address: &Address) -> Lane {
        Lane::open(address.clone(), self.shared.clone())
    }

    /// Replaces the table by what a server told; lanes that own nothing any more end, unless slots are moving there.
    fn learn(&self, kind: Kind, ranges: &[(u16, u16, Address)]) {
        let _writing = self.lock();
        let old = self.table.load_full();
        let mut table = Table { lanes: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)] };
        for (first, last, address) in ranges {
            let kept = || {
                old.lane(address)
                    .filter(|lane| lane.is_driven())
                    .cloned()
                    .unwrap_or_else(|| self.open_lane(address))
            };
            let (place, _) = table.place(address, kept);
            for slot in *first..=(*last).min(SLOTS - 1) {
                table.owners[usize::from(slot)] = place;
            }
        }
        for lane in old.lanes.iter().filter(|lane| lane.is_kept() && lane.is_driven()) {
            table.place(lane.address(), || lane.clone());
        }
        for slot in 0..SLOTS {
            if old.owner(slot).map(Lane::address) != table.owner(slot).map(Lane::address) {
                self.shared.generations.raise(slot);
            }
        }
        self.table.store(Arc::new(table));
        self.kind.store(kind as u8, Ordering::Relaxed);
        self.learned.store(self.clock().now(), Ordering::Relaxed);
        self.known.send_replace(true);
    }
}

/// The task that keeps the topology current; it ends with the store.
struct Watcher {
    topology: std::sync::Weak<Topology>,
    /// Those that have not failed.
    connections: HashMap<Address, MultiplexedConnection>,
    /// Whose turn it is to be asked after a failure or a doubt.
    turn: usize,
    /// Questions in a row that were not answered.
    failures: usize,
    /// Questions in a row that no node of a cluster said anything to.
    strangers: usize,
    /// How long the next one may take: twice what the last one took, and longer after each failure.
    patience: Duration,
}

impl Watcher {
    async fn run(mut self) {
        let complaints = Limiter::default();
        let (mut doubted, mut complained) = (true, false);
        while let Some(topology) = self.topology.upgrade() {
            let address = self.next(&topology);
            let began = topology.clock().now();
            let asked = self.ask(&topology, &address, doubted).await;
            let took = Duration::from_micros(topology.clock().now().saturating_sub(began));
            self.patience = match asked {
                Ok(()) => (took * 2).clamp(PATIENCE.0, PATIENCE.1),
                Err(_) => (self.patience * 3 / 2).min(PATIENCE.1),
            };
            let trouble = asked.as_ref().err().map(|error| Arc::new(format!("{address}: {error}")));
            topology.trouble.store(trouble);
            let mut breath = BREATH;
            match &asked {
                Ok(()) => {
                    (self.failures, self.strangers) = (0, 0);
                    if std::mem::take(&mut complained) {
                        tracing::info!(%address, "a node tells again which primary owns which slots");
                    }
                }
                Err(error) => {
                    self.failures += 1;
                    let is_strange = !server::is_told(error) || server::has_no_cluster(error);
                    self.strangers = if is_strange { self.strangers + 1 } else { 0 };
                    if !server::is_told(error) {
                        self.connections.remove(&address);
                    } else if !self.connections.contains_key(&address) && server::is_refusal(error) {
                        breath = REFUSED;
                    }
                    let is_new = topology.kind() == Kind::Unknown;
                    let is_lost = topology.kind() == Kind::Cluster && self.failures >= round(&topology);
                    if (is_new || is_lost)
                        && let Some(suppressed) = complaints.pass(topology.clock().now())
                    {
                        complained = is_lost;
                        let what = match is_new {
                            true => "no node of the store answers yet; trying on",
                            false => "no node tells which primary owns which slots; what was known is used on",
                        };
                        tracing::warn!(%address, %error, suppressed, "{what}");
                    }
                }
            }
            let well = asked.is_ok() && topology.table.load().primaries().all(Lane::is_up);
            tokio::time::sleep(breath).await;
            // A doubt cuts the pause short, and goes to another node: the one asked may be what is wrong.
            let pause = if well { EVERY } else { WHILE_DOWN };
            doubted = tokio::time::timeout(pause, topology.shared.doubt.notified()).await.is_ok() || !well;
            // By one, so that all have their turn, however many they are.
            if asked.is_err() || doubted && topology.kind() == Kind::Cluster {
                self.turn += 1;
            }
        }
    }

    async fn ask(&mut self, topology: &Topology, address: &Address, doubted: bool) -> redis::RedisResult<()> {
        let mut connection = match self.connections.get(address) {
            Some(open) => open.clone(),
            None => {
                let new = server::connect(address, &topology.shared.credentials, self.patience).await?;
                self.connections.insert(address.clone(), new.clone());
                new
            }
        };
        let mut kind = topology.kind();
        let may_be_gone = match kind {
            Kind::Unknown => true,
            Kind::Single => doubted,
            // One of its nodes that has begun anew by itself must not take it over.
            Kind::Cluster => self.strangers >= round(topology),
        };
        if may_be_gone {
            let info: String = within(self.patience, redis::cmd("INFO").query_async(&mut connection)).await?;
            kind = Self::learn_single(topology, &Info(&info), address)?;
        }
        if kind == Kind::Cluster {
            let mut both = redis::pipe();
            both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
            let (info, reply): (String, redis::Value) =
                within(self.patience, both.query_async(&mut connection)).await?;
            // A node that is cut off from the others believes what was; one that knows nothing else is heard all the
            // same.
            if Info(&info).field("cluster_state") != Some("ok") && *topology.known.borrow() {
                let down = redis::ErrorKind::Server(redis::ServerErrorKind::ClusterDown);
                return Err((down, "the node says that the cluster is down").into());
            }
            let empty = || redis::RedisError::from((redis::ErrorKind::Client, "the node knows no slots"));
            let owners = server::owners(&reply, address).filter(|owners| !owners.is_empty()).ok_or_else(empty)?;
            topology.learn(Kind::Cluster, &owners);
        }
        Ok(())
    }

    /// A server that is no cluster owns everything, unless it is a replica: then another seed must.
    fn learn_single(topology: &Topology, info: &Info<'_>, address: &Address) -> redis::RedisResult<Kind> {
        if info.is_cluster() {
            return Ok(Kind::Cluster);
        }
        if info.is_replica() {
            return Err((redis::ErrorKind::Client, "the seed is a replica; name its primary as well").into());
        }
        if topology.kind() == Kind::Cluster {
            tracing::warn!(%address, "the cluster is gone: this server, which is none, keeps all counts alone from now on");
        }
        if topology.kind() == Kind::Unknown && topology.seeds.len() > 1 {
            tracing::warn!(
                %address,
                "of several seeds this one is no cluster, so it keeps all counts alone: every node must be told the \
                 same, or each counts by itself"
            );
        }
        topology.learn(Kind::Single, &[(0, SLOTS - 1, address.clone())]);
        Ok(Kind::Single)
    }

    /// Whose turn it is: of the primaries whose lane is up; where none of them has answered, every second time of them
    /// all and the seeds, since a dead one takes longer.
    fn next(&mut self, topology: &Topology) -> Address {
        let table = topology.table.load();
        let known = || topology.seeds.iter().chain(table.lanes.iter().map(Lane::address));
        self.connections.retain(|address, _| known().any(|known| known == address));
        let up: Vec<&Address> = table.lanes.iter().filter(|lane| lane.is_up()).map(Lane::address).collect();
        let candidates = if self.failures < up.len() {
            up
        } else {
            let and_one_up = |(place, known)| [Some(known), up.iter().cycle().nth(place).copied()];
            known().enumerate().flat_map(and_one_up).flatten().collect()
        };
        candidates[self.turn % candidates.len()].clone()
    }
}

/// So many questions in a row that fail mean that nobody answers: all that are known had their turn, see
/// [`Watcher::next`].
fn round(topology: &Topology) -> usize {
    3 * (topology.seeds.len() + topology.table.load().lanes.len())
}
