//! The judge that compares two stores: equal calls get equal answers in every member.
//!
//! Three members reach no caller: `closed`, `again_after` and `tentative` are for the pre-filter
//! alone. Its own judge looks at what it makes of them (docs/guarantees.md, The pre-filter is sound).

use tollgate::limit::decision::{Verdict, Wait};
use tollgate::store::{Done, Taken};

use super::engine::Answered;

/// The first difference between two stores.
pub fn difference(expected: &Answered, answered: &Answered) -> Option<String> {
    let pairs = expected.calls.iter().zip(&answered.calls);
    for (memory, redis) in pairs {
        let (of_memory, of_redis) = (shown(&memory.done), shown(&redis.done));
        if memory.work != redis.work || of_memory != of_redis {
            return Some(format!("{:?}\n  embedded {of_memory:?}\n  Redis    {of_redis:?}", memory.work));
        }
    }
    let is_equal = expected.calls.len() == answered.calls.len() && expected.all == answered.all;
    (!is_equal).then(|| format!("embedded {expected:?}\nRedis {answered:?}"))
}

/// The members of an answer that a caller sees.
pub fn shown(done: &Done) -> Done {
    let mut done = done.clone();
    match &mut done {
        Done::Taken(taken)
        | Done::Reserved(taken, _)
        | Done::Leased(taken, _)
        | Done::Sold(taken, _)
        | Done::Refunded(taken, _)
        | Done::Settled(taken, _)
        | Done::Returned(taken, _)
        | Done::Ticks(taken, _) => hide(taken),
        Done::Charged(charged) => hide_hints(&mut charged.verdict),
        _ => {}
    }
    done
}

fn hide(taken: &mut Taken) {
    taken.tentative = false;
    taken.ruling.closed = None;
    taken.ruling.verdicts.iter_mut().for_each(hide_hints);
}

fn hide_hints(verdict: &mut Verdict) {
    (verdict.again_after, verdict.again_binding) = (Wait::NONE, 0);
}
