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
use crate::store::redis::protocol::reply::NoVerdict;
use crate::store::redis::request::{Piece, ReplyTo, given_up};
use crate::store::redis::router::{RedisStore, Unanswered};
use crate::store::{CheckRequest, Done, StoreError, Taken, Work};
use crate::telemetry::traces::StoreSpan;

impl RedisStore {
    /// See [`crate::store::Store::charge_each`].
    pub async fn charge_each(
        &self,
        checks: &[CheckRequest<'_>],
        mut tell: impl FnMut(usize, Result<Taken, StoreError>) + Send,
    ) {
        let (since, span) = (self.topology.shared.clock.now(), StoreSpan::none());
        let (caller, mut answers) = mpsc::unbounded_channel();
        let mut waiting: Vec<Option<Unanswered>> = Vec::with_capacity(checks.len());
        let mut retries = FuturesUnordered::new();
        // `waiting` has a place for each check, and `pieces` the requests of each lane.
        let mut pieces: Vec<(Lane, Piece)> = Vec::new();
        for (place, check) in checks.iter().enumerate() {
            let target = self.target(check.subject, check.work(), &check.metas, &span, since);
            let lane = match self.owner(target.slot) {
                Ok(lane) => lane,
                Err(error) => {
                    tell(place, Err(error));
                    waiting.push(None);
                    continue;
                }
            };
            let request = self.request(&target, &lane, ReplyTo::Batch(caller.clone(), place));
            match pieces.iter_mut().find(|(known, _)| known.is(&lane)) {
                Some((_, piece)) => piece.push(request),
                None => pieces.push((lane.clone(), smallvec![request])),
            }
            waiting.push(Some(target.wait_for(lane)));
        }
        pieces.into_iter().for_each(|(lane, piece)| lane.send_together(piece));
        // The lanes have the other senders, so the channel ends with the last request.
        drop(caller);
        let (mut some, mut is_open) = (Vec::with_capacity(checks.len()), true);
        loop {
            tokio::select! {
                biased;
                count = answers.recv_many(&mut some, checks.len().max(1)), if is_open => {
                    is_open = count > 0;
                    for (place, answer) in some.drain(..) {
                        let Some(waiting) = waiting[place].take() else { continue };
                        match answer {
                            Ok(done) => {
                                waiting.answered();
                                tell(place, done.taken());
                            }
                            Err(reason) => retries.push(self.retry(place, &checks[place], since, (waiting, reason))),
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
        check: &CheckRequest<'_>,
        since: Micros,
        sent: (Unanswered, NoVerdict),
    ) -> (usize, Result<Taken, StoreError>) {
        let span = StoreSpan::none();
        let target = self.target(check.subject, check.work(), &check.metas, &span, since);
        (place, self.route(target, Some(sent)).await.and_then(Done::taken))
    }
}

impl CheckRequest<'_> {
    fn work(&self) -> Work {
        Work::Take(smallvec![self.cost])
    }
}
