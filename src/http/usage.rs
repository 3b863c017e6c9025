//! `GET /v1/usage`: what a check of cost 0 would say, and of a sliding log who caused it; `DELETE /v1/usage`: forget
//! what counts, and say it then.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::answer::{self, Answer};
use super::error::Problem;
use super::{Node, check, headers, query};
use crate::engine::{History, Source};
use crate::limit::history::{Entry, TopMeta};
use crate::limit::time::MICROS_PER_MILLI;

pub(super) async fn usage(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let decision = check::decide(&node, &check).await?;
    // Without the store there is nothing to tell, and no point in waiting again.
    let history = match decision.source {
        Source::Store => node.engine.history(&check).await,
        _ => None,
    };
    let usage = Usage { answer: Answer::new(&check.key, &decision), history: history.as_ref().map(HistoryBody::new) };
    let mut response = Json(usage).into_response();
    headers::insert(&decision, response.headers_mut());
    Ok(response)
}

#[derive(Serialize)]
struct Usage<'a> {
    #[serde(flatten)]
    answer: Answer<'a>,
    /// Left out where the policy keeps none, or the store did not tell.
    #[serde(flatten)]
    history: Option<HistoryBody<'a>>,
}

#[derive(Serialize)]
struct HistoryBody<'a> {
    entries: Vec<EntryBody<'a>>,
    top_metas: Vec<TopMetaBody<'a>>,
}

#[derive(Serialize)]
struct EntryBody<'a> {
    /// Whole ms that have passed.
    age_ms: u64,
    cost: u64,
    meta: Option<&'a str>,
}

#[derive(Serialize)]
struct TopMetaBody<'a> {
    meta: &'a str,
    cost: u64,
    count: u64,
}

impl<'a> HistoryBody<'a> {
    fn new(history: &'a History) -> Self {
        let entry = |Entry { age, cost, meta }: &'a Entry| EntryBody {
            age_ms: age / MICROS_PER_MILLI,
            cost: *cost,
            meta: meta.as_deref(),
        };
        let top = |TopMeta { meta, cost, count }: &'a TopMeta| TopMetaBody { meta, cost: *cost, count: *count };
        Self {
            entries: history.entries.iter().map(entry).collect(),
            top_metas: history.top_metas.iter().map(top).collect(),
        }
    }
}

pub(super) async fn reset(State(node): State<Node>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let check = query::usage(query.as_deref()).map_err(Problem::invalid)?;
    let refused = |error| Problem::no_decision(&error, &node.engine.policies(), "");
    let decision = node.engine.reset(&check.policy, &check.key).await.map_err(refused)?;
    Ok(answer::response(&check.key, &decision))
}
