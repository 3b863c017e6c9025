//! The run: starts, watches and stops the threads, and merges their counts into one report.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use tollgate::limit::time::Micros;

use super::plan::Plan;
use super::report::Report;
use super::shared::{Shared, Timing};
use super::tally::Tally;
use super::watch::Watch;
use super::worker::{WorkerHandle, spawn};

const TICK: Duration = Duration::from_millis(100);

pub(super) fn run(plan: Plan) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(run_loop(Arc::new(plan)))
}

async fn run_loop(plan: Arc<Plan>) -> Result<Report, String> {
    let shared = Arc::new(Shared::new(plan.checks.unwrap_or(u64::MAX)));
    let mut workers = Vec::new();
    for number in 0..plan.threads {
        workers.push(spawn(number, plan.clone(), shared.clone())?);
    }
    for worker in &mut workers {
        (&mut worker.ready).await.map_err(|_| "a thread failed".to_owned())??;
    }
    let mut signal = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let started = shared.clock.now();
    let counted_from = started.saturating_add(plan.warmup);
    let until = plan.duration.map_or(Micros::MAX, |duration| counted_from.saturating_add(duration));
    let timing = Timing { started, counted_from, until };
    let tallies = workers.into_iter().map(|WorkerHandle { begin, tally, .. }| {
        let _ = begin.send(timing);
        async { tally.await.map_err(|_| "a thread failed".to_owned())? }
    });
    let tallies = try_join_all(tallies);
    tokio::pin!(tallies);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = Watch::new(&plan, &shared, timing);
    let tallies = loop {
        tokio::select! {
            tallies = &mut tallies => break tallies?,
            _ = ticks.tick() => watch.tick(),
            _ = signal.recv() => watch.interrupt(),
        }
    };
    let mut tally = Tally::new()?;
    tallies.into_iter().for_each(|other| tally.merge(other));
    let end = watch.end(&tally);
    let first_failure = shared.first_failure();
    Ok(Report::new(&plan, tally, end.at.saturating_sub(counted_from), end.note, first_failure))
}
