//! `GET /v1/usage` returns the decision of a check of cost 0 and the charges behind the count: the
//! entries of a sliding log, the ticks of a sliding counter. `DELETE /v1/usage` resets the key and
//! then returns the decision.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;

use super::answer;
use super::call::{Answer, Operation};
use super::node::Node;
use super::problem::Problem;
use super::request::query;
use super::{headers, json};
use crate::engine::Usage;
use crate::limit::history::{Entry, TopMeta};
use crate::limit::time::MICROS_PER_MILLI;

pub(super) const USAGE: Operation = Operation {
    id: "usage",
    summary: "The decision of a check of cost 0, and the charges behind the count",
    description: "By the policy's own quotas, without charges to inline quotas.",
    query: &["Policy", "Key"],
    failures: &[("404", "UnknownPolicy")],
    answer: Answer::decision("The decision for cost 0, which charges nothing.", "Usage"),
    ..Operation::NONE
};

pub(super) async fn usage(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let usage = node.engine.usage(&check, node.reloader.limits().waiting()).await;
    let Usage { decision, history, ticks } = usage.map_err(|error| node.refused(&error))?;
    let mut response = answer::object(|object| {
        answer::members(object, &check.key, &decision);
        // Absent if the policy keeps none or the store did not report it. `top_metas` is also
        // absent from a partial report.
        if let Some(history) = &history {
            object.list("entries", history.entries.iter(), |entry, out| json::write(out, &EntryBody::new(entry)));
            if !history.is_cut_short {
                object.list("top_metas", history.top_metas.iter(), |top, out| json::write(out, &TopMetaBody::new(top)));
            }
        }
        if let Some(ticks) = &ticks {
            object.list("ticks", ticks.iter(), |&(at, count), out| json::write(out, &TickBody { at, count }));
        }
    });
    headers::insert(&decision, response.headers_mut());
    Ok(response)
}

#[derive(Serialize)]
struct EntryBody<'a> {
    /// Whole ms since the charge.
    age_ms: u64,
    cost: u64,
    meta: Option<&'a str>,
}

#[derive(Serialize)]
struct TickBody {
    /// The tick as in its key: unix seconds, or ms if a tick is no whole number of seconds.
    at: u64,
    count: u64,
}

#[derive(Serialize)]
struct TopMetaBody<'a> {
    meta: &'a str,
    cost: u64,
    count: u64,
}

impl<'a> EntryBody<'a> {
    fn new(Entry { age, cost, meta }: &'a Entry) -> Self {
        Self { age_ms: age / MICROS_PER_MILLI, cost: *cost, meta: meta.as_deref() }
    }
}

impl<'a> TopMetaBody<'a> {
    fn new(TopMeta { meta, cost, count }: &'a TopMeta) -> Self {
        Self { meta, cost: *cost, count: *count }
    }
}

pub(super) const RESET: Operation = Operation {
    id: "reset",
    summary: "Resets the counts of a key",
    description: "Resets the policy's own quotas; charges to inline quotas still count.",
    query: &["Policy", "Key"],
    failures: &[("404", "UnknownPolicy")],
    answer: Answer::decision("The decision of a check of cost 0 after the reset.", "Decision"),
    ..Operation::NONE
};

pub(super) async fn reset(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let decision = node.engine.reset(&check.policy, &check.key).await.map_err(|error| node.refused(&error))?;
    Ok(answer::response(&check.key, &decision))
}
