//! Charges that a replica has yet to acknowledge (`durability: replica`).
//!
//! WAIT is about all that its connection has charged, and holds that up. So one WAIT behind the calls is for the most
//! patient of those who asked, and the others are told, each when its own time is up, that nobody has acknowledged it.
//! It is asked in slices, so that a server that is gone is not waited for longer than anywhere else.

use std::pin::Pin;
use std::time::Duration;

use redis::{ServerError, Value};

use super::ask::{Answer, Ask};
use super::connection::Connection;
use super::failure::Failure;
use super::shard::Shard;
use crate::limit::time::Micros;
use crate::store::StoreError;

/// A charge, and what its caller is told once it is acknowledged.
pub struct Unconfirmed {
    ask: Ask,
    answer: Answer,
    /// When its caller is told that nobody has, us by this node's clock.
    until: Micros,
}

impl Unconfirmed {
    /// Of an ask that was sent at `sent` (us).
    pub fn new(ask: Ask, answer: Answer, sent: Micros) -> Self {
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

/// Until when an ask that was sent at `sent` may wait for a replica, us: a little less than its caller waits, so that
/// the answer still comes in time.
pub fn patience_ends(ask: &Ask, sent: Micros) -> Micros {
    sent + ask.deadline.saturating_sub(sent) / 10 * 9
}

/// What comes of asking whether a replica has what was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// So many have.
    Replicas(u64),
    /// The connection is broken, or the server refuses.
    Failed,
    /// The server has said nothing at all for too long.
    Silent,
}

/// How many replicas have acknowledged what was charged before on the connection, after a slice of the time until
/// `until` (us) at most; 0 at once where nobody waits. That the server refuses to tell is logged.
pub async fn acknowledged(connection: &Connection, shard: &Shard, until: Option<Micros>) -> Told {
    let Some(until) = until else { return Told::Replicas(0) };
    let slice = Duration::from_micros(until.saturating_sub(shard.now())).min(shard.overdue());
    // 0 would mean for ever.
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

/// Answers each of `charged` as soon as a replica has acknowledged all of them, or when its time is up. `told` is what
/// [`acknowledged`] has come to, or else `asked` is on its way. Whether the server has fallen silent meanwhile.
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
