use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::drain::Drained;

pin_project! {
    /// The body of a response behind a [`LimitLayer`](crate::LimitLayer): that of the service, or
    /// the one of a request that the layer ended.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        passed: Option<B>,
        text: Option<Bytes>,
        drained: Option<Drained>,
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn passed(body: B, drained: Option<Drained>) -> Self {
        Self { passed: Some(body), text: None, drained }
    }

    fn text(text: Bytes) -> Self {
        Self { passed: None, text: Some(text).filter(|text| !text.is_empty()), drained: None }
    }
}

/// The response to a request that the layer ends.
pub(crate) fn text_response<B>(status: StatusCode, fields: HeaderMap, text: Bytes) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::text(text));
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(body) = this.passed.as_pin_mut() else {
            return Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text))));
        };
        let frame = std::task::ready!(body.poll_frame(context));
        if let (Some(drained), Some(Ok(frame))) = (this.drained, &frame) {
            drained.count(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.passed {
            Some(body) => body.is_end_stream(),
            None => self.text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.passed, &self.text) {
            (Some(body), _) => body.size_hint(),
            (None, text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
