//! The span of a request, and the results of its checks.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use opentelemetry::context::FutureExt;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Instrument;

use super::Tracing;
use super::moment::Moments;
use super::sampling::Chosen;

/// The most checks of a batch with spans of their own.
const PARTS: u32 = 64;

/// A request as it arrives.
#[derive(Debug)]
pub struct Incoming<'a> {
    pub method: &'static str,
    /// The path in the interface's description.
    pub route: &'static str,
    /// Method and route.
    pub name: &'static str,
    pub traceparent: Option<&'a str>,
    pub tracestate: Option<&'a str>,
    /// `http` or `https`.
    pub scheme: &'static str,
    pub client: Option<IpAddr>,
    pub request_id: &'a str,
}

/// The result of a check.
#[derive(Debug)]
pub struct Answered<'a> {
    pub policy: &'a str,
    pub key: &'a str,
    pub cost: u64,
    /// `None` if there is no decision.
    pub allowed: Option<bool>,
    /// The source and the reason, or `None` if the check was rejected as invalid.
    pub answer: Option<(&'static str, &'static str)>,
    /// The fallback's mode and cause.
    pub fallback: Option<(&'static str, &'static str)>,
}

impl Answered<'_> {
    /// Whether the result is a denial, a fallback or a failure. A caller's mistake is none of them.
    pub fn went_wrong(&self) -> bool {
        self.answer.is_some() && (self.allowed != Some(true) || self.fallback.is_some())
    }
}

/// A request that is recorded, or may yet be.
#[derive(Debug)]
pub struct Request {
    context: Context,
    log: tracing::Span,
}

/// The state of the whole request, in its context and in those of its parts.
#[derive(Debug, Clone)]
pub(super) struct Root(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tracing: Arc<Tracing>,
    moments: Moments,
    parts: AtomicU32,
    /// For a request that is recorded only if its result is worth it.
    late: Option<Mutex<Late>>,
}

#[derive(Debug)]
struct Late {
    name: &'static str,
    /// The caller's span, if it has one.
    parent: Context,
    started: SystemTime,
    attributes: Vec<KeyValue>,
    worth_keeping: bool,
}

impl Tracing {
    /// Begins to record a request. `None`: the request is never recorded.
    pub fn begin(self: &Arc<Self>, incoming: &Incoming<'_>) -> Option<Request> {
        if incoming.traceparent.is_none() {
            return self.begin_root(incoming);
        }
        let parent = incoming.parent();
        let caller = parent.span().span_context().clone();
        if self.follows_parents && caller.is_valid() && !caller.is_sampled() {
            return None;
        }
        let request = self.record(incoming, &parent);
        // A caller that is not sampled keeps nothing, since the span would lack its tree.
        let is_left_out = caller.is_valid() && !caller.is_sampled();
        if request.is_none() && !is_left_out { self.watch(incoming, parent) } else { request }
    }

    /// Begins a request without a parent. It draws first and allocates later, since nearly all
    /// requests are not recorded.
    fn begin_root(self: &Arc<Self>, incoming: &Incoming<'_>) -> Option<Request> {
        if fraction() >= self.roots {
            return self.watch(incoming, Context::new());
        }
        self.record(incoming, &Context::new().with_value(Chosen))
    }

    /// Records the request, unless the sampler rejects it.
    fn record(self: &Arc<Self>, incoming: &Incoming<'_>, parent: &Context) -> Option<Request> {
        let builder = self.tracer.span_builder(incoming.name).with_kind(SpanKind::Server);
        let context = parent.with_span(builder.start_with_context(&self.tracer, parent));
        if !context.span().is_recording() {
            return None;
        }
        context.span().set_attributes(incoming.attributes());
        let log = incoming.log_span(&context);
        Some(Request { context: context.with_value(self.root(Moments::new(&self.clock), None)), log })
    }

    /// Watches a request that is recorded only if its result is worth it. `None` if that is off.
    fn watch(self: &Arc<Self>, incoming: &Incoming<'_>, parent: Context) -> Option<Request> {
        if self.keep_denials <= 0.0 {
            return None;
        }
        let moments = Moments::new(&self.clock);
        let (started, attributes) = (moments.wall(self.clock.now()), incoming.attributes());
        let late = Late { name: incoming.name, parent, started, attributes, worth_keeping: false };
        let context = Context::new().with_value(self.root(moments, Some(Mutex::new(late))));
        Some(Request { context, log: tracing::Span::none() })
    }

    fn root(self: &Arc<Self>, moments: Moments, late: Option<Mutex<Late>>) -> Root {
        Root(Arc::new(Inner { tracing: self.clone(), moments, parts: AtomicU32::new(0), late }))
    }
}

impl Incoming<'_> {
    /// The parent in the caller's header fields: W3C trace context.
    fn parent(&self) -> Context {
        TraceContextPropagator::new().extract_with_context(&Context::new(), self)
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("http.request.method", self.method),
            KeyValue::new("http.route", self.route),
            KeyValue::new("url.path", self.route),
            KeyValue::new("url.scheme", self.scheme),
        ];
        attributes.extend(self.client.map(|client| KeyValue::new("client.address", client.to_string())));
        attributes
    }

    fn log_span(&self, context: &Context) -> tracing::Span {
        let trace_id = context.span().span_context().trace_id();
        tracing::error_span!("request", request_id = self.request_id, %trace_id)
    }
}

impl Extractor for Incoming<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.traceparent,
            "tracestate" => self.tracestate,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

impl Request {
    /// Runs the handler, and attaches its log lines and results to this request.
    pub async fn within<T>(&self, answering: impl Future<Output = T>) -> T {
        answering.with_context(self.context.clone()).instrument(self.log.clone()).await
    }

    /// Ends with the HTTP status of the answer.
    pub fn end(self, status: u16) {
        let Some(Root(root)) = self.context.get::<Root>() else { return };
        match &root.late {
            None => self.context.span().set_attributes(ending(status)),
            Some(late) => root.tracing.keep(&mut late.lock().unwrap_or_else(PoisonError::into_inner), status),
        }
        if status >= 500 {
            self.context.span().set_status(Status::error(""));
        }
        self.context.span().end();
    }
}

fn ending(status: u16) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new("http.response.status_code", i64::from(status))];
    if status >= 500 {
        attributes.push(KeyValue::new("error.type", status.to_string()));
    }
    attributes
}

impl Tracing {
    /// Records an unsampled request, if its result is worth it and the draw selects it.
    fn keep(&self, late: &mut Late, status: u16) {
        if !(late.worth_keeping || status >= 500) || fraction() >= self.keep_denials {
            return;
        }
        let mut attributes = std::mem::take(&mut late.attributes);
        attributes.extend(ending(status));
        attributes.push(KeyValue::new("tollgate.kept", true));
        let builder = self.tracer.span_builder(late.name).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(late.started).with_attributes(attributes);
        let context = std::mem::take(&mut late.parent).with_value(Chosen);
        let context = context.with_span(builder.start_with_context(&self.tracer, &context));
        if status >= 500 {
            context.span().set_status(Status::error(""));
        }
        context.span().end();
    }
}

/// Whether the current request is recorded.
pub fn is_recorded() -> bool {
    Context::map_current(|context| context.get::<Root>().is_some() && context.span().is_recording())
}

/// Notes the result of a check on the current request or part, if it may be recorded.
pub fn answered<'a>(told: impl FnOnce() -> Answered<'a>) {
    Context::map_current(|context| {
        let Some(Root(root)) = context.get::<Root>() else { return };
        match &root.late {
            None if context.span().is_recording() => context.span().set_attributes(root.tracing.attributes(&told())),
            None => {}
            Some(late) => {
                let told = told();
                if told.went_wrong() {
                    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
                    // Only the first result counts, since an attribute has one value.
                    if !std::mem::replace(&mut late.worth_keeping, true) {
                        late.attributes.extend(root.tracing.attributes(&told));
                    }
                }
            }
        }
    });
}

impl Tracing {
    fn attributes(&self, told: &Answered<'_>) -> Vec<KeyValue> {
        let cost = i64::try_from(told.cost).unwrap_or(i64::MAX);
        let mut attributes =
            vec![KeyValue::new("tollgate.policy", told.policy.to_owned()), KeyValue::new("tollgate.cost", cost)];
        if let Some((source, reason)) = told.answer {
            attributes.extend([KeyValue::new("tollgate.source", source), KeyValue::new("tollgate.reason", reason)]);
        }
        attributes.extend(told.allowed.map(|allowed| KeyValue::new("tollgate.allowed", allowed)));
        attributes.extend(self.keys.name(told.policy, told.key));
        if let Some((mode, cause)) = told.fallback {
            attributes.extend([
                KeyValue::new("tollgate.fallback.mode", mode),
                KeyValue::new("tollgate.fallback.cause", cause),
            ]);
        }
        attributes
    }
}

/// Attaches `task`, which another task runs, to the current request.
pub fn carried<T>(task: impl Future<Output = T>) -> impl Future<Output = T> {
    task.with_context(Context::current()).in_current_span()
}

/// The part of a batch that checks one key.
#[derive(Debug)]
pub struct Part(Option<Context>);

/// Begins a part. The first 64 parts of a recorded request have spans of their own.
pub fn part(checks: usize) -> Part {
    let context = Context::map_current(|context| {
        let Root(root) = context.get::<Root>().filter(|_| context.span().is_recording())?;
        if root.parts.fetch_add(1, Ordering::Relaxed) >= PARTS {
            return Some(Context::new());
        }
        let tracer = &root.tracing.tracer;
        let mut builder = tracer.span_builder("check");
        if checks > 1 {
            builder = builder.with_attributes([KeyValue::new("tollgate.checks", checks as i64)]);
        }
        Some(context.with_span(builder.start_with_context(tracer, context)))
    });
    Part(context)
}

impl Part {
    /// Runs the checks of the part; `told` then receives their results. The caller pins `asking`,
    /// since a future that another one owns is stored twice.
    pub async fn within<T>(self, asking: Pin<&mut impl Future<Output = T>>, told: impl FnOnce(&T)) -> T {
        let Some(context) = self.0 else {
            let answers = asking.await;
            told(&answers);
            return answers;
        };
        let answers = asking.with_context(context.clone()).await;
        let _attached = context.clone().attach();
        told(&answers);
        context.span().end();
        answers
    }
}

impl Root {
    pub(super) fn tracing(&self) -> &Arc<Tracing> {
        &self.0.tracing
    }

    pub(super) fn moments(&self) -> Moments {
        self.0.moments
    }
}

/// At least 0, less than 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(0) >> 11) as f64 / (1_u64 << 53) as f64
}
