//! `GET /openapi.json`: what a node answers, for programs. A test holds the file to the routes and to real answers.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// OpenAPI 3.1.
const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT).into_response()
}
