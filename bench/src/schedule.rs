//! The times at which calls may be sent.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use tollgate::limit::time::Micros;

use super::shared::{Shared, Timing};
use super::timer::Timer;

/// Shortest sleep, us. Calls that fall due meanwhile are sent with the next answer, or when the
/// sleep ends. A timer for each call costs more than the call, above all in a virtual machine. The
/// load would then take resources from the measured server.
const SHORTEST_NAP: Micros = 50;

/// Longest sleep, so that a stop takes effect, us.
const LONGEST_NAP: Micros = 50_000;

/// The calls of one thread in an open loop, due at a constant rate. Any free connection sends the
/// next one.
#[derive(Debug)]
pub(super) struct Schedule {
    /// us between two calls of this thread, as a fraction.
    interval: (u64, u64),
    first: Micros,
    until: Micros,
    /// Calls that have fallen due.
    released: AtomicU64,
    due: Semaphore,
    sent: AtomicU64,
}

impl Schedule {
    /// The calls of thread `number` out of `threads`, for `rate` checks a second in calls of
    /// `per_call`.
    pub(super) fn new(rate: u64, per_call: u64, (number, threads): (u32, u32), timing: Timing) -> Self {
        let micros = 1_000_000 * per_call * u64::from(threads);
        let first = timing.started + 1_000_000 * per_call * u64::from(number) / rate;
        let (released, due, sent) = (AtomicU64::new(0), Semaphore::new(0), AtomicU64::new(0));
        Self { interval: (micros, rate), first, until: timing.until, released, due, sent }
    }

    pub(super) async fn turn(&self) -> Option<Micros> {
        self.due.acquire().await.ok()?.forget();
        Some(self.due_at(self.sent.fetch_add(1, Ordering::Relaxed)))
    }

    /// Releases calls as they fall due, until the end or a stop.
    pub(super) async fn release(&self, shared: &Shared) -> std::io::Result<()> {
        let timer = Timer::new()?;
        loop {
            let now = shared.clock.now();
            let next = self.release_due(now);
            if now >= self.until || shared.is_stopped() {
                // Waiting connections receive the last due calls.
                tokio::task::yield_now().await;
                self.due.close();
                return Ok(());
            }
            let wait = next.min(self.until).saturating_sub(shared.clock.now());
            timer.sleep(wait.clamp(SHORTEST_NAP, LONGEST_NAP)).await?;
        }
    }

    /// Releases the calls due by `now`, us, until the end. Returns when the next is due. Only one
    /// thread may call it.
    pub(super) fn release_due(&self, now: Micros) -> Micros {
        let (before, now) = (self.released.load(Ordering::Relaxed), now.min(self.until));
        let mut released = before;
        while self.due_at(released) < now && !self.due.is_closed() {
            released += 1;
        }
        if released > before {
            self.released.store(released, Ordering::Relaxed);
            self.due.add_permits(usize::try_from(released - before).unwrap_or(usize::MAX >> 8));
        }
        self.due_at(released)
    }

    /// The due times of unsent calls, from `counted_from` on, us.
    pub(super) fn behind(&self, counted_from: Micros) -> impl Iterator<Item = Micros> {
        let sent = self.sent.load(Ordering::Relaxed);
        let due = self.due.available_permits() as u64;
        (sent..sent + due).map(|call| self.due_at(call)).filter(move |due| *due >= counted_from)
    }

    fn due_at(&self, call: u64) -> Micros {
        let (micros, rate) = self.interval;
        self.first + (u128::from(call) * u128::from(micros) / u128::from(rate)) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn calls_of_all_threads_are_evenly_apart() {
        let timing = Timing { started: 1000, counted_from: 1000, until: 10_000_000 };
        let schedules = [0, 1].map(|number| Schedule::new(30_000, 10, (number, 2), timing));
        let due: Vec<_> = (0..3).flat_map(|call| schedules.each_ref().map(|schedule| schedule.due_at(call))).collect();
        assert_eq!(due, [1000, 1333, 1666, 1999, 2333, 2666]);
    }

    #[test]
    fn what_falls_due_is_handed_out_once_whoever_looks_at_the_clock() {
        let timing = Timing { started: 1000, counted_from: 1000, until: 1400 };
        let schedule = Schedule::new(10_000, 1, (0, 1), timing);
        let mut look = |now| (schedule.release_due(now), schedule.due.available_permits());
        assert_eq!(
            [1000, 1001, 1001, 1250, 1300, 9000].map(&mut look),
            [(1000, 0), (1100, 1), (1100, 1), (1300, 3), (1300, 3), (1400, 4)]
        );
    }

    #[test]
    fn nothing_falls_due_after_the_end() {
        let timing = Timing { started: 1000, counted_from: 1000, until: 2000 };
        let schedule = Schedule::new(10_000, 1, (0, 1), timing);
        schedule.release_due(1250);
        schedule.due.close();
        schedule.release_due(1900);
        assert_eq!(schedule.behind(0).collect::<Vec<_>>(), [1000, 1100, 1200]);
    }

    /// Connections are separate tasks, as in a run.
    #[tokio::test]
    async fn waiting_connections_take_the_last_calls_that_fall_due() {
        let shared = Shared::new(u64::MAX);
        let started = shared.clock.now();
        let timing = Timing { started, counted_from: started, until: started + 1950 };
        let schedule = Arc::new(Schedule::new(10_000, 1, (0, 1), timing));
        let waiting = schedule.clone();
        let waiting = tokio::spawn(async move { while waiting.turn().await.is_some() {} });
        schedule.release(&shared).await.unwrap();
        waiting.await.unwrap();
        assert_eq!((schedule.behind(0).count(), schedule.sent.load(Ordering::Relaxed)), (0, 20));
    }
}
