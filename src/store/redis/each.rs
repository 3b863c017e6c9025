//! Checks of several keys that one caller asks for at once, as a batch does.
//!
//! Most of what a check keeps while it waits is for what seldom happens: a redirection, a pause, a slot that moves. So
//! these share a channel, over which their lanes answer as they come, and only those that were not executed are asked
//! again one by one.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::ask::{Matter, Refusal, Return, given_up};
use super::lane::Lane;
use super::patience::Patience;
use super::route::{Next, Unanswered};
use super::{Done, RedisStore, StoreError, Taken, Wanted};
use crate::limit::time::Micros;
use crate::telemetry::traces::StoreSpan;

impl RedisStore {
    /// See [`super::super::Store::take_each`].
    pub async fn take_each(
        &self,
        wanted: &[Wanted<'_>],
        mut tell: impl FnMut(usize, Result<Taken, StoreError>) + Send,
    ) {
        let since = self.topology.clock().now();
        let (caller, mut told) = mpsc::unbounded_channel();
        let mut waiting = AllUnanswered(wanted.iter().map(|_| None).collect());
        let mut alone = FuturesUnordered::new();
        for (place, wanted) in wanted.iter().enumerate() {
            match self.put(wanted, since, || Return::Among(caller.clone(), place)) {
                Put::Queued(lane) => waiting.0[place] = Some(lane),
                Put::Refused(error, lane) => alone.push(self.take_alone(place, wanted, since, (error.into(), lane))),
                Put::Nowhere(error) => tell(place, Err(error)),
            }
        }
        drop(caller);
        let (mut some, mut is_open) = (Vec::with_capacity(wanted.len()), true);
        loop {
            tokio::select! {
                biased;
                count = told.recv_many(&mut some, wanted.len().max(1)), if is_open => {
                    is_open = count > 0;
                    for (place, answer) in some.drain(..) {
                        let Some(lane) = waiting.0[place].take() else { continue };
                        match answer {
                            Ok(answer) => tell(place, answer.done().and_then(Done::taken)),
                            Err(refusal) => {
                                alone.push(self.take_alone(place, &wanted[place], since, (refusal, lane)));
                            }
                        }
                    }
                }
                Some((place, taken)) = alone.next() => tell(place, taken),
                else => break,
            }
        }
        // Asks that were dropped.
        for (place, lane) in waiting.0.iter_mut().enumerate() {
            if let Some(lane) = lane.take() {
                lane.shard().metrics.failed(&given_up(), 1);
                tell(place, Err(given_up()));
            }
        }
    }

    /// Asks the lane of a check's key.
    fn put(&self, wanted: &Wanted<'_>, since: Micros, answer: impl FnOnce() -> Return) -> Put {
        let (span, policy) = (StoreSpan::none(), &wanted.subject.policy);
        let target = self.target(wanted.subject, &span);
        let lane = match self.owner(target.slot) {
            Ok(lane) => lane,
            Err(error) => return Put::Nowhere(error),
        };
        let deadline = Patience::new(self.topology.clock(), since, policy.timeout).deadline();
        match lane.ask(target.ask(self.sent(&target, wanted.matter()), &lane, deadline, answer())) {
            Ok(()) => Put::Queued(lane),
            Err(error) => Put::Refused(error, lane),
        }
    }

    /// The answer to a check that was not executed.
    async fn take_alone(
        &self,
        place: usize,
        wanted: &Wanted<'_>,
        since: Micros,
        (refusal, lane): (Refusal, Lane),
    ) -> (usize, Result<Taken, StoreError>) {
        let mut patience = Patience::new(self.topology.clock(), since, wanted.subject.policy.timeout);
        let span = StoreSpan::none();
        let (target, matter, waiting) =
            (self.target(wanted.subject, &span), wanted.matter(), Unanswered::new(&lane, 1));
        let next = self.after(refusal, &target, &matter, &lane, &mut patience).await;
        waiting.over(&next);
        let asking = match next {
            Ok(Next::Asking(address)) => Some(address),
            Ok(Next::Owner | Next::Done(_)) => None,
            Err(error) => return (place, Err(error)),
        };
        let answer = self.ask_routed(&target, &matter, &mut patience, asking).await;
        (place, answer.and_then(|answer| answer.done()?.taken()))
    }
}

/// What became of a check when it was to be queued.
enum Put {
    Queued(Lane),
    /// The lane did not take it.
    Refused(StoreError, Lane),
    /// No node is known to own its slot.
    Nowhere(StoreError),
}

impl Wanted<'_> {
    fn matter(&self) -> Matter {
        Matter::take(&[self.cost], &self.metas)
    }
}

/// The lane that each check waits for. When the caller gives up first, by dropping the call, they count as timed out.
struct AllUnanswered(Vec<Option<Lane>>);

impl Drop for AllUnanswered {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(|lane| lane.shard().metrics.failed(&StoreError::Timeout, 1));
    }
}
