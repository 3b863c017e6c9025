//! Holds from their opening to their end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::check::{Check, DEFAULT_POLICY};
use crate::client::Client;
use crate::clock;
use crate::decision::{Decision, HoldEnd, HoldState, Reason, SettleAnswer, Source};
use crate::error::{Error, Problem};

/// The shortest time between two attempts to renew.
const SHORTEST_RENEWAL: Duration = Duration::from_millis(50);

/// How long, and how often, a call without an answer is repeated.
const REPEAT_FOR: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const SETTLE_FAILED: &str = "the settle of a hold failed";

/// The name of a hold: the id of the check that opened it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HoldName {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    pub(crate) key: String,
    id: String,
}

impl HoldName {
    /// The hold of the check with this id, under the policy `default`.
    pub fn new(key: impl Into<String>, id: impl Into<String>) -> Self {
        Self { policy: None, key: key.into(), id: id.into() }
    }

    /// The policy of the check.
    #[must_use]
    pub fn policy(self, policy: impl Into<String>) -> Self {
        Self { policy: Some(policy.into()), ..self }
    }
}

/// The charges and places of checks until [`Hold::settle`]. It renews itself meanwhile.
///
/// A hold that is dropped settles in the background, for example if its task is cancelled or panics.
#[must_use = "a hold ends when it is dropped"]
#[derive(Debug)]
pub struct Hold {
    handle: HoldHandle,
    held: Vec<HoldName>,
    renewals: Vec<AbortHandle>,
    /// It may be dropped outside of the runtime.
    runtime: Handle,
}

/// A view of a [`Hold`], which outlives it. Handlers find it among the extensions of their request.
#[derive(Debug, Clone)]
pub struct HoldHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    decisions: Vec<Decision>,
    cost: Mutex<Option<u64>>,
    end: watch::Sender<Option<HoldEnd>>,
}

impl Hold {
    /// A hold costs nothing until its caller has it.
    pub(crate) async fn open(client: Client, checks: Vec<Check>) -> Result<Self, Error> {
        let sent = clock::now();
        let names: Vec<_> = checks.iter().map(Check::hold_name).collect();
        let answer = match <[Check; 1]>::try_from(checks) {
            Ok([check]) => client.check(check).await.map(|decision| vec![decision]),
            Err(checks) => client.check_all(checks).await.map(|answer| answer.results),
        };
        let decisions = answer.inspect_err(|error| {
            // A node may have opened the hold, and its answer is lost.
            if error.may_have_happened() {
                give_back(&client, names.iter());
            }
        })?;
        let ended = decisions.iter().find(|decision| decision.has_ended_hold());
        if !decisions.iter().all(|decision| decision.allowed) {
            let longest = decisions.into_iter().max_by_key(wait);
            return Err(longest.map_or_else(|| Error::unavailable("no results"), |denied| Error::Denied(denied.into())));
        }
        if let Some(ended) = ended {
            let fresh = names.iter().zip(&decisions).filter(|(_, decision)| !decision.replayed);
            give_back(&client, fresh.map(|(name, _)| name));
            return Err(Error::Denied(ended.clone().into()));
        }
        Self::of(client, names, decisions, sent)
    }

    fn of(client: Client, names: Vec<HoldName>, decisions: Vec<Decision>, sent: Instant) -> Result<Self, Error> {
        // Without a hold, the policy has none and the charge is final, or no store has decided.
        let is_final = |one: &Decision| one.hold.is_none() && one.source == Source::Store && one.reason == Reason::Ok;
        let held = names.into_iter().zip(&decisions).filter(|(_, decision)| !is_final(decision));
        // The node counts from a later instant, so a hold is open until this one.
        let expiry = |hold: &HoldState| sent + Duration::from_millis(hold.expires_in_ms);
        let held: Vec<_> = held.map(|(name, decision)| (name, decision.hold.as_ref().map(expiry))).collect();
        if held.is_empty() {
            let policy = decisions.first().map_or(DEFAULT_POLICY, |decision| &decision.policy);
            let problem = Problem::no_hold(policy);
            client.monitor().heed(&problem);
            return Err(Error::Problem(Box::new(problem)));
        }
        let shared = Shared { client, decisions, cost: Mutex::new(Some(0)), end: watch::Sender::new(None) };
        let handle = HoldHandle { shared: Arc::new(shared) };
        let renew = |(name, until): &(HoldName, Option<Instant>)| {
            Some(tokio::spawn(keep(handle.clone(), name.clone(), (*until)?)).abort_handle())
        };
        let renewals = held.iter().filter_map(renew).collect();
        let held = held.into_iter().map(|(name, _)| name).collect();
        Ok(Self { handle, held, renewals, runtime: Handle::current() })
    }

    /// The caller has it, and the charge stays by default.
    pub(crate) fn received(self) -> Self {
        *self.handle.shared.cost() = None;
        self
    }

    /// Ends the hold. `cost` replaces the charge of each check under a policy with a hold. There is an
    /// answer for each of them.
    ///
    /// # Errors
    /// A node rejects a settle, or none answers. Then it is repeated in the background for a minute.
    pub async fn settle(self, cost: u64) -> Result<Vec<SettleAnswer>, Error> {
        self.handle.set_cost(cost);
        self.end().await
    }

    /// Ends the hold by the cost that is set. Without one the charge stays.
    ///
    /// # Errors
    /// A node rejects a settle, or none answers. Then it is repeated in the background for a minute.
    pub async fn end(mut self) -> Result<Vec<SettleAnswer>, Error> {
        self.close().await
    }

    /// The view of this hold.
    pub fn handle(&self) -> HoldHandle {
        self.handle.clone()
    }

    /// The settle of what is still held. It goes on if its caller leaves.
    fn close(&mut self) -> impl Future<Output = Result<Vec<SettleAnswer>, Error>> + use<> {
        self.renewals.drain(..).for_each(|renewal| renewal.abort());
        self.handle.shared.finish(HoldEnd::Settled);
        let (held, shared) = (std::mem::take(&mut self.held), self.handle.shared.clone());
        let place = shared.client.pend();
        let settled = self.runtime.spawn(async move {
            let _place = place;
            let cost = *shared.cost();
            let (mut answers, mut failure) = (Vec::new(), None);
            for name in held {
                match shared.client.settle(&name, cost).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        if error.may_have_happened() {
                            settle_later(shared.client.clone(), name, cost, FIRST_PAUSE);
                        }
                        failure = Some(error);
                    }
                }
            }
            failure.map_or(Ok(answers), Err)
        });
        async { settled.await.unwrap_or_else(|end| Err(Error::unavailable(end))) }
    }
}

impl std::ops::Deref for Hold {
    type Target = HoldHandle;

    fn deref(&self) -> &HoldHandle {
        &self.handle
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            let (settled, client) = (self.close(), self.handle.shared.client.clone());
            self.runtime.spawn(async move {
                if let Err(error) = settled.await {
                    client.monitor().log(SETTLE_FAILED, &error);
                }
            });
        }
    }
}

impl HoldHandle {
    /// The decision of the first check.
    pub fn decision(&self) -> &Decision {
        &self.shared.decisions[0]
    }

    /// The decision of each check.
    pub fn decisions(&self) -> &[Decision] {
        &self.shared.decisions
    }

    /// Sets the true cost, in units. It replaces the charge when the hold ends.
    pub fn set_cost(&self, cost: u64) {
        *self.shared.cost() = Some(cost);
    }

    /// Waits for the end of the hold: work under it has to stop then.
    pub async fn ended(&self) -> HoldEnd {
        let mut end = self.shared.end.subscribe();
        let end = end.wait_for(Option::is_some).await;
        // The sender lives as long as this view.
        end.ok().and_then(|end| end.clone()).unwrap_or(HoldEnd::Settled)
    }

    /// Whether the hold has ended.
    pub fn is_ended(&self) -> bool {
        self.shared.end.borrow().is_some()
    }
}

impl Shared {
    fn cost(&self) -> std::sync::MutexGuard<'_, Option<u64>> {
        self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, end: HoldEnd) {
        self.end.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(end);
            is_first
        });
    }
}

/// Renews after a third of the time that is left. So a failure is followed by more attempts.
async fn keep(handle: HoldHandle, name: HoldName, mut until: Instant) {
    let Shared { client, .. } = &*handle.shared;
    let end = loop {
        let left = until.saturating_duration_since(clock::now());
        sleep((left / 3).max(SHORTEST_RENEWAL).min(left)).await;
        let sent = clock::now();
        match timeout(until.saturating_duration_since(sent), client.renew(&name)).await {
            Ok(Ok(answer)) if answer.renewed => until = sent + Duration::from_millis(answer.expires_in_ms),
            Ok(Ok(answer)) => break answer.reason.unwrap_or(HoldEnd::Expired),
            _ if clock::now() >= until => break HoldEnd::Expired,
            _ => {}
        }
    };
    handle.shared.finish(end);
}

/// Settles what no work began under.
fn give_back<'a>(client: &Client, names: impl Iterator<Item = &'a HoldName>) {
    for name in names {
        settle_later(client.clone(), name.clone(), Some(0), Duration::ZERO);
    }
}

fn settle_later(client: Client, name: HoldName, cost: Option<u64>, pause: Duration) {
    let again = client.clone();
    tokio::spawn(repeat(client, SETTLE_FAILED, pause, async move || again.settle(&name, cost).await));
}

/// Makes a call until a node answers it, for a minute.
pub(crate) async fn repeat<T>(
    client: Client,
    failed: &str,
    mut pause: Duration,
    call: impl AsyncFn() -> Result<T, Error>,
) {
    let until = clock::now() + REPEAT_FOR;
    while clock::now() < until {
        sleep(pause).await;
        let Err(error) = call().await else { return };
        client.monitor().log(failed, &error);
        if !error.may_have_happened() {
            return;
        }
        pause = (2 * pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }
}

/// The wait of a denied check. One that never fits waits longest.
fn wait(decision: &Decision) -> (bool, u64) {
    (!decision.allowed, decision.retry_after_ms.unwrap_or(u64::MAX))
}
