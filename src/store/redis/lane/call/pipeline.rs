//! One pipeline of calls, from sending to the answers.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Pipeline, ServerErrorKind, Value};
use smallvec::SmallVec;

use crate::limit::key::Fingerprint;
use crate::limit::policy::Durability;
use crate::limit::time::Micros;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::lane::call::key_batch::Group;
use crate::store::redis::lane::call::script_call::{Bundle, bundles};
use crate::store::redis::lane::metrics::Retry;
use crate::store::redis::lane::replica_ack::{Unconfirmed, acknowledged, confirm, patience_ends};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::call::By;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::not_executed::{self, NotExecuted, executes_nothing};
use crate::store::redis::protocol::reply::Reply;
use crate::store::redis::protocol::server_error::code;
use crate::store::redis::request::given_up;
use crate::store::{Done, StoreError};

/// The most rounds of one batch. Further rounds carry the script's source, a call of its own for
/// one key, or the right calendar windows. A clock that jumps may need the windows again.
const ROUNDS: usize = 5;

/// The state of the connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Sound,
    Broken,
    /// The server is a replica now.
    Demoted,
    /// The server answered neither this batch nor anything else.
    Silent,
}

/// The calls of one pipeline.
pub struct Batch(Vec<Bundle>);

impl Batch {
    /// Combines groups that may share a call.
    pub fn of(groups: Vec<Group>, shard: &Shard) -> Self {
        Self(bundles(groups, shard.may_bundle()))
    }

    /// Returns the keys of the batch.
    pub fn keys(&self) -> Vec<Fingerprint> {
        self.0.iter().flat_map(|bundle| &bundle.groups).map(Group::key).collect()
    }

    /// Sends the calls and delivers the answers. A call is retried at once if the server lacked the
    /// script or TIME was outside the bounds. A key that a shared call did not decide is retried as
    /// well.
    pub async fn exchange(mut self, mut connection: Connection, shard: &Shard) -> Ended {
        let waiting = connection.clone();
        for _ in 0..ROUNDS {
            self.0.retain_mut(Bundle::is_wanted);
            if self.0.is_empty() {
                return Ended::Sound;
            }
            let pipeline = self.pipeline(shard);
            let sent = shard.now();
            self.0.iter().for_each(|bundle| shard.metrics.sent(bundle.checks()));
            let until = self.waits_until(shard, sent);
            let wait = |until| acknowledged(&waiting, shard, until);
            // A future sends when it is polled first, so the calls precede WAIT.
            let mut asked = pin!(wait(until));
            let replies = shard.awaited(connection.send_all(&pipeline), Duration::ZERO);
            let (replies, told) = match select(pin!(replies), asked.as_mut()).await {
                Either::Left((replies, _)) => (replies, None),
                Either::Right((told, replies)) => (replies.await, Some(told)),
            };
            let (failed, ended) = match replies {
                Some(Ok(replies)) => {
                    let is_demoted = replies.iter().any(is_read_only);
                    let charged = self.settle(replies, shard, sent, until.is_some());
                    if confirm(charged, told, asked, |until| wait(Some(until)), shard).await {
                        self.fail(&StoreError::Timeout.into());
                        return Ended::Silent;
                    }
                    if is_demoted {
                        self.fail(&NotExecuted::NotNow("the server is a replica now".into()));
                        return Ended::Demoted;
                    }
                    continue;
                }
                Some(Err(failure)) => {
                    self.blame(&failure, shard);
                    (StoreError::Unknown(failure.to_string()), Ended::Broken)
                }
                None => {
                    self.blame(&Failure::late(), shard);
                    (StoreError::Timeout, Ended::Silent)
                }
            };
            let (calls, when) = (self.0.len(), (sent, shard.now()));
            self.0.iter_mut().for_each(|bundle| bundle.called(shard, calls, when, Some(failed.kind())));
            self.fail(&failed.into());
            return ended;
        }
        self.fail(&NotExecuted::NotNow("the shard's clock could not be followed".into()));
        Ended::Sound
    }

    /// Builds the commands of one round.
    fn pipeline(&self, shard: &Shard) -> Pipeline {
        let now = shard.shard_now();
        let mut pipeline = Pipeline::with_capacity(self.0.len());
        for bundle in &self.0 {
            if bundle.asking() {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(bundle.command(shard, now));
        }
        pipeline
    }

    /// Returns until when a replica may acknowledge charges that were sent at `sent`, us. Returns
    /// none if no request waits for a replica.
    fn waits_until(&self, shard: &Shard, sent: Micros) -> Option<Micros> {
        let asks = self.0.iter().flat_map(|bundle| &bundle.groups).flat_map(|group| &group.asks);
        let charging = asks.filter(|ask| shard.durability == Durability::Replica && ask.work.may_charge());
        charging.map(|ask| patience_ends(ask, sent)).max()
    }

    /// Delivers the result of each reply. Calls to retry stay in the batch. Returns the charges
    /// that still need an acknowledgement.
    fn settle(&mut self, replies: Vec<Value>, shard: &Shard, sent: Micros, acknowledged: bool) -> Vec<Unconfirmed> {
        let received = shard.now();
        shard.metrics.called(received.saturating_sub(sent), self.0.len());
        let mut replies = replies.into_iter();
        let (calls, mut again, mut charged) = (self.0.len(), Vec::new(), Vec::new());
        for mut bundle in self.0.drain(..) {
            if bundle.asking() {
                replies.next();
            }
            let reply = replies.next().unwrap_or(Value::Nil);
            let error = if let Value::ServerError(error) = &reply { Some(error) } else { None };
            bundle.called(shard, calls, (sent, received), error.map(code));
            if is_no_script(&reply) {
                shard.metrics.retried(Retry::NoScript);
                again.push(Bundle { by: By::Source, ..bundle });
                continue;
            }
            let refused = error.map(|error| (Failure::of_reply(error), executes_nothing(error)));
            if let Some((failure, _)) = &refused {
                log_unknown(failure, shard);
            }
            let outcomes = bundle.replies(&reply, &shard.address);
            let (mut elsewhen, mut lead) = (SmallVec::new(), bundle.lead);
            let mut tell = |group: Group, done| {
                group.hand_out(done, |ask, part| match acknowledged && ask.work.charges() && part.is_charge() {
                    true => charged.push(Unconfirmed::new(ask, part, sent)),
                    false => ask.answer.send(Ok(part)),
                });
            };
            for (group, outcome) in bundle.groups.into_iter().zip(outcomes) {
                match outcome {
                    Reply::Done(done) => {
                        if shard.charging.has_refused() && group.was_written(&done) {
                            shard.accept();
                        }
                        if let Some(time) = done.at() {
                            shard.learn_offset(time, sent, received);
                        }
                        if matches!(done, Done::Refunded(..)) {
                            shard.forget(group.slot());
                        }
                        tell(group, done);
                    }
                    Reply::OutsideTimeBounds(time) => {
                        shard.learn_offset(time, sent, received);
                        lead = time.saturating_sub(shard.shard_time(sent));
                        elsewhen.push(group);
                    }
                    Reply::Undecided => {
                        shard.keep_apart();
                        shard.metrics.retried(Retry::Alone);
                        again.push(Bundle::of(group));
                    }
                    Reply::NotExecuted(refusal) => {
                        if let Some((failure, is_all)) = &refused
                            && (*is_all || group.may_charge() && is_by_shard(&refusal, failure))
                        {
                            shard.refuse(failure);
                        }
                        group.reject(&refusal);
                    }
                }
            }
            if !elsewhen.is_empty() {
                shard.metrics.retried(Retry::Clock);
                again.push(Bundle { groups: elsewhen, by: bundle.by, lead });
            }
        }
        self.0 = again;
        charged
    }

    /// Notes that the remaining charges have no answer.
    fn blame(&self, failure: &Failure, shard: &Shard) {
        if self.0.iter().flat_map(|bundle| &bundle.groups).any(Group::may_charge) {
            shard.refuse(failure);
        }
    }

    /// Rejects all remaining requests.
    fn fail(&mut self, refusal: &NotExecuted) {
        self.0.drain(..).flat_map(|bundle| bundle.groups).for_each(|group| group.reject(refusal));
    }
}

/// Rejects the requests that are left when the connection is given up.
impl Drop for Batch {
    fn drop(&mut self) {
        self.fail(&given_up().into());
    }
}

fn is_read_only(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if not_executed::is_read_only(error))
}

/// Whether the shard refuses, rather than one key or a redirection.
fn is_by_shard(refusal: &NotExecuted, failure: &Failure) -> bool {
    match refusal {
        NotExecuted::Moved(_) | NotExecuted::Ask(_) | NotExecuted::TryAgain => false,
        NotExecuted::NotNow(_) | NotExecuted::Failed(_) => !matches!(failure.kind, Kind::Key | Kind::Moved),
    }
}

fn log_unknown(failure: &Failure, shard: &Shard) {
    if let Some(error) = failure.said()
        && let Some(suppressed) = shard.refusals.pass(shard.now())
    {
        tracing::warn!(shard = %shard.address, error, suppressed, "the shard refuses a call");
    }
}

fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::Clock;
    use crate::config::Credentials;
    use crate::store::Generations;
    use crate::store::Work;
    use crate::store::redis::lane::shared::Shared;
    use crate::store::redis::protocol::address::Address;
    use crate::store::redis::request::Ask;
    use crate::store::redis::request::tests::ask;
    use crate::workers::Workers;

    /// The caller of a refund may have given up. A later check over another connection may have
    /// been denied before the refund.
    #[test]
    fn what_was_taken_back_ends_what_is_known_also_when_nobody_waits_for_it() {
        let (clock, generations) = (Clock::system(), Arc::new(Generations::default()));
        let workers = Workers::default();
        let shared = Shared::new(
            Credentials::default(),
            "ratelimit",
            clock,
            Duration::from_secs(1),
            generations.clone(),
            workers,
            None,
        );
        let shard = Shard::new(Address { host: "shard".into(), port: 7001 }, Arc::new(shared));
        let settled = |work: Work, reply: Vec<Value>| {
            let (first, verdict) = ask("key");
            let group = Group::of(Ask { work, ..first });
            let (slot, before) = (group.slot(), generations.current(group.slot()));
            drop(verdict);
            let mut batch = Batch::of(vec![group], &shard);
            batch.settle(vec![Value::Array(reply)], &shard, shard.now(), false);
            assert!(batch.0.is_empty(), "it is answered");
            generations.current(slot) != before
        };
        let time = Value::Int(1_790_000_000_000_000);
        assert!(settled(Work::Reset, vec![time.clone(), Value::Int(0), Value::Nil]));
        assert!(!settled(Work::Take([1][..].into()), vec![time, Value::Int(0)]));
    }
}
