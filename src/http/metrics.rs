//! `GET /metrics`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Node;
use crate::reload::LastReload;
use crate::telemetry::instrument::MICROS;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics, text};

pub(super) async fn metrics(State(node): State<Node>) -> Response {
    let mut metrics = node.engine.metrics();
    metrics.shed = node.load.shed_total().into();
    metrics.connections_refused = node.load.connections_refused_total().into();
    read_reload(&node.reloader.last(), &mut metrics);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(metrics)).into_response()
}

#[expect(clippy::cast_precision_loss, reason = "an instant in us is far below 2^53")]
fn read_reload(last: &LastReload, metrics: &mut Metrics) {
    metrics.config_last_reload_successful = f64::from(u8::from(last.successful())).into();
    metrics.config_last_reload_success = (last.succeeded_at as f64 / MICROS).into();
}
