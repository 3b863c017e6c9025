//! Charges that a replica has yet to acknowledge (`durability: replica`).
//!
//! WAIT covers all charges of its connection and blocks that connection. One WAIT follows the
//! calls, with the longest time limit among the callers. The other callers receive a failure when
//! their own time is up. WAIT is sent in slices, so a dead server is detected as early as
//! elsewhere.

use std::pin::Pin;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::limit::time::Micros;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::request::Ask;
use crate::store::{Done, StoreError};

/// A charge, and the answer for its caller once a replica acknowledges it.
pub struct Unconfirmed {
    ask: Ask,
    answer: Done,
    /// When its caller receives a failure for lack of an acknowledgement, us by this node's clock.
    until: Micros,
}

impl Unconfirmed {
    /// Creates one for a request that was sent at `sent`, us.
    pub fn new(ask: Ask, answer: Done, sent: Micros) -> Self {
        let until = patience_ends(&ask, sent);
        Self { ask, answer, until }
    }

    fn confirm(self) {
        self.ask.answer.send(Ok(self.answer));
    }

    fn give_up(self) {
        self.ask.answer.send(Err(StoreError::NoReplicaAck.into()));
    }
}

/// Returns until when a request that was sent at `sent` may wait for a replica, us. The wait ends a
/// little before the caller's deadline, so the answer arrives in time.
pub fn patience_ends(ask: &Ask, sent: Micros) -> Micros {
    sent + ask.deadline.saturating_sub(sent) / 10 * 9
}

/// The result of a WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The number of replicas that have acknowledged the charges.
    Replicas(u64),
    /// The connection broke, or the server refuses.
    Failed,
    /// The server has stayed silent for too long.
    Silent,
}

/// Returns how many replicas have acknowledged the earlier charges of the connection. The wait
/// lasts at most a slice of the time until `until`, us. Without `until` the result is 0 at once.
/// The log reports a server that refuses WAIT.
pub async fn acknowledged(connection: &Connection, shard: &Shard, until: Option<Micros>) -> Told {
    let Some(until) = until else { return Told::Replicas(0) };
    let slice = Duration::from_micros(until.saturating_sub(shard.now())).min(shard.overdue());
    // WAIT with 0 has no time limit.
    let millis = u64::try_from(slice.as_millis()).unwrap_or(0).max(1);
    let mut command = redis::cmd("WAIT");
    command.arg(1).arg(millis);
    let mut connection = connection.clone();
    match shard.awaited(connection.send(&command), slice).await {
        Some(Ok(Value::Int(count))) => Told::Replicas(u64::try_from(count).unwrap_or(0)),
        Some(Ok(Value::ServerError(error))) => {
            complain(&error, shard);
            Told::Failed
        }
        Some(_) => Told::Failed,
        None => Told::Silent,
    }
}

fn complain(error: &ServerError, shard: &Shard) {
    if let Some(suppressed) = shard.complaints.pass(shard.now()) {
        let failure = Failure::of_reply(error);
        let error = failure.for_log();
        tracing::warn!(
            shard = %shard.address, %error, suppressed,
            "the server refuses WAIT: what `durability: replica` charges there is not acknowledged"
        );
    }
}

/// Answers each of `charged` when a replica has acknowledged all, or when its time is up. `told` is
/// the result of [`acknowledged`]; without one, `asked` is in flight. Returns whether the server
/// has fallen silent.
pub async fn confirm<F: Future<Output = Told>>(
    mut charged: Vec<Unconfirmed>,
    mut told: Option<Told>,
    mut asked: Pin<&mut F>,
    again: impl Fn(Micros) -> F,
    shard: &Shard,
) -> bool {
    loop {
        let now = shard.now();
        charged.extract_if(.., |charge| charge.until <= now).for_each(Unconfirmed::give_up);
        let untils = || charged.iter().map(|charge| charge.until);
        let (Some(next), Some(last)) = (untils().min(), untils().max()) else { return false };
        match told.take() {
            None => {}
            Some(Told::Replicas(0)) => asked.set(again(last)),
            Some(Told::Replicas(_)) => {
                charged.into_iter().for_each(Unconfirmed::confirm);
                return false;
            }
            Some(failed) => {
                charged.into_iter().for_each(Unconfirmed::give_up);
                return failed == Told::Silent;
            }
        }
        tokio::select! {
            answer = asked.as_mut() => told = Some(answer),
            () = tokio::time::sleep(Duration::from_micros(next - now)) => {}
        }
    }
}
