//! One pipeline of calls, from sending to the answers.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{ServerError, ServerErrorKind, Value};
use smallvec::SmallVec;

use crate::limit::key::Fingerprint;
use crate::limit::policy::Durability;
use crate::limit::time::Micros;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::lane::key_batch::KeyBatch;
use crate::store::redis::lane::metrics::Retry;
use crate::store::redis::lane::replica_ack::{Unconfirmed, ack_deadline, acknowledged, confirm};
use crate::store::redis::lane::script_call::{ScriptCall, script_calls};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::call::By;
use crate::store::redis::protocol::failure::{Failure, Kind};
use crate::store::redis::protocol::reply::{self, NoVerdict, Reply, executes_nothing};
use crate::store::redis::protocol::server_error::{code, refuses};
use crate::store::redis::request::given_up;
use crate::store::{Done, StoreError};

/// The most rounds of one pipeline. Further rounds carry the script's source, a call of its own for
/// one key, or the right calendar windows. A clock that jumps may need the windows again.
const ROUNDS: usize = 5;

/// Why the calls of a pipeline are given up after so many rounds.
const NEVER_DECIDES: &str = "the server's clock jumps, or it decides no call";

/// Why the use of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All senders of requests are gone.
    Unwanted,
    /// The connection broke.
    Broken,
    /// The server is a replica now. Its address may lead to the new primary.
    Demoted,
    /// The connection exists, but the server does not answer.
    Silent,
    /// The connection broke before its first answer.
    Useless,
}

/// The calls of one pipeline.
pub struct Pipeline(Vec<ScriptCall>);

impl Pipeline {
    /// Combines batches that may share a call.
    pub fn of(batches: Vec<KeyBatch>, shard: &Shard) -> Self {
        let mut calls = script_calls(batches, shard.may_share());
        if shard.sends_sources() {
            calls.iter_mut().for_each(|script_call| script_call.by = By::Source);
        }
        Self(calls)
    }

    /// Returns the keys of the pipeline.
    pub fn keys(&self) -> Vec<Fingerprint> {
        self.0.iter().flat_map(|script_call| &script_call.batches).map(KeyBatch::key).collect()
    }

    /// Sends the calls and delivers the answers. A call is retried at once if the server lacked the
    /// script or TIME was outside the bounds. A key that a shared call did not decide is retried as
    /// well. Returns none if the connection is sound.
    pub async fn exchange(mut self, mut connection: Connection, shard: &Shard) -> Option<End> {
        let waiting = connection.clone();
        for _ in 0..ROUNDS {
            self.0.retain_mut(ScriptCall::is_wanted);
            if self.0.is_empty() {
                return None;
            }
            let pipeline = self.commands(shard);
            let sent = shard.now();
            self.0.iter().for_each(|script_call| shard.metrics.sent(script_call.checks()));
            let until = self.waits_until(shard, sent);
            let wait = |until| acknowledged(&waiting, shard, until);
            // A future sends when it is polled first, so the calls precede WAIT.
            let mut wait_for_ack = pin!(wait(until));
            let replies = shard.awaited(connection.send_all(&pipeline), Duration::ZERO);
            let (replies, ack) = match select(pin!(replies), wait_for_ack.as_mut()).await {
                Either::Left((replies, _)) => (replies, None),
                Either::Right((ack, replies)) => (replies.await, Some(ack)),
            };
            let (failed, ended) = match replies {
                Some(Ok(replies)) => {
                    let is_demoted = replies.iter().any(is_read_only);
                    let charged = self.settle(replies, shard, sent, until.is_some());
                    if confirm(charged, ack, wait_for_ack, |until| wait(Some(until)), shard).await {
                        self.fail(&StoreError::Timeout.into());
                        return Some(End::Silent);
                    }
                    if is_demoted {
                        self.fail(&NoVerdict::NotNow("the server is a replica now".into()));
                        return Some(End::Demoted);
                    }
                    continue;
                }
                Some(Err(failure)) => {
                    self.blame(&failure, shard);
                    (StoreError::Unknown(failure.to_string()), End::Broken)
                }
                None => {
                    self.blame(&Failure::late(), shard);
                    (StoreError::Timeout, End::Silent)
                }
            };
            let (calls, when) = (self.0.len(), (sent, shard.now()));
            self.0
                .iter_mut()
                .for_each(|script_call| script_call.called(shard, calls, when, Some(failed.kind())));
            self.fail(&failed.into());
            return Some(ended);
        }
        self.blame(&Failure::new(Kind::Answer, NEVER_DECIDES), shard);
        self.fail(&NoVerdict::NotNow(NEVER_DECIDES.into()));
        None
    }

    /// Builds the commands of one round.
    fn commands(&self, shard: &Shard) -> redis::Pipeline {
        let now = shard.shard_now();
        let mut pipeline = redis::Pipeline::with_capacity(self.0.len());
        for script_call in &self.0 {
            if let Some(source) = script_call.source_to_load() {
                pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
            }
            // ASKING holds for the next command only.
            if script_call.asking() {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(script_call.command(shard, now));
        }
        pipeline
    }

    /// Returns until when a replica may acknowledge charges that were sent at `sent`, us. Returns
    /// none if no request waits for a replica.
    fn waits_until(&self, shard: &Shard, sent: Micros) -> Option<Micros> {
        let requests = self.0.iter().flat_map(|script_call| &script_call.batches).flat_map(|batch| &batch.requests);
        let charging = requests.filter(|request| shard.durability == Durability::Replica && request.work.may_charge());
        charging.map(|request| ack_deadline(request, sent)).max()
    }

    /// Delivers the result of each reply. Calls to retry stay in the pipeline. Returns the charges
    /// that still need an acknowledgement.
    ///
    /// The replies are in the order of the commands. A call has one reply, after that of its SCRIPT
    /// LOAD and that of its ASKING, if it has these. `again` collects the calls of the next round.
    fn settle(&mut self, replies: Vec<Value>, shard: &Shard, sent: Micros, acknowledged: bool) -> Vec<Unconfirmed> {
        let received = shard.now();
        shard.metrics.called(received.saturating_sub(sent), self.0.len());
        let mut replies = replies.into_iter();
        let (calls, mut again, mut charged) = (self.0.len(), Vec::new(), Vec::new());
        for mut script_call in self.0.drain(..) {
            // Takes the replies of this call.
            let loaded = script_call.source_to_load().and_then(|_| replies.next());
            if script_call.asking() {
                replies.next();
            }
            let reply = replies.next().unwrap_or(Value::Nil);
            // A script that failed to load did not run. The error of the load is the cause.
            let reply = loaded.filter(|loaded| is_no_script(&reply) && is_error(loaded)).unwrap_or(reply);
            let error = if let Value::ServerError(error) = &reply { Some(error) } else { None };
            script_call.called(shard, calls, (sent, received), error.map(code));
            // The whole call is sent again if the server only refused the name of its script.
            if let Some(by) = error.and_then(|error| other_name(script_call.by, error, shard)) {
                shard.metrics.retried(Retry::NoScript);
                again.push(ScriptCall { by, ..script_call });
                continue;
            }
            let refused = error.map(|error| (Failure::of_reply(error), executes_nothing(error)));
            if let Some((failure, _)) = &refused {
                log_unknown(failure, shard);
            }
            // Each batch of the call has an outcome: after an error, all have the same.
            let outcomes = script_call.replies(&reply, &shard.address);
            let (mut outside, mut lead) = (SmallVec::new(), script_call.lead);
            let mut tell = |batch: KeyBatch, done| {
                batch.hand_out(done, |request, part| {
                    match acknowledged && request.work.charges() && part.is_charge() {
                        true => charged.push(Unconfirmed::new(request, part, sent)),
                        false => request.reply_to.send(Ok(part)),
                    }
                });
            };
            for (batch, outcome) in script_call.batches.into_iter().zip(outcomes) {
                match outcome {
                    // The store has decided. The shard learns from it before its callers do.
                    Reply::Done(done) => {
                        if shard.charging.has_refused() && batch.was_written(&done) && batch.is_awaited() {
                            shard.accept();
                        }
                        if !shard.charging.refused_kinds.is_empty() {
                            shard.accept_kind(batch.kind(), Some(batch.key()));
                        }
                        if let Some(time) = done.at() {
                            shard.learn_offset(time, sent, received);
                        }
                        if matches!(done, Done::Refunded(..)) && !batch.is_return() {
                            shard.shared.generations.raise(batch.slot());
                        }
                        tell(batch, done);
                    }
                    // The next round carries other calendar windows, for this TIME.
                    Reply::OutsideTimeBounds(time) => {
                        shard.learn_offset(time, sent, received);
                        lead = time.saturating_sub(shard.shard_time(sent));
                        outside.push(batch);
                    }
                    // A key whose slot moves. The next round sends it alone.
                    Reply::Undecided => {
                        shard.disable_sharing();
                        shard.metrics.retried(Retry::Alone);
                        again.push(ScriptCall::of(batch));
                    }
                    // The callers learn why, and so does the shard if it made no charge.
                    Reply::NoVerdict(reason) => {
                        let is_all = refused.as_ref().is_some_and(|(_, is_all)| *is_all);
                        if let Some(why) = refusal(&reason, refused.as_ref().map(|(failure, _)| failure)) {
                            if is_all || batch.may_charge() {
                                shard.refuse_key(batch.key(), &why);
                            }
                            shard.refuse_kind(batch.kind(), Some(batch.key()), &why);
                        }
                        batch.reject(&reason);
                    }
                }
            }
            if !outside.is_empty() {
                shard.metrics.retried(Retry::Clock);
                again.push(ScriptCall { batches: outside, by: script_call.by, lead });
            }
        }
        self.0 = again;
        charged
    }

    /// Notes that the remaining charges have no answer.
    fn blame(&self, failure: &Failure, shard: &Shard) {
        if self.0.iter().flat_map(|script_call| &script_call.batches).any(KeyBatch::may_charge) {
            shard.refuse(failure);
        }
    }

    /// Rejects all remaining requests.
    fn fail(&mut self, reason: &NoVerdict) {
        self.0.drain(..).flat_map(|script_call| script_call.batches).for_each(|batch| batch.reject(reason));
    }
}

/// Rejects the requests that are left when the connection is given up.
impl Drop for Pipeline {
    fn drop(&mut self) {
        self.fail(&given_up().into());
    }
}

fn is_read_only(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if reply::is_read_only(error))
}

/// Why a server did not make a charge, from its error reply if it was one. Returns none for a
/// redirection, since another server may make the charge; the router knows whether it did.
fn refusal<'a>(reason: &NoVerdict, error: Option<&'a Failure>) -> Option<Cow<'a, Failure>> {
    match reason {
        NoVerdict::Moved(_) | NoVerdict::Ask(_) | NoVerdict::TryAgain => None,
        NoVerdict::NotNow(_) | NoVerdict::Failed(_) => {
            Some(error.map_or_else(|| Cow::Owned(reply::not_an_answer(reason)), Cow::Borrowed))
        }
    }
}

fn log_unknown(failure: &Failure, shard: &Shard) {
    if let Some(error) = failure.said()
        && let Some(suppressed) = shard.refusals.pass(shard.now())
    {
        tracing::warn!(shard = %shard.address, error, suppressed, "the shard refuses a call");
    }
}

/// Returns how a retry names the script, if the server did not execute the call for its name alone.
fn other_name(by: By, error: &ServerError, shard: &Shard) -> Option<By> {
    match by {
        By::Hash if error.kind() == Some(ServerErrorKind::NoScript) => Some(By::Source),
        By::Hash if refuses(error, "EVALSHA") => {
            shard.send_sources();
            Some(By::Source)
        }
        By::Source if refuses(error, "EVAL") && !shard.sends_sources() => Some(By::Load),
        _ => None,
    }
}

fn is_error(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(_))
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
    use crate::store::redis::request::KeyRequest;
    use crate::store::redis::request::tests::request;
    use crate::workers::Workers;

    /// The caller of a refund may have given up. A later check over another connection may have
    /// been denied before the refund.
    #[test]
    fn refund_invalidates_prefilter_without_a_waiting_caller() {
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
        let shard = Shard::new(Address { host: "shard".into(), port: 7001 }, Arc::new(shared), Arc::default());
        let settled = |work: Work, reply: Vec<Value>| {
            let (first, verdict) = request("key");
            let batch = KeyBatch::of(KeyRequest { work, ..first });
            let (slot, before) = (batch.slot(), generations.current(batch.slot()));
            drop(verdict);
            let mut pipeline = Pipeline::of(vec![batch], &shard);
            pipeline.settle(vec![Value::Array(reply)], &shard, shard.now(), false);
            assert!(pipeline.0.is_empty(), "it is answered");
            generations.current(slot) != before
        };
        let time = Value::Int(1_790_000_000_000_000);
        assert!(settled(Work::Reset(Box::default()), vec![time.clone(), Value::Int(0), Value::Nil]));
        assert!(!settled(Work::Take([1][..].into()), vec![time, Value::Int(0)]));
    }
}
