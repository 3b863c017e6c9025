//! One thread of the generator: its runtime, its share of the connections, and their turns.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::channel::Channel;
use super::client::{Client, Link};
use super::plan::Plan;
use super::random::Random;
use super::schedule::Schedule;
use super::shared::{Shared, Timing};
use super::tally::Tally;
use super::turns::Turns;

#[derive(Debug)]
pub(super) struct WorkerHandle {
    /// Completes when all its connections are open.
    pub(super) ready: oneshot::Receiver<Result<(), String>>,
    /// Starts its calls.
    pub(super) begin: oneshot::Sender<Timing>,
    pub(super) tally: oneshot::Receiver<Result<Tally, String>>,
}

/// Starts thread `number`, which connects and then waits.
///
/// # Errors
/// When the system cannot start a thread.
pub(super) fn spawn(number: u32, plan: Arc<Plan>, shared: Arc<Shared>) -> Result<WorkerHandle, String> {
    let (ready_sender, ready) = oneshot::channel();
    let (begin, begun) = oneshot::channel();
    let (tally_sender, tally) = oneshot::channel();
    let work = async move {
        let clients = match connect(number, &plan).await {
            Ok(clients) => clients,
            Err(reason) => return drop(ready_sender.send(Err(reason))),
        };
        let _ = ready_sender.send(Ok(()));
        if let Ok(timing) = begun.await {
            let _ = tally_sender.send(run_loop(number, clients, plan, shared, timing).await);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let thread = std::thread::Builder::new().name(format!("bench-{number}"));
    thread.spawn(move || runtime.block_on(work)).map_err(|error| error.to_string())?;
    Ok(WorkerHandle { ready, begin, tally })
}

async fn connect(number: u32, plan: &Plan) -> Result<Vec<Client>, String> {
    let mine = |all: u32| (number..all).step_by(plan.threads as usize);
    let target = |place: u32| &plan.targets[place as usize % plan.targets.len()];
    let shared = mine(plan.dialect.shared_connections().unwrap_or(0));
    let channels = try_join_all(shared.map(|place| Channel::open(target(place), plan.token()))).await?;
    let channels: Vec<_> = channels.into_iter().map(Arc::new).collect();
    let channels = &channels;
    let start = |place: u32| async move {
        let link = match channels.get((place / plan.threads) as usize % channels.len().max(1)) {
            Some(channel) => Link::Shared(channel.clone()),
            None => Link::open(target(place)).await?,
        };
        // Distant seeds give independent sequences.
        let seed = plan.seed.wrapping_add(u64::from(place)).wrapping_mul(0xD134_2543_DE82_EF95);
        Ok(Client::new(link, plan.template(target(place))?, Random::new(seed)))
    };
    try_join_all(mine(plan.clients).map(start)).await
}

/// Sends calls until the run ends or is abandoned.
async fn run_loop(
    number: u32,
    clients: Vec<Client>,
    plan: Arc<Plan>,
    shared: Arc<Shared>,
    timing: Timing,
) -> Result<Tally, String> {
    let per_call = plan.dialect.checks_per_call();
    let schedule = |rate| Schedule::new(rate, per_call, (number, plan.threads), timing);
    let turns = Arc::new(Turns::new(plan.clone(), shared.clone(), timing, plan.rate.map(schedule))?);
    let mut tasks = JoinSet::new();
    clients.into_iter().for_each(|client| drop(tasks.spawn(client.run(turns.clone()))));
    let working = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = working => {}
        released = release(turns.schedule(), &shared) => return Err(released),
        () = shared.abandoned() => {}
    }
    // Open calls count as unanswered.
    tasks.shutdown().await;
    let mut tally = turns.take_tally()?;
    // After the last of a fixed number of checks no call is missing.
    let schedule = turns.schedule().filter(|_| !shared.is_claimed(per_call));
    let now = shared.clock.now();
    for due in schedule.into_iter().flat_map(|schedule| schedule.behind(timing.counted_from)) {
        tally.record_unsent(due, now, per_call);
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
