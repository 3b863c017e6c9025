//! The parts of a request: tasks, and the checks of a batch for one key.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use opentelemetry::context::FutureExt;
use opentelemetry::trace::{TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use tracing::Instrument;

use super::root::Root;

/// The most checks of a batch with spans of their own.
const PARTS: u32 = 64;

/// Whether the current request is recorded.
pub fn is_recorded() -> bool {
    Context::map_current(|context| context.get::<Arc<Root>>().is_some() && context.span().is_recording())
}

/// The id of the current trace, if the request is recorded.
pub fn trace_id() -> Option<String> {
    Context::map_current(|context| {
        let span = context.span();
        (context.get::<Arc<Root>>().is_some() && span.is_recording())
            .then(|| span.span_context().trace_id().to_string())
    })
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
        let root = context.get::<Arc<Root>>().filter(|_| context.span().is_recording())?;
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
