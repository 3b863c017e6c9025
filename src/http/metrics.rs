//! `GET /metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::node::Node;
use super::problem::panicked;
use crate::limit::time::Micros;
use crate::reload::LastReload;
use crate::telemetry::instrument::MICROS;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics, text};

pub(super) async fn metrics(State(node): State<Node>) -> Response {
    // Thousands of policies or open descriptors take tens of milliseconds, so a blocking thread
    // reads them.
    match tokio::task::spawn_blocking(move || text(read(&node))).await {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => panicked(Box::new(error)),
    }
}

fn read(node: &Node) -> Metrics {
    let mut metrics = node.engine.metrics();
    metrics.shed = node.load.shed_total().into();
    metrics.refused_calls = node.refusals.calls();
    metrics.tls_handshakes_failed = node.refusals.handshakes().into();
    metrics.connections_refused = node.load.connections_refused_total().into();
    read_reload(&node.reloader.last(), &mut metrics);
    if let Some(end) = node.reloader.tls().and_then(|tls| tls.ends_at()) {
        metrics.tls_certificate_end = seconds(end).into();
    }
    metrics
}

fn read_reload(last: &LastReload, metrics: &mut Metrics) {
    metrics.config_last_reload_successful = f64::from(u8::from(last.successful())).into();
    metrics.config_last_reload_success = seconds(last.succeeded_at).into();
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an instant in us is below 2^53 for two centuries, and then off by a few us"
)]
fn seconds(instant: Micros) -> f64 {
    instant as f64 / MICROS
}
