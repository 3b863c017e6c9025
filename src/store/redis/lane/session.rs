//! The send loop of a lane over one connection.
//!
//! While calls are in flight, new requests wait and then leave together in one pipeline. All checks
//! of one key under one policy become one list of costs. Several keys share a script call. Before
//! the driver sends a pipeline, it lets other ready tasks run as long as this adds requests. A
//! pipeline costs both ends more than a check within it. No timer is involved, so an idle lane adds
//! no latency.
//!
//! A key with a call in flight waits for it, even when another pipeline may leave. A hot key thus
//! costs its primary one call per round trip, however many callers ask.
//!
//! Beside its calls, a lane asks whether a refusing shard writes again, and whether the server
//! evicts keys.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::deadline::within;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_MILLI, Micros};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::preflight::check_eviction;
use crate::store::redis::connect::questions::{self, bounded};
use crate::store::redis::lane::pipeline::{End, Pipeline};
use crate::store::redis::lane::queue::{QUEUE, Queue};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::request::{LaneReceiver, Piece};

/// The most requests accepted at once, not counting the rest of the last piece.
const ENQUEUED: usize = 4096;

/// The most batches in one pipeline.
const KEY_BATCHES: usize = 512;

/// The most pipelines in flight. The driver prepares the next pipeline while the server works on
/// the first. With replicas only one is in flight, because WAIT delays all later answers.
const IN_FLIGHT: [usize; 2] = [2, 1];

/// How many times in a row the runtime must bring no new request before a pipeline leaves. The
/// first yield finds data that is ready to read, and the second lets its tasks send requests. Tokio
/// promises no order, so this is a rule of thumb.
const QUIET: usize = 2;

/// How long the wait for more requests may last after the first one, us.
const GATHER: Micros = 500;

/// How long after an answer its connection counts as alive, us.
const FRESH: Micros = MICROS_PER_MILLI;

/// How long a lane may be idle before its server must prove that it answers.
const IDLE: Duration = Duration::from_secs(1);

/// The interval of probes to a shard that is down.
const PROBE: Duration = Duration::from_secs(1);

/// How many probes apart a connection checks whether its server evicts keys.
const EVICTION: u64 = 60;

/// Decides whether a pipeline waits for more requests.
#[derive(Debug, Default)]
struct Coalescer {
    /// When the first request arrived, us.
    since: Option<Micros>,
    /// How many times in a row no request arrived.
    quiet: usize,
}

impl Coalescer {
    fn more(&mut self, now: Micros) {
        self.since.get_or_insert(now);
        self.quiet = 0;
    }

    fn is_over(&self, now: Micros) -> bool {
        self.quiet >= QUIET || self.since.is_some_and(|since| now >= since + GATHER)
    }
}

/// The send loop over one connection.
pub struct Session<'a> {
    pub connection: Connection,
    pub receiver: &'a mut LaneReceiver,
    pub queue: &'a mut Queue,
    pub shard: &'a Shard,
}

impl Session<'_> {
    /// Sends requests to the server. Calls in flight at its end are dropped, and their outcome is
    /// unknown.
    pub async fn run(mut self) -> End {
        let (shard, connected) = (self.shard, self.shard.now());
        let (mut in_flight, at_once) = (FuturesUnordered::new(), IN_FLIGHT[shard.durability as usize]);
        let mut coalescer = Coalescer::default();
        let mut watching = Box::pin(watch(self.connection.clone(), shard));
        // Keys waited for calls of the previous connection, which are no longer in flight.
        self.queue.release_all();
        loop {
            let (idle, room) = (in_flight.is_empty(), ENQUEUED.min(QUEUE.saturating_sub(self.queue.len())));
            let is_due = in_flight.len() < at_once && self.queue.ready() > 0;
            if is_due && (room == 0 || self.queue.ready() >= KEY_BATCHES || coalescer.is_over(shard.now())) {
                // A call in flight would reveal a broken connection.
                if idle && !shard.heard_since(shard.now() - FRESH) && self.connection.has_ended() {
                    return broken(shard, connected);
                }
                if let Some(pipeline) = self.next_pipeline(room) {
                    let (connection, keys) = (self.connection.clone(), pipeline.keys());
                    in_flight.push(async move { (pipeline.exchange(connection, shard).await, keys) });
                }
                coalescer = Coalescer::default();
                continue;
            }
            self.queue.note(&shard.metrics);
            tokio::select! {
                biased;
                Some((end, answered)) = in_flight.next(), if !idle => match end {
                    None => answered.into_iter().for_each(|key| self.queue.release(key)),
                    Some(End::Broken) => return broken(shard, connected),
                    Some(End::Demoted) => {
                        while in_flight.next().await.is_some() {}
                        return End::Demoted;
                    }
                    Some(end) => return end,
                },
                requests = self.receiver.recv(), if in_flight.len() < at_once && room > 0 => {
                    let Some(requests) = requests else {
                        while in_flight.next().await.is_some() {}
                        return End::Unwanted;
                    };
                    if self.enqueue(Some(requests), room) {
                        coalescer.more(shard.now());
                    }
                }
                () = tokio::task::yield_now(), if is_due => coalescer.quiet += 1,
                () = tokio::time::sleep(IDLE), if idle && !is_due => {
                    if let Some(end) = self.look().await {
                        return end;
                    }
                }
                () = &mut watching => {}
            }
        }
    }

    /// Returns the next pipeline, unless no caller waits for it. Up to `room` newly arrived
    /// requests merge with queued ones for the same keys.
    fn next_pipeline(&mut self, room: usize) -> Option<Pipeline> {
        self.enqueue(None, room);
        let batches = self.queue.dequeue(KEY_BATCHES);
        (!batches.is_empty()).then(|| Pipeline::of(batches, self.shard))
    }

    /// Queues `first` and later requests until `room` more are queued. Returns whether any may be
    /// sent.
    fn enqueue(&mut self, first: Option<Piece>, room: usize) -> bool {
        let (full, mut may_go) = (self.queue.len() + room, false);
        let mut next = first;
        while self.queue.len() < full
            && let Some(requests) = next.take().or_else(|| self.receiver.try_recv())
        {
            requests.into_iter().for_each(|request| may_go |= self.queue.add(request));
        }
        may_go
    }

    /// Asks the server for TIME. Returns how the connection ended, or none if it still answers.
    async fn look(&mut self) -> Option<End> {
        let sent = self.shard.now();
        match within(&self.shard.shared.clock, self.shard.silence_limit(), questions::time(&mut self.connection)).await
        {
            Some(Ok(time)) => {
                self.shard.hear();
                self.shard.learn_offset(time, sent, self.shard.now());
                None
            }
            Some(Err(_)) => Some(End::Broken),
            None => Some(End::Silent),
        }
    }
}

/// Classifies the end of a broken connection that was made at `connected`, us.
fn broken(shard: &Shard, connected: Micros) -> End {
    if shard.heard_since(connected) { End::Broken } else { End::Useless }
}

/// Probes the shard while it is connected and makes no charges. Warns when it refuses a kind of
/// calls, and when the server starts to evict keys. The loop never ends. Only one lane of a shard probes.
async fn watch(mut connection: Connection, shard: &Shard) {
    for turn in 1_u64.. {
        tokio::time::sleep(PROBE).await;
        shard.log_refused_kinds();
        // Other code detects a server that does not answer.
        if shard.durability == Durability::Primary && shard.is_refusing() {
            shard.log_down();
            let _ = bounded(shard.silence_limit(), probe(&mut connection, shard)).await;
        }
        if turn.is_multiple_of(EVICTION) {
            let asked = check_eviction(&mut connection, &shard.address, &shard.preflight);
            let _ = bounded(shard.silence_limit(), asked).await;
        }
    }
}

/// Asks the server to write, and notes whether it does.
///
/// # Errors
/// When it does not answer.
pub async fn probe(connection: &mut Connection, shard: &Shard) -> Result<(), Failure> {
    let key = shard.charging.probe(&shard.shared.prefix);
    match questions::probe(connection, key.as_deref()).await {
        Ok(()) if key.is_some() => shard.accept_probe(),
        Ok(()) => {}
        Err(failure) if failure.kind == Kind::Moved => shard.shared.request_refresh(),
        Err(failure) if failure.is_told() => shard.charging.fail_probe(&failure, shard.now()),
        Err(failure) => return Err(failure),
    }
    Ok(())
}
