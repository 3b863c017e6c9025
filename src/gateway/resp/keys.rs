//! `DEL`, `UNLINK`, `EXISTS` and `TTL`: the debts of keys of `CL.THROTTLE`. A key exists while it
//! has a debt.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::decode::Words;
use super::outcome::{Outcome, Ran, Refusal, key};
use super::reply::Replies;
use super::session::Session;
use crate::config::THROTTLE;
use crate::engine::{Check, CheckError, Door, Engine, Kind, Note, OwnQuotas, StoreError};
use crate::limit::policy::OnStoreFailure;
use crate::limit::quota::{MAX_WINDOW, Rate};
use crate::limit::time::{Micros, seconds_up};
use crate::shares::CallerTurns;

/// `TTL` of a key without a debt.
const MISSING: i64 = -2;

/// Why an operation on keys has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Instead of the store, `on_store_failure` allows or denies, and so knows no debt.
    #[error("the store gave no decision")]
    Unknown,
}

/// An operation on keys.
#[derive(Debug)]
pub(super) enum KeyWork {
    /// With the author of the reset.
    Forget(Vec<Arc<str>>, String),
    Exists(Vec<Arc<str>>),
    TimeToLive(Arc<str>),
}

/// `DEL key...` and `UNLINK key...`, with the rights of a reset.
pub(super) fn forget(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    session.permit_policy(THROTTLE)?;
    Ok(Outcome::Keys(KeyWork::Forget(keys(words)?, session.author())))
}

/// `EXISTS key...`.
pub(super) fn exists(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    session.permit_policy(THROTTLE)?;
    Ok(Outcome::Keys(KeyWork::Exists(keys(words)?)))
}

/// `TTL key`: the seconds until its bucket is full.
pub(super) fn time_to_live(session: &mut Session, words: &Words<'_>, _: &mut Replies<'_>) -> Ran {
    session.permit_policy(THROTTLE)?;
    Ok(Outcome::Keys(KeyWork::TimeToLive(key(&words[1])?.into())))
}

fn keys(words: &Words<'_>) -> Result<Vec<Arc<str>>, Refusal> {
    words[1..].iter().map(|word| Ok(key(word)?.into())).collect()
}

impl KeyWork {
    /// The answer, an integer.
    ///
    /// # Errors
    /// The store gave no decision. Some keys may be reset then.
    pub(super) async fn run(&self, engine: &Engine, turns: &impl Fn() -> CallerTurns) -> Result<i64, KeyError> {
        let limit = engine.policies().by_name.get(THROTTLE).map(|policy| policy.timeout).unwrap_or_default();
        let late = |_| Err(CheckError::StoreUnavailable(StoreError::QueueFull).into());
        let count = |found: Vec<Result<bool, KeyError>>| {
            found.into_iter().try_fold(0, |count, found| Ok(count + i64::from(found?)))
        };
        match self {
            Self::Forget(keys, by) => {
                let keys: HashSet<&Arc<str>> = keys.iter().collect();
                let forget = |key| forget_one(engine, key, by);
                count(engine.in_turns(&turns(), limit, keys.into_iter().collect(), forget, late).await)
            }
            Self::Exists(keys) => {
                let exists = async |key| Ok(debt_ends(engine, key).await? > 0);
                count(engine.in_turns(&turns(), limit, keys.iter().collect(), exists, late).await)
            }
            Self::TimeToLive(key) => Ok(match debt_ends(engine, key).await? {
                0 => MISSING,
                span => seconds_up(span).cast_signed(),
            }),
        }
    }
}

/// Resets a key, and returns whether it had a debt.
async fn forget_one(engine: &Engine, key: &Arc<str>, by: &str) -> Result<bool, KeyError> {
    let had_debt = debt_ends(engine, key).await? > 0;
    engine.reset(THROTTLE, key, Door::Resp).await?;
    if had_debt {
        engine.note(Note::of_key(Kind::Reset, by.to_owned(), THROTTLE, key)).await;
    }
    Ok(had_debt)
}

/// Time until the debt of a key is repaid by the rate that wrote it, us; 0 without a debt.
async fn debt_ends(engine: &Engine, key: &Arc<str>) -> Result<Micros, KeyError> {
    // No rate is slower, so the debt ends when its own rate has repaid it.
    let slowest = OwnQuotas::Bucket(Rate { units: NonZeroU64::MIN, per: MAX_WINDOW }, NonZeroU64::MIN);
    let look = Check { quotas: Some(slowest), ..Check::new(THROTTLE.to_owned(), key.clone(), 0, Door::Resp) };
    let decision = engine.look(&look).await?;
    if decision.fallback.is_some_and(|fallback| fallback.mode != OnStoreFailure::Local) {
        return Err(KeyError::Unknown);
    }
    Ok(decision.binding.map_or(0, |binding| binding.reset_after))
}
