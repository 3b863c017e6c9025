//! `TG.SETTLE policy key id [cost]` and `TG.RENEW policy key id`: the end and the renewal of holds.

use std::sync::Arc;

use super::decode::Words;
use super::outcome::{Outcome, Ran, Refusal, key, text};
use super::policy_check::{id, units};
use super::reply::Replies;
use super::session::Session;
use crate::engine::{CheckError, Door, Engine, HoldId, SettleResult};
use crate::limit::hold::{Renewal, Settlement};
use crate::limit::time::MICROS_PER_MILLI;

/// An operation on a hold.
#[derive(Debug)]
pub(super) enum HoldWork {
    /// With the operator that ends the hold, if one does.
    Settle(HoldId, Option<u64>, Option<String>),
    Renew(HoldId),
}

/// Its answer.
#[derive(Debug)]
pub(super) enum HoldAnswer {
    Settled(Box<SettleResult>),
    Renewed(Renewal),
}

pub(super) fn settle(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    let cost = match &words[4..] {
        [] => None,
        [cost] => Some(units(cost)?),
        _ => return Err(Refusal::Arity("tg.settle")),
    };
    Ok(Outcome::Hold(HoldWork::Settle(hold(session, words)?, cost, session.operator())))
}

pub(super) fn renew(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    Ok(Outcome::Hold(HoldWork::Renew(hold(session, words)?)))
}

/// The hold, if the client may use its policy.
fn hold(session: &mut Session, words: &Words<'_>) -> Result<HoldId, Refusal> {
    let policy = text("policy", &words[1])?.to_owned();
    session.permit_policy(&policy)?;
    Ok(HoldId { policy, key: key(&words[2])?.into(), id: id(&words[3])? })
}

impl HoldWork {
    /// # Errors
    /// As [`Engine::settle`] and [`Engine::renew`].
    pub(super) async fn run(&self, engine: &Arc<Engine>) -> Result<HoldAnswer, CheckError> {
        Ok(match self {
            Self::Settle(hold, cost, None) => {
                HoldAnswer::Settled(Box::new(engine.settle(hold, *cost, Door::Resp).await?))
            }
            Self::Settle(hold, cost, Some(by)) => {
                let settling = engine.settle_by_operator(hold.clone(), *cost, Door::Resp, by.clone());
                HoldAnswer::Settled(Box::new(settling.await?))
            }
            Self::Renew(hold) => HoldAnswer::Renewed(engine.renew(hold, Door::Resp).await?),
        })
    }
}

impl HoldAnswer {
    /// A settle: settled, charged, refunded, owed, limit, remaining; the last two are null without a
    /// counter. A renewal: renewed, expires_in_ms.
    pub(super) fn write(&self, replies: &mut Replies<'_>) {
        match self {
            Self::Settled(result) => {
                let Settlement { charged, refunded, owed, .. } = result.settlement.unwrap_or_default();
                let bound = result.decision.bound();
                replies.array(6);
                replies.integer(i64::from(result.settlement.is_some()));
                [charged, refunded, owed].into_iter().for_each(|units| replies.integer(units.cast_signed()));
                replies.integer_or_null(bound.map(|bound| bound.limit.cast_signed()));
                replies.integer_or_null(bound.map(|bound| bound.remaining.cast_signed()));
            }
            Self::Renewed(renewal) => {
                let left = if let Renewal::Open(left) = renewal { *left } else { 0 };
                replies.array(2);
                replies.integer(i64::from(matches!(renewal, Renewal::Open(_))));
                replies.integer((left / MICROS_PER_MILLI).cast_signed());
            }
        }
    }
}
