use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use tower_service::Service;

use crate::body::{ResponseBody, text_response};
use crate::client::Client;
use crate::decision::Decision;
use crate::detached::Detached;
use crate::document::{self, Document};
use crate::drain::Drained;
use crate::fields;
use crate::limit::{Limit, OnFailure};

/// The service of a [`LimitLayer`](crate::LimitLayer).
#[derive(Clone)]
pub struct LimitService<S> {
    client: Client,
    limit: Arc<Limit>,
    inner: S,
}

impl<S> LimitService<S> {
    pub(crate) fn new(client: Client, limit: Arc<Limit>, inner: S) -> Self {
        Self { client, limit, inner }
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send, Error: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
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
        Box::pin(serve(self.client.clone(), self.limit.clone(), inner, request))
    }
}

impl<S> fmt::Debug for LimitService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("client", &self.client).finish_non_exhaustive()
    }
}

async fn serve<S, B, R>(
    client: Client,
    limit: Arc<Limit>,
    mut inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    let (mut head, body) = request.into_parts();
    if limit.skip.as_ref().is_some_and(|skip| skip(&head)) {
        let response = inner.call(Request::from_parts(head, body)).await?;
        return Ok(response.map(|body| ResponseBody::passed(body, None)));
    }
    let key = limit.key(&head).await;
    let check = limit.check(&head, key, &client);
    let asked = {
        let (client, check) = (client.clone(), check.clone());
        // A caller that leaves at once counts all the same.
        Detached::new(async move { client.check(check).await }).await
    };
    let mut passed = None;
    match asked {
        Ok(decision) if decision.allowed => {
            head.extensions.insert(decision.clone());
            passed = Some(decision);
        }
        Ok(decision) => return Ok(denied(&limit, &head, &decision)),
        Err(error) => {
            limit.report(&error);
            if error.is_bad_check() {
                return Ok(ended(&limit, document::bad_request(), HeaderMap::new()));
            }
            if limit.on_failure == OnFailure::Closed {
                let mut fields = HeaderMap::new();
                fields::write_retry_after(1, &mut fields);
                return Ok(ended(&limit, document::no_decision(), fields));
            }
        }
    }
    let follows = limit.drain.is_some() || limit.refund.is_some();
    let mut drained = follows.then(|| Drained::new(client, limit, head.clone(), check));
    let response = inner.call(Request::from_parts(head, body)).await?;
    if let Some(drained) = &mut drained {
        drained.answer(response.status(), response.headers());
    }
    let mut response = response.map(|body| ResponseBody::passed(body, drained));
    if let Some(decision) = passed {
        let mut fields = HeaderMap::new();
        fields::write(&decision, response.headers(), &mut fields);
        for (name, value) in &fields {
            response.headers_mut().append(name, value.clone());
        }
    }
    Ok(response)
}

fn denied<R>(limit: &Limit, head: &Parts, decision: &Decision) -> Response<ResponseBody<R>> {
    let mut fields = HeaderMap::new();
    fields::write(decision, &HeaderMap::new(), &mut fields);
    let Some(body) = limit.body.as_ref().filter(|_| !limit.grpc) else {
        return ended(limit, Document::of(limit.status, decision), fields);
    };
    let (content_type, text) = body(head, decision);
    fields.insert(CONTENT_TYPE, content_type);
    text_response(limit.status, fields, text)
}

fn ended<R>(limit: &Limit, document: Document<'_>, fields: HeaderMap) -> Response<ResponseBody<R>> {
    if limit.grpc { document.into_grpc(fields) } else { document.into_response(fields) }
}
