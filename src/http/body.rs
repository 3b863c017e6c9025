//! Reading a body: its type, its size, its time.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};

use super::error::Problem;

/// How long a body may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is read of a body nobody wants, so that its sender comes to read the answer, bytes.
const MAX_UNWANTED_BYTES: usize = 16 * 1024 * 1024;

/// Reads a JSON body of at most `limit` bytes.
///
/// # Errors
/// 415, 413 (at once when its length is declared), 408, and 400 when it breaks off.
pub(super) async fn json(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Problem> {
    require_json(headers)?;
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::too_large(limit));
    }
    let read = tokio::time::timeout(TIMEOUT, Limited::new(body, limit).collect()).await;
    match read.map_err(|_| Problem::slow_body())? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if is_over_limit(&*error) => Err(Problem::too_large(limit)),
        Err(_) => Err(Problem::malformed("the body broke off before its end")),
    }
}

fn is_over_limit(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_over_limit)
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    // Of a field that is repeated no value is the right one.
    let field = |name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next()?;
        Some(if values.next().is_none() { first.to_str().unwrap_or("?") } else { "?" })
    };
    match field(header::CONTENT_TYPE) {
        Some(content_type) if is_json(content_type) => {}
        Some(_) => return Err(Problem::unsupported_media_type("send Content-Type: application/json, in UTF-8")),
        None => return Err(Problem::unsupported_media_type("say Content-Type: application/json")),
    }
    match field(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding) if coding.eq_ignore_ascii_case("identity") => Ok(()),
        Some(_) => Err(Problem::unsupported_media_type("send the body without a Content-Encoding")),
    }
}

fn is_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    is_json && parts.all(is_no_foreign_charset)
}

fn is_no_foreign_charset(parameter: &str) -> bool {
    match parameter.split_once('=') {
        Some((name, charset)) if name.trim().eq_ignore_ascii_case("charset") => {
            ["utf-8", "utf8"].iter().any(|utf8| charset.trim().trim_matches('"').eq_ignore_ascii_case(utf8))
        }
        _ => true,
    }
}

/// Lets the body of `request` be read to its end after whoever got it has dropped it.
///
/// A server that answers early and closes resets the connection, and the sender, who is still writing, never
/// reads the answer. Those who wait to be told to continue have not begun to write.
pub(super) fn lingering(request: Request) -> Request {
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return request;
    }
    request.map(|body| Body::new(Lingering(body)))
}

struct Lingering(Body);

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.0 = Body::empty();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if self.0.is_end_stream() {
            return;
        }
        let rest = std::mem::take(&mut self.0);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(TIMEOUT, discard(rest)));
        }
    }
}

async fn discard(mut body: Body) {
    let mut left = MAX_UNWANTED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_utf8_is_taken_whatever_its_spelling() {
        for taken in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\";v=1"] {
            assert!(is_json(taken), "{taken}");
        }
        for refused in ["", "text/json", "application/json2", "application/x-www-form-urlencoded"] {
            assert!(!is_json(refused), "{refused}");
        }
        assert!(!is_json("application/json; charset=latin1"));
    }
}
