//! `GET /openapi.json`: the description of the interface. A test compares it with the routes and
//! with real answers.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// OpenAPI 3.1.
const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT).into_response()
}
