//! A lane: the ordered stream of work towards one primary, over one connection.
//!
//! Checks are batched as they come. While calls are under way, what arrives waits, and then goes out together:
//! one pipeline, in which all checks of one key under one policy are decided together, by a list of costs, and those of
//! several keys share script calls. Before it goes out, the runtime runs what else is ready, for as long as that brings
//! more: a pipeline costs both ends more than a check in it. There is no timer, so an idle lane adds no latency. A key
//! with a call under way waits for it, also when another pipeline may go out: a hot key costs its primary one call per
//! round trip, however many callers ask.
//!
//! A call that the server says it did not execute may be asked again: by the lane itself when the script was
//! missing, TIME was elsewhere or one of several keys was not there, by the caller (who knows the slots) after a
//! redirection. A call whose connection broke, or that was not answered in time, may have been executed, and is never
//! sent again.
//!
//! The driver owns the connection. When it breaks, the driver connects anew, which those who ask wait for; one that has
//! stood still is asked whether it is there before anything goes out, so that what was not sent is not lost with it.
//! When the server owes an answer for twice its time, or cannot be connected to, the lane's breaker opens: whoever asks
//! is told so at once, the topology is asked for, and the driver probes by connecting until the server answers again: a
//! connect is not enough, a call must have been answered. A server that is asked nothing shows by its TIME, once a
//! second, that it is there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;

use super::ask::Ask;
use super::batch::{Batch, Ended};
use super::metrics::ShardMetrics;
use super::queue::Queue;
use super::server::{self, Address, within};
use super::shard::Shard;
use super::shared::Shared;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_MILLI, MICROS_PER_SECOND, Micros};
use crate::store::{ShardReading, StoreError};

/// Asks that wait for the driver to take them in, and asks that it has taken in, at most; beyond that they are refused
/// at once. 256 callers of batches of 100 have room.
const QUEUE: usize = 32_768;

/// Asks that are taken in at once.
const TAKEN_IN: usize = 4096;

/// Groups that go out together at most.
const BATCH: usize = 512;

/// Batches under way at once: while the server works on one, the next is prepared. Behind one that waits for a replica
/// nothing is sent, since it would not be answered before.
const UNDER_WAY: [usize; 2] = [2, 1];

/// More may be asked before a batch goes out until so many times in a row that the runtime came back from what was
/// ready nobody had. What the first time finds ready to be read, the second lets ask; tokio promises no order, so this
/// is a rule of thumb.
const QUIET: usize = 2;

/// How long that may go on after the first of them asked, us.
const GATHER: Micros = 500;

/// How long a server may take to accept a connection and to answer the first questions: at first, and after several
/// failures. A slow one is not given up for ever, and one that was cut off in silence is asked again within a second.
const CONNECT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(750));

/// How long the driver waits after a failed connect, and after a connection that broke before it answered anything; at
/// most, when the server does not let it in again and again: each time costs the server a login, or a handshake.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// For how long after an answer its connection is taken to be there still, us.
const FRESH: Micros = MICROS_PER_MILLI;

/// How long a lane may be idle before the server must show that it is there.
const IDLE: Duration = Duration::from_secs(1);

/// How often a server is asked whether it evicts meanwhile.
const EVICTION: Duration = Duration::from_secs(60);

/// How long a lane towards a primary that owns no slots is kept after it was asked about one that is moving there, us.
const KEPT: Micros = 60 * MICROS_PER_SECOND;

/// The near end of a lane. The driver ends when the last one is dropped. Each check takes one, so it is one pointer.
#[derive(Debug, Clone)]
pub struct Lane(Arc<Entry>);

#[derive(Debug)]
struct Entry {
    queue: mpsc::Sender<Ask>,
    shard: Arc<Shard>,
    /// For what policies that wait for a replica may charge, opened when one asks first: WAIT holds up everything that
    /// comes behind it on its connection, and it is about the charges of that connection only. What charges nothing
    /// needs none.
    durable: OnceLock<mpsc::Sender<Ask>>,
    /// Until when it is kept although its primary may own no slots yet, us by this node's clock.
    kept_until: AtomicU64,
}

impl Lane {
    /// Starts a lane towards `address`, which has the topology asked for when its breaker opens.
    pub fn open(address: Address, shared: Arc<Shared>) -> Self {
        let metrics = Arc::new(ShardMetrics::new(shared.checks_per_call.clone()));
        let shard = Arc::new(Shard::new(address, shared, Durability::Primary, metrics));
        let queue = Driver::start(shard.clone());
        Self(Arc::new(Entry { queue, shard, durable: OnceLock::new(), kept_until: AtomicU64::new(0) }))
    }

    /// Queues an ask; its answer comes over its channel.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`].
    pub fn ask(&self, ask: Ask) -> Result<(), StoreError> {
        if ask.asking {
            self.0.kept_until.store(self.now() + KEPT, Ordering::Relaxed);
        }
        let start = || Driver::start(Arc::new(self.0.shard.durable_twin()));
        let queue = match ask.policy.options.durability {
            Durability::Replica if ask.matter.may_charge() => self.0.durable.get_or_init(start),
            Durability::Replica | Durability::Primary => &self.0.queue,
        };
        queue.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unreachable("the lane has ended".into()),
        })
    }

    pub fn address(&self) -> &Address {
        &self.0.shard.address
    }

    /// Where the shard's TIME is believed to be now, us.
    pub fn shard_now(&self) -> Micros {
        self.0.shard.shard_now()
    }

    pub fn is_up(&self) -> bool {
        self.0.shard.is_up()
    }

    /// Whether slots are moving to its primary, as far as it was asked lately.
    pub fn is_kept(&self) -> bool {
        self.0.kept_until.load(Ordering::Relaxed) > self.now()
    }

    /// Whether its driver is there, which only a fault of this program could end.
    pub fn is_driven(&self) -> bool {
        !self.0.queue.is_closed()
    }

    /// This node's clock, us.
    pub fn now(&self) -> Micros {
        self.0.shard.now()
    }

    pub fn metrics(&self) -> &ShardMetrics {
        &self.0.shard.metrics
    }

    /// What is known of the shard now.
    pub fn read(&self) -> ShardReading {
        ShardReading {
            address: self.0.shard.address.to_string(),
            queued: waiting(&self.0.queue) + self.0.durable.get().map_or(0, waiting) + self.0.shard.metrics.held(),
            clock_offset: self.0.shard.offset(),
            counts: self.0.shard.metrics.read(),
        }
    }
}

/// Asks that wait in a queue.
fn waiting(queue: &mpsc::Sender<Ask>) -> usize {
    queue.max_capacity() - queue.capacity()
}

/// Whether who asks while there is no connection waits for one, or is told at once that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breaker {
    Closed,
    Open,
    /// There is a connection again, which has not answered any call yet.
    HalfOpen,
}

/// Why the driver stopped serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nobody can ask any more.
    Unwanted,
    /// The connection broke.
    Broken,
    /// The server is a replica now. Its address may lead to another one by now, the primary.
    Demoted,
    /// The connection stands, and the server says nothing.
    Silent,
    /// The connection broke before it answered anything.
    Useless,
}

/// What is known of whether more will be asked soon.
#[derive(Debug, Default)]
struct Gathering {
    /// When the first of them asked, us.
    since: Option<Micros>,
    /// How often in a row nobody has.
    quiet: usize,
}

impl Gathering {
    fn more(&mut self, now: Micros) {
        self.since.get_or_insert(now);
        self.quiet = 0;
    }

    fn is_over(&self, now: Micros) -> bool {
        self.quiet >= QUIET || self.since.is_some_and(|since| now >= since + GATHER)
    }
}

/// The far end: owns the connection.
struct Driver {
    asks: mpsc::Receiver<Ask>,
    shard: Arc<Shard>,
    breaker: Breaker,
    /// Why it was opened last.
    why: String,
    /// What waits to go out; at most [`QUEUE`].
    queue: Queue,
    /// How many of those the metrics know of.
    noted: usize,
    /// How long the next connect may take.
    connect: Duration,
    /// How long to wait before it, if this one fails.
    pause: Duration,
}

impl Driver {
    fn start(shard: Arc<Shard>) -> mpsc::Sender<Ask> {
        let (queue, asks) = mpsc::channel(QUEUE);
        let (breaker, why, connect) = (Breaker::Closed, String::new(), CONNECT.0);
        let (waiting, pause) = (Queue::default(), RECONNECT.0);
        let driver = Self { asks, shard, breaker, why, queue: waiting, noted: 0, connect, pause };
        tokio::spawn(driver.run());
        queue
    }

    async fn run(mut self) {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    match self.breaker {
                        Breaker::Open => self.breaker = Breaker::HalfOpen,
                        _ => tracing::info!(shard = %self.shard.address, "connected"),
                    }
                    (self.connect, self.pause) = (CONNECT.0, RECONNECT.0);
                    self.shard.set_up(self.breaker == Breaker::Closed);
                    let end = self.serve(connection).await;
                    self.shard.set_up(false);
                    match end {
                        End::Unwanted => return,
                        End::Broken => tracing::warn!(shard = %self.shard.address, "connection lost"),
                        End::Demoted => tracing::warn!(shard = %self.shard.address, "the server has become a replica"),
                        End::Silent => self.open_breaker("no answer in time"),
                        End::Useless => {
                            if self.give_up("its connections break at the first call").await {
                                return;
                            }
                            continue;
                        }
                    }
                    self.shard.doubt();
                }
                Err(error) => {
                    self.connect = (self.connect * 3 / 2).min(CONNECT.1);
                    self.pause = match server::is_refusal(&error) {
                        true => (self.pause * 2).min(RECONNECT.1),
                        false => RECONNECT.0,
                    };
                    if self.give_up(&error.to_string()).await {
                        return;
                    }
                }
            }
        }
    }

    /// Opens the breaker until it is time to try again; true when nobody can ask any more.
    async fn give_up(&mut self, why: &str) -> bool {
        self.open_breaker(why);
        self.shard.doubt();
        self.refuse(why).await
    }

    fn open_breaker(&mut self, why: &str) {
        self.queue.refuse(&StoreError::Unreachable(why.to_owned()).into());
        self.note_held();
        why.clone_into(&mut self.why);
        if std::mem::replace(&mut self.breaker, Breaker::Open) == Breaker::Closed {
            tracing::warn!(
                shard = %self.shard.address, why,
                "breaker opened: its checks are answered by the fallback until it answers again"
            );
        }
    }

    /// Notes that the server answers.
    fn close_breaker(&mut self) {
        if std::mem::replace(&mut self.breaker, Breaker::Closed) != Breaker::Closed {
            self.shard.set_up(true);
            tracing::info!(shard = %self.shard.address, "connected");
        }
    }

    /// Connects. Who asks meanwhile waits, unless the breaker is open.
    async fn connect(&mut self) -> redis::RedisResult<MultiplexedConnection> {
        let connecting = within(self.connect, connect(self.shard.clone(), self.connect));
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                Some(ask) = self.asks.recv(), if self.breaker == Breaker::Open => refuse(ask, &self.why),
            }
        }
    }

    /// Carries asks to the server. Calls that are under way when it ends are dropped: their fate is unknown.
    async fn serve(&mut self, mut connection: MultiplexedConnection) -> End {
        let (shard, connected) = (self.shard.clone(), self.shard.now());
        let (mut under_way, mut asked) = (FuturesUnordered::new(), Vec::new());
        let (at_once, mut gathering) = (UNDER_WAY[shard.durability as usize], Gathering::default());
        let mut looking = Box::pin(look_over_eviction(connection.clone(), &shard));
        // On the connection before, they waited for calls that are under way no more.
        self.queue.release_all();
        loop {
            let (idle, room) = (under_way.is_empty(), TAKEN_IN.min(QUEUE - self.queue.len()));
            let is_due = under_way.len() < at_once && self.queue.ready() > 0;
            if is_due && (room == 0 || self.queue.ready() >= BATCH || gathering.is_over(shard.now())) {
                // What is under way would tell.
                if idle && !shard.heard_since(shard.now() - FRESH) && server::has_ended(&mut connection) {
                    return broken(&shard, connected);
                }
                // What has come meanwhile goes with what waits for the same keys.
                (0..room).map_while(|_| self.asks.try_recv().ok()).for_each(|ask| _ = self.queue.add(ask));
                let groups = self.queue.take(BATCH);
                if !groups.is_empty() {
                    under_way.push(carry(Batch::of(groups, &shard), connection.clone(), &shard));
                }
                gathering = Gathering::default();
                continue;
            }
            self.note_held();
            tokio::select! {
                biased;
                Some(Carried { ended, keys: answered }) = under_way.next(), if !idle => match ended {
                    Ended::Sound => {
                        // Where all callers had gone, nothing was asked.
                        if shard.heard_since(connected) {
                            self.close_breaker();
                        }
                        answered.into_iter().for_each(|key| self.queue.release(key));
                    }
                    Ended::Broken => return broken(&shard, connected),
                    Ended::Demoted => {
                        while under_way.next().await.is_some() {}
                        return End::Demoted;
                    }
                    Ended::Silent => return End::Silent,
                },
                count = self.asks.recv_many(&mut asked, room), if under_way.len() < at_once && room > 0 => {
                    if count == 0 {
                        while under_way.next().await.is_some() {}
                        return End::Unwanted;
                    }
                    let mut may_go = false;
                    for ask in asked.drain(..) {
                        may_go |= self.queue.add(ask);
                    }
                    if may_go {
                        gathering.more(shard.now());
                    }
                }
                () = tokio::task::yield_now(), if is_due => gathering.quiet += 1,
                () = tokio::time::sleep(IDLE), if idle && !is_due => {
                    if let Some(end) = self.look(&mut connection).await {
                        return end;
                    }
                }
                () = &mut looking => {}
            }
        }
    }

    /// Tells the metrics how many asks wait here.
    fn note_held(&mut self) {
        let held = self.queue.len();
        if self.noted != held {
            self.shard.metrics.hold(self.noted, held);
            self.noted = held;
        }
    }

    /// How the connection has ended, unless the server still tells its TIME.
    async fn look(&mut self, connection: &mut MultiplexedConnection) -> Option<End> {
        let sent = self.shard.now();
        let Ok(told) = tokio::time::timeout(self.shard.patience(), server::time(connection)).await else {
            return Some(End::Silent);
        };
        let Ok(time) = told else { return Some(End::Broken) };
        self.shard.hear();
        self.close_breaker();
        self.shard.learn_offset(time, sent, self.shard.now());
        None
    }

    /// Tells whoever asks that there is no connection, until it is time to try again; true when nobody can
    /// ask any more.
    async fn refuse(&mut self, why: &str) -> bool {
        let pause = tokio::time::sleep(self.pause);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return false,
                ask = self.asks.recv() => match ask {
                    Some(ask) => refuse(ask, why),
                    None => return true,
                },
            }
        }
    }
}

/// How a connection made at `connected` (us) that broke has ended.
fn broken(shard: &Shard, connected: Micros) -> End {
    if shard.heard_since(connected) { End::Broken } else { End::Useless }
}

/// How a batch ended, and the keys it was about.
struct Carried {
    ended: Ended,
    keys: Vec<Fingerprint>,
}

async fn carry(batch: Batch, connection: MultiplexedConnection, shard: &Shard) -> Carried {
    let keys = batch.keys();
    Carried { ended: batch.exchange(connection, shard).await, keys }
}

/// Warns when the server is told to evict while the connection lasts. Does not end.
async fn look_over_eviction(mut connection: MultiplexedConnection, shard: &Shard) {
    loop {
        tokio::time::sleep(EVICTION).await;
        // Whether it answers is for others to say.
        let _ = within(shard.patience(), server::look_over_eviction(&mut connection, &shard.address)).await;
    }
}

/// Opens a connection that can take calls, and learns the shard's clock.
async fn connect(shard: Arc<Shard>, limit: Duration) -> redis::RedisResult<MultiplexedConnection> {
    let mut connection = server::connect(&shard.address, shard.credentials(), limit).await?;
    let sent = shard.now();
    let (time, is_cluster) = server::prepare(&mut connection, &shard.address, shard.durability).await?;
    shard.set_cluster(is_cluster);
    shard.learn_offset(time, sent, shard.now());
    Ok(connection)
}

/// A caller that has gone needs no answer.
fn refuse(ask: Ask, why: &str) {
    ask.answer.send(Err(StoreError::Unreachable(why.to_owned()).into()));
}
