//! Work that callers bring in any number, in turns: a caller with long batches leaves the store and
//! the worker to the checks of others.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::Engine;
use crate::limit::time::micros;
use crate::shares::{CallerTurns, Turn};

/// About the most checks in a turn. A worker needs some tenths of a millisecond for them.
pub(super) const PART: usize = 128;

/// The weight of any other operation, and of a check that is not simple, in simple checks. Those of
/// several keys share a script call, and each of the others has one of its own.
pub(super) const OPERATION: usize = 4;

/// Parts of one batch that have a turn, or wait for one.
pub(super) const PARTS_AT_ONCE: usize = 4;

/// A turn ends after this part of its timeout, though the store has not answered: a shard that is
/// away must not keep others from the rest.
const TURN_PART: u32 = 4;

impl Engine {
    /// The results of `work` on all things, in order. A thing without a turn within `limit` gets the
    /// result of `late`.
    pub async fn in_turns<T, R, F: Future<Output = R>>(
        &self,
        turns: &CallerTurns,
        limit: Duration,
        things: Vec<T>,
        work: impl Fn(T) -> F,
        late: impl Fn(T) -> R,
    ) -> Vec<R> {
        let (until, mut things) = (self.clock.now() + micros(limit), things.into_iter());
        let parts = std::iter::from_fn(|| {
            let part: Vec<T> = things.by_ref().take(PART / OPERATION).collect();
            (!part.is_empty()).then_some(part)
        });
        let (work, late) = (&work, &late);
        let run = |part: Vec<T>| async move {
            match turns.within(self.left(until), OPERATION * part.len()).await {
                Some(turn) => in_turn(Some(turn), limit, join_all(part.into_iter().map(work))).await,
                None => part.into_iter().map(late).collect(),
            }
        };
        let running: Vec<_> = parts.map(run).collect();
        let results: Vec<Vec<R>> = stream::iter(running).buffered(PARTS_AT_ONCE).collect().await;
        results.into_iter().flatten().collect()
    }
}

/// The result of `work` in a turn, which ends early if the store is slow. `limit` is the timeout.
pub(super) async fn in_turn<T>(turn: Option<Turn>, limit: Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let done = tokio::time::timeout(limit / TURN_PART, work.as_mut()).await;
    drop(turn);
    match done {
        Ok(done) => done,
        Err(_) => work.await,
    }
}
