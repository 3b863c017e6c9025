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
use crate::store::redis::router::unanswered::Unanswered;
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
        let (caller, mut answers) = mpsc::unbounded_channel();
        let mut waiting: Vec<Option<Unanswered>> = Vec::with_capacity(wanted.len());
        let mut retries = FuturesUnordered::new();
        let mut pieces: Vec<(Lane, Piece)> = Vec::new();
        for (place, wanted) in wanted.iter().enumerate() {
            let span = StoreSpan::none();
            let target = self.target(wanted.subject, &span);
            let lane = match self.owner(target.slot) {
                Ok(lane) => lane,
                Err(error) => {
                    tell(place, Err(error));
                    waiting.push(None);
                    continue;
                }
            };
            let deadline = RetryBudget::new(self.topology.clock(), since, wanted.subject.policy.timeout).deadline();
            let reply_to = ReplyTo::Batch(caller.clone(), place);
            let work = wanted.work();
            let metas = self.kept_metas(&target, &work, &wanted.metas);
            let request = target.request(work, metas, &lane, deadline, reply_to);
            match pieces.iter_mut().find(|(known, _)| known.is(&lane)) {
                Some((_, piece)) => piece.push(request),
                None => pieces.push((lane.clone(), smallvec![request])),
            }
            waiting.push(Some(Unanswered::new(lane, 1)));
        }
        pieces.into_iter().for_each(|(lane, piece)| lane.send_together(piece));
        drop(caller);
        let (mut some, mut is_open) = (Vec::with_capacity(wanted.len()), true);
        loop {
            tokio::select! {
                biased;
                count = answers.recv_many(&mut some, wanted.len().max(1)), if is_open => {
                    is_open = count > 0;
                    for (place, answer) in some.drain(..) {
                        let Some(waiting) = waiting[place].take() else { continue };
                        match answer {
                            Ok(done) => {
                                waiting.answered();
                                tell(place, done.taken());
                            }
                            Err(reason) => retries.push(self.retry(place, &wanted[place], since, (waiting, reason))),
                        }
                    }
                }
                Some((place, taken)) = retries.next() => tell(place, taken),
                else => break,
            }
        }
        // The lanes dropped these requests.
        for (place, waiting) in waiting.into_iter().enumerate() {
            if let Some(waiting) = waiting {
                tell(place, Err(waiting.failed(given_up())));
            }
        }
    }

    /// Retries a check that was not executed, and returns its answer.
    async fn retry(
        &self,
        place: usize,
        wanted: &Wanted<'_>,
        since: Micros,
        sent: (Unanswered, NotExecuted),
    ) -> (usize, Result<Taken, StoreError>) {
        let mut budget = RetryBudget::new(self.topology.clock(), since, wanted.subject.policy.timeout);
        let (span, work) = (StoreSpan::none(), wanted.work());
        let target = self.target(wanted.subject, &span);
        let answer = self.route(&target, (&work, &wanted.metas), &mut budget, Some(sent)).await;
        (place, answer.and_then(Done::taken))
    }
}

impl Wanted<'_> {
    fn work(&self) -> Work {
        Work::Take(smallvec![self.cost])
    }
}
