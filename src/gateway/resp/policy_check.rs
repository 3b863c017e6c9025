//! `TG.CHECK policy key [cost] [ID id] [WAIT ms]`: a check under a configured policy, with times in
//! milliseconds.

use std::sync::Arc;

use super::decode::{Words, number};
use super::outcome::{Refusal, key, text};
use super::reply::Replies;
use crate::engine::{Check, Decision, Door, Id, MAX_ID_BYTES};
use crate::limit::decision::Wait;
use crate::limit::line::MAX_WAIT_MS;
use crate::limit::quota::MAX_UNITS;
use crate::limit::time::millis_up;

/// The check for the words of a command.
pub(super) fn check(words: &Words<'_>) -> Result<Check, Refusal> {
    let [_, policy, name, rest @ ..] = &words[..] else { return Err(Refusal::Arity("tg.check")) };
    let is_option = |word: &[u8]| word.eq_ignore_ascii_case(b"wait") || word.eq_ignore_ascii_case(b"id");
    let (cost, options) = match rest {
        [cost, options @ ..] if !is_option(cost) => (units(cost)?, options),
        options => (1, options),
    };
    let mut check = Check::new(text("policy", policy)?.to_owned(), key(name)?, cost, Door::Resp);
    for option in options.chunks(2) {
        let [name, value] = option else { return Err(Refusal::Arity("tg.check")) };
        if name.eq_ignore_ascii_case(b"id") {
            check.id = Some(Id::from(id(value)?));
        } else if is_option(name) {
            check.wait = Some(1000 * within("wait", value, MAX_WAIT_MS)?).filter(|wait| *wait > 0);
        } else {
            return Err(Refusal::text(
                "ERR the options of tg.check are ID and WAIT with a number of milliseconds".into(),
            ));
        }
    }
    Ok(check)
}

/// A cost.
pub(super) fn units(word: &[u8]) -> Result<u64, Refusal> {
    within("cost", word, MAX_UNITS)
}

/// The id of a check.
pub(super) fn id(word: &[u8]) -> Result<Arc<str>, Refusal> {
    let id = text("id", word)?;
    match id.len() {
        1..=MAX_ID_BYTES => Ok(id.into()),
        length => Err(Refusal::text(format!("ERR the id must have 1 to {MAX_ID_BYTES} bytes, not {length}"))),
    }
}

fn within(name: &str, word: &[u8], most: u64) -> Result<u64, Refusal> {
    let value = number(word).and_then(|value| u64::try_from(value).ok()).filter(|value| *value <= most);
    value.ok_or_else(|| Refusal::text(format!("ERR the {name} must be an integer from 0 to {most}")))
}

/// limited, limit, remaining, retry_after_ms or -1, reset_after_ms, source; and of an allowed check
/// with `WAIT` the ms until its start. By a list no counter decides, so the second, third and fifth
/// are null.
pub(super) fn answer(replies: &mut Replies<'_>, decision: &Decision) {
    let bound = decision.bound();
    let retry_after = match decision.retry_after {
        Wait::For(wait) if !decision.allowed => millis_up(wait).cast_signed(),
        _ => -1,
    };
    let start = decision.start_after.map(|span| millis_up(span).cast_signed());
    replies.array(6 + usize::from(start.is_some()));
    replies.integer(i64::from(!decision.allowed));
    replies.integer_or_null(bound.as_ref().map(|bound| bound.limit.cast_signed()));
    replies.integer_or_null(bound.as_ref().map(|bound| bound.remaining.cast_signed()));
    replies.integer(retry_after);
    replies.integer_or_null(bound.map(|bound| millis_up(bound.reset_after).cast_signed()));
    replies.bulk(decision.source.name().as_bytes());
    start.into_iter().for_each(|start| replies.integer(start));
}
