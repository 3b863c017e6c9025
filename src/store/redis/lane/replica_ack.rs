//! Charges that a replica has yet to acknowledge (`durability: replica`).
//!
//! WAIT covers all charges of its connection and blocks that connection. One WAIT follows the
//! calls, with the longest time limit among the callers. The other callers receive a failure when
//! their own time is up. WAIT is sent in slices, so a dead server is detected as early as
//! elsewhere.

use std::pin::Pin;
use std::time::Duration;

use redis::Value;

use crate::limit::time::Micros;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::lane::refused_kinds::CallKind;
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::failure::Failure;
use crate::store::redis::request::KeyRequest;
use crate::store::{Done, StoreError};

/// A charge, and the answer for its caller once a replica acknowledges it.
pub struct Unconfirmed {
    request: KeyRequest,
    answer: Done,
    /// When its caller receives a failure for lack of an acknowledgement, us by this node's clock.
    until: Micros,
}

impl Unconfirmed {
    /// Creates one for a request that was sent at `sent`, us.
    pub fn new(request: KeyRequest, answer: Done, sent: Micros) -> Self {
        let until = ack_deadline(&request, sent);
        Self { request, answer, until }
    }

    fn give_up(self) {
        self.request.reply_to.send(Err(StoreError::NoReplicaAck.into()));
    }
}

/// Returns until when a request that was sent at `sent` may wait for a replica, us. The wait ends a
/// little before the caller's deadline, so the answer arrives in time.
pub fn ack_deadline(request: &KeyRequest, sent: Micros) -> Micros {
    sent + request.deadline.saturating_sub(sent) / 10 * 9
}

/// The result of a WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckStatus {
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
pub async fn acknowledged(connection: &Connection, shard: &Shard, until: Option<Micros>) -> AckStatus {
    let Some(until) = until else { return AckStatus::Replicas(0) };
    let slice = Duration::from_micros(until.saturating_sub(shard.now())).min(shard.shared.response_timeout());
    // WAIT with 0 has no time limit.
    let millis = u64::try_from(slice.as_millis()).unwrap_or(0).max(1);
    let mut command = redis::cmd("WAIT");
    command.arg(1).arg(millis);
    let mut connection = connection.clone();
    match shard.awaited(connection.send(&command), slice).await {
        Some(Ok(Value::Int(count))) => {
            if !shard.charging.refused_kinds.is_empty() {
                shard.accept_kind(CallKind::Wait, None);
            }
            AckStatus::Replicas(u64::try_from(count).unwrap_or(0))
        }
        Some(Ok(Value::ServerError(error))) => {
            let failure = Failure::of_reply(&error);
            shard.refuse_kind(CallKind::Wait, None, &failure);
            complain(&failure, shard);
            AckStatus::Failed
        }
        Some(_) => AckStatus::Failed,
        None => AckStatus::Silent,
    }
}

fn complain(failure: &Failure, shard: &Shard) {
    if let Some(suppressed) = shard.complaints.pass(shard.now()) {
        let error = failure.for_log();
        tracing::warn!(
            shard = %shard.address, %error, suppressed,
            "the server refuses WAIT: what `durability: replica` charges there is not acknowledged"
        );
    }
}

/// Answers each of `charged` when a replica has acknowledged all, or when its time is up. `ack` is
/// the result of [`acknowledged`]; without one, `wait_for_ack` is in flight. Returns whether the
/// server has fallen silent.
pub async fn confirm<F: Future<Output = AckStatus>>(
    mut charged: Vec<Unconfirmed>,
    mut ack: Option<AckStatus>,
    mut wait_for_ack: Pin<&mut F>,
    again: impl Fn(Micros) -> F,
    shard: &Shard,
) -> bool {
    loop {
        let now = shard.now();
        charged.extract_if(.., |charge| charge.until <= now).for_each(Unconfirmed::give_up);
        let untils = || charged.iter().map(|charge| charge.until);
        let (Some(next), Some(last)) = (untils().min(), untils().max()) else { return false };
        match ack.take() {
            None => {}
            Some(AckStatus::Replicas(0)) => wait_for_ack.set(again(last)),
            Some(AckStatus::Replicas(_)) => {
                charged.into_iter().for_each(|charge| charge.request.reply_to.send(Ok(charge.answer)));
                return false;
            }
            Some(failed) => {
                charged.into_iter().for_each(Unconfirmed::give_up);
                return failed == AckStatus::Silent;
            }
        }
        tokio::select! {
            answer = wait_for_ack.as_mut() => ack = Some(answer),
            () = tokio::time::sleep(Duration::from_micros(next - now)) => {}
        }
    }
}
