//! One pipeline: what waited together, merged by key, sent, and answered.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use smallvec::{SmallVec, smallvec};

use super::ask::{Answer, Ask, Refusal};
use super::log::Page;
use super::metrics::Retry;
use super::script::{By, Call, Reply, read_log};
use super::server::Address;
use super::shard::Shard;
use super::sources::is_window_check;
use super::window;
use crate::deadline::within;
use crate::limit::decision::Ruling;
use crate::limit::key::{Fingerprint, FingerprintState};
use crate::limit::policy::Durability;
use crate::limit::quota::MAX_QUOTAS;
use crate::limit::time::Micros;
use crate::store::{Done, Meta, StoreError, Taken, Work};
use crate::telemetry::traces;

/// Costs in one call at most: the server does nothing else meanwhile.
const COSTS: usize = 1000;

/// Quotas that one call decides by at most, when it is for several keys: it then takes the server about a millisecond.
const QUOTAS: usize = 64;

/// Rounds of one batch: as sent, once more with the script's source, alone after it was refused among others, and with the
/// right segments, which a clock that jumps may ask for again.
const ROUNDS: usize = 5;

/// How an exchange left the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Sound,
    Broken,
    /// The server did not answer, neither this nor anything else.
    Silent,
}

/// Asks of one key under one policy, which are decided together.
struct Group {
    asks: Vec<Ask>,
    costs: Vec<u64>,
    /// One for each cost, or none at all.
    metas: Vec<Meta>,
}

/// Groups that become one call: one, or several checks of sliding windows with as many quotas each.
struct Bundle {
    groups: SmallVec<[Group; 1]>,
    by: By,
}

/// Keys under a policy.
pub type Keys = HashSet<Fingerprint, FingerprintState>;

/// What goes out together.
pub struct Batch(Vec<Bundle>);

impl Batch {
    /// Takes those of `waiting` whose key has no call `under_way`. Merges what takes by key, in order, and then what may share
    /// a call; other work goes by itself. One whose caller has given up is not sent.
    pub fn of(waiting: &mut Vec<Ask>, under_way: &Keys, shard: &Shard) -> Self {
        let asks = waiting.extract_if(.., |ask| !under_way.contains(&ask.fingerprint));
        let mut groups: Vec<Group> = Vec::new();
        let mut places: HashMap<_, usize, FingerprintState> = HashMap::default();
        for ask in asks.filter(|ask| !ask.answer.is_closed()) {
            let Work::Take(_) = ask.work else {
                groups.push(Group::of(ask));
                continue;
            };
            let place = places.entry(ask.fingerprint).or_insert(usize::MAX);
            match groups.get_mut(*place).filter(|group| group.accepts(&ask)) {
                Some(group) => group.push(ask),
                None => {
                    *place = groups.len();
                    groups.push(Group::of(ask));
                }
            }
        }
        Self(bundles(groups, shard.bundles()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that it asks about.
    pub fn keys(&self) -> impl Iterator<Item = Fingerprint> {
        self.0.iter().flat_map(|bundle| &bundle.groups).map(|group| group.asks[0].fingerprint)
    }

    /// Sends the calls and hands out the answers. What the server did not execute for want of the script or
    /// of the right segments, or among others, is sent again at once.
    pub async fn exchange(mut self, mut connection: MultiplexedConnection, shard: &Shard) -> Ended {
        for _ in 0..ROUNDS {
            self.0.retain_mut(Bundle::is_wanted);
            if self.0.is_empty() {
                return Ended::Sound;
            }
            let pipeline = self.pipeline(shard);
            let sent = shard.now();
            let count = pipeline.len();
            self.0.iter().for_each(|bundle| shard.metrics.sent(bundle.checks()));
            let replies = connection.send_packed_commands(&pipeline, 0, count);
            let (failed, ended) = match awaited(replies, shard).await {
                Some(Ok(replies)) => {
                    self.settle(replies, shard, sent);
                    continue;
                }
                Some(Err(error)) => (unknown(&error), Ended::Broken),
                None => (StoreError::Timeout, Ended::Silent),
            };
            let (calls, when) = (self.0.len(), (sent, shard.now()));
            self.0.iter_mut().for_each(|bundle| bundle.called(shard, calls, when, Some(failed.kind())));
            self.fail(&failed.into());
            return ended;
        }
        self.fail(&Refusal::NotNow("the shard's clock could not be followed".into()));
        Ended::Sound
    }

    /// The calls; behind them, where a replica is waited for, one WAIT for them all.
    fn pipeline(&self, shard: &Shard) -> Pipeline {
        let now = shard.shard_now();
        let mut pipeline = Pipeline::with_capacity(self.0.len() + 1);
        for bundle in &self.0 {
            if bundle.asking() {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(bundle.command(shard, now));
        }
        if shard.durability == Durability::Replica {
            let groups = self.0.iter().flat_map(|bundle| &bundle.groups);
            let deadlines = groups.flat_map(|group| &group.asks).map(|ask| ask.deadline);
            pipeline.cmd("WAIT").arg(1).arg(shard.wait_ms(deadlines.min().unwrap_or(0)));
        }
        pipeline
    }

    /// Hands out what each reply says; what must be sent again stays.
    fn settle(&mut self, replies: Vec<Value>, shard: &Shard, sent: Micros) {
        let received = shard.now();
        shard.metrics.called(received.saturating_sub(sent), self.0.len());
        let is_kept = shard.durability == Durability::Primary || matches!(replies.last(), Some(Value::Int(1..)));
        let mut replies = replies.into_iter();
        let (calls, mut again) = (self.0.len(), Vec::new());
        for mut bundle in self.0.drain(..) {
            if bundle.asking() {
                replies.next();
            }
            let reply = replies.next().unwrap_or(Value::Nil);
            let error = if let Value::ServerError(error) = &reply { Some(error.code()) } else { None };
            bundle.called(shard, calls, (sent, received), error);
            if is_no_script(&reply) {
                shard.metrics.retried(Retry::NoScript);
                again.push(Bundle { by: By::Source, ..bundle });
                continue;
            }
            let outcomes = bundle.outcomes(&reply, &shard.address);
            let mut elsewhen = SmallVec::new();
            for (group, outcome) in bundle.groups.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Done(done) => {
                        if let Some(time) = done.at() {
                            shard.learn_offset(time, sent, received);
                        }
                        group.answer(done, is_kept);
                    }
                    Outcome::Page(page) => group.answer_alone(Ok(Answer::Page(page))),
                    Outcome::Told(_) if !is_kept => group.answer_alone(Err(StoreError::NoReplicaAck.into())),
                    Outcome::Told(value) => group.answer_alone(Ok(Answer::Told(value))),
                    Outcome::Elsewhen(time) => {
                        shard.learn_offset(time, sent, received);
                        elsewhen.push(group);
                    }
                    Outcome::Again => {
                        shard.part();
                        shard.metrics.retried(Retry::Alone);
                        again.push(Bundle::of(group));
                    }
                    Outcome::Refused(refusal) => group.refuse(&refusal),
                }
            }
            if !elsewhen.is_empty() {
                shard.metrics.retried(Retry::Clock);
                again.push(Bundle { groups: elsewhen, by: bundle.by });
            }
        }
        self.0 = again;
    }

    fn fail(&mut self, refusal: &Refusal) {
        self.0.drain(..).flat_map(|bundle| bundle.groups).for_each(|group| group.refuse(refusal));
    }
}

/// Puts together what may share a call; the others keep their order, and so do those.
fn bundles(groups: Vec<Group>, several: bool) -> Vec<Bundle> {
    let mut bundles: Vec<Bundle> = Vec::with_capacity(groups.len());
    // By number of quotas, the place of the one that is not full.
    let mut open = [usize::MAX; MAX_QUOTAS + 1];
    for group in groups {
        let quotas = group.asks[0].policy.quotas.len();
        let place = if several && group.may_share() { open.get_mut(quotas) } else { None };
        match place {
            Some(place) => match bundles.get_mut(*place).filter(|bundle| bundle.accepts(&group)) {
                Some(bundle) => bundle.groups.push(group),
                None => {
                    *place = bundles.len();
                    bundles.push(Bundle::of(group));
                }
            },
            None => bundles.push(Bundle::of(group)),
        }
    }
    bundles
}

/// The replies, or none when the server has said nothing at all for too long.
async fn awaited<T>(replies: impl Future<Output = RedisResult<T>>, shard: &Shard) -> Option<RedisResult<T>> {
    let mut replies = pin!(replies);
    let mut patience = shard.patience();
    loop {
        if let Some(replies) = within(shard.clock(), patience, &mut replies).await {
            shard.hear();
            return Some(replies);
        }
        patience = shard.patience_left()?;
    }
}

enum Outcome {
    Done(Done),
    Page(Page),
    /// The reply to a call of one key.
    Told(Value),
    /// TIME was not covered; this is it.
    Elsewhen(Micros),
    /// It was not executed among others, and is to be asked for by itself.
    Again,
    Refused(Refusal),
}

impl Bundle {
    fn of(group: Group) -> Self {
        Self { groups: smallvec![group], by: By::Hash }
    }

    /// Whether a group that may share a call may share this one.
    fn accepts(&self, group: &Group) -> bool {
        let (first, added) = (&self.groups[0].asks[0], &group.asks[0]);
        let costs: usize = self.groups.iter().map(|group| group.costs.len()).sum();
        first.time == added.time
            && (self.groups.len() + 1) * first.policy.quotas.len() <= QUOTAS
            && costs + group.costs.len() <= COSTS
    }

    /// Leaves out who has given up meanwhile; whether anybody is left.
    fn is_wanted(&mut self) -> bool {
        self.groups.retain(Group::is_wanted);
        !self.groups.is_empty()
    }

    fn asking(&self) -> bool {
        self.groups[0].asks[0].asking
    }

    fn calls(&self) -> SmallVec<[Call<'_>; 1]> {
        self.groups.iter().map(Group::call).collect()
    }

    fn command(&self, shard: &Shard, now: Micros) -> Cmd {
        if let [group] = &self.groups[..] {
            return group.command(self.by, now);
        }
        let time = self.groups[0].asks[0].time;
        window::command(&self.calls(), shard.declared(), self.by, now, time)
    }

    /// One for each group.
    fn outcomes(&self, reply: &Value, from: &Address) -> SmallVec<[Outcome; 1]> {
        if let Value::ServerError(error) = reply {
            let several = self.groups.len() > 1;
            let outcome = || match refused(error, from) {
                Refusal::Failed(_) if several && !is_from_inside(error) => Outcome::Again,
                refusal => Outcome::Refused(refusal),
            };
            return self.groups.iter().map(|_| outcome()).collect();
        }
        match &self.groups[..] {
            [group] => smallvec![group.outcome(reply)],
            _ => window::replies(&self.calls(), reply).into_iter().map(Outcome::of).collect(),
        }
    }

    /// How many checks it carries: a refund, for one, is none.
    fn checks(&self) -> usize {
        self.groups.iter().map(Group::checks).sum()
    }

    /// Records the call in the traces of its checks, if any.
    fn called(&mut self, shard: &Shard, calls: usize, (sent, ended): (Micros, Micros), error: Option<&str>) {
        if self.groups.iter().flat_map(|group| &group.asks).all(|ask| ask.trace.is_none()) {
            return;
        }
        let call = traces::Call {
            host: &shard.address.host,
            port: shard.address.port,
            operation: if self.by == By::Hash { "EVALSHA" } else { "EVAL" },
            script: &self.groups[0].script(),
            checks: self.checks(),
            pipeline: calls,
            sent,
            ended,
            error,
        };
        let asks = self.groups.iter_mut().flat_map(|group| &mut group.asks);
        traces::called(asks.filter_map(|ask| ask.trace.as_mut()), &call);
    }
}

impl Outcome {
    fn of(reply: Reply) -> Self {
        match reply {
            Reply::Done(done) => Self::Done(done),
            Reply::NotCovered { time } => Self::Elsewhen(time),
            Reply::Undecided => Self::Again,
            Reply::Malformed => malformed(),
        }
    }
}

impl Group {
    fn of(ask: Ask) -> Self {
        let mut group = Self { costs: Vec::new(), metas: Vec::new(), asks: Vec::with_capacity(1) };
        group.push(ask);
        group
    }

    /// Only what is decided by the same limits, clock and node may share a call.
    fn accepts(&self, ask: &Ask) -> bool {
        let first = &self.asks[0];
        Arc::ptr_eq(&first.policy, &ask.policy)
            && first.asking == ask.asking
            && first.time == ask.time
            && !first.is_alone()
            && !ask.is_alone()
            && self.costs.len() + ask.costs().len() <= COSTS
    }

    fn push(&mut self, ask: Ask) {
        self.add(&ask);
        self.asks.push(ask);
    }

    fn add(&mut self, ask: &Ask) {
        if !ask.metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
            self.metas.extend_from_slice(&ask.metas);
        }
        self.costs.extend_from_slice(ask.costs());
        if !self.metas.is_empty() {
            self.metas.resize(self.costs.len(), None);
        }
    }

    /// Leaves out who has given up meanwhile; whether anybody is left.
    fn is_wanted(&mut self) -> bool {
        if self.asks.iter().any(|ask| ask.answer.is_closed()) {
            self.asks.retain(|ask| !ask.answer.is_closed());
            self.costs.clear();
            self.metas.clear();
            let asks = std::mem::take(&mut self.asks);
            asks.into_iter().for_each(|ask| self.push(ask));
        }
        !self.asks.is_empty()
    }

    /// Whether it may share a call with others: nothing is sent behind ASKING but one key.
    fn may_share(&self) -> bool {
        let first = &self.asks[0];
        !first.is_alone() && !first.asking && is_window_check(&first.policy, &first.work)
    }

    fn call(&self) -> Call<'_> {
        let Ask { tag, policy, work, .. } = &self.asks[0];
        Call { tag, policy, work, costs: &self.costs, metas: &self.metas }
    }

    fn command(&self, by: By, now: Micros) -> Cmd {
        let Ask { tag, policy, portion, single, time, .. } = &self.asks[0];
        if let Some(single) = single {
            return single.command(by, *time);
        }
        match portion {
            Some(number) => read_log(tag, policy, *number, by, *time),
            None => self.call().command(by, now, *time),
        }
    }

    /// How many checks it carries: a refund, for one, is none.
    fn checks(&self) -> usize {
        if self.asks[0].is_alone() { 0 } else { self.costs.len() }
    }

    /// What a person calls the script.
    fn script(&self) -> String {
        let Ask { policy, portion, single, work, .. } = &self.asks[0];
        let algorithm = policy.algorithm.name();
        match (single, portion, work) {
            (Some(single), ..) => single.name().to_owned(),
            (None, Some(_), _) => format!("{algorithm} entries"),
            (None, None, Work::Take(_) | Work::Look(_)) => algorithm.to_owned(),
            (None, None, Work::Once { .. }) => format!("{algorithm} once"),
            (None, None, Work::Reserve { .. }) => format!("{algorithm} reserve"),
            (None, None, _) => format!("{algorithm} give back"),
        }
    }

    fn outcome(&self, reply: &Value) -> Outcome {
        if self.asks[0].portion.is_some() {
            return Page::read(reply).map_or_else(malformed, Outcome::Page);
        }
        if self.asks[0].single.is_some() {
            return Outcome::Told(reply.clone());
        }
        Outcome::of(self.call().reply(reply))
    }

    /// Of a group of one ask.
    fn answer_alone(mut self, answer: Result<Answer, Refusal>) {
        if let Some(ask) = self.asks.pop() {
            let _ = ask.answer.send(answer);
        }
    }

    /// Gives each ask its part of the verdicts, unless it was charged and the charge is not where it must be. A caller
    /// that has gone needs none.
    fn answer(self, done: Done, is_kept: bool) {
        if self.asks.len() == 1 {
            let is_lost = !is_kept && self.asks[0].work.charges() && done.is_charge();
            return self.answer_alone(kept(!is_lost, done));
        }
        let Done::Taken(Taken { ruling: Ruling { verdicts, closed_for }, at, tentative }) = done else { return };
        let mut verdicts = verdicts.into_iter();
        for ask in self.asks {
            let verdicts = verdicts.by_ref().take(ask.costs().len()).collect();
            let done = Done::Taken(Taken { ruling: Ruling { verdicts, closed_for }, at, tentative });
            let _ = ask.answer.send(kept(is_kept || !done.is_charge(), done));
        }
    }

    fn refuse(self, refusal: &Refusal) {
        for ask in self.asks {
            let _ = ask.answer.send(Err(refusal.clone()));
        }
    }
}

fn kept(is_kept: bool, done: Done) -> Result<Answer, Refusal> {
    if is_kept { Ok(Answer::Done(done)) } else { Err(StoreError::NoReplicaAck.into()) }
}

fn malformed() -> Outcome {
    Outcome::Refused(StoreError::Unknown("the script's reply is not one that it makes".into()).into())
}

/// What an error reply means. The script writes only after it has decided, and raises nothing behind its first write, so
/// an error is always from before that, and nothing was charged. A redirection that names no host means the one it came from.
fn refused(error: &redis::ServerError, from: &Address) -> Refusal {
    let details = error.details().unwrap_or_default();
    let address = || {
        let named = details.split_ascii_whitespace().nth(1).and_then(Address::parse)?;
        let unknown = named.host.is_empty() || named.host == "?";
        Some(if unknown { Address { host: from.host.clone(), ..named } } else { named })
    };
    let refusal = match error.kind() {
        Some(ServerErrorKind::Moved) => address().map(Refusal::Moved),
        Some(ServerErrorKind::Ask) => address().map(Refusal::Ask),
        Some(ServerErrorKind::TryAgain) => Some(Refusal::TryAgain),
        Some(
            kind @ (ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly),
        ) => Some(Refusal::NotNow(format!("{kind:?}"))),
        _ => None,
    };
    let text = || StoreError::Refused(format!("{} {details}", error.code())).into();
    refusal.unwrap_or_else(text)
}

/// Whether the script itself ran into it: the server adds where. What a server or a proxy has against calls for several keys
/// it says before it runs them.
fn is_from_inside(error: &redis::ServerError) -> bool {
    error.details().is_some_and(|details| details.contains("user_script"))
}

fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

fn unknown(error: &RedisError) -> StoreError {
    StoreError::Unknown(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::limit::key::{Fingerprinter, KeyType};
    use crate::limit::policy::{Algorithm, OnStoreFailure, Options, Policy};
    use crate::limit::quota::{Quota, Rule};
    use crate::store::redis::keys::Tag;

    fn group(key: &str) -> Group {
        let limit = NonZeroU64::new(5).unwrap();
        let policy = Policy {
            name: "p".into(),
            algorithm: Algorithm::SlidingWindow,
            quotas: vec![Quota { name: "1s".into(), limit, window: 1_000_000, rule: Rule::SlidingWindow }],
            key_type: KeyType::Text,
            on_store_failure: OnStoreFailure::Deny,
            timeout: Duration::from_secs(1),
            options: Options::default(),
        };
        Group::of(Ask {
            tag: Arc::new(Tag::new("ratelimit", key)),
            fingerprint: Fingerprinter::default().fingerprint(&policy.name, key),
            policy: Arc::new(policy),
            work: Work::Take([1].into_iter().collect()),
            metas: SmallVec::new(),
            portion: None,
            single: None,
            asking: false,
            deadline: 0,
            trace: None,
            time: None,
            answer: oneshot::channel().0,
        })
    }

    #[test]
    fn a_call_for_several_keys_that_is_refused_as_a_whole_is_made_for_each() {
        let from = Address { host: "shard".into(), port: 7001 };
        let outcome = |keys: &[&str], error: &str| {
            let bundle = Bundle { groups: keys.iter().map(|key| group(key)).collect(), by: By::Hash };
            let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes()).unwrap();
            let mut outcomes = bundle.outcomes(&reply, &from);
            assert_eq!(outcomes.len(), keys.len());
            outcomes.pop()
        };
        for error in ["CROSSSLOT Keys in request don't hash to the same slot", "ERR Number of keys can't be zero"] {
            assert!(matches!(outcome(&["a", "b"], error), Some(Outcome::Again)), "{error}");
            assert!(matches!(outcome(&["a"], error), Some(Outcome::Refused(Refusal::Failed(_)))), "{error}");
        }
        let inside = "ERR bad argument script: 1e6a, on @user_script:12.";
        assert!(matches!(outcome(&["a", "b"], inside), Some(Outcome::Refused(Refusal::Failed(_)))));
        let elsewhere = outcome(&["a", "b"], "MOVED 1 127.0.0.1:7002");
        assert!(matches!(elsewhere, Some(Outcome::Refused(Refusal::Moved(_)))));
    }

    #[test]
    fn a_call_is_for_so_many_quotas_at_most() {
        let keys: Vec<String> = (0..150).map(|number| number.to_string()).collect();
        let groups = || keys.iter().map(|key| group(key)).collect();
        let sizes = |several| bundles(groups(), several).iter().map(|bundle| bundle.groups.len()).collect::<Vec<_>>();
        assert_eq!(sizes(true), [QUOTAS, QUOTAS, 150 - 2 * QUOTAS]);
        assert_eq!(sizes(false), [1; 150]);
    }
}
