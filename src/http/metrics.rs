//! `GET /metrics`.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::rights::Routed;
use crate::limit::time::Micros;
use crate::node::{Node, Present};
use crate::telemetry::instrument::MICROS;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics, Readings, ReferenceMetrics, single, text};

pub(super) async fn metrics(Routed { node, rights, head, .. }: Routed) -> Result<Response, Problem> {
    rights.all_policies(&node)?;
    // Thousands of policies or open descriptors take tens of milliseconds, so a blocking thread
    // reads them.
    let load = node.load.clone();
    let text = load.read(rights.holder(&head.headers), move || text(readings(&node))).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// All metrics of the node, now.
pub fn readings(node: &Node) -> Readings {
    Readings::new(read(node), reference(node))
}

/// The metrics by the names of the reference, if the configuration wants them.
fn reference(node: &Node) -> Option<ReferenceMetrics> {
    node.reloader.running().envoy.as_ref()?.rules.near_limit?;
    let loads = node.reloader.loads();
    Some(ReferenceMetrics::read(node.engine.reference(), (loads.successes.total(), loads.errors.total())))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of connections are far below 2^53")]
fn read(node: &Node) -> Metrics {
    let mut metrics = node.engine.metrics();
    metrics.shed = single(node.load.shed_total());
    metrics.refused_calls = node.refusals.calls();
    metrics.tls_handshakes_failed = single(node.refusals.handshakes());
    metrics.connections_refused = single(node.load.connections_refused_total());
    let present = |present| single(node.load.present(present) as f64);
    metrics.connections = present(Present::Connections);
    metrics.calls_in_flight = present(Present::Calls);
    metrics.policies_info = vec![(vec![("version", node.engine.policies().version.clone())], 1.0)];
    let last = node.reloader.last();
    metrics.config_last_reload_successful = single(f64::from(u8::from(last.successful())));
    metrics.config_last_reload_success = single(seconds(last.succeeded_at));
    if let Some(end) = node.reloader.tls().and_then(|tls| tls.ends_at) {
        metrics.tls_certificate_end = single(seconds(end));
    }
    metrics
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an instant in us is below 2^53 for two centuries, and then off by a few us"
)]
fn seconds(instant: Micros) -> f64 {
    instant as f64 / MICROS
}
