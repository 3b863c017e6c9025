//! The driver of a lane, which owns the connection to its primary.
//!
//! When the connection breaks, the driver reconnects, and requests wait for the new connection.
//! Before the driver sends over an idle connection, it checks that the connection still exists. A
//! dead idle connection thus loses no request.
//!
//! The lane's breaker opens when a connect fails, or when the server owes an answer for two
//! response timeouts. An open breaker rejects each request at once and requests a new topology. The
//! driver then reconnects until a script runs: an accepted connection alone proves too little. An
//! idle server proves once a second, by its TIME, that it still answers.

use std::sync::Arc;
use std::time::Duration;

use crate::store::StoreError;
use crate::store::redis::connect::attempt::Attempt;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::preflight::prepare;
use crate::store::redis::connect::questions::{self, bounded};
use crate::store::redis::lane::pipeline::End;
use crate::store::redis::lane::queue::{QUEUE, Queue};
use crate::store::redis::lane::session::{Session, probe};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::cluster_slots;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::request::{LaneReceiver, LaneSender, Piece, channel};
use crate::workers::TaskKind;

/// The time limit of a connect and its first questions: at first, and after several failures. The
/// longer limit admits slow servers. It still allows a retry within a second after a server was cut
/// off in silence.
const CONNECT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(750));

/// The pause after a failed connect, and after a connection that broke before its first answer. The
/// second value is the maximum for a server that rejects this node repeatedly. Each attempt costs
/// the server a login or a handshake.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Owns the connection of a lane.
pub struct Driver {
    receiver: LaneReceiver,
    shard: Arc<Shard>,
    /// The breaker: while it is open, requests without a connection are rejected at once.
    is_open: bool,
    /// Why the breaker opened last.
    why: Failure,
    /// The requests that wait to be sent; at most [`QUEUE`].
    queue: Queue,
    /// The time limit of the next connect.
    connect: Duration,
    /// The pause after the next connect, if it fails.
    pause: Duration,
}

impl Driver {
    /// Starts a driver, which ends when all senders are gone.
    pub fn start(shard: Arc<Shard>) -> LaneSender {
        let (sender, receiver) = channel(QUEUE);
        let (why, connect) = (Failure::late(), CONNECT.0);
        let (waiting, pause) = (Queue::default(), RECONNECT.0);
        let workers = shard.shared.workers.clone();
        let driver = Self { receiver, shard, is_open: false, why, queue: waiting, connect, pause };
        workers.spawn(TaskKind::Lane, driver.run());
        sender
    }

    async fn run(mut self) {
        let shard = self.shard.clone();
        let is_closed = tokio::select! {
            biased;
            () = self.drive() => false,
            () = shard.closed() => true,
        };
        if is_closed {
            self.reject_rest().await;
        }
    }

    /// Rejects requests until all senders are gone.
    async fn reject_rest(&mut self) {
        let why = Failure::connection("another server is the primary by now");
        if let Some(suppressed) = self.shard.may_log_event() {
            tracing::info!(shard = %self.shard.address, %why, suppressed, "connection closed");
        }
        self.shard.set_connected(false);
        self.shard.blame(&why);
        self.queue.reject(&StoreError::Unreachable(why.to_string()).into());
        self.queue.note(&self.shard.metrics);
        while let Some(requests) = self.receiver.recv().await {
            reject(requests, &why, &self.shard);
        }
    }

    /// Serves requests until all senders are gone.
    async fn drive(&mut self) {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    if let Some(suppressed) = self.shard.may_log_event() {
                        tracing::info!(shard = %self.shard.address, suppressed, "connected");
                    }
                    self.is_open = false;
                    (self.connect, self.pause) = (CONNECT.0, RECONNECT.0);
                    self.shard.set_connected(true);
                    let (receiver, queue) = (&mut self.receiver, &mut self.queue);
                    let end = Session { connection, receiver, queue, shard: &self.shard }.run().await;
                    self.shard.set_connected(false);
                    match end {
                        End::Unwanted => return,
                        End::Broken => self.log_end("connection lost"),
                        End::Demoted => self.log_end("the server has become a replica"),
                        End::Silent => self.open_breaker(&Failure::late()),
                        End::Useless => {
                            let why = Failure::connection("the server closes each connection at its first call");
                            if self.give_up(&why).await {
                                return;
                            }
                            continue;
                        }
                    }
                    self.shard.shared.request_refresh();
                }
                Err(error) => {
                    self.shard.charging.fail_connect(&error, self.shard.now());
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

    fn log_end(&self, event: &str) {
        if let Some(suppressed) = self.shard.may_log_event() {
            tracing::warn!(shard = %self.shard.address, suppressed, "{event}");
        }
    }

    /// Opens the breaker until the next attempt. Returns true when all senders are gone.
    async fn give_up(&mut self, why: &Failure) -> bool {
        self.open_breaker(why);
        self.shard.shared.request_refresh();
        self.reject(why).await
    }

    fn open_breaker(&mut self, failure: &Failure) {
        self.queue.reject(&StoreError::Unreachable(failure.to_string()).into());
        self.queue.note(&self.shard.metrics);
        self.shard.blame(failure);
        self.why = failure.clone();
        if !std::mem::replace(&mut self.is_open, true)
            && let Some(suppressed) = self.shard.may_log_event()
        {
            let why = failure.for_log();
            tracing::warn!(
                shard = %self.shard.address, %why, suppressed,
                "breaker opened: its checks are answered by the fallback until it answers again"
            );
        }
    }

    /// Connects. Requests wait meanwhile, unless the breaker is open. After an open breaker or a
    /// refused charge, a script must run as well.
    async fn connect(&mut self) -> Result<Connection, Failure> {
        let (shard, limit, is_open) = (self.shard.clone(), self.connect, self.is_open);
        let connecting = async {
            let attempt = Attempt::default();
            let mut connection = attempt.within(limit, connect(&shard, &attempt)).await?;
            if is_open || shard.charging.has_refused() {
                bounded(shard.silence_limit(), probe(&mut connection, &shard)).await?;
            }
            Ok(connection)
        };
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => return connected,
                Some(requests) = self.receiver.recv(), if is_open => reject(requests, &self.why, &self.shard),
            }
        }
    }

    /// Rejects requests until the next attempt. Returns true when all senders are gone.
    async fn reject(&mut self, why: &Failure) -> bool {
        let pause = tokio::time::sleep(self.pause);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return false,
                requests = self.receiver.recv() => match requests {
                    Some(requests) => reject(requests, why, &self.shard),
                    None => return true,
                },
            }
        }
    }
}

/// Opens a connection that can take calls, and learns the shard's clock.
async fn connect(shard: &Shard, attempt: &Attempt) -> Result<Connection, Failure> {
    let mut connection = shard.shared.connect(&shard.address, attempt).await?;
    let sent = shard.now();
    let (address, durability, known) = (&shard.address, shard.durability, &shard.preflight);
    let (time, is_cluster) = prepare(&mut connection, address, durability, known).await?;
    shard.set_cluster(is_cluster);
    // A server that does not answer CLUSTER SLOTS is used all the same.
    if is_cluster
        && let Ok(slots) = questions::slots(&mut connection).await
        && shard.shared.are_foreign(&cluster_slots::ids(&slots)).unwrap_or(false)
    {
        return Err(Failure::connection("another cluster is at its address"));
    }
    shard.learn_offset(time, sent, shard.now());
    Ok(connection)
}

/// Rejects requests for lack of a connection. Notes a refusal if one of them may charge.
fn reject(requests: Piece, why: &Failure, shard: &Shard) {
    if requests.iter().any(|request| request.work.may_charge()) {
        shard.refuse(why);
    }
    requests
        .into_iter()
        .for_each(|request| request.reply_to.send(Err(StoreError::Unreachable(why.to_string()).into())));
}
