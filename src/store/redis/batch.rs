//! One pipeline: what waited together, merged by key, sent, and answered.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, ServerErrorKind, Value};

use super::ask::{Ask, Refusal};
use super::metrics::Retry;
use super::script::{By, Call, Reply};
use super::server::Address;
use super::shard::Shard;
use crate::limit::decision::Ruling;
use crate::limit::key::FingerprintState;
use crate::limit::time::Micros;
use crate::store::{StoreError, Taken};
use crate::telemetry::traces;

/// Costs in one call at most: the server does nothing else meanwhile.
const COSTS: usize = 1000;

/// Rounds of one batch: as sent, once more with the script's source, and with the right segments, which a clock
/// that jumps may ask for again.
const ROUNDS: usize = 4;

/// How an exchange left the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Sound,
    Broken,
}

/// Asks of one key under one policy, which become one call.
struct Group {
    asks: Vec<Ask>,
    costs: Vec<u64>,
    by: By,
}

/// What goes out together.
pub struct Batch(Vec<Group>);

impl Batch {
    /// Merges asks by key, in order; one whose caller has given up is not sent.
    pub fn of(asks: impl Iterator<Item = Ask>) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut places: HashMap<_, usize, FingerprintState> = HashMap::default();
        for ask in asks.filter(|ask| !ask.answer.is_closed()) {
            let place = places.entry(ask.fingerprint).or_insert(usize::MAX);
            match groups.get_mut(*place).filter(|group| group.accepts(&ask)) {
                Some(group) => group.push(ask),
                None => {
                    *place = groups.len();
                    groups.push(Group::of(ask));
                }
            }
        }
        Self(groups)
    }

    /// Sends the calls and hands out the answers. What the server did not execute for want of the script or
    /// of the right segments is sent again at once.
    pub async fn exchange(mut self, mut connection: MultiplexedConnection, shard: &Shard) -> Ended {
        for _ in 0..ROUNDS {
            self.0.retain_mut(Group::is_wanted);
            if self.0.is_empty() {
                return Ended::Sound;
            }
            let pipeline = self.pipeline(shard.shard_now());
            let sent = shard.now();
            let count = pipeline.len();
            self.0.iter().for_each(|group| shard.metrics.sent(group.costs.len()));
            let replies = connection.send_packed_commands(&pipeline, 0, count);
            let failed = match tokio::time::timeout(shard.timeout(), replies).await {
                Ok(Ok(replies)) => {
                    self.settle(replies, shard, sent);
                    continue;
                }
                Ok(Err(error)) => unknown(&error),
                Err(_) => StoreError::Timeout,
            };
            let (calls, when) = (self.0.len(), (sent, shard.now()));
            self.0.iter_mut().for_each(|group| group.called(shard, calls, when, Some(failed.kind())));
            self.fail(&failed.into());
            return Ended::Broken;
        }
        self.fail(&Refusal::NotNow("the shard's clock could not be followed".into()));
        Ended::Sound
    }

    fn pipeline(&self, now: Micros) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.0.len());
        for group in &self.0 {
            if group.asking() {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(group.command(now));
        }
        pipeline
    }

    /// Hands out what each reply says; groups that must be sent again stay.
    fn settle(&mut self, replies: Vec<Value>, shard: &Shard, sent: Micros) {
        let received = shard.now();
        shard.metrics.called(received.saturating_sub(sent), self.0.len());
        let mut replies = replies.into_iter();
        let (calls, mut again) = (self.0.len(), Vec::new());
        for mut group in self.0.drain(..) {
            if group.asking() {
                replies.next();
            }
            let reply = replies.next().unwrap_or(Value::Nil);
            let error = if let Value::ServerError(error) = &reply { Some(error.code()) } else { None };
            group.called(shard, calls, (sent, received), error);
            match group.outcome(&reply, &shard.address) {
                Outcome::Taken(taken) => {
                    shard.learn_offset(taken.at, sent, received);
                    group.answer(taken);
                }
                Outcome::Elsewhen(time) => {
                    shard.learn_offset(time, sent, received);
                    shard.metrics.retried(Retry::Clock);
                    again.push(group);
                }
                Outcome::NoScript => {
                    group.by = By::Source;
                    shard.metrics.retried(Retry::NoScript);
                    again.push(group);
                }
                Outcome::Refused(refusal) => group.refuse(&refusal),
            }
        }
        self.0 = again;
    }

    fn fail(&mut self, refusal: &Refusal) {
        self.0.drain(..).for_each(|group| group.refuse(refusal));
    }
}

enum Outcome {
    Taken(Taken),
    /// TIME was not covered; this is it.
    Elsewhen(Micros),
    NoScript,
    Refused(Refusal),
}

impl Group {
    fn of(ask: Ask) -> Self {
        Self { costs: ask.costs.to_vec(), asks: vec![ask], by: By::Hash }
    }

    /// Only what is decided by the same limits, clock and node may share a call.
    fn accepts(&self, ask: &Ask) -> bool {
        let first = &self.asks[0];
        Arc::ptr_eq(&first.policy, &ask.policy)
            && first.asking == ask.asking
            && first.time == ask.time
            && self.costs.len() + ask.costs.len() <= COSTS
    }

    fn push(&mut self, ask: Ask) {
        self.costs.extend_from_slice(&ask.costs);
        self.asks.push(ask);
    }

    /// Leaves out who has given up meanwhile; whether anybody is left.
    fn is_wanted(&mut self) -> bool {
        if self.asks.iter().any(|ask| ask.answer.is_closed()) {
            self.asks.retain(|ask| !ask.answer.is_closed());
            self.costs = self.asks.iter().flat_map(|ask| ask.costs.iter().copied()).collect();
        }
        !self.asks.is_empty()
    }

    fn asking(&self) -> bool {
        self.asks[0].asking
    }

    fn call(&self) -> Call<'_> {
        Call { tag: &self.asks[0].tag, policy: &self.asks[0].policy, costs: &self.costs }
    }

    fn command(&self, now: Micros) -> Cmd {
        self.call().command(self.by, now, self.asks[0].time)
    }

    /// Records the call in the traces of its checks, if any.
    fn called(&mut self, shard: &Shard, calls: usize, (sent, ended): (Micros, Micros), error: Option<&str>) {
        if self.asks.iter().all(|ask| ask.trace.is_none()) {
            return;
        }
        let call = traces::Call {
            host: &shard.address.host,
            port: shard.address.port,
            operation: if self.by == By::Hash { "EVALSHA" } else { "EVAL" },
            script: self.asks[0].policy.algorithm.name(),
            checks: self.costs.len(),
            pipeline: calls,
            sent,
            ended,
            error,
        };
        traces::called(self.asks.iter_mut().filter_map(|ask| ask.trace.as_mut()), &call);
    }

    fn outcome(&self, reply: &Value, from: &Address) -> Outcome {
        if let Value::ServerError(error) = reply {
            return refused(error, from);
        }
        match self.call().reply(reply) {
            Reply::Taken(taken) => Outcome::Taken(taken),
            Reply::NotCovered { time } => Outcome::Elsewhen(time),
            Reply::Malformed => {
                let error = StoreError::Unknown("the script's reply is not one that it makes".into());
                Outcome::Refused(error.into())
            }
        }
    }

    /// Gives each ask its part of the verdicts. A caller that has gone needs none.
    fn answer(self, taken: Taken) {
        let Ruling { verdicts, closed_for } = taken.ruling;
        let mut verdicts = verdicts.into_iter();
        for ask in self.asks {
            let verdicts = verdicts.by_ref().take(ask.costs.len()).collect();
            let _ = ask.answer.send(Ok(Taken { ruling: Ruling { verdicts, closed_for }, at: taken.at }));
        }
    }

    fn refuse(self, refusal: &Refusal) {
        for ask in self.asks {
            let _ = ask.answer.send(Err(refusal.clone()));
        }
    }
}

/// What an error reply means. The script writes only after it has decided, so an error is always from before
/// its first write, and nothing was charged. A redirection that names no host means the one it came from.
fn refused(error: &redis::ServerError, from: &Address) -> Outcome {
    let details = error.details().unwrap_or_default();
    let address = || {
        let named = details.split_ascii_whitespace().nth(1).and_then(Address::parse)?;
        let unknown = named.host.is_empty() || named.host == "?";
        Some(if unknown { Address { host: from.host.clone(), ..named } } else { named })
    };
    let refusal = match error.kind() {
        Some(ServerErrorKind::NoScript) => return Outcome::NoScript,
        Some(ServerErrorKind::Moved) => address().map(Refusal::Moved),
        Some(ServerErrorKind::Ask) => address().map(Refusal::Ask),
        Some(
            kind @ (ServerErrorKind::TryAgain
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly),
        ) => Some(Refusal::NotNow(format!("{kind:?}"))),
        _ => None,
    };
    let text = || StoreError::Refused(format!("{} {details}", error.code())).into();
    Outcome::Refused(refusal.unwrap_or_else(text))
}

fn unknown(error: &RedisError) -> StoreError {
    StoreError::Unknown(error.to_string())
}
