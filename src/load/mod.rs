//! Overload: what bounds the memory and the time that callers take. `docs/security.md` has the
//! numbers.
//!
//! | bound on | where | beyond it |
//! |---|---|---|
//! | bytes that callers hold, by node, connection, address and token | `holdings.rs` | 503 |
//! | requests that arrive, and calls in flight | `arrival.rs` | 503, or 431 |
//! | answers that the client has not read | `metered_body.rs` | 503 |
//! | the time of a client, in ticks | `client_time.rs` | the connection ends |
//! | a slow, silent or idle client | `timed_stream.rs` | the connection ends |
//! | unread pieces and open requests of HTTP/2 | `backlog.rs` | the connection ends |
//! | header fields of HTTP/2 without a served call | `backlog.rs` | the connection ends |
//! | header fields of HTTP/2 in a turn | `timed_stream.rs` | other connections come first |
//! | calls with a body over [`LIGHT`] bytes that are parsed | `HEAVY_PER_CORE` | 503 after `MAX_WAIT` |
//! | memory of batches from their checks to their answer | `BATCHES_KIB` | 503 after `MAX_WAIT` |
//! | checks of batches before the store, and single ones in a crowd | `CHECKS_PER_CORE` | the next ones wait |
//! | slow reads for operators | `READS` | the next one waits |
//! | requests that wait at gates with a `pace` | `PACED` | decided at once |
//!
//! Callers share the last five by [`crate::shares`].

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use scopeguard::guard;
use tokio::task::{JoinError, spawn_blocking};

use crate::access::TokenHash;
use crate::shares::{CallerTurns, Holder, Share, Shares, Turn, Turns};
use crate::workers::cores;

mod holdings;

mod arrival;

mod client_time;

mod backlog;

mod metered_body;

mod timed_stream;

pub use arrival::{Arrival, ArrivingBody, BodyError, Unfit};
pub(crate) use backlog::Backlog;
pub use client_time::ClientTime;
pub use holdings::{Budget, Counted, Holdings, Sizes};
pub(crate) use metered_body::{is_long, make_body_optional, metered};
pub(crate) use timed_stream::TimedStream;

use holdings::{Holders, Pooled};

/// Longer bodies than this many bytes are heavy: batches of some hundred checks.
pub const LIGHT: usize = 16 * 1024;

/// Calls with heavy bodies that one core parses in turns. A batch of 1 MiB needs about 6 MiB until
/// its answer is written.
const HEAVY_PER_CORE: usize = 4;

/// Memory that batches may take at a time, from the first parsed check to the written answer, KiB. It
/// holds 60 batches of 1000 short checks.
const BATCHES_KIB: usize = 80 * 1024;

/// Bytes that a check of a batch takes with its decision, besides four times its text.
const CHECK_BYTES: usize = 1200;

/// Longest wait of a batch, or of a call with a heavy body, for the others.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// Heavy calls that wait at most. A turn serves about one in 10 ms. One holder gets half.
const MAX_WAITING: usize = 512;

/// Checks that one core brings before the store at a time, and parts of batches that wait at most.
const CHECKS_PER_CORE: usize = 512;
const MAX_PARTS: usize = 16_384;

/// Calls of one core in flight from which on single checks take turns, too.
const CROWD_PER_CORE: usize = 256;

/// Blocking threads that read for operators at a time, so that calls in any number start no more,
/// and the calls that wait for one at most.
const READS: usize = 4;
const MAX_READERS: usize = 16_384;

/// Requests that wait in line at the gates, at most. One client gets half.
const PACED: usize = 2000;

/// The load of a node: counters that all its listeners share.
#[derive(Debug, Clone)]
pub struct Load(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    sizes: Sizes,
    pooled: Pooled,
    addresses: Holders<IpAddr>,
    tokens: Holders<TokenHash>,
    heavy: Turns,
    batches: Turns,
    checks: Turns,
    /// Calls in flight from which on single checks take turns.
    crowd: usize,
    reads: Turns,
    paced: Shares<Holder>,
    shed: AtomicU64,
    /// Refused connections of all listeners.
    refused: AtomicU64,
    present: [AtomicUsize; Present::ALL.len()],
}

/// Why [`Load::read`] has no result.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    #[error("too many reads wait")]
    Overloaded,
    #[error(transparent)]
    Panicked(JoinError),
}

named! {
    /// A number of things that are present.
    pub enum Present {
        Connections = "connections",
        /// Calls over HTTP whose answer is not there yet.
        Calls = "calls",
        /// Redis clients whose answers are not there yet.
        Redis = "redis",
    }
}

impl Default for Load {
    fn default() -> Self {
        Self::sized(Sizes::default())
    }
}

impl Load {
    /// A load with budgets of these sizes.
    pub fn sized(sizes: Sizes) -> Self {
        Self(Arc::new(Counters {
            sizes,
            pooled: Pooled::default(),
            addresses: Holders::default(),
            tokens: Holders::default(),
            heavy: Turns::new(HEAVY_PER_CORE * cores(), MAX_WAITING),
            batches: Turns::new(BATCHES_KIB, MAX_WAITING),
            checks: Turns::new(CHECKS_PER_CORE * cores(), MAX_PARTS),
            crowd: CROWD_PER_CORE * cores(),
            reads: Turns::new(READS, MAX_READERS),
            paced: Shares::new(PACED),
            shed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            present: Default::default(),
        }))
    }

    fn sizes(&self) -> &Sizes {
        &self.0.sizes
    }

    fn pooled(&self) -> &Pooled {
        &self.0.pooled
    }

    fn addresses(&self) -> &Holders<IpAddr> {
        &self.0.addresses
    }

    fn tokens(&self) -> &Holders<TokenHash> {
        &self.0.tokens
    }

    /// Counts one more until the guard is dropped.
    pub fn enter(&self, present: Present) -> impl Drop + use<'_> {
        let count = &self.0.present[present as usize];
        count.fetch_add(1, Ordering::Relaxed);
        guard(count, |count| _ = count.fetch_sub(1, Ordering::Relaxed))
    }

    /// How many are present.
    pub fn present(&self, present: Present) -> usize {
        self.0.present[present as usize].load(Ordering::Relaxed)
    }

    /// Requests rejected so far: `tollgate_shed_total`.
    pub fn shed_total(&self) -> u64 {
        self.0.shed.load(Ordering::Relaxed)
    }

    /// Counts a connection that was closed at once, since too many are open.
    pub fn refuse_connection(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections refused so far: `tollgate_connections_refused_total`.
    pub fn connections_refused_total(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Whether an answer of about `bytes` fits the node's budget. A call asks before it charges
    /// anything.
    pub fn expects_room_for(&self, bytes: usize) -> bool {
        let size = self.0.sizes.pool[Budget::Unread as usize];
        bytes <= LIGHT || self.0.pooled.with_rights(Budget::Unread) + bytes <= size
    }

    /// Runs `read` on a blocking thread, of which calls of this kind use few.
    ///
    /// # Errors
    /// Too many calls of the holder wait, or `read` panicked.
    pub async fn read<T: Send + 'static>(
        &self,
        holder: Holder,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotRead> {
        let turn = self.0.reads.of(holder).next(1).await.ok_or(NotRead::Overloaded)?;
        // A caller that disconnects ends no thread.
        let reading = move || {
            let _turn = turn;
            read()
        };
        spawn_blocking(reading).await.map_err(NotRead::Panicked)
    }

    /// A place in line at a gate. `None`: the holder has as many as it may have.
    pub fn pace(&self, holder: Holder) -> Option<Share<Holder>> {
        self.0.paced.take(holder)
    }

    /// The turns of a holder's checks before the store.
    pub fn checks(&self, holder: Holder) -> CallerTurns {
        self.0.checks.of(holder)
    }

    /// Whether so many calls are in flight that single checks must take turns. Fewer are no burden,
    /// and a turn would cost each of them time.
    pub fn is_crowded(&self) -> bool {
        self.present(Present::Calls) + self.present(Present::Redis) > self.0.crowd
    }

    /// A turn to parse a heavy call. `None`: none is free in time.
    pub async fn heavy(&self, holder: Holder) -> Option<Turn> {
        self.in_time(&self.0.heavy, holder, 1).await
    }

    /// Room for a batch of so many checks in a body of so many bytes, until its answer is written. `None`:
    /// none is free in time.
    pub async fn batch(&self, holder: Holder, checks: usize, bytes: usize) -> Option<Turn> {
        let weight = (checks * CHECK_BYTES + 4 * bytes).div_ceil(1024);
        self.in_time(&self.0.batches, holder, weight).await
    }

    async fn in_time(&self, turns: &Turns, holder: Holder, weight: usize) -> Option<Turn> {
        let turn = turns.of(holder).within(MAX_WAIT, weight).await;
        if turn.is_none() {
            self.count_shed();
        }
        turn
    }

    /// Counts a rejected request.
    pub fn count_shed(&self) {
        self.0.shed.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_clients_leave_places_in_line_to_a_modest_one() {
        let load = Load::default();
        let holder = |number: u8| Holder::at(Some([10, 0, 0, number].into()));
        let fill = |number| std::iter::from_fn(|| load.pace(holder(number))).collect::<Vec<_>>();
        let greedy: Vec<_> = (0..10).map(fill).collect();
        assert_eq!([greedy[0].len(), greedy[1].len()], [1000, 500]);
        assert!(load.pace(holder(10)).is_some());
    }
}
