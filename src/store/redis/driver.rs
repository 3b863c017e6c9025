//! The far end of a lane: owns the connection to its primary.
//!
//! When it breaks, the driver connects anew, which those who ask wait for; one that has stood still is asked whether
//! it is there before anything goes out, so that what was not sent is not lost with it. When the server owes an answer
//! for twice its time, or cannot be connected to, the lane's breaker opens: whoever asks is told so at once, the
//! topology is asked for, and the driver probes by connecting until the server answers again: a connect is not enough,
//! a script must have run. A server that is asked nothing shows by its TIME, once a second, that it is there.

use std::sync::Arc;
use std::time::Duration;

use super::connection::{Attempt, Connection};
use super::failure::Failure;
use super::inbox::{Inbox, Inlet, Piece, inbox};
use super::queue::Queue;
use super::server::{self, bounded};
use super::shard::Shard;
use super::traffic::probe;
use crate::store::StoreError;
use crate::workers::Kind;

/// Asks that wait for the driver to take them in, and asks that it has taken in, at most; beyond that they are refused
/// at once. 256 callers of batches of 100 have room.
pub const QUEUE: usize = 32_768;

/// How long a server may take to accept a connection and to answer the first questions: at first, and after several
/// failures. A slow one is not given up for ever, and one that was cut off in silence is asked again within a second.
const CONNECT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(750));

/// How long the driver waits after a failed connect, and after a connection that broke before it answered anything; at
/// most, when the server does not let it in again and again: each time costs the server a login, or a handshake.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Why the driver stopped serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
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

/// The far end: owns the connection.
pub struct Driver {
    pub(super) asks: Inbox,
    pub(super) shard: Arc<Shard>,
    /// The breaker: whether who asks while there is no connection is told so at once, and does not wait for one.
    is_open: bool,
    /// Why it was opened last.
    why: Failure,
    /// What waits to go out; at most [`QUEUE`].
    pub(super) queue: Queue,
    /// How many of those the metrics know of.
    noted: usize,
    /// How long the next connect may take.
    connect: Duration,
    /// How long to wait before it, if this one fails.
    pause: Duration,
}

impl Driver {
    /// Starts one, which ends when nobody can ask it any more.
    pub fn start(shard: Arc<Shard>) -> Inlet {
        let (inlet, asks) = inbox(QUEUE);
        let (why, connect) = (Failure::late(), CONNECT.0);
        let (waiting, pause) = (Queue::default(), RECONNECT.0);
        let workers = shard.workers().clone();
        let driver = Self { asks, shard, is_open: false, why, queue: waiting, noted: 0, connect, pause };
        workers.spawn(Kind::Lane, driver.run());
        inlet
    }

    async fn run(mut self) {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    tracing::info!(shard = %self.shard.address, "connected");
                    self.is_open = false;
                    (self.connect, self.pause) = (CONNECT.0, RECONNECT.0);
                    self.shard.set_connected(true);
                    let end = self.serve(connection).await;
                    self.shard.set_connected(false);
                    match end {
                        End::Unwanted => return,
                        End::Broken => tracing::warn!(shard = %self.shard.address, "connection lost"),
                        End::Demoted => tracing::warn!(shard = %self.shard.address, "the server has become a replica"),
                        End::Silent => self.open_breaker(&Failure::late()),
                        End::Useless => {
                            let why = Failure::connection("the server closes each connection at its first call");
                            if self.give_up(&why).await {
                                return;
                            }
                            continue;
                        }
                    }
                    self.shard.doubt();
                }
                Err(error) => {
                    self.connect = (self.connect * 3 / 2).min(CONNECT.1);
                    self.pause = match error.is_refusal() {
                        true => (self.pause * 2).min(RECONNECT.1),
                        false => RECONNECT.0,
                    };
                    if self.give_up(&error).await {
                        return;
                    }
                }
            }
        }
    }

    /// Opens the breaker until it is time to try again; true when nobody can ask any more.
    async fn give_up(&mut self, why: &Failure) -> bool {
        self.open_breaker(why);
        self.shard.doubt();
        self.refuse(why).await
    }

    fn open_breaker(&mut self, failure: &Failure) {
        self.queue.refuse(&StoreError::Unreachable(failure.to_string()).into());
        self.note_held();
        self.shard.blame(failure);
        self.why = failure.clone();
        if !std::mem::replace(&mut self.is_open, true) {
            let why = failure.for_log();
            tracing::warn!(
                shard = %self.shard.address, %why,
                "breaker opened: its checks are answered by the fallback until it answers again"
            );
        }
    }

    /// Connects. Who asks meanwhile waits, unless the breaker is open: then a script must have run as well.
    async fn connect(&mut self) -> Result<Connection, Failure> {
        let (shard, limit, is_open) = (self.shard.clone(), self.connect, self.is_open);
        let connecting = async {
            let attempt = Attempt::default();
            let mut connection = attempt.within(limit, connect(&shard, &attempt)).await?;
            if is_open || shard.charging.has_refused() {
                bounded(shard.patience(), probe(&mut connection, &shard)).await?;
            }
            Ok(connection)
        };
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                Some(asks) = self.asks.recv(), if is_open => refuse(asks, &self.why, &self.shard),
            }
        }
    }

    /// Tells the metrics how many asks wait here.
    pub(super) fn note_held(&mut self) {
        let held = self.queue.len();
        if self.noted != held {
            self.shard.metrics.hold(self.noted, held);
            self.noted = held;
        }
    }

    /// Tells whoever asks that there is no connection, until it is time to try again; true when nobody can
    /// ask any more.
    async fn refuse(&mut self, why: &Failure) -> bool {
        let pause = tokio::time::sleep(self.pause);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return false,
                asks = self.asks.recv() => match asks {
                    Some(asks) => refuse(asks, why, &self.shard),
                    None => return true,
                },
            }
        }
    }
}

/// Opens a connection that can take calls, and learns the shard's clock.
async fn connect(shard: &Shard, attempt: &Attempt) -> Result<Connection, Failure> {
    let mut connection = Connection::open(&shard.address, shard.credentials(), attempt).await?;
    let sent = shard.now();
    let (address, durability, known) = (&shard.address, shard.durability, &shard.looked_over);
    let (time, is_cluster) = server::prepare(&mut connection, address, durability, known).await?;
    shard.set_cluster(is_cluster);
    // One that does not tell is asked all the same.
    if is_cluster
        && let Ok(slots) = server::slots(&mut connection).await
        && shard.is_strange(&server::ids(&slots))
    {
        return Err(Failure::connection("another cluster is at its address"));
    }
    shard.learn_offset(time, sent, shard.now());
    Ok(connection)
}

/// Tells who asks that there is no connection, which leaves their charges unanswered.
fn refuse(asks: Piece, why: &Failure, shard: &Shard) {
    if asks.iter().any(|ask| ask.matter.may_charge()) {
        shard.refuse(why);
    }
    asks.into_iter()
        .for_each(|ask| ask.answer.send(Err(StoreError::Unreachable(why.to_string()).into())));
}
