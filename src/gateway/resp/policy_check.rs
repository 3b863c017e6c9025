//! `TG.CHECK policy key [cost]`: a check under a configured policy, with times in milliseconds.

use super::decode::{Words, number};
use super::outcome::{Refusal, key, text};
use super::reply::Replies;
use crate::engine::{Check, Decision, Door};
use crate::limit::decision::Wait;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::millis_up;

/// The check for the words of a command.
pub(super) fn check(words: &Words<'_>) -> Result<Check, Refusal> {
    let [_, policy, name, rest @ ..] = &words[..] else { return Err(Refusal::Arity("tg.check")) };
    let cost = match rest {
        [] => 1,
        [cost] => number(cost)
            .and_then(|cost| u64::try_from(cost).ok())
            .filter(|cost| *cost <= MAX_UNITS)
            .ok_or_else(|| Refusal::text(format!("ERR the cost must be an integer from 0 to {MAX_UNITS}")))?,
        _ => return Err(Refusal::Arity("tg.check")),
    };
    let policy = text("policy", policy)?.to_owned();
    Ok(Check::new(policy, key(name)?, cost, Door::Resp))
}

/// limited, limit, remaining, retry_after_ms or -1, reset_after_ms, source. By a list no counter
/// decides, so the second, third and fifth are null.
pub(super) fn answer(replies: &mut Replies<'_>, decision: &Decision) {
    let binding = decision.binding;
    let quota = binding.and_then(|binding| decision.policy.quotas.get(binding.quota));
    let retry_after = match decision.retry_after {
        Wait::For(wait) if !decision.allowed => millis_up(wait).cast_signed(),
        _ => -1,
    };
    replies.array(6);
    replies.integer(i64::from(!decision.allowed));
    replies.integer_or_null(quota.map(|quota| quota.limit.get().cast_signed()));
    replies.integer_or_null(binding.map(|binding| binding.remaining.cast_signed()));
    replies.integer(retry_after);
    replies.integer_or_null(binding.map(|binding| millis_up(binding.reset_after).cast_signed()));
    replies.bulk(decision.source.name().as_bytes());
}
