use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// More rounds would exceed the budget that the runtime grants a task.
const MAX_ROUNDS: u32 = 8;

/// Polls a future again at once if it wakes itself, and spares the runtime these wakes.
///
/// The two halves of a connection wake each other several times in an exchange. The runtime would
/// schedule the task each time, and wake an idle thread for it.
#[derive(Debug)]
pub(crate) struct Rounds {
    wakes: Arc<Wakes>,
    waker: Waker,
}

#[derive(Debug)]
struct Wakes {
    state: AtomicU8,
    /// The waker of the task that polls.
    task: Mutex<Waker>,
}

/// No round is under way. A wake is one of the task.
const OUTSIDE: u8 = 0;
const POLLING: u8 = 1;
/// A wake came within a round.
const WOKEN: u8 = 2;

impl Rounds {
    pub fn new() -> Self {
        let wakes = Arc::new(Wakes { state: AtomicU8::new(OUTSIDE), task: Mutex::new(Waker::noop().clone()) });
        Self { waker: Waker::from(wakes.clone()), wakes }
    }

    pub fn poll<T>(&self, task: &Context<'_>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.wakes.task().clone_from(task.waker());
        for _ in 0..MAX_ROUNDS {
            self.wakes.state.store(POLLING, Ordering::SeqCst);
            let polled = poll(&mut Context::from_waker(&self.waker));
            let state = self.wakes.state.swap(OUTSIDE, Ordering::SeqCst);
            if polled.is_ready() {
                // The timer of the connection may fire later. It must wake no task then.
                self.wakes.task().clone_from(Waker::noop());
                return polled;
            }
            if state == POLLING {
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wakes {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let state = self.state.compare_exchange(POLLING, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if state == Err(OUTSIDE) {
            self.task().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_wakes_from_outside_reach_the_task() {
        let (count, rounds) = (Arc::new(Count::default()), Rounds::new());
        let (task, mut polls, mut kept) = (Waker::from(count.clone()), 0, None);
        let polled: Poll<()> = rounds.poll(&Context::from_waker(&task), |context| {
            polls += 1;
            if polls < 3 {
                context.waker().wake_by_ref();
            }
            kept = Some(context.waker().clone());
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, count.0.load(Ordering::Relaxed)), (3, 0));
        kept.as_ref().unwrap().wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(rounds.poll(&Context::from_waker(&task), |_| Poll::Ready(())).is_ready());
        kept.unwrap().wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "a wake after the end");
    }

    #[test]
    fn future_that_always_wakes_itself_leaves_the_thread() {
        let (count, mut polls) = (Arc::new(Count::default()), 0);
        let polled: Poll<()> = Rounds::new().poll(&Context::from_waker(&Waker::from(count.clone())), |context| {
            polls += 1;
            context.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((polls, count.0.load(Ordering::Relaxed)), (MAX_ROUNDS, 1));
    }
}
