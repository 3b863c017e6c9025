//! Suppresses the needless wakes that a connection causes in its own turn.
//!
//! Reading a piece of an HTTP/1 body from hyper wakes the connection, so that it may read the next
//! one. After the last piece there is none, and yet the runtime runs the connection once more for
//! every request. This wake carries no mark, but it can be counted. It occurs within a turn of the
//! connection, exactly once for each body that ended in that turn. If a turn has more wakes, the
//! connection runs again.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    /// The current turn of this thread.
    static TURN: Cell<Turn> = const { Cell::new(Turn::NONE) };
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    /// The address of the connection's waker; 0 outside of a turn.
    of: usize,
    wakes: u32,
    bodies: u32,
}

impl Turn {
    const NONE: Self = Self { of: 0, wakes: 0, bodies: 0 };
}

/// Notes that a reader got the last piece of an HTTP/1 body of the current connection. The body's
/// length must have marked the piece as the last.
pub(super) fn body_ended() {
    TURN.with(|turn| turn.set(Turn { bodies: turn.get().bodies + 1, ..turn.get() }));
}

/// Runs a connection without its needless wakes.
pub(crate) async fn suppress_spurious_wakes<F: Future>(connection: F) -> F::Output {
    let mut connection = pin!(connection);
    let mut kept: Option<SuppressingWaker> = None;
    poll_fn(|cx| {
        let kept = match &mut kept {
            Some(kept) if kept.task.task.will_wake(cx.waker()) => kept,
            outdated => outdated.insert(SuppressingWaker::new(cx.waker())),
        };
        kept.turn(|cx| connection.as_mut().poll(cx))
    })
    .await
}

/// A waker of one connection, valid as long as its task keeps its waker.
struct SuppressingWaker {
    task: Arc<Task>,
    waker: Waker,
}

impl SuppressingWaker {
    fn new(task: &Waker) -> Self {
        let task = Arc::new(Task { task: task.clone() });
        Self { waker: Waker::from(task.clone()), task }
    }

    fn turn<T>(&self, run: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let entered = Entered(TURN.replace(Turn { of: self.task.address(), ..Turn::NONE }));
        let polled = run(&mut Context::from_waker(&self.waker));
        let turn = TURN.get();
        drop(entered);
        if turn.wakes > turn.bodies {
            self.task.task.wake_by_ref();
        }
        polled
    }
}

/// Restores the previous turn, also after a panic.
struct Entered(Turn);

impl Drop for Entered {
    fn drop(&mut self) {
        TURN.set(self.0);
    }
}

struct Task {
    task: Waker,
}

impl Task {
    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let turn = TURN.get();
        if turn.of == self.address() {
            TURN.set(Turn { wakes: turn.wakes + 1, ..turn });
        } else {
            self.task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of wakes of a task by one turn that does `what`.
    fn woken(mut what: impl FnMut(&Waker)) -> u32 {
        let count = Arc::new(Count::default());
        let connection = suppress_spurious_wakes(poll_fn(move |cx| {
            what(cx.waker());
            Poll::<()>::Pending
        }));
        let waker = Waker::from(count.clone());
        assert!(pin!(connection).poll(&mut Context::from_waker(&waker)).is_pending());
        count.0.load(Ordering::Relaxed)
    }

    #[test]
    fn only_the_wake_of_an_ended_body_is_suppressed() {
        assert_eq!(woken(|_| {}), 0);
        assert_eq!(woken(Waker::wake_by_ref), 1, "it yields");
        let end = |waker: &Waker| {
            waker.wake_by_ref();
            body_ended();
        };
        assert_eq!(woken(end), 0);
        let two_and_yield = |waker: &Waker| {
            end(waker);
            end(waker);
            waker.wake_by_ref();
        };
        assert_eq!(woken(two_and_yield), 1);
        assert_eq!(woken(|_| body_ended()), 0, "a body that waked nobody");
    }

    #[test]
    fn wakes_from_outside_a_turn_pass() {
        let from_another_thread = |waker: &Waker| {
            let waker = waker.clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            body_ended();
        };
        assert_eq!(woken(from_another_thread), 1);

        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut kept = None;
        let mut connection = Box::pin(suppress_spurious_wakes(poll_fn(|cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        })));
        assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(connection);
        let kept = kept.unwrap();
        kept.wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "between turns");
        // During another connection's turn a wake passes.
        assert_eq!(woken(move |_| kept.wake_by_ref()), 0);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }
}
