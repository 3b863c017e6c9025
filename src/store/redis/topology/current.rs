//! The current table, which is replaced as a whole, so a reader never waits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::limit::slot::SLOTS;
use crate::limit::time::Micros;
use crate::store::redis::lane::Lane;
use crate::store::redis::lane::shared::{Shared, shard_events};
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::failure::{Failure, MOST_TEXT, cleaned};
use crate::store::redis::topology::table::{Layout, NOBODY, Table};
use crate::store::{ShardHealth, ShardReading};
use crate::telemetry::limiter::Limiter;

/// How often the start checks whether all primaries are connected.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The lanes by slot. The store and the task that keeps it current share it.
#[derive(Debug)]
pub struct Topology {
    pub table: ArcSwap<Table>,
    /// Locked while the table is replaced, so that no change is lost.
    writing: Mutex<()>,
    pub seeds: Vec<Address>,
    pub shared: Arc<Shared>,
    /// Whether the topology has been learned at least once.
    pub known: watch::Sender<bool>,
    /// When a node last reported the topology, us by this node's clock.
    learned: AtomicU64,
    /// The node that was asked last and its failure, if it did not report the topology.
    pub trouble: ArcSwapOption<(Address, Failure)>,
    /// Whether sentinels name the primary, instead of the seeds.
    pub has_sentinels: bool,
    /// Why the known primary may be the wrong one, if sentinels name it.
    pub doubt: ArcSwapOption<String>,
    /// Limits the log lines about another server or cluster than before.
    changes: Limiter,
}

/// The most log lines about other servers in ten seconds.
const CHANGES: u64 = 10;

impl Topology {
    /// Creates one that knows only its seeds.
    pub fn new(seeds: Vec<Address>, shared: Arc<Shared>) -> Self {
        Self {
            table: ArcSwap::default(),
            writing: Mutex::new(()),
            seeds,
            shared,
            known: watch::Sender::new(false),
            learned: AtomicU64::new(0),
            trouble: ArcSwapOption::empty(),
            has_sentinels: false,
            doubt: ArcSwapOption::empty(),
            changes: Limiter::of(CHANGES),
        }
    }

    /// Creates one that knows no server, and learns the primary from sentinels.
    pub fn of_sentinels(shared: Arc<Shared>) -> Self {
        Self { has_sentinels: true, ..Self::new(Vec::new(), shared) }
    }

    /// Waits until the topology has been learned.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// Waits until the topology is known and each primary is connected. Connections that wait for
    /// replicas are not included.
    pub async fn ready(&self) {
        self.known().await;
        while !self.owners(Lane::is_up).into_iter().all(|up| up) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub fn kind(&self) -> Layout {
        self.table.load().kind
    }

    /// Returns the lane of the slot's primary, if it is known.
    pub fn owner(&self, slot: u16) -> Option<Lane> {
        self.table.load().owner(slot).cloned()
    }

    /// Returns the lane towards a node that a redirection names, with or without slots. Returns
    /// none when there are too many lanes.
    pub fn lane(&self, address: &Address) -> Option<Lane> {
        if let Some(lane) = self.table.load().lane(address) {
            return Some(lane.clone());
        }
        let _writing = self.lock();
        let mut table = Table::clone(&self.table.load());
        if !table.has_room(address) {
            return None;
        }
        let lane = table.place(address, || self.open_redirected(address)).1.clone();
        self.table.store(Arc::new(table));
        Some(lane)
    }

    /// Records a server's report that `address` owns the slot now.
    pub fn moved(&self, slot: u16, address: &Address) {
        self.shared.request_refresh();
        // After a failover all waiting requests receive this report. The first of them has updated
        // the table.
        let is_known = || self.table.load().owner(slot).is_some_and(|owner| owner.address() == address);
        if is_known() {
            return;
        }
        let _writing = self.lock();
        if is_known() {
            return;
        }
        let mut table = Table::clone(&self.table.load());
        if !table.has_room(address) {
            return;
        }
        let (place, lane) = table.place(address, || self.open_redirected(address));
        lane.shard().charging.own(slot);
        if let Some(owner) = table.owners.get_mut(usize::from(slot)) {
            *owner = place;
        }
        self.table.store(Arc::new(table));
        self.shared.generations.moved(slot);
    }

    /// Returns why the owner of a slot is unknown.
    pub fn nobody(&self, slot: u16) -> String {
        let trouble = self.trouble.load();
        let known = trouble.as_ref().map(|why| cleaned(&format!("{}: {}", why.0, why.1), MOST_TEXT));
        known.unwrap_or_else(|| format!("no node is known to own slot {slot}"))
    }

    /// If the log may have a line about another server or cluster now, returns how many it did not
    /// have since the last one.
    pub fn may_log_change(&self) -> Option<u64> {
        self.changes.pass(self.shared.clock.now())
    }

    /// Returns the primaries, and whether they are reachable.
    pub fn shards(&self) -> Vec<ShardHealth> {
        self.owners(|lane| {
            let (shard, address) = (lane.shard(), lane.address().to_string());
            let down = shard.reason();
            ShardHealth { address, up: down.is_none(), reason: down.or_else(|| shard.refused_kind()) }
        })
    }

    /// Returns the addresses of the primaries.
    pub fn primaries(&self) -> Vec<Address> {
        self.owners(|lane| lane.address().clone())
    }

    /// Returns how many slots no primary owns.
    pub fn slots_without_owner(&self) -> usize {
        self.table.load().owners.iter().filter(|owner| **owner == NOBODY).count()
    }

    /// Returns the age of the last report of the topology, us; none before the first report.
    pub fn age(&self) -> Option<Micros> {
        let is_known = *self.known.borrow();
        is_known.then(|| self.shared.clock.now().saturating_sub(self.learned.load(Ordering::Relaxed)))
    }

    /// Returns the readings of each primary.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.owners(Lane::read)
    }

    /// Returns one value for each lane that owns a slot, in the order of their addresses.
    fn owners<T>(&self, of: impl Fn(&Lane) -> T) -> Vec<T> {
        let table = self.table.load();
        let mut lanes: Vec<&Lane> = table.primaries().collect();
        lanes.sort_by_key(|lane| lane.address().to_string());
        lanes.into_iter().map(of).collect()
    }

    /// Returns why the known primary may be the wrong one; none without sentinels.
    pub fn doubt(&self) -> Option<String> {
        self.doubt.load().as_deref().cloned()
    }

    /// Returns the seeds, none of which has answered yet.
    pub fn unknown_shards(&self) -> Vec<ShardHealth> {
        let trouble = self.trouble.load();
        let reason = |seed: &Address| {
            let known = trouble.as_ref().filter(|known| known.0 == *seed);
            known.map_or_else(|| "no answer has come from this seed yet".to_owned(), |known| known.1.to_string())
        };
        let shard = |seed: &Address| ShardHealth { address: seed.to_string(), up: false, reason: Some(reason(seed)) };
        self.seeds.iter().map(shard).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data of its own, so a panic elsewhere cannot have left any
        // half-changed.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lane towards a server that the topology names.
    fn open_lane(&self, address: &Address) -> Lane {
        Lane::open(address.clone(), self.shared.clone(), shard_events())
    }

    /// Opens a lane towards a server that a redirection names.
    fn open_redirected(&self, address: &Address) -> Lane {
        Lane::open(address.clone(), self.shared.clone(), self.shared.redirected.clone())
    }

    /// Replaces the table with a server's report about nodes with these `ids`. Lanes without slots
    /// end, unless slots are moving there.
    pub fn learn(&self, kind: Layout, ranges: &[(u16, u16, Address)], ids: BTreeSet<String>) {
        let _writing = self.lock();
        self.shared.know(ids);
        let old = self.table.load_full();
        let mut table = Table { kind, lanes: Vec::new(), owners: vec![NOBODY; usize::from(SLOTS)] };
        let mut owned = BTreeSet::new();
        for (first, last, address) in ranges {
            let kept = || {
                old.lane(address)
                    .filter(|lane| lane.is_driven())
                    .cloned()
                    .unwrap_or_else(|| self.open_lane(address))
            };
            let (place, lane) = table.place(address, kept);
            if owned.insert(place) {
                lane.shard().charging.own(*first);
            }
            for slot in *first..=(*last).min(SLOTS - 1) {
                table.owners[usize::from(slot)] = place;
            }
        }
        for lane in old.lanes.iter().filter(|lane| lane.is_kept() && lane.is_driven()) {
            table.place(lane.address(), || lane.clone());
        }
        let table = Arc::new(table);
        self.table.store(table.clone());
        // Denials by the previous owner expire, and its late answers are ignored.
        for slot in 0..SLOTS {
            if old.owner(slot).map(Lane::address) != table.owner(slot).map(Lane::address) {
                self.shared.generations.moved(slot);
            }
        }
        self.learned.store(self.shared.clock.now(), Ordering::Relaxed);
        self.known.send_replace(true);
    }
}
