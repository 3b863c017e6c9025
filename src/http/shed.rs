//! The answers of a node that sheds load (`load/`).

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::head::{REQUEST_ID, request_id};
use super::problem::Problem;
use crate::node::{LIGHT, Load, NotRead, Unfit};
use crate::shares::{Holder, Turn};

/// Whether the budgets bound the calls of this path.
pub(super) fn is_counted(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/json"
}

/// 503: too many answers are unread.
pub(super) fn refuse_unread(load: &Load) -> Problem {
    load.count_shed();
    Problem::unread()
}

/// The 503 that replaces an answer without room, with the answer's request id.
pub fn refuse_answer(load: &Load, answer: &Response) -> Response {
    let mut refusal = refuse_unread(load).into_response();
    if let Some(id) = answer.headers().get(REQUEST_ID) {
        refusal.headers_mut().insert(REQUEST_ID, HeaderValue::clone(id));
    }
    refusal
}

/// The answer to a request that the node rejects before it serves it. It has no fields any more.
pub fn refuse_request(unfit: Unfit) -> Response {
    if unfit == Unfit::TooManyFields {
        return StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
    }
    let mut refusal = Problem::overloaded().into_response();
    refusal.headers_mut().insert(REQUEST_ID, request_id(&HeaderMap::new()));
    refusal
}

/// A turn to parse a call with a body of `length` bytes. Light bodies need none.
///
/// # Errors
/// 503 if none is free in time.
pub(super) async fn permit(
    load: &Load,
    length: usize,
    holder: impl FnOnce() -> Holder,
) -> Result<Option<Turn>, Problem> {
    if length > LIGHT { permit_heavy(load, holder()).await.map(Some) } else { Ok(None) }
}

/// A turn for a call that is known to be heavy.
///
/// # Errors
/// 503 if none is free in time.
pub(super) async fn permit_heavy(load: &Load, holder: Holder) -> Result<Turn, Problem> {
    load.heavy(holder).await.ok_or_else(Problem::overloaded)
}

/// Room for a batch until its answer is written.
///
/// # Errors
/// 503 if none is free in time.
pub(super) async fn permit_batch(load: &Load, holder: Holder, checks: usize, bytes: usize) -> Result<Turn, Problem> {
    load.batch(holder, checks, bytes).await.ok_or_else(Problem::overloaded)
}

impl From<NotRead> for Problem {
    fn from(not_read: NotRead) -> Self {
        match not_read {
            NotRead::Overloaded => Self::overloaded(),
            NotRead::Panicked(error) => error.into(),
        }
    }
}
