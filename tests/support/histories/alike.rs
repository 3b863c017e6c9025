//! The judge that compares two stores: equal calls get equal answers in every member.
//!
//! Some members reach no caller. `closed`, `again_after` and `tentative` are for the pre-filter alone,
//! and its own judge looks at what it makes of them (docs/guarantees.md, The pre-filter is sound). A
//! metric counts the expired holds that a call finds (docs/metrics.md).

use tollgate::limit::decision::{Verdict, Wait};
use tollgate::store::{Done, Taken};

use super::engine::{Answered, Call};

/// The first difference between two stores: what differs, and both answers.
pub fn difference(expected: &Answered, answered: &Answered) -> Option<(String, String)> {
    for (memory, redis) in expected.calls.iter().zip(&answered.calls) {
        let (of_memory, of_redis) = (shown(memory), shown(redis));
        if of_memory != of_redis {
            let (what, lines) = lines(&format!("{of_memory:#?}"), &format!("{of_redis:#?}"));
            let work = format!("{:?}", memory.work);
            let kind = work.split(['(', ' ', '{']).next().unwrap_or_default();
            return Some((format!("{kind}: {what}"), format!("{work}\n{lines}")));
        }
        if memory.work != redis.work {
            return Some(("receipt".into(), format!("{:?}\n{:?}", memory.work, redis.work)));
        }
    }
    let is_equal = expected.calls.len() == answered.calls.len() && expected.all == answered.all;
    (!is_equal).then(|| ("all".into(), format!("embedded {:?}\nRedis    {:?}", expected.all, answered.all)))
}

/// The lines that differ, and the names of their members.
fn lines(memory: &str, redis: &str) -> (String, String) {
    let (memory, redis): (Vec<&str>, Vec<&str>) = (memory.lines().collect(), redis.lines().collect());
    if memory.len() != redis.len() {
        return ("form".into(), format!("  embedded {}\n  Redis    {}", short(&memory), short(&redis)));
    }
    let (mut names, mut told) = (Vec::new(), Vec::new());
    let mut above = "";
    for (one, other) in memory.iter().zip(&redis) {
        if let Some((name, _)) = one.split_once(':') {
            above = name.trim();
        }
        if one != other {
            if !names.contains(&above) {
                names.push(above);
            }
            told.push(format!("  {above}: embedded {}, Redis {}", one.trim(), other.trim()));
        }
    }
    (names.join(" "), told.join("\n"))
}

fn short(lines: &[&str]) -> String {
    let is_of_policy = |line: &&&str| {
        [
            "key_type", "on_store", "timeout", "durab", "shadow", "inline", "zone", "lists", "candid", "notify",
            "counters",
        ]
        .iter()
        .any(|name| line.trim().starts_with(name))
    };
    let kept: Vec<&str> = lines.iter().filter(|line| !is_of_policy(line)).map(|line| line.trim()).collect();
    kept.join(" ")
}

/// The members of an answer that a caller sees.
pub fn shown(call: &Call) -> Done {
    let mut done = call.done.clone();
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
    if let Done::Page(page) = &mut done {
        // A page of a log may contain entries that no longer count.
        let window = call.policy.quotas[call.policy.longest()].window;
        page.charges.retain(|charge| charge.at + window > call.now);
        page.notes.retain(|note| note.at + window > call.now);
        // The sums before the log differ: only their differences count.
        let newest = page.charges.first().map_or(0, |charge| charge.sum);
        page.charges.iter_mut().for_each(|charge| charge.sum = newest.wrapping_sub(charge.sum));
        page.notes.iter_mut().for_each(|note| note.sum = newest.wrapping_sub(note.sum));
    }
    if call.policy.options.hold.is_none() {
        hide_places(&mut done);
    }
    done
}

/// Only an answer under a policy with a hold has `hold` (docs/http-api.md, POST /v1/check).
fn hide_places(done: &mut Done) {
    if let Done::Taken(taken) | Done::Refunded(taken, _) | Done::Settled(taken, _) = done {
        taken.ruling.verdicts.iter_mut().for_each(|verdict| verdict.places = None);
    }
    if let Done::Charged(charged) = done {
        charged.verdict.places = None;
    }
}

fn hide(taken: &mut Taken) {
    taken.tentative = false;
    taken.ruling.closed = None;
    taken.ruling.verdicts.iter_mut().for_each(hide_hints);
}

fn hide_hints(verdict: &mut Verdict) {
    (verdict.again_after, verdict.again_binding) = (Wait::NONE, 0);
    if let Some(places) = &mut verdict.places {
        (places.expired, places.is_unswept) = (0, false);
    }
}
