//! Counts in Redis or Valkey: one server or a cluster, found out from the server.
//!
//! One check is part of one script call on the primary of its key, through that primary's lane. The shard's clock
//! decides; this node's clock only names the segments it sends.
//!
//! The crate's own ClusterConnection is not used for checks: it repeats calls whose fate is unknown, holds up
//! all shards while one is bad, and never notices a frozen one. Its MultiplexedConnection is, one per lane.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Done, Health, History, Meta, ShardReading, StoreError, Subject, Taken, Wanted, Work};
use crate::clock::Clock;
use crate::config::RedisConfig;
use crate::limit::slot::Generations;
use crate::limit::time::Micros;
use crate::telemetry::metrics::Distribution;
use crate::telemetry::traces::StoreSpan;

pub mod keys;

pub mod script;

pub mod check;

pub mod log;

pub mod server;

pub mod metrics;

mod amend;

mod sources;

mod ask;

mod terms;

mod entrance;

mod patience;

mod single;

mod moving;

mod shard;

mod group;

mod bundle;

mod batch;

mod lane;

mod each;

mod topology;

use ask::{Answer, Ask, Refusal, Return};
use keys::Tag;
use lane::Lane;
use log::Page;
use metrics::Retry;
use moving::{Moving, can_charge_first};
use patience::Patience;
use server::Address;
use single::Single;
use terms::Terms;
use topology::{Kind, Topology};

/// How often one check is asked at most; its deadline comes first.
const TRIES: usize = 1000;

/// Portions of the metas of a log at most: all of the longest one, and what others push meanwhile.
const PORTIONS: usize = 256;

/// What a lane is to be asked about a subject.
struct Matter<'a> {
    work: Work,
    metas: &'a [Meta],
    /// Instead of those, which portion of what a log tells.
    portion: Option<usize>,
    /// Or a call of one key.
    single: Option<&'a Single>,
    time: Option<Micros>,
}

impl<'a> Matter<'a> {
    fn of(work: Work, metas: &'a [Meta], time: Option<Micros>) -> Self {
        Self { work, metas, portion: None, single: None, time }
    }
}

/// A subject, where its key lives, and where the check is recorded if it is traced.
struct Target<'a> {
    subject: &'a Subject,
    tag: Arc<Tag>,
    slot: u16,
    span: &'a StoreSpan,
}

impl Target<'_> {
    /// For `lane`, from a caller that gives up at `deadline` (us).
    fn ask(&self, matter: &Matter<'_>, lane: &Lane, deadline: Micros, answer: Return) -> Ask {
        Ask {
            tag: self.tag.clone(),
            policy: self.subject.policy.clone(),
            fingerprint: self.subject.fingerprint,
            work: matter.work.clone(),
            metas: matter.metas.into(),
            portion: matter.portion,
            single: matter.single.cloned(),
            asking: false,
            deadline,
            trace: self.span.waiting(|| lane.now()),
            time: matter.time,
            answer,
        }
    }
}

/// The store on one or more Redis servers.
#[derive(Debug)]
pub struct RedisStore {
    topology: Arc<Topology>,
    key_prefix: String,
    terms: Terms,
    moving: Moving,
}

impl RedisStore {
    /// Starts to connect; checks are refused as unreachable until it has succeeded. `timeout` is how long a
    /// server may take to answer before its connection is given up.
    ///
    /// # Errors
    /// When a seed is no `redis://host:port`.
    pub fn open(
        config: &RedisConfig,
        clock: Clock,
        timeout: Duration,
        generations: Arc<Generations>,
    ) -> redis::RedisResult<Self> {
        let seeds = config.seeds.iter().map(|seed| Address::of_url(seed)).collect::<Result<_, _>>()?;
        let terms = Terms::new(config.credentials.clone(), timeout);
        let topology = Topology::open(seeds, clock, terms.clone(), generations);
        Ok(Self { topology, key_prefix: config.key_prefix.clone(), terms, moving: Moving::default() })
    }

    /// Changes how long a server may take to answer before its connection is given up.
    pub fn set_overdue(&self, overdue: Duration) {
        self.terms.set_overdue(overdue);
    }

    /// Waits until the servers have told who owns what.
    pub async fn known(&self) {
        self.topology.known().await;
    }

    /// The slot of a subject's key.
    pub fn slot(&self, subject: &Subject) -> u16 {
        keys::slot(&self.key_prefix, &subject.key)
    }

    /// See [`super::Store::take`].
    ///
    /// # Errors
    /// As there.
    pub async fn take(&self, subject: &Subject, costs: &[u64]) -> Result<Taken, StoreError> {
        self.take_by(subject, costs, None).await
    }

    /// The same, decided at `time` (us) instead of the shard's TIME where one is given: for tests.
    ///
    /// # Errors
    /// As [`RedisStore::take`].
    pub async fn take_by(&self, subject: &Subject, costs: &[u64], time: Option<Micros>) -> Result<Taken, StoreError> {
        self.take_noted(subject, costs, &[], time).await
    }

    /// See [`super::Store::take_noted`]; `time` as above.
    ///
    /// # Errors
    /// As there.
    pub async fn take_noted(
        &self,
        subject: &Subject,
        costs: &[u64],
        metas: &[Meta],
        time: Option<Micros>,
    ) -> Result<Taken, StoreError> {
        self.run_by(subject, Work::Take(costs.into()), metas, time).await?.taken()
    }

    /// See [`super::Store::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(&self, subject: &Subject, work: Work, metas: &[Meta]) -> Result<Done, StoreError> {
        self.run_by(subject, work, metas, None).await
    }

    /// The same, decided at `time` (us) instead of the shard's TIME where one is given: for tests.
    ///
    /// # Errors
    /// As [`RedisStore::run`].
    pub async fn run_by(
        &self,
        subject: &Subject,
        work: Work,
        metas: &[Meta],
        time: Option<Micros>,
    ) -> Result<Done, StoreError> {
        self.ask(subject, &Matter::of(work, metas, time)).await?.done()
    }

    /// See [`super::Store::history`].
    ///
    /// # Errors
    /// As there.
    pub async fn history(&self, subject: &Subject) -> Result<History, StoreError> {
        self.history_by(subject, None).await
    }

    /// The same at `time` (us) instead of the shard's TIME where one is given: for tests.
    ///
    /// # Errors
    /// As there.
    pub async fn history_by(&self, subject: &Subject, time: Option<Micros>) -> Result<History, StoreError> {
        let window = subject.policy.quotas[subject.policy.longest()].window;
        let mut told = Page::default();
        for number in 0..PORTIONS {
            let portion = Some(number);
            let matter = Matter { work: Work::Look(0), metas: &[], portion, single: None, time };
            let Answer::Page(page) = self.ask(subject, &matter).await? else { break };
            let (at, more) = (page.at, page.is_full());
            if number == 0 {
                told = page;
            } else {
                told.extend(page);
            }
            if !more || told.notes.last().is_some_and(|note| note.at + window <= at) {
                break;
            }
        }
        let (at, counts) = (told.at, |of: Micros| of + window > told.at);
        let charges = told.charges.into_iter().take_while(|charge| counts(charge.at));
        Ok(History::new(at, charges, told.notes.into_iter().take_while(|note| counts(note.at))))
    }

    async fn ask(&self, subject: &Subject, matter: &Matter<'_>) -> Result<Answer, StoreError> {
        let span = StoreSpan::start(if matter.work.takes_back() { "store.give_back" } else { "store.take" });
        let clock = self.topology.clock();
        let mut patience = Patience::new(clock, clock.now(), subject.policy.timeout);
        let answer = self.ask_patiently(&self.target(subject, &span), matter, &mut patience, None).await;
        span.end(answer.as_ref().err().map(StoreError::kind));
        answer
    }

    fn target<'a>(&self, subject: &'a Subject, span: &'a StoreSpan) -> Target<'a> {
        let tag = Arc::new(Tag::new(&self.key_prefix, &subject.key));
        let slot = tag.slot();
        Target { subject, tag, slot, span }
    }

    /// Asks whoever owns the slot, or `asking` behind ASKING; by calls of one key each while the slot moves.
    async fn ask_patiently(
        &self,
        target: &Target<'_>,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
        mut asking: Option<Address>,
    ) -> Result<Answer, StoreError> {
        let (clock, slot) = (self.topology.clock(), target.slot);
        let costs: &[u64] = match &matter.work {
            Work::Take(costs) if matter.portion.is_none() && can_charge_first(&target.subject.policy) => costs,
            _ => &[],
        };
        let can_charge_first = !costs.is_empty();
        while !(can_charge_first && self.moving.is(slot, clock.now())) {
            match self.ask_routed(target, matter, patience, asking.take()).await {
                Err(Refusal::TryAgain) if can_charge_first => self.moving.note(slot, clock.now()),
                // What cannot be made of calls of one key waits for the slot as long as it may.
                Err(Refusal::TryAgain) => {
                    let (lane, paused) = (self.topology.owner(slot), patience.pause("TRYAGAIN".into()).await);
                    match (lane, &paused) {
                        (Some(lane), Ok(())) => lane.metrics().retried(Retry::TryAgain),
                        (Some(lane), Err(error)) => lane.metrics().failed(error, 1),
                        (None, _) => {}
                    }
                    paused?;
                }
                answer => return answer.map_err(Refusal::into_error),
            }
        }
        // Boxed, since it is large and rare: the state of a check is moved and kept for as long as it waits.
        let taken = Box::pin(self.charge_first(target, costs, matter, patience)).await?;
        Ok(Answer::Done(Done::Taken(taken)))
    }

    /// Asks whoever owns the slot, or `asking` behind ASKING, and again while the answer is that it was not executed.
    async fn ask_routed(
        &self,
        target: &Target<'_>,
        matter: &Matter<'_>,
        patience: &mut Patience<'_>,
        mut asking: Option<Address>,
    ) -> Result<Answer, Refusal> {
        let slot = target.slot;
        for _ in 0..TRIES {
            let lane = match asking.as_ref() {
                Some(address) => self.topology.lane(address),
                None => self.owner(slot)?,
            };
            let (answer, verdict) = oneshot::channel();
            let waiting = Waiting { lane: Some(&lane), checks: matter.work.costs().len().max(1) };
            let mut ask = target.ask(matter, &lane, patience.deadline(), Return::To(answer));
            ask.asking = asking.take().is_some();
            let answer = match lane.ask(ask) {
                Ok(()) => verdict.await.unwrap_or_else(|_| Err(given_up().into())),
                Err(error) => Err(error.into()),
            };
            let next = match answer {
                Ok(answer) => Ok(Next::Done(answer)),
                Err(refusal) => Box::pin(self.after(refusal, slot, &lane, patience)).await,
            };
            waiting.over(&next);
            match next? {
                Next::Done(answer) => return Ok(answer),
                Next::Owner => {}
                Next::Asking(address) => asking = Some(address),
            }
        }
        Err(StoreError::Refused("it was asked too often".into()).into())
    }

    /// What comes after a refusal: another try, or the refusal itself.
    async fn after(
        &self,
        refusal: Refusal,
        slot: u16,
        lane: &Lane,
        patience: &mut Patience<'_>,
    ) -> Result<Next, Refusal> {
        match refusal {
            Refusal::Moved(address) => {
                lane.metrics().retried(Retry::Moved);
                self.topology.moved(slot, &address);
                patience.redirected().await?;
            }
            Refusal::Ask(address) => {
                lane.metrics().retried(Retry::Ask);
                patience.redirected().await?;
                return Ok(Next::Asking(address));
            }
            Refusal::TryAgain if patience.is_young() => {
                lane.metrics().retried(Retry::TryAgain);
                patience.pause("TRYAGAIN".into()).await?;
            }
            Refusal::NotNow(why) => {
                lane.metrics().retried(Retry::NotNow);
                self.topology.doubt();
                patience.pause(why).await?;
            }
            // It was not sent, and another node may own the slot by now.
            Refusal::Failed(StoreError::Unreachable(why)) if !self.is_owned_by(slot, lane) => {
                patience.pause(why).await?;
            }
            refusal @ (Refusal::TryAgain | Refusal::Failed(_)) => return Err(refusal),
        }
        Ok(Next::Owner)
    }

    /// See [`super::Store::health`]. Until a server has told who owns what, the seeds stand for the shards.
    pub fn health(&self) -> Health {
        match self.topology.kind() {
            Kind::Cluster => Health { kind: "redis-cluster", shards: self.topology.shards() },
            Kind::Single => Health { kind: "redis", shards: self.topology.shards() },
            Kind::Unknown => Health { kind: "redis", shards: self.topology.unknown_shards() },
        }
    }

    /// What is known of each shard; nothing while nobody has told who owns what.
    pub fn readings(&self) -> Vec<ShardReading> {
        self.topology.readings()
    }

    /// How many checks each script call carried.
    pub fn checks_per_call(&self) -> Distribution {
        self.topology.checks_per_call()
    }

    fn is_owned_by(&self, slot: u16, lane: &Lane) -> bool {
        self.topology.owner(slot).is_none_or(|owner| owner.address() == lane.address())
    }

    fn owner(&self, slot: u16) -> Result<Lane, StoreError> {
        let unknown = || {
            self.topology.doubt();
            StoreError::Unreachable(format!("no node is known to own slot {slot}"))
        };
        self.topology.owner(slot).ok_or_else(unknown)
    }
}

/// How a question goes on.
enum Next {
    Done(Answer),
    /// To whoever owns the slot.
    Owner,
    /// To this node, behind ASKING.
    Asking(Address),
}

/// Checks that wait for a lane's answer. When the caller gives up first, which it does by dropping the call, they
/// count as timed out.
struct Waiting<'a> {
    lane: Option<&'a Lane>,
    checks: usize,
}

impl Waiting<'_> {
    /// Nobody waits any more; a failure is counted.
    fn over(mut self, next: &Result<Next, Refusal>) {
        if let (Some(lane), Err(Refusal::Failed(error))) = (self.lane.take(), next) {
            lane.metrics().failed(error, self.checks);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            lane.metrics().failed(&StoreError::Timeout, self.checks);
        }
    }
}

/// What a lane tells by dropping the ask.
fn given_up() -> StoreError {
    StoreError::Unknown("its connection was given up".into())
}
