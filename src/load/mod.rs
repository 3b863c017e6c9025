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
//! | slow reads for operators | `READS` | the next one waits |
//! | requests that wait at gates with a `pace` | `PACED` | decided at once |

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use scopeguard::guard;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::{JoinError, spawn_blocking};

use crate::access::TokenHash;
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

/// Longest wait of a call with a heavy body for the others.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// Heavy calls that wait at most. A permit serves about one in 10 ms.
const MAX_WAITING: usize = 256;

/// Blocking threads that read for operators at a time, so that calls in any number start no more.
const READS: usize = 4;

/// Requests that wait in line at the gates, at most.
const PACED: usize = 1000;

/// The load of a node: counters that all its listeners share.
#[derive(Debug, Clone)]
pub struct Load(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    sizes: Sizes,
    pooled: Pooled,
    addresses: Holders<IpAddr>,
    tokens: Holders<TokenHash>,
    heavy: Semaphore,
    /// Calls that wait for `heavy`.
    waiting: AtomicUsize,
    reads: Arc<Semaphore>,
    paced: Semaphore,
    shed: AtomicU64,
    /// Refused connections of all listeners.
    refused: AtomicU64,
    present: [AtomicUsize; Present::ALL.len()],
}

named! {
    /// A number of things that are present.
    pub enum Present {
        Connections = "connections",
        /// Calls over HTTP whose answer is not there yet.
        Calls = "calls",
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
            heavy: Semaphore::new(HEAVY_PER_CORE * cores()),
            waiting: AtomicUsize::new(0),
            reads: Arc::new(Semaphore::new(READS)),
            paced: Semaphore::new(PACED),
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
    /// `read` panicked.
    pub async fn read<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
        let permit = self.0.reads.clone().acquire_owned().await;
        // A caller that disconnects ends no thread.
        let reading = move || {
            let _permit = permit;
            read()
        };
        spawn_blocking(reading).await
    }

    /// A permit to wait in line at a gate. `None`: as many requests as may do.
    pub fn permit_pace(&self) -> Option<SemaphorePermit<'_>> {
        self.0.paced.try_acquire().ok()
    }

    /// A permit to parse a heavy call. `None`: none is free in time.
    pub async fn permit_heavy(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.0.heavy.try_acquire() {
            return Some(permit);
        }
        let waiting = self.0.waiting.fetch_add(1, Ordering::Relaxed);
        // Also if the connection ends during the wait.
        let _leave = guard(&self.0.waiting, |waiting| _ = waiting.fetch_sub(1, Ordering::Relaxed));
        // More calls than that would wait in vain, and each keeps its body.
        let permit = if waiting < MAX_WAITING {
            tokio::time::timeout(MAX_WAIT, self.0.heavy.acquire()).await.ok().and_then(Result::ok)
        } else {
            None
        };
        if permit.is_none() {
            self.count_shed();
        }
        permit
    }

    /// Counts a rejected request.
    pub fn count_shed(&self) {
        self.0.shed.fetch_add(1, Ordering::Relaxed);
    }
}
