//! `POST /v1/lease` sells units to callers, which spend them in their own memory.

use axum::response::Response;

use super::answer;
use super::check::{MAX_BYTES, read};
use super::problem::Problem;
use super::request::{lease as request, query};
use super::rights::Routed;
use crate::engine::{Door, LeaseOrder};

pub(super) async fn lease(Routed { node, rights, head, body }: Routed) -> Result<Response, Problem> {
    let (order, ()) = read(&node, &rights, &head, body, MAX_BYTES, request::lease, query::none).await?;
    rights.policy(&node, &order.policy)?;
    let caller = rights.token.as_ref().map(|token| token.name.as_str().into());
    let order = LeaseOrder { caller, ..order };
    let result = node.engine.lease(&order, Door::Http).await.map_err(|error| node.refused(&error))?;
    Ok(answer::object(|object| answer::leased(object, &result)))
}
