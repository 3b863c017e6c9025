//! What a lane's driver carries over its connection, and how it comes back.
//!
//! Checks are batched as they come. While calls are under way, what arrives waits, and then goes out together: one
//! pipeline, in which all checks of one key under one policy are decided together, by a list of costs, and those of
//! several keys share script calls. Before it goes out, the runtime runs what else is ready, for as long as that
//! brings more: a pipeline costs both ends more than a check in it. There is no timer, so an idle lane adds no
//! latency. A key with a call under way waits for it, also when another pipeline may go out: a hot key costs its
//! primary one call per round trip, however many callers ask.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::batch::{Batch, Ended};
use super::connection::Connection;
use super::driver::{Driver, End, QUEUE};
use super::failure::{Failure, Kind};
use super::inbox::Piece;
use super::server::{self, bounded};
use super::shard::Shard;
use crate::deadline::within;
use crate::limit::key::Fingerprint;
use crate::limit::policy::Durability;
use crate::limit::time::{MICROS_PER_MILLI, Micros};

/// Asks that are taken in at once, but for the rest of the last piece.
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

/// For how long after an answer its connection is taken to be there still, us.
const FRESH: Micros = MICROS_PER_MILLI;

/// How long a lane may be idle before the server must show that it is there.
const IDLE: Duration = Duration::from_secs(1);

/// How often a shard that is down is probed.
const PROBE: Duration = Duration::from_secs(1);

/// How often a server is asked whether it evicts meanwhile.
const EVICTION: Duration = Duration::from_secs(60);

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

impl Driver {
    /// Carries asks to the server. Calls that are under way when it ends are dropped: their fate is unknown.
    pub(super) async fn serve(&mut self, mut connection: Connection) -> End {
        let (shard, connected) = (self.shard.clone(), self.shard.now());
        let (mut under_way, at_once) = (FuturesUnordered::new(), UNDER_WAY[shard.durability as usize]);
        let mut gathering = Gathering::default();
        let mut looking = Box::pin(look_over_eviction(connection.clone(), &shard));
        let mut probing = Box::pin(probe_while_down(connection.clone(), &shard));
        // On the connection before, they waited for calls that are under way no more.
        self.queue.release_all();
        loop {
            let (idle, room) = (under_way.is_empty(), TAKEN_IN.min(QUEUE.saturating_sub(self.queue.len())));
            let is_due = under_way.len() < at_once && self.queue.ready() > 0;
            if is_due && (room == 0 || self.queue.ready() >= BATCH || gathering.is_over(shard.now())) {
                // What is under way would tell.
                if idle && !shard.heard_since(shard.now() - FRESH) && connection.has_ended() {
                    return broken(&shard, connected);
                }
                if let Some(batch) = self.next_batch(room) {
                    under_way.push(carry(batch, connection.clone(), &shard));
                }
                gathering = Gathering::default();
                continue;
            }
            self.note_held();
            tokio::select! {
                biased;
                Some(Carried { ended, keys: answered }) = under_way.next(), if !idle => match ended {
                    Ended::Sound => answered.into_iter().for_each(|key| self.queue.release(key)),
                    Ended::Broken => return broken(&shard, connected),
                    Ended::Demoted => {
                        while under_way.next().await.is_some() {}
                        return End::Demoted;
                    }
                    Ended::Silent => return End::Silent,
                },
                asks = self.asks.recv(), if under_way.len() < at_once && room > 0 => {
                    let Some(asks) = asks else {
                        while under_way.next().await.is_some() {}
                        return End::Unwanted;
                    };
                    if self.take_in(Some(asks), room) {
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
                () = &mut probing => {}
            }
        }
    }

    /// What goes out now, unless nobody waits for it any more. Up to `room` asks that have come meanwhile go with what
    /// waits for the same keys.
    fn next_batch(&mut self, room: usize) -> Option<Batch> {
        self.take_in(None, room);
        let groups = self.queue.take(BATCH);
        (!groups.is_empty()).then(|| Batch::of(groups, &self.shard))
    }

    /// Queues `first` and what was asked after it, until there are `room` asks; whether any of them may go out.
    fn take_in(&mut self, first: Option<Piece>, room: usize) -> bool {
        let (full, mut may_go) = (self.queue.len() + room, false);
        let mut next = first;
        while self.queue.len() < full
            && let Some(asks) = next.take().or_else(|| self.asks.try_recv())
        {
            asks.into_iter().for_each(|ask| may_go |= self.queue.add(ask));
        }
        may_go
    }

    /// How the connection has ended, unless the server still tells its TIME.
    async fn look(&self, connection: &mut Connection) -> Option<End> {
        let sent = self.shard.now();
        match within(self.shard.clock(), self.shard.patience(), server::time(connection)).await {
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

/// How a connection made at `connected` (us) that broke has ended.
fn broken(shard: &Shard, connected: Micros) -> End {
    if shard.heard_since(connected) { End::Broken } else { End::Useless }
}

/// How a batch ended, and the keys it was about.
struct Carried {
    ended: Ended,
    keys: Vec<Fingerprint>,
}

async fn carry(batch: Batch, connection: Connection, shard: &Shard) -> Carried {
    let keys = batch.keys();
    Carried { ended: batch.exchange(connection, shard).await, keys }
}

/// Probes the shard while it is connected and makes no charges. Does not end. One lane of a shard is enough.
async fn probe_while_down(mut connection: Connection, shard: &Shard) {
    loop {
        tokio::time::sleep(PROBE).await;
        if shard.durability == Durability::Primary && shard.is_refusing() {
            shard.log_down();
            // Whether it answers at all is for others to say.
            let _ = bounded(shard.patience(), probe(&mut connection, shard)).await;
        }
    }
}

/// Asks the server to write, and notes whether it does.
///
/// # Errors
/// When it does not answer.
pub(super) async fn probe(connection: &mut Connection, shard: &Shard) -> Result<(), Failure> {
    let key = shard.probe();
    match server::probe(connection, key.as_deref()).await {
        Ok(()) if key.is_some() => shard.accept_probe(),
        Ok(()) => {}
        Err(failure) if failure.kind == Kind::Moved => shard.doubt(),
        Err(failure) if failure.is_told() => shard.charging.explain(&failure),
        Err(failure) => return Err(failure),
    }
    Ok(())
}

/// Warns when the server is told to evict while the connection lasts. Does not end.
async fn look_over_eviction(mut connection: Connection, shard: &Shard) {
    loop {
        tokio::time::sleep(EVICTION).await;
        // Whether it answers is for others to say.
        let _ =
            bounded(shard.patience(), server::look_over_eviction(&mut connection, &shard.address, &shard.looked_over))
                .await;
    }
}
