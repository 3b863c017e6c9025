//! Charges that a replica has yet to acknowledge (`durability: replica`).
//!
//! WAIT is about all that its connection has charged, and holds that up. So one WAIT behind the calls is for the most
//! patient of those who asked, and the others are told, each when its own time is up, that nobody has acknowledged it.
//! It is asked in slices, so that a server that is gone is not waited for longer than anywhere else.

use std::pin::Pin;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, ServerError, Value};

use super::ask::{Answer, Ask};
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

/// How many replicas have acknowledged what was charged before on the connection, after a slice of the time until
/// `until` (us) at most; 0 at once where nobody waits. That the server refuses to tell is logged.
pub async fn acknowledged(
    connection: &MultiplexedConnection,
    shard: &Shard,
    until: Option<Micros>,
) -> RedisResult<u64> {
    let Some(until) = until else { return Ok(0) };
    let slice = Duration::from_micros(until.saturating_sub(shard.now())).min(shard.overdue());
    // 0 would mean for ever.
    let millis = u64::try_from(slice.as_millis()).unwrap_or(0).max(1);
    let mut command = redis::cmd("WAIT");
    command.arg(1).arg(millis);
    let mut connection = connection.clone();
    let Some(told) = shard.awaited(connection.send_packed_command(&command), slice).await else {
        return Err((redis::ErrorKind::Io, "no answer in time").into());
    };
    match told? {
        Value::Int(count) => Ok(u64::try_from(count).unwrap_or(0)),
        Value::ServerError(error) => {
            complain(&error, shard);
            Err(error.into())
        }
        other => Err((redis::ErrorKind::UnexpectedReturnType, "no number of replicas", format!("{other:?}")).into()),
    }
}

fn complain(error: &ServerError, shard: &Shard) {
    if let Some(suppressed) = shard.complaints.pass(shard.now()) {
        let error = format!("{} {}", error.code(), error.details().unwrap_or_default());
        tracing::warn!(
            shard = %shard.address, error, suppressed,
            "the server refuses WAIT: what `durability: replica` charges there is not acknowledged"
        );
    }
}

/// Answers each of `charged` as soon as a replica has acknowledged all of them, or when its time is up. `told` is what
/// [`acknowledged`] has come to, or else `asked` is on its way.
pub async fn confirm<F: Future<Output = RedisResult<u64>>>(
    mut charged: Vec<Unconfirmed>,
    mut told: Option<RedisResult<u64>>,
    mut asked: Pin<&mut F>,
    again: impl Fn(Micros) -> F,
    shard: &Shard,
) {
    loop {
        let now = shard.now();
        charged.extract_if(.., |charge| charge.until <= now).for_each(Unconfirmed::give_up);
        let untils = || charged.iter().map(|charge| charge.until);
        let (Some(next), Some(last)) = (untils().min(), untils().max()) else { return };
        match told.take() {
            None => {}
            Some(Ok(0)) => asked.set(again(last)),
            Some(Ok(_)) => return charged.into_iter().for_each(Unconfirmed::confirm),
            // The connection is broken, or the server refuses.
            Some(Err(_)) => return charged.into_iter().for_each(Unconfirmed::give_up),
        }
        tokio::select! {
            answer = asked.as_mut() => told = Some(answer),
            () = tokio::time::sleep(Duration::from_micros(next - now)) => {}
        }
    }
}
