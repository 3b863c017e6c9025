//! `GET /v1/usage` returns the decision of a check without charging it, by default of cost 0. It
//! adds the charges behind the count: the entries of a sliding log, the ticks of a sliding counter.
//! `DELETE /v1/usage` resets the key and then returns the decision.

use axum::response::Response;

use super::answer::{self, Object};
use super::problem::Problem;
use super::request::query;
use super::rights::Routed;
use crate::engine::{CheckError, Decision, Door, History, Kind, Note, OpenHold, TickCounts, Usage};
use crate::limit::time::MICROS_PER_MILLI;
use crate::telemetry::traces::carried;

pub(super) async fn usage(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let check = query::usage(head.uri.query())?;
    rights.check(&node, &check)?;
    let (limit, holder) = (node.reloader.limits().waiting(), rights.holder(&head.headers));
    let usage = node.engine.usage(&check, limit, holder).await;
    let Usage { decision, history, ticks, holds } = usage.map_err(|error| node.refused(&error))?;
    Ok(answer::decision(&check.key, &decision, |object| {
        write_history(object, history.as_ref());
        write_ticks(object, ticks.as_ref());
        write_holds(object, &decision, holds.as_ref());
    }))
}

/// The open holds of a policy that has them.
fn write_holds(object: &mut Object<'_>, decision: &Decision, holds: Option<&(u64, Vec<OpenHold>)>) {
    let (open, limit) = match (&decision.places, holds) {
        (Some(places), _) => (places.open, places.limit),
        (None, Some((open, _))) => (*open, decision.policy.places().map(u64::from)),
        (None, None) => return,
    };
    object.number("in_flight", open);
    object.given("in_flight_limit", limit);
    let Some((_, holds)) = holds else { return };
    object.list("holds", holds.iter(), |hold, object| {
        object.value("id", &*hold.id);
        object.number("age_ms", hold.age / MICROS_PER_MILLI);
        object.number("cost", hold.cost);
        object.number("expires_in_ms", hold.expires_in / MICROS_PER_MILLI);
        object.value("meta", &hold.meta.as_deref());
    });
}

/// Each tick as in its key: its start in unix seconds, or ms if a tick is no whole number of
/// seconds.
fn write_ticks(object: &mut Object<'_>, ticks: Option<&TickCounts>) {
    let Some(ticks) = ticks else { return };
    object.list("ticks", ticks.iter(), |&(at, count), object| {
        object.number("at", at);
        object.number("count", count);
    });
}

/// Absent if the policy keeps none or the store did not report it. `top_metas` is also absent from
/// a partial report.
fn write_history(object: &mut Object<'_>, history: Option<&History>) {
    let Some(history) = history else { return };
    object.list("entries", history.entries.iter(), |entry, object| {
        // Whole ms since the charge.
        object.number("age_ms", entry.age / MICROS_PER_MILLI);
        object.number("cost", entry.cost);
        object.value("meta", &entry.meta.as_deref());
    });
    if !history.is_cut_short {
        object.list("top_metas", history.top_metas.iter(), |top, object| {
            object.value("meta", &*top.meta);
            object.number("cost", top.cost);
            object.number("count", top.count);
        });
    }
}

pub(super) async fn reset(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    let check = query::policy_and_key(head.uri.query())?;
    rights.policy(&node, &check.policy)?;
    let (engine, by) = (node.engine.clone(), rights.author());
    let (policy, key) = (check.policy, check.key.clone());
    // The entry of the audit follows, although the caller may leave.
    let resetting = tokio::spawn(carried(async move {
        let decision = engine.reset(&policy, &key, Door::Http).await?;
        engine.note(Note::of_key(Kind::Reset, by, &policy, &key)).await;
        Ok::<_, CheckError>(decision)
    }));
    let decision = resetting.await?.map_err(|error| node.refused(&error))?;
    Ok(answer::decision(&check.key, &decision, |_| {}))
}
