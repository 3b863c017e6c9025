//! Keeps the topology current. The watcher requests CLUSTER SLOTS every second, and whenever
//! something looks wrong. No check uses its connections, so a dead or frozen node delays no check.
//! While something is wrong, the watcher tries one node after another, connected primaries first.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use crate::limit::slot::SLOTS;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::preflight::sentinel;
use crate::store::redis::connect::questions::{self, bounded};
use crate::store::redis::lane::Lane;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::cluster_slots;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::info::{Info, info_of};
use crate::store::redis::protocol::server_error::unless_error;
use crate::store::redis::topology::current::Topology;
use crate::store::redis::topology::table::Layout;
use crate::telemetry::limiter::Limiter;

/// The interval of requests while nothing looks wrong.
const EVERY: Duration = Duration::from_secs(1);

/// How long a node may take to connect and to answer, before the next one is asked. The first value
/// applies at first, the second after several failures. The longer limit finds nodes that are far
/// away.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(750));

/// The shortest interval between two requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(20);

/// The interval while a primary is unreachable: its replica may take over at any moment.
const WHILE_DOWN: Duration = Duration::from_millis(50);

/// The shortest interval after a server did not let this node in.
const REFUSED: Duration = Duration::from_millis(250);

/// The task that keeps the topology current. It ends with the store.
pub struct Watcher {
    topology: Weak<Topology>,
    /// The connections that have not failed.
    connections: HashMap<Address, Connection>,
    /// The index of the node to ask next. Failures and refresh requests advance it.
    turn: usize,
    /// Failed requests in a row.
    failures: usize,
    /// Failed requests in a row to which no node of the known cluster gave an answer. A rejected
    /// login counts as no answer: a foreign server at an old address may reject it.
    foreign_answers: usize,
    /// The time limit of the next request: twice the duration of the last one, and longer after
    /// each failure.
    timeout: Duration,
}

impl Watcher {
    /// Starts the task.
    pub fn start(topology: &Arc<Topology>) {
        let (topology, connections, timeout) = (Arc::downgrade(topology), HashMap::new(), TIMEOUT.0);
        tokio::spawn(Self { topology, connections, turn: 0, failures: 0, foreign_answers: 0, timeout }.run());
    }

    async fn run(mut self) {
        let complaints = Limiter::default();
        let (mut refresh_requested, mut complained) = (true, false);
        while let Some(topology) = self.topology.upgrade() {
            let address = self.next(&topology);
            let began = topology.shared.clock.now();
            let asked = self.query(&topology, &address, refresh_requested).await;
            let took = Duration::from_micros(topology.shared.clock.now().saturating_sub(began));
            self.timeout = match asked {
                Ok(()) => (took * 2).clamp(TIMEOUT.0, TIMEOUT.1),
                Err(_) => (self.timeout * 3 / 2).min(TIMEOUT.1),
            };
            let trouble = asked.as_ref().err().map(|error| Arc::new((address.clone(), error.clone())));
            topology.trouble.store(trouble);
            let mut interval = MIN_REFRESH_INTERVAL;
            match &asked {
                Ok(()) => {
                    (self.failures, self.foreign_answers) = (0, 0);
                    if std::mem::take(&mut complained) {
                        tracing::info!(%address, "a node tells again which primary owns which slots");
                    }
                }
                Err(error) => {
                    self.failures += 1;
                    let is_foreign = !error.is_told() || matches!(error.kind, Kind::Login | Kind::NoCluster);
                    self.foreign_answers = if is_foreign { self.foreign_answers + 1 } else { 0 };
                    if !error.is_told() {
                        self.connections.remove(&address);
                    }
                    if !self.connections.contains_key(&address) && error.is_refusal() {
                        interval = REFUSED;
                    }
                    let is_new = topology.kind() == Layout::Unknown;
                    let is_lost = topology.kind() == Layout::Cluster && self.failures >= round(&topology);
                    if (is_new || is_lost)
                        && let Some(suppressed) = complaints.pass(topology.shared.clock.now())
                    {
                        complained = is_lost;
                        let what = match is_new {
                            true => "no node of the store answers yet; trying on",
                            false => "no node tells which primary owns which slots; what was known is used on",
                        };
                        let error = error.for_log();
                        tracing::warn!(%address, %error, suppressed, "{what}");
                    }
                }
            }
            let well = asked.is_ok() && topology.table.load().primaries().all(|lane| lane.shard().is_well());
            tokio::time::sleep(interval).await;
            // A refresh request cuts the pause short. It moves on to another node, since the last
            // one may be at fault.
            let pause = if well { EVERY } else { WHILE_DOWN };
            refresh_requested = tokio::time::timeout(pause, topology.shared.refresh.notified()).await.is_ok() || !well;
            // A step of one reaches every node, whatever their number.
            if asked.is_err() || refresh_requested && topology.kind() == Layout::Cluster {
                self.turn += 1;
            }
        }
    }

    async fn query(&mut self, topology: &Topology, address: &Address, refresh_requested: bool) -> Result<(), Failure> {
        let mut connection = match self.connections.get(address) {
            Some(open) => open.clone(),
            None => {
                let new = topology.shared.open_for_questions(address, self.timeout).await?;
                self.connections.insert(address.clone(), new.clone());
                new
            }
        };
        let mut kind = topology.kind();
        let may_be_gone = match kind {
            Layout::Unknown => true,
            Layout::Single => refresh_requested,
            // A former node of the cluster that starts anew must not replace the cluster.
            Layout::Cluster => self.foreign_answers >= round(topology),
        };
        if may_be_gone {
            let info = bounded(self.timeout, questions::info(&mut connection)).await?;
            kind = Self::learn_single(topology, &Info(&info), address)?;
        }
        if kind == Layout::Cluster {
            let mut both = redis::pipe();
            both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
            let mut replies = bounded(self.timeout, connection.send_all(&both)).await?;
            let (reply, info) = (replies.pop().unwrap_or(Value::Nil), replies.pop().unwrap_or(Value::Nil));
            let is_up = match info_of(info) {
                Ok(info) => Info(&info).field("cluster_state") == Some("ok"),
                // A user with the right to CLUSTER SLOTS alone.
                Err(failure) if failure.kind == Kind::Rights => true,
                Err(failure) => return Err(failure.about("CLUSTER")),
            };
            let reply = unless_error(reply).map_err(|failure| failure.about("CLUSTER SLOTS"))?;
            // A node that is cut off from the others reports an old topology. It is believed only
            // while nothing else is known.
            let table = topology.table.load();
            let lane = table.lane(address);
            if !is_up && *topology.known.borrow() {
                let down = Failure::new(Kind::NotNow, "CLUSTERDOWN: the node says that the cluster is down");
                lane.inspect(|lane| lane.shard().refuse(&down));
                return Err(down);
            }
            let owners = cluster_slots::owners(&reply, address)?;
            if owners.is_empty() {
                return Err(Failure::connection("the node knows no owner of any slot"));
            }
            let ids = cluster_slots::ids(&reply);
            let is_known = |owner| table.lane(owner).is_some();
            let are_elsewhere = || lane.is_none() && !owners.iter().any(|(.., owner)| is_known(owner));
            if table.kind == Layout::Cluster && topology.shared.are_foreign(&ids).unwrap_or_else(are_elsewhere) {
                // The known nodes may return soon, and have all counts.
                if self.foreign_answers < round(topology) {
                    let sentence = "it belongs to another cluster than the one that is known";
                    return Err(Failure::connection(sentence));
                }
                if let Some(suppressed) = topology.may_log_change() {
                    tracing::warn!(
                        %address, suppressed,
                        "no node of the cluster answers that was known, and this one belongs to another: counts are \
                         kept there from now on"
                    );
                }
            }
            topology.learn(Layout::Cluster, &owners, ids);
        }
        Ok(())
    }

    /// Accepts a server outside a cluster as the owner of all slots. Rejects a replica, since
    /// another seed must be its primary.
    fn learn_single(topology: &Topology, info: &Info<'_>, address: &Address) -> Result<Layout, Failure> {
        if info.is_cluster() && address.socket().is_some() {
            let sentence = "the server behind the socket is part of a cluster: name its nodes by redis://host:port";
            return Err(Failure::new(Kind::NotRedis, sentence));
        }
        if info.is_cluster() {
            return Ok(Layout::Cluster);
        }
        if info.is_sentinel() {
            return Err(sentinel());
        }
        if info.is_replica() {
            let sentence = "the seed is a replica; name its primary as well";
            return Err(Failure::connection(sentence));
        }
        if topology.kind() == Layout::Cluster
            && let Some(suppressed) = topology.may_log_change()
        {
            tracing::warn!(%address, suppressed, "the cluster is gone: this server, which is none, keeps all counts alone from now on");
        }
        if topology.kind() == Layout::Unknown && topology.seeds.len() > 1 {
            tracing::warn!(
                %address,
                "of several seeds this one is no cluster, so it keeps all counts alone: every node must be told the \
                 same, or each counts by itself"
            );
        }
        topology.learn(Layout::Single, &[(0, SLOTS - 1, address.clone())], BTreeSet::new());
        Ok(Layout::Single)
    }

    /// Returns the next node to ask, usually one of the connected primaries. Once each of them has
    /// failed, every second turn iterates over all lanes and seeds. A dead node takes longer, so
    /// connected primaries keep the other turns.
    fn next(&mut self, topology: &Topology) -> Address {
        let table = topology.table.load();
        let known = || topology.seeds.iter().chain(table.lanes.iter().map(Lane::address));
        self.connections.retain(|address, _| known().any(|known| known == address));
        let up: Vec<&Address> =
            table.lanes.iter().filter(|lane| lane.shard().is_connected()).map(Lane::address).collect();
        let candidates = if self.failures < up.len() {
            up
        } else {
            let and_one_up = |(place, known)| [Some(known), up.iter().cycle().nth(place).copied()];
            known().enumerate().flat_map(and_one_up).flatten().collect()
        };
        candidates[self.turn % candidates.len()].clone()
    }
}

/// Returns how many failures in a row mean that no node answers. Every known node has had its turn
/// by then, see [`Watcher::next`].
fn round(topology: &Topology) -> usize {
    3 * (topology.seeds.len() + topology.table.load().lanes.len())
}
