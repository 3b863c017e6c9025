use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tower_service::Service;

use crate::decision::Decision;
use crate::document::Document;
use crate::drain::{Drained, Held};
use crate::error::Error;
use crate::fields;
use crate::layer::{LimitLayer, OnFailure};

/// The body of a response behind a [`LimitLayer`]: that of the service, or the one of a request
/// that the layer ended.
pub type ResponseBody<B> = UnsyncBoxBody<Bytes, <B as Body>::Error>;

/// The service of a [`LimitLayer`].
#[derive(Debug, Clone)]
pub struct LimitService<S> {
    pub(crate) limit: Arc<LimitLayer>,
    pub(crate) inner: S,
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send, Error: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Only this clone is ready.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        Box::pin(serve(self.limit.clone(), inner, request))
    }
}

async fn serve<S, B, R>(
    limit: Arc<LimitLayer>,
    mut inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes> + Send + 'static,
{
    let (mut head, body) = request.into_parts();
    if limit.skip.as_ref().is_some_and(|skip| skip(&head)) {
        let response = inner.call(Request::from_parts(head, body)).await?;
        return Ok(response.map(BodyExt::boxed_unsync));
    }
    let check = limit.check(&head).await;
    let (mut passed, mut hold) = (None, None);
    let answer = if limit.hold {
        limit.client.hold(check.clone()).await.map(|opened| {
            head.extensions.insert(opened.handle());
            let decision = opened.decision().clone();
            hold = Some(Held::new(limit.clone(), opened));
            decision
        })
    } else {
        limit.client.check_detached(check.clone()).await
    };
    match answer {
        Ok(decision) if decision.allowed => {
            head.extensions.insert(decision.clone());
            passed = Some(decision);
        }
        Ok(decision) => return Ok(denied(&limit, &head, &decision)),
        Err(Error::Denied(decision)) => return Ok(denied(&limit, &head, &decision)),
        Err(error) => {
            if let Some(response) = failed(&limit, &error) {
                return Ok(response);
            }
        }
    }
    let follows = !limit.hold && (limit.drain.is_some() || limit.refund.is_some());
    let mut drained = follows.then(|| Drained::new(limit, head.clone(), check));
    let response = inner.call(Request::from_parts(head, body)).await?;
    if let Some(drained) = &mut drained {
        drained.answer(response.status(), response.headers());
    }
    let mut response = response.map(|body| match (drained, hold) {
        (Some(mut drained), _) => body
            .inspect_frame(move |frame| drained.count(frame.data_ref().map_or(0, Bytes::len)))
            .boxed_unsync(),
        // It ends with the body.
        (None, Some(hold)) => body.inspect_frame(move |_| _ = &hold).boxed_unsync(),
        (None, None) => body.boxed_unsync(),
    });
    if let Some(decision) = passed {
        let mut fields = HeaderMap::new();
        fields::write(&decision, response.headers(), &mut fields);
        for (name, value) in &fields {
            response.headers_mut().append(name, value.clone());
        }
    }
    Ok(response)
}

/// The response to a request without a decision, unless it passes.
fn failed<E: 'static>(limit: &LimitLayer, error: &Error) -> Option<Response<UnsyncBoxBody<Bytes, E>>> {
    if error.is_bad_check() {
        limit.report("no decision, so the request ends with 400", error);
        return Some(ended(limit, Document::bad_request(), HeaderMap::new()));
    }
    if limit.on_failure == OnFailure::Open {
        limit.client.monitor().passed();
        limit.report("no decision, so the request passes", error);
        return None;
    }
    limit.report("no decision, so the request ends with 503", error);
    let fields = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from(1))]);
    Some(ended(limit, Document::no_decision(), fields))
}

fn denied<E: 'static>(limit: &LimitLayer, head: &Parts, decision: &Decision) -> Response<UnsyncBoxBody<Bytes, E>> {
    let mut fields = HeaderMap::new();
    fields::write(decision, &HeaderMap::new(), &mut fields);
    match limit.body.as_ref().filter(|_| !limit.grpc) {
        Some(body) => {
            let (content_type, text) = body(head, decision);
            response(limit.status, fields, content_type, text)
        }
        None => ended(limit, Document::of(limit.status, decision), fields),
    }
}

fn ended<E: 'static>(
    limit: &LimitLayer,
    document: Document,
    mut fields: HeaderMap,
) -> Response<UnsyncBoxBody<Bytes, E>> {
    if limit.grpc {
        fields.insert("grpc-status", HeaderValue::from(document.grpc_status()));
        fields.insert("grpc-message", HeaderValue::from_static(document.title));
        response(StatusCode::OK, fields, HeaderValue::from_static("application/grpc"), Bytes::new())
    } else {
        let problem = HeaderValue::from_static("application/problem+json");
        response(document.status, fields, problem, document.text().into())
    }
}

fn response<E: 'static>(
    status: StatusCode,
    mut fields: HeaderMap,
    content_type: HeaderValue,
    text: Bytes,
) -> Response<UnsyncBoxBody<Bytes, E>> {
    fields.insert(CONTENT_TYPE, content_type);
    let mut response = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}
