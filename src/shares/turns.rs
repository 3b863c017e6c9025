//! The work that runs at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Counts, FairQueue, Holder, lock};

/// Turns of work. Holders without one wait, and take turns as others end.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    running: Counts<Holder>,
    /// Each with its weight.
    waiting: FairQueue<Holder, (usize, oneshot::Sender<Turn>)>,
}

/// A piece of work that runs, until it drops.
#[derive(Debug)]
pub struct Turn {
    /// None if another turn has its place.
    turns: Option<Turns>,
    holder: Holder,
    weight: usize,
}

/// The turns of one holder.
#[derive(Debug, Clone)]
pub struct CallerTurns {
    turns: Turns,
    holder: Holder,
}

impl Turns {
    /// Work of so much weight at a time, and so many pieces that wait for it at most.
    pub fn new(running: usize, waiting: usize) -> Self {
        Self(Arc::new(Mutex::new(State { running: Counts::new(running), waiting: FairQueue::new(waiting) })))
    }

    /// The turns of a holder.
    pub fn of(&self, holder: Holder) -> CallerTurns {
        CallerTurns { turns: self.clone(), holder }
    }

    /// A turn, at once or later. None: the holder may not wait.
    fn enter(&self, holder: Holder, weight: usize) -> Option<Result<Turn, oneshot::Receiver<Turn>>> {
        let mut state = lock(&self.0);
        if state.running.take(&holder, weight) {
            return Some(Ok(Turn { turns: Some(self.clone()), holder, weight }));
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting.push(&holder, (weight, sender)).is_ok().then_some(Err(receiver))
    }

    /// Ends a turn, and begins those that may run now.
    fn leave(&self, holder: &Holder, weight: usize) {
        let State { running, waiting } = &mut *lock(&self.0);
        running.give_back(holder, weight);
        while let Some((holder, (weight, sender))) = waiting.pop_of(|holder| running.may_take(holder)) {
            running.take(&holder, weight);
            if let Err(mut left) = sender.send(Turn { turns: Some(self.clone()), holder, weight }) {
                // Its caller has left.
                left.turns = None;
                running.give_back(&holder, weight);
            }
        }
    }
}

impl CallerTurns {
    /// A turn for work of this weight. `None`: too much of this caller waits.
    pub async fn next(&self, weight: usize) -> Option<Turn> {
        match self.turns.enter(self.holder, weight)? {
            Ok(turn) => Some(turn),
            Err(turn) => turn.await.ok(),
        }
    }

    /// The same, or `None` after a time.
    pub async fn within(&self, limit: Duration, weight: usize) -> Option<Turn> {
        match self.turns.enter(self.holder, weight)? {
            Ok(turn) => Some(turn),
            Err(turn) => timeout(limit, turn).await.ok()?.ok(),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.leave(&self.holder, self.weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn of(turns: &Turns, number: u8) -> CallerTurns {
        turns.of(Holder::at(Some([10, 0, 0, number].into())))
    }

    #[tokio::test]
    async fn modest_caller_runs_beside_greedy_ones() {
        let turns = Turns::new(8, 100);
        let greedy = of(&turns, 1);
        let running: Vec<_> = std::iter::from_fn(|| greedy.within(LONG, 1).now_or_never().flatten()).collect();
        assert_eq!(running.len(), 4);
        assert!(of(&turns, 2).within(LONG, 1).now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn heavy_work_counts_by_its_weight() {
        let turns = Turns::new(100, 100);
        let greedy = of(&turns, 1);
        let running: Vec<_> = std::iter::from_fn(|| greedy.within(LONG, 30).now_or_never().flatten()).collect();
        assert_eq!(running.len(), 2);
        let _heavy = of(&turns, 2).within(LONG, 1000).now_or_never().flatten().unwrap();
        assert!(of(&turns, 3).within(LONG, 1).now_or_never().is_none(), "nothing is free");
        drop(running);
        assert!(of(&turns, 3).within(LONG, 1).now_or_never().is_none(), "the last one is too heavy");
    }

    #[tokio::test]
    async fn waiting_callers_take_turns() {
        let turns = Turns::new(1, 100);
        let first = of(&turns, 0).within(LONG, 1).await.unwrap();
        let (order, mut waiting) = (Mutex::new(Vec::new()), Vec::new());
        for number in [1, 1, 1, 2] {
            let (turns, order) = (of(&turns, number), &order);
            waiting.push(async move {
                let _turn = turns.within(LONG, 1).await.unwrap();
                lock(order).push(number);
            });
        }
        let mut waiting = std::pin::pin!(futures_util::future::join_all(waiting));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        drop(first);
        waiting.await;
        assert_eq!(*lock(&order), [1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn caller_that_leaves_gives_its_turn_to_the_next() {
        let turns = Turns::new(1, 100);
        let (first, caller) = (of(&turns, 0).within(LONG, 1).await.unwrap(), of(&turns, 1));
        let mut left = Box::pin(caller.within(LONG, 1));
        let mut stays = Box::pin(caller.within(LONG, 1));
        assert!(futures_util::poll!(left.as_mut()).is_pending() && futures_util::poll!(stays.as_mut()).is_pending());
        drop((left, first));
        assert!(stays.await.is_some());
        assert!(of(&turns, 2).within(LONG, 1).await.is_some(), "the turn has ended");
    }

    #[tokio::test]
    async fn caller_that_waits_too_often_is_rejected() {
        let turns = Turns::new(1, 4);
        let (_first, caller) = (of(&turns, 0).within(LONG, 1).await.unwrap(), of(&turns, 1));
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(caller.within(LONG, 1))).collect();
        let polled: Vec<_> = waiting.iter_mut().map(|turn| turn.as_mut().now_or_never()).collect();
        assert!(matches!(polled[..], [None, None, Some(None)]), "{polled:?}");
        let others = [2, 3].map(|number| of(&turns, number));
        let mut other = Box::pin(others[0].within(LONG, 1));
        assert!(futures_util::poll!(other.as_mut()).is_pending());
        assert!(others[1].within(Duration::ZERO, 1).await.is_none(), "its time is over");
    }
}
