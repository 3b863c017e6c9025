//! The span of a request.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::context::FutureExt;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Instrument;
use tracing::field::Empty;

use super::Tracing;
use super::root::{AnswerStatus, Root, TailSample, WallTime, end};
use super::sampling::{AlwaysRecord, fraction};

/// A request as it arrives.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The name of the span: method and route, or service and method.
    pub name: &'static str,
    pub protocol: Protocol,
    pub traceparent: Option<&'a str>,
    pub tracestate: Option<&'a str>,
    pub client: Option<IpAddr>,
    /// The address of this node that the client has reached.
    pub server: Option<SocketAddr>,
    /// The text of a caller, of which the first `LONGEST_AGENT` characters are kept.
    pub user_agent: Option<&'a str>,
    pub request_id: &'a str,
}

/// The longest `user_agent.original`.
const LONGEST_AGENT: usize = 256;

/// The protocol of a request, with its own attributes.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    Http {
        method: &'static str,
        /// The path in the interface's description.
        route: &'static str,
        /// `http` or `https`.
        scheme: &'static str,
    },
    /// Commands of a Redis client that are decided together.
    Resp {
        commands: usize,
    },
    Grpc {
        service: &'static str,
        method: &'static str,
    },
}

/// A request that is recorded, or may yet be.
#[derive(Debug)]
pub struct Request {
    context: Context,
    log: tracing::Span,
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
        if request.is_none() && !is_left_out { self.begin_tail(incoming, parent) } else { request }
    }

    /// Begins a request without a parent. It draws first and allocates later, since nearly all
    /// requests are not recorded.
    fn begin_root(self: &Arc<Self>, incoming: &Incoming<'_>) -> Option<Request> {
        if fraction() >= self.roots {
            return self.begin_tail(incoming, Context::new());
        }
        self.record(incoming, &Context::new().with_value(AlwaysRecord))
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
        Some(Request { context: context.with_value(Root::new(self, WallTime::new(&self.clock), None)), log })
    }

    /// Begins a request that is recorded only if its result is worth it. `None` if that is off.
    fn begin_tail(self: &Arc<Self>, incoming: &Incoming<'_>, parent: Context) -> Option<Request> {
        if self.keep_denials <= 0.0 {
            return None;
        }
        let wall_time = WallTime::new(&self.clock);
        let (started, attributes) = (wall_time.at(self.clock.now()), incoming.attributes());
        let tail = TailSample { name: incoming.name, parent, started, attributes, worth_keeping: false };
        let context = Context::new().with_value(Root::new(self, wall_time, Some(Mutex::new(tail))));
        Some(Request { context, log: tracing::Span::none() })
    }
}

impl Incoming<'_> {
    /// The parent in the caller's header fields: W3C trace context.
    fn parent(&self) -> Context {
        let fields = [("traceparent", self.traceparent), ("tracestate", self.tracestate)];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        TraceContextPropagator::new().extract_with_context(&Context::new(), &given.collect::<HashMap<_, _>>())
    }

    fn attributes(&self) -> Vec<KeyValue> {
        let mut attributes = self.protocol.attributes();
        attributes.extend(self.client.map(|client| KeyValue::new("client.address", client.to_string())));
        if let Some(server) = self.server {
            let address = server.ip().to_canonical().to_string();
            attributes.push(KeyValue::new("server.address", address));
            attributes.push(KeyValue::new("server.port", i64::from(server.port())));
        }
        attributes.extend(
            self.user_agent.map(|agent| {
                KeyValue::new("user_agent.original", agent.chars().take(LONGEST_AGENT).collect::<String>())
            }),
        );
        attributes
    }

    fn log_span(&self, context: &Context) -> tracing::Span {
        let trace_id = context.span().span_context().trace_id();
        tracing::error_span!("request", request_id = self.request_id, %trace_id, token = Empty)
    }
}

impl Protocol {
    fn attributes(self) -> Vec<KeyValue> {
        match self {
            Self::Http { method, route, scheme } => vec![
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route),
                KeyValue::new("url.path", route),
                KeyValue::new("url.scheme", scheme),
            ],
            Self::Grpc { service, method } => vec![
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", service),
                KeyValue::new("rpc.method", method),
            ],
            Self::Resp { commands } => vec![
                KeyValue::new("network.protocol.name", "resp"),
                KeyValue::new("tollgate.checks", i64::try_from(commands).unwrap_or(i64::MAX)),
            ],
        }
    }
}

/// Notes the name of the caller's token on the current request, and on its lines in the log.
pub fn called_by(token: &str) {
    Context::map_current(|context| {
        let Some(root) = context.get::<Arc<Root>>() else { return };
        let attribute = || KeyValue::new("tollgate.token", token.to_owned());
        match &root.tail {
            None => context.span().set_attribute(attribute()),
            Some(tail) => tail.lock().unwrap_or_else(PoisonError::into_inner).attributes.push(attribute()),
        }
        tracing::Span::current().record("token", token);
    });
}

impl Request {
    /// Runs the handler, and attaches its log lines and results to this request.
    pub async fn within<T>(&self, answering: impl Future<Output = T>) -> T {
        answering.with_context(self.context.clone()).instrument(self.log.clone()).await
    }

    /// Ends with the status of the answer, if its protocol has one.
    pub fn end(self, status: Option<AnswerStatus>) {
        let Some(root) = self.context.get::<Arc<Root>>() else { return };
        match &root.tail {
            None => self.context.span().set_attributes(status.map_or_else(Vec::new, AnswerStatus::attributes)),
            Some(tail) => root.tracing.keep(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), status),
        }
        end(&self.context, status);
    }
}
