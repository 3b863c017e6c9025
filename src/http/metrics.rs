//! `GET /metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Node;
use crate::telemetry::metrics::{CONTENT_TYPE, text};

pub(super) async fn metrics(State(node): State<Node>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(node.engine.metrics())).into_response()
}
