//! One thread of the generator: a runtime of its own, its share of the connections, and one tally.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::try_join_all;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use tollgate::limit::time::Micros;

use super::pace::Schedule;
use super::plan::Plan;
use super::random::Random;
use super::scan::{Failure, Verdicts};
use super::shared::{Shared, Timing};
use super::tally::Tally;
use super::worker::Worker;

/// What the connections of a thread share.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) plan: Arc<Plan>,
    shared: Arc<Shared>,
    timing: Timing,
    /// None in a closed loop.
    schedule: Option<Schedule>,
    /// Of this thread alone, so the lock is never waited for.
    tally: Mutex<Tally>,
}

/// A call's place in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Latency counts from here.
    from: Micros,
    /// Whether the warm-up is over.
    counted: bool,
}

/// A thread that has been started.
#[derive(Debug)]
pub(super) struct Hired {
    /// Says when all its connections are open.
    pub(super) ready: oneshot::Receiver<Result<(), String>>,
    /// Lets it begin.
    pub(super) begin: oneshot::Sender<Timing>,
    /// Comes at the end.
    pub(super) tally: oneshot::Receiver<Result<Tally, String>>,
}

/// Starts thread `number`, which connects and then waits.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn hire(number: u32, plan: Arc<Plan>, shared: Arc<Shared>) -> Result<Hired, String> {
    let (ready_sender, ready) = oneshot::channel();
    let (begin, begun) = oneshot::channel();
    let (tally_sender, tally) = oneshot::channel();
    let work = async move {
        let workers = match connect(number, &plan).await {
            Ok(workers) => workers,
            Err(reason) => return drop(ready_sender.send(Err(reason))),
        };
        let _ = ready_sender.send(Ok(()));
        if let Ok(timing) = begun.await {
            let _ = tally_sender.send(work(number, workers, plan, shared, timing).await);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let thread = std::thread::Builder::new().name(format!("bench-{number}"));
    thread.spawn(move || runtime.block_on(work)).map_err(|error| error.to_string())?;
    Ok(Hired { ready, begin, tally })
}

async fn connect(number: u32, plan: &Plan) -> Result<Vec<Worker>, String> {
    let mine = (number..plan.connections).step_by(plan.threads as usize);
    let start = |place: u32| async move {
        let target = &plan.targets[place as usize % plan.targets.len()];
        // Seeds far apart give sequences that have nothing in common.
        let seed = plan.seed.wrapping_add(u64::from(place)).wrapping_mul(0xD134_2543_DE82_EF95);
        Worker::start(target.clone(), plan.template(target)?, Random::new(seed)).await
    };
    try_join_all(mine.map(start)).await
}

/// Works until all is done or nobody waits for the answers any more.
async fn work(
    number: u32,
    workers: Vec<Worker>,
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    timing: Timing,
) -> Result<Tally, String> {
    let per_call = plan.dialect.checks_per_call();
    let schedule = |rate| Schedule::new(rate, per_call, (number, plan.threads), timing);
    let (schedule, tally) = (plan.rate.map(schedule), Mutex::new(Tally::new()?));
    let crew = Arc::new(Crew { plan, shared: shared.clone(), timing, schedule, tally });
    let mut tasks = JoinSet::new();
    workers.into_iter().for_each(|worker| drop(tasks.spawn(worker.run(crew.clone()))));
    let working = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = working => {}
        released = release(crew.schedule.as_ref(), &shared) => return Err(released),
        () = shared.abandoned() => {}
    }
    // What is still under way notes that it was given up.
    tasks.shutdown().await;
    let mut tally = std::mem::replace(&mut *crew.tally(), Tally::new()?);
    // What falls due after the last check that was to be asked is not missing.
    let schedule = crew.schedule.as_ref().filter(|_| !shared.is_claimed(per_call));
    let now = shared.clock.now();
    for due in schedule.into_iter().flat_map(|schedule| schedule.behind(timing.counted_from)) {
        tally.leave_behind(due, now, per_call);
    }
    Ok(tally)
}

/// Returns only when the timer fails.
async fn release(schedule: Option<&Schedule>, shared: &Shared) -> String {
    match schedule {
        Some(schedule) => match schedule.release(shared).await {
            Ok(()) => std::future::pending().await,
            Err(error) => format!("no timer: {error}"),
        },
        None => std::future::pending().await,
    }
}

impl Crew {
    /// Waits until a call may go out; none when there are no more.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let from = match &self.schedule {
            Some(schedule) => self.due(schedule).await?,
            None => self.shared.clock.now(),
        };
        let counted = from >= self.timing.counted_from;
        if from >= self.timing.until || self.shared.is_stopped() {
            return None;
        }
        if counted {
            let checks = self.plan.dialect.checks_per_call();
            if !self.shared.claim(checks) {
                self.shared.stop();
                return None;
            }
            self.tally().asked += checks;
        }
        Some(Turn { from, counted })
    }

    /// The next call that is due. What the warm-up left over is dropped, so that it delays nothing that counts.
    async fn due(&self, schedule: &Schedule) -> Option<Micros> {
        loop {
            let due = schedule.turn().await?;
            if due >= self.timing.counted_from || self.shared.clock.now() < self.timing.counted_from {
                return Some(due);
            }
        }
    }

    pub(super) fn record(&self, turn: Turn, outcome: Result<Verdicts, Failure>) {
        self.shared.note_answer();
        let now = self.shared.clock.now();
        if let Some(schedule) = &self.schedule {
            schedule.release_due(now);
        }
        if turn.counted {
            self.tally().record(turn.from, now, self.plan.dialect.checks_per_call(), outcome);
        }
    }

    /// See [`Shared::note_complaint`].
    pub(super) fn note_complaint(&self, body: &[u8]) {
        self.shared.note_complaint(body);
    }

    /// Notes that a call has no answer and is not waited for any longer.
    pub(super) fn give_up(&self, turn: Turn) {
        if turn.counted {
            let now = self.shared.clock.now();
            self.tally().give_up(turn.from, now, self.plan.dialect.checks_per_call());
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
