//! Checks of several keys that one caller sends at once, as a batch does.
//!
//! Most state of a waiting check serves rare events: a redirection, a pause, a moving slot. The
//! checks of a batch therefore reach each lane in one piece and share one answer channel. Only
//! checks that were not executed are retried one by one.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smallvec::smallvec;
use tokio::sync::mpsc;

use crate::limit::time::Micros;
use crate::store::redis::lane::Lane;
use crate::store::redis::lane::channel::Piece;
use crate::store::redis::protocol::not_executed::NotExecuted;
use crate::store::redis::request::{ReplyTo, given_up};
use crate::store::redis::router::Router;
use crate::store::redis::router::retry::RetryBudget;
use crate::store::redis::router::unanswered::{AllUnanswered, Next, Unanswered};

use crate::store::{Done, StoreError, Taken, Wanted, Work};
use crate::telemetry::traces::StoreSpan;

impl Router {
    /// See [`crate::store::Store::take_each`].
    pub async fn take_each(
        &self,
        wanted: &[Wanted<'_>],
        mut tell: impl FnMut(usize, Result<Taken, StoreError>) + Send,
    ) {
        let since = self.topology.clock().now();
        let (caller, mut told) = mpsc::unbounded_channel();
        let mut waiting = AllUnanswered::new(wanted.len());
        let mut alone = FuturesUnordered::new();
        let mut pieces: Vec<Piece> = Vec::new();
        for (place, wanted) in wanted.iter().enumerate() {
            let span = StoreSpan::none();
            let target = self.target(wanted.subject, &span);
            let lane = match self.owner(target.slot) {
                Ok(lane) => lane,
                Err(error) => {
                    tell(place, Err(error));
                    continue;
                }
            };
            let deadline = RetryBudget::new(self.topology.clock(), since, wanted.subject.policy.timeout).deadline();
            let answer = ReplyTo::Batch(caller.clone(), place);
            let work = wanted.work();
            let metas = self.kept_metas(&target, &work, &wanted.metas);
            let request = target.request(work, metas, &lane, deadline, answer);
            let at = waiting.wait(place, lane);
            match pieces.get_mut(at) {
                Some(piece) => piece.push(request),
                None => pieces.push(smallvec![request]),
            }
        }
        for (lane, piece) in waiting.lanes.iter().zip(pieces) {
            lane.send_together(piece);
        }
        drop(caller);
        let (mut some, mut is_open) = (Vec::with_capacity(wanted.len()), true);
        loop {
            tokio::select! {
                biased;
                count = told.recv_many(&mut some, wanted.len().max(1)), if is_open => {
                    is_open = count > 0;
                    for (place, answer) in some.drain(..) {
                        let Some(lane) = waiting.end(place) else { continue };
                        match answer {
                            Ok(answer) => tell(place, answer.taken()),
                            Err(reason) => {
                                alone.push(self.retry_alone(place, &wanted[place], since, (reason, lane)));
                            }
                        }
                    }
                }
                Some((place, taken)) = alone.next() => tell(place, taken),
                else => break,
            }
        }
        // The lanes dropped these requests.
        for place in 0..wanted.len() {
            if let Some(lane) = waiting.end(place) {
                lane.shard().metrics.failed(&given_up(), 1);
                tell(place, Err(given_up()));
            }
        }
    }

    /// Retries a check that was not executed, and returns its answer.
    async fn retry_alone(
        &self,
        place: usize,
        wanted: &Wanted<'_>,
        since: Micros,
        (reason, lane): (NotExecuted, Lane),
    ) -> (usize, Result<Taken, StoreError>) {
        let mut budget = RetryBudget::new(self.topology.clock(), since, wanted.subject.policy.timeout);
        let span = StoreSpan::none();
        let (target, work, waiting) = (self.target(wanted.subject, &span), wanted.work(), Unanswered::new(&lane, 1));
        let next = self.after(reason, &target, (&work, &wanted.metas), &lane, &mut budget).await;
        waiting.over(&next);
        let asking = match next {
            Ok(Next::Asking(address)) => Some(address),
            Ok(Next::Owner | Next::Done(_)) => None,
            Err(error) => return (place, Err(error)),
        };
        let answer = self.route(&target, (&work, &wanted.metas), &mut budget, asking).await;
        (place, answer.and_then(Done::taken))
    }
}

impl Wanted<'_> {
    fn work(&self) -> Work {
        Work::Take(smallvec![self.cost])
    }
}
