//! The state of a request, in its context and in those of its parts, and the wall clock of its
//! spans.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use super::Tracing;
use super::sampling::{AlwaysRecord, fraction};
use crate::clock::{self, Clock, unix_micros};
use crate::limit::time::Micros;

/// The state of the whole request. Its context and those of its parts share it.
#[derive(Debug)]
pub(super) struct Root {
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
    pub(super) fn new(tracing: &Arc<Tracing>, wall_time: WallTime, tail: Option<Mutex<TailSample>>) -> Arc<Self> {
        Arc::new(Self { tracing: tracing.clone(), wall_time, parts: AtomicU32::new(0), tail })
    }
}

/// The status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStatus {
    Http(u16),
    Grpc(u16),
}

impl AnswerStatus {
    /// Whether the node failed: 5xx, or UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
    /// UNAVAILABLE and DATA_LOSS, as OpenTelemetry has it for servers.
    fn is_failure(self) -> bool {
        match self {
            Self::Http(status) => status >= 500,
            Self::Grpc(code) => matches!(code, 2 | 4 | 12..=15),
        }
    }

    pub(super) fn attributes(self) -> Vec<KeyValue> {
        let (name, number) = match self {
            Self::Http(status) => ("http.response.status_code", status),
            Self::Grpc(code) => ("rpc.grpc.status_code", code),
        };
        let mut attributes = vec![KeyValue::new(name, i64::from(number))];
        if self.is_failure() {
            attributes.push(KeyValue::new("error.type", number.to_string()));
        }
        attributes
    }
}

/// Ends the span of a request with the status of its answer, if it has one.
pub(super) fn end(context: &Context, status: Option<AnswerStatus>) {
    if status.is_some_and(AnswerStatus::is_failure) {
        context.span().set_status(Status::error(""));
    }
    context.span().end();
}

impl Tracing {
    /// Records an unsampled request, if its result is worth it and the draw selects it.
    pub(super) fn keep(&self, tail: &mut TailSample, status: Option<AnswerStatus>) {
        if !(tail.worth_keeping || status.is_some_and(AnswerStatus::is_failure)) || fraction() >= self.keep_denials {
            return;
        }
        let mut attributes = std::mem::take(&mut tail.attributes);
        attributes.extend(status.map_or_else(Vec::new, AnswerStatus::attributes));
        attributes.push(KeyValue::new("tollgate.kept", true));
        let builder = self.tracer.span_builder(tail.name).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(tail.started).with_attributes(attributes);
        let context = std::mem::take(&mut tail.parent).with_value(AlwaysRecord);
        let context = context.with_span(builder.start_with_context(&self.tracer, &context));
        end(&context, status);
    }
}

/// The wall clock minus the node's clock at the start of the request, us. The node's clock times
/// checks and never steps. Traces of several machines align by the wall clock, which may be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallTime(i64);

impl WallTime {
    pub(super) fn new(clock: &Clock) -> Self {
        Self(unix_micros().cast_signed() - clock.now().cast_signed())
    }

    pub(super) fn at(self, instant: Micros) -> SystemTime {
        clock::wall(instant.saturating_add_signed(self.0))
    }
}
