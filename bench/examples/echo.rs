//! The baseline of the benchmarks: a bare axum handler. It parses the JSON of a check and returns a
//! fixed text as long as a denial of the pre-filter. No service on the same HTTP stack can be
//! faster.
//!
//! `cargo run --release -p tollgate-bench --example echo -- 127.0.0.1:7080`

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use serde::Deserialize;
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Deserialize)]
struct Check {
    policy: String,
    key: String,
    #[serde(default)]
    cost: u64,
}

const ANSWER: &str = r#"{"allowed":false,"policy":"hot","key":"bench-0","cost":1,"charged":0,"limit":5,"remaining":0,"retry_after_ms":3634384,"reset_after_ms":3634384,"quota":"1h","source":"prefilter","reason":"over_limit"}"#;

async fn answer(Json(check): Json<Check>) -> Response {
    let Check { policy, key, cost } = check;
    if policy.is_empty() || key.is_empty() || cost > 1_000_000 {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    ([(header::CONTENT_TYPE, "application/json")], ANSWER).into_response()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7080".into());
    let routes = Router::new().route("/v1/check", post(answer));
    let listener = axum::serve::ListenerExt::tap_io(TcpListener::bind(address).await?, |stream| {
        // The first read detects a closed connection.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, routes).await
}
