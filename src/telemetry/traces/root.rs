//! The state of a request, in its context and in those of its parts.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use super::Tracing;
use super::sampling::{AlwaysRecord, fraction};
use super::wall_time::WallTime;

/// The state of the whole request, in its context and in those of its parts.
#[derive(Debug, Clone)]
pub(super) struct Root(pub Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub tracing: Arc<Tracing>,
    pub wall_time: WallTime,
    pub parts: AtomicU32,
    /// For a request that is recorded only if its result is worth it.
    pub tail: Option<Mutex<TailSample>>,
}

/// A request that is recorded at its end, if its result is worth it.
#[derive(Debug)]
pub(super) struct TailSample {
    pub name: &'static str,
    /// The caller's span, if it has one.
    pub parent: Context,
    pub started: SystemTime,
    pub attributes: Vec<KeyValue>,
    pub worth_keeping: bool,
}

impl Root {
    pub(super) fn new(tracing: &Arc<Tracing>, wall_time: WallTime, tail: Option<Mutex<TailSample>>) -> Self {
        Self(Arc::new(Inner { tracing: tracing.clone(), wall_time, parts: AtomicU32::new(0), tail }))
    }
}

/// The attributes of an HTTP status.
pub(super) fn status_attributes(status: u16) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new("http.response.status_code", i64::from(status))];
    if status >= 500 {
        attributes.push(KeyValue::new("error.type", status.to_string()));
    }
    attributes
}

impl Tracing {
    /// Records an unsampled request, if its result is worth it and the draw selects it.
    pub(super) fn keep(&self, tail: &mut TailSample, status: u16) {
        if !(tail.worth_keeping || status >= 500) || fraction() >= self.keep_denials {
            return;
        }
        let mut attributes = std::mem::take(&mut tail.attributes);
        attributes.extend(status_attributes(status));
        attributes.push(KeyValue::new("tollgate.kept", true));
        let builder = self.tracer.span_builder(tail.name).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(tail.started).with_attributes(attributes);
        let context = std::mem::take(&mut tail.parent).with_value(AlwaysRecord);
        let context = context.with_span(builder.start_with_context(&self.tracer, &context));
        if status >= 500 {
            context.span().set_status(Status::error(""));
        }
        context.span().end();
    }
}
