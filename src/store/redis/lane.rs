//! A lane: the ordered stream of work towards one primary, over one connection.
//!
//! Checks are batched as they come. While calls are under way, what arrives waits, and then goes out together:
//! one pipeline, in which all checks of one key under one policy are a single script call with a list of
//! costs. There is no timer, so an idle lane adds no latency; a hot key costs its primary one call per round
//! trip, however many callers ask.
//!
//! A call that the server says it did not execute may be asked again: by the lane itself when the script was
//! missing or TIME was elsewhere, by the caller (who knows the slots) after a redirection. A call whose
//! connection broke, or that was not answered in time, may have been executed, and is never sent again.
//!
//! The driver owns the connection. When it breaks, or an answer is overdue, the driver drops it and connects
//! anew; until that succeeds the lane is down, and whoever asks is told so at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;

use super::ask::Ask;
use super::batch::{Batch, Ended};
use super::metrics::ShardMetrics;
use super::server::{self, Address, within};
use super::shard::Shard;
use crate::clock::Clock;
use crate::limit::time::Micros;
use crate::store::{ShardReading, StoreError};

/// Asks that wait at most; beyond that they are refused at once.
const QUEUE: usize = 4096;

/// Asks that go out together at most.
const BATCH: usize = 512;

/// Batches under way at once: while the server works on one, the next is prepared.
const UNDER_WAY: usize = 2;

/// How long a server may take to accept a connection and to answer the first questions.
const CONNECT: Duration = Duration::from_millis(250);

/// How long the driver waits after a failed connect.
const RECONNECT: Duration = Duration::from_millis(50);

/// The near end of a lane. The driver ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Lane {
    queue: mpsc::Sender<Ask>,
    shard: Arc<Shard>,
}

impl Lane {
    /// Starts a lane towards `address`.
    pub fn open(address: Address, clock: Clock, timeout: Duration, metrics: ShardMetrics) -> Self {
        let (queue, asks) = mpsc::channel(QUEUE);
        let shard = Arc::new(Shard::new(address, clock, timeout, metrics));
        tokio::spawn(Driver { asks, shard: shard.clone() }.run());
        Self { queue, shard }
    }

    /// Queues an ask; its answer comes over its channel.
    ///
    /// # Errors
    /// [`StoreError::QueueFull`].
    pub fn ask(&self, ask: Ask) -> Result<(), StoreError> {
        self.queue.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unreachable("the lane has ended".into()),
        })
    }

    pub fn address(&self) -> &Address {
        &self.shard.address
    }

    pub fn is_up(&self) -> bool {
        self.shard.is_up()
    }

    /// This node's clock, us.
    pub fn now(&self) -> Micros {
        self.shard.now()
    }

    pub fn metrics(&self) -> &ShardMetrics {
        &self.shard.metrics
    }

    /// What is known of the shard now.
    pub fn read(&self) -> ShardReading {
        ShardReading {
            address: self.shard.address.to_string(),
            up: self.shard.is_up(),
            queued: self.queue.max_capacity() - self.queue.capacity(),
            clock_offset: self.shard.offset(),
            counts: self.shard.metrics.read(),
        }
    }
}

/// The far end: owns the connection.
struct Driver {
    asks: mpsc::Receiver<Ask>,
    shard: Arc<Shard>,
}

impl Driver {
    async fn run(mut self) {
        let mut known_down = false;
        loop {
            match self.connect(known_down).await {
                Ok(connection) => {
                    tracing::info!(shard = %self.shard.address, "connected");
                    known_down = false;
                    self.shard.set_up(true);
                    let closed = self.serve(&connection).await;
                    self.shard.set_up(false);
                    if closed {
                        return;
                    }
                    tracing::warn!(shard = %self.shard.address, "connection lost");
                }
                Err(error) => {
                    if !std::mem::replace(&mut known_down, true) {
                        tracing::warn!(shard = %self.shard.address, %error, "cannot connect; trying again until it works");
                    }
                    if self.refuse(&error.to_string()).await {
                        return;
                    }
                }
            }
        }
    }

    /// Connects. Who asks meanwhile waits, unless the lane is known to be down: then it is told so at once.
    async fn connect(&mut self, known_down: bool) -> redis::RedisResult<MultiplexedConnection> {
        let connecting = within(CONNECT, connect(self.shard.clone()));
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                Some(ask) = self.asks.recv(), if known_down => refuse(ask, "connecting"),
            }
        }
    }

    /// Carries asks to the server until the connection breaks (false) or nobody can ask any more (true).
    async fn serve(&mut self, connection: &MultiplexedConnection) -> bool {
        let mut under_way = FuturesUnordered::new();
        let mut waiting = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                Some(ended) = under_way.next(), if !under_way.is_empty() => {
                    if ended == Ended::Broken {
                        // The others learn of it from the same connection.
                        while under_way.next().await.is_some() {}
                        return false;
                    }
                }
                count = self.asks.recv_many(&mut waiting, BATCH), if under_way.len() < UNDER_WAY => {
                    if count == 0 {
                        while under_way.next().await.is_some() {}
                        return true;
                    }
                    let batch = Batch::of(waiting.drain(..));
                    under_way.push(batch.exchange(connection.clone(), &self.shard));
                }
            }
        }
    }

    /// Tells whoever asks that there is no connection, until it is time to try again; true when nobody can
    /// ask any more.
    async fn refuse(&mut self, why: &str) -> bool {
        let pause = tokio::time::sleep(RECONNECT);
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

/// Opens a connection that can take calls, and learns the shard's clock.
async fn connect(shard: Arc<Shard>) -> redis::RedisResult<MultiplexedConnection> {
    let mut connection = server::connect(&shard.address, CONNECT).await?;
    let sent = shard.now();
    let time = server::prepare(&mut connection, &shard.address).await?;
    shard.learn_offset(time, sent, shard.now());
    Ok(connection)
}

/// A caller that has gone needs no answer.
fn refuse(ask: Ask, why: &str) {
    let _ = ask.answer.send(Err(StoreError::Unreachable(why.to_owned()).into()));
}
