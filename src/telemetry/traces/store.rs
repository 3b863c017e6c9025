//! The spans of a check at the store: its wait in a lane, and the call that carried it.

use std::sync::Arc;

use opentelemetry::trace::{Link, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use super::root::Root;
use crate::limit::time::Micros;

/// From the question to the store's verdict. Dropping it without an end means a timeout.
#[derive(Debug)]
pub struct StoreSpan(Option<Context>);

/// A check that waits in a lane.
#[derive(Debug)]
pub struct WaitingSpan {
    context: Context,
    /// The start of the wait, us by this node's clock. `None` once the wait is recorded.
    queued: Option<Micros>,
}

/// A script call that was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentCall<'a> {
    /// The host, or the path of a Unix socket.
    pub host: &'a str,
    /// 0 beside a path.
    pub port: u16,
    /// `EVALSHA` or `EVAL`.
    pub operation: &'static str,
    pub script: &'a str,
    /// Checks of the call.
    pub checks: usize,
    /// Calls in the same pipeline, itself included.
    pub pipeline: usize,
    /// us by this node's clock.
    pub sent: Micros,
    pub ended: Micros,
    /// Redis's error code, or a word for the reason of a missing reply.
    pub error: Option<&'a str>,
}

impl StoreSpan {
    /// Begins a span `name`, if the current check is recorded.
    pub fn start(name: &'static str) -> Self {
        Self(Context::map_current(|context| {
            let root = context.get::<Arc<Root>>().filter(|_| context.span().is_recording())?;
            let tracer = &root.tracing.tracer;
            let builder = tracer.span_builder(name);
            Some(context.with_span(builder.start_with_context(tracer, context)))
        }))
    }

    /// For a check that is not recorded.
    pub fn none() -> Self {
        Self(None)
    }

    /// The wait of a check that is queued at `now`.
    pub fn waiting(&self, now: impl FnOnce() -> Micros) -> Option<WaitingSpan> {
        self.0.as_ref().map(|context| WaitingSpan { context: context.clone(), queued: Some(now()) })
    }

    /// Ends with a verdict, or with the reason why there is none.
    pub fn end(mut self, error: Option<&'static str>) {
        if let Some(context) = self.0.take() {
            finish(&context, error);
        }
    }
}

impl Drop for StoreSpan {
    fn drop(&mut self) {
        if let Some(context) = self.0.take() {
            finish(&context, Some("timeout"));
        }
    }
}

fn finish(context: &Context, error: Option<&'static str>) {
    if let Some(error) = error {
        context.span().set_attribute(KeyValue::new("error.type", error));
        context.span().set_status(Status::error(""));
    }
    context.span().end();
}

/// Records a call in the traces of its checks: a child of the first, linked with all.
pub fn called<'a>(checks: impl Iterator<Item = &'a mut WaitingSpan>, call: &SentCall<'_>) {
    let waiting: Vec<&mut WaitingSpan> = checks.collect();
    let links: Vec<SpanContext> = waiting.iter().map(|waiting| waiting.context.span().span_context().clone()).collect();
    let mut span = None;
    for waiting in waiting {
        waiting.sent(call);
        let call_span = span.get_or_insert_with(|| call.record(&waiting.context, &links));
        if let (Some(call_span), true) = (call_span, links.len() > 1) {
            waiting.context.span().add_link(call_span.clone(), Vec::new());
        }
    }
}

impl WaitingSpan {
    /// Records the time of the wait.
    fn sent(&mut self, call: &SentCall<'_>) {
        let (Some(queued), Some(root)) = (self.queued.take(), self.context.get::<Arc<Root>>()) else { return };
        let tracer = &root.tracing.tracer;
        let builder = tracer.span_builder("lane.wait").with_start_time(root.wall_time.at(queued));
        let context = self.context.with_span(builder.start_with_context(tracer, &self.context));
        context.span().end_with_timestamp(root.wall_time.at(call.sent));
    }
}

impl SentCall<'_> {
    fn record(&self, parent: &Context, checks: &[SpanContext]) -> Option<SpanContext> {
        let root = parent.get::<Arc<Root>>()?;
        let tracer = &root.tracing.tracer;
        // A single check is the parent already, so it needs no link.
        let links = if checks.len() > 1 { checks } else { &[] };
        let builder = tracer
            .span_builder(format!("{} {}", self.operation, self.script))
            .with_kind(SpanKind::Client)
            .with_start_time(root.wall_time.at(self.sent))
            .with_links(links.iter().cloned().map(|check| Link::new(check, Vec::new(), 0)).collect())
            .with_attributes(self.attributes());
        let context = parent.with_span(builder.start_with_context(tracer, parent));
        if self.error.is_some() {
            context.span().set_status(Status::error(""));
        }
        context.span().end_with_timestamp(root.wall_time.at(self.ended));
        Some(context.span().span_context().clone())
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let number = |name, count: usize| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX));
        let mut attributes = vec![
            KeyValue::new("db.system.name", "redis"),
            KeyValue::new("db.operation.name", self.operation),
            KeyValue::new("db.stored_procedure.name", self.script.to_owned()),
            KeyValue::new("server.address", self.host.to_owned()),
            number("tollgate.pipeline.size", self.pipeline),
        ];
        if self.port > 0 {
            attributes.push(KeyValue::new("server.port", i64::from(self.port)));
        }
        if self.checks > 1 {
            attributes.push(number("db.operation.batch.size", self.checks));
        }
        if self.host.parse::<std::net::IpAddr>().is_ok() {
            attributes.push(KeyValue::new("network.peer.address", self.host.to_owned()));
            attributes.push(KeyValue::new("network.peer.port", i64::from(self.port)));
        }
        if let Some(error) = self.error {
            attributes.push(KeyValue::new("error.type", error.to_owned()));
            // Redis's own codes are in capitals.
            if error.starts_with(|first: char| first.is_ascii_uppercase()) {
                attributes.push(KeyValue::new("db.response.status_code", error.to_owned()));
            }
        }
        attributes
    }
}
