//! `TG.CHECK policy key [cost] [WAIT ms]`: a check under a configured policy, with times in
//! milliseconds.

use super::decode::{Words, number};
use super::outcome::{Refusal, key, text};
use super::reply::Replies;
use crate::engine::{Check, Decision, Door};
use crate::limit::decision::Wait;
use crate::limit::line::MAX_WAIT_MS;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::millis_up;

/// The check for the words of a command.
pub(super) fn check(words: &Words<'_>) -> Result<Check, Refusal> {
    let [_, policy, name, rest @ ..] = &words[..] else { return Err(Refusal::Arity("tg.check")) };
    let is_option = |word: &[u8]| word.eq_ignore_ascii_case(b"wait");
    let (cost, options) = match rest {
        [cost, options @ ..] if !is_option(cost) => (within("cost", cost, MAX_UNITS)?, options),
        options => (1, options),
    };
    let mut check = Check::new(text("policy", policy)?.to_owned(), key(name)?, cost, Door::Resp);
    for option in options.chunks(2) {
        let [name, value] = option else { return Err(Refusal::Arity("tg.check")) };
        if !is_option(name) {
            return Err(Refusal::text("ERR the option of tg.check is WAIT with a number of milliseconds".into()));
        }
        check.wait = Some(1000 * within("wait", value, MAX_WAIT_MS)?).filter(|wait| *wait > 0);
    }
    Ok(check)
}

fn within(name: &str, word: &[u8], most: u64) -> Result<u64, Refusal> {
    let value = number(word).and_then(|value| u64::try_from(value).ok()).filter(|value| *value <= most);
    value.ok_or_else(|| Refusal::text(format!("ERR the {name} must be an integer from 0 to {most}")))
}

/// limited, limit, remaining, retry_after_ms or -1, reset_after_ms, source; and of an allowed check
/// with `WAIT` the ms until its start. By a list no counter decides, so the second, third and fifth
/// are null.
pub(super) fn answer(replies: &mut Replies<'_>, decision: &Decision) {
    let binding = decision.binding;
    let quota = binding.and_then(|binding| decision.policy.quotas.get(binding.quota));
    let retry_after = match decision.retry_after {
        Wait::For(wait) if !decision.allowed => millis_up(wait).cast_signed(),
        _ => -1,
    };
    let start = decision.start_after.map(|span| millis_up(span).cast_signed());
    replies.array(6 + usize::from(start.is_some()));
    replies.integer(i64::from(!decision.allowed));
    replies.integer_or_null(quota.map(|quota| quota.limit.get().cast_signed()));
    replies.integer_or_null(binding.map(|binding| binding.remaining.cast_signed()));
    replies.integer(retry_after);
    replies.integer_or_null(binding.map(|binding| millis_up(binding.reset_after).cast_signed()));
    replies.bulk(decision.source.name().as_bytes());
    start.into_iter().for_each(|start| replies.integer(start));
}
