//! Reads a body and checks its type, size and time.

use std::error::Error;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Version, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::task::yield_now;

use crate::http::problem::Problem;
use crate::http::spurious_wakes;
use crate::node::{ArrivingBody, BodyError};

/// Longest time for a body to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that are read of an unwanted body, so that its sender gets to read the answer.
const MAX_UNWANTED_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of a body that are read in one turn of a worker, so that other tasks get turns.
const PER_TURN: usize = 64 * 1024;

/// A body of a request, routed or not.
pub(in crate::http) trait JsonBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin> JsonBody for B {}

/// Reads a JSON body of at most `limit` bytes.
///
/// # Errors
/// 415, 413 (at once for a declared length), 408, and 400 for a body that breaks off.
pub(in crate::http) async fn json(headers: &HeaderMap, body: impl JsonBody, limit: usize) -> Result<Bytes, Problem> {
    require_json(headers)?;
    of_any_type(body, limit).await
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// As [`json`], but for the type.
pub(in crate::http) async fn of_any_type(body: impl JsonBody, limit: usize) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::too_large(limit));
    }
    match in_time(read(body, limit)).await.ok_or_else(Problem::slow_body)? {
        Ok(body) => Ok(body),
        Err(error) if find::<LengthLimitError>(&*error).is_some() => Err(Problem::too_large(limit)),
        Err(error) if matches!(find(&*error), Some(BodyError::NoRoom)) => Err(Problem::overloaded()),
        Err(_) => Err(Problem::malformed("the body broke off before its end")),
    }
}

/// The result of `reading`, if it is ready in time. Almost every body is complete at the first poll
/// and needs no timer.
async fn in_time<T>(reading: impl Future<Output = T>) -> Option<T> {
    let mut reading = pin!(reading);
    match futures_util::poll!(reading.as_mut()) {
        Poll::Ready(read) => Some(read),
        Poll::Pending => tokio::time::timeout(TIMEOUT, reading).await.ok(),
    }
}

async fn read(body: impl JsonBody, limit: usize) -> Result<Bytes, BoxError> {
    let mut body = Limited::new(body, limit);
    // Almost every body arrives in one piece, which needs no copy.
    let first = match body.frame().await {
        Some(frame) => frame?.into_data().unwrap_or_default(),
        None => return Ok(Bytes::new()),
    };
    if body.is_end_stream() {
        return Ok(first);
    }
    // The buffer grows with the received bytes, not to the declared length, since the budget counts
    // received bytes.
    let mut whole = first.to_vec();
    let mut turn_ends = PER_TURN;
    while let Some(frame) = body.frame().await {
        whole.extend(frame?.into_data().unwrap_or_default());
        if whole.len() >= turn_ends {
            turn_ends += PER_TURN;
            yield_now().await;
        }
    }
    Ok(whole.into())
}

/// The first error of this type in the chain.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    error.downcast_ref().or_else(|| error.source().and_then(find))
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    // A repeated field is ambiguous, so none of its values counts.
    let field = |name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next()?;
        Some(if values.next().is_none() { first.to_str().unwrap_or("?") } else { "?" })
    };
    match field(header::CONTENT_TYPE) {
        // As nearly all clients write it.
        Some("application/json") => {}
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

/// Whether a media type (RFC 9110, 8.3.1) is JSON in UTF-8. A malformed one is not: a browser that
/// reads it differently may send it for a page without asking.
fn is_json(content_type: &str) -> bool {
    let (essence, mut rest) = content_type.split_at(content_type.find(';').unwrap_or(content_type.len()));
    if !essence.trim_matches(BLANKS).eq_ignore_ascii_case("application/json") {
        return false;
    }
    while let Some(after) = rest.trim_start_matches(BLANKS).strip_prefix(';') {
        let after = after.trim_start_matches(BLANKS);
        // RFC 9110, 5.6.6: a parameter may be absent.
        if after.is_empty() || after.starts_with(';') {
            rest = after;
            continue;
        }
        let Some((name, value, next)) = parameter(after) else { return false };
        if name.eq_ignore_ascii_case("charset")
            && !["utf-8", "utf8"].iter().any(|utf8| value.eq_ignore_ascii_case(utf8))
        {
            return false;
        }
        rest = next;
    }
    rest.trim_matches(BLANKS).is_empty()
}

const BLANKS: [char; 2] = [' ', '\t'];

/// The name and value of the first parameter, and the text after it. Quoted strings with escapes
/// are rejected.
fn parameter(text: &str) -> Option<(&str, &str, &str)> {
    let (name, value) = text.split_once('=').filter(|(name, _)| is_token(name))?;
    if let Some(quoted) = value.strip_prefix('"') {
        let (value, rest) = quoted.split_once('"')?;
        return (!value.contains('\\')).then_some((name, value, rest));
    }
    let end = value.find(|byte: char| byte == ';' || BLANKS.contains(&byte)).unwrap_or(value.len());
    let (value, rest) = value.split_at(end);
    is_token(value).then_some((name, value, rest))
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    let is_mark = |byte: u8| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
}

/// A body that is read to its end even after its reader has dropped it.
///
/// A server that answers early and closes resets the connection. The sender still writes, and never
/// reads the answer. Clients that wait for `100 Continue` have not begun to write.
pub(in crate::http) struct DrainOnDrop {
    body: Option<ArrivingBody>,
    lingers: bool,
    /// The body is of HTTP/1, where reading the end causes a needless wake of the connection.
    wakes: bool,
}

impl DrainOnDrop {
    pub(in crate::http) fn new(head: &Parts, body: ArrivingBody) -> Self {
        let lingers = !head.headers.contains_key(header::EXPECT);
        Self { body: Some(body), lingers, wakes: head.version < Version::HTTP_2 }
    }
}

impl HttpBody for DrainOnDrop {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let ended = body.is_end_stream();
        match &frame {
            Some(Ok(_)) if ended && self.wakes => spurious_wakes::body_ended(),
            // The rest is still drained.
            Some(Ok(_) | Err(BodyError::NoRoom)) => {}
            None | Some(Err(BodyError::Broken(_))) => self.body = None,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(ArrivingBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), ArrivingBody::size_hint)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if !self.lingers || self.is_end_stream() {
            return;
        }
        if let (Some(rest), Ok(runtime)) = (self.body.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(TIMEOUT, discard(rest.uncounted())));
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut left = MAX_UNWANTED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_media_types_are_accepted_in_any_spelling() {
        for taken in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\";v=1",
            "application/json ; a=b\t;; charset=utf8;",
        ] {
            assert!(is_json(taken), "{taken}");
        }
        for refused in ["", "text/json", "application/json2", "application/x-www-form-urlencoded"] {
            assert!(!is_json(refused), "{refused}");
        }
        assert!(!is_json("application/json; charset=latin1"));
    }

    #[test]
    fn malformed_media_types_are_not_json() {
        for refused in [
            "application/json; x",
            "application/json; x; charset=utf-8",
            "application/json; =x",
            "application/json; x=",
            "application/json; x =y",
            "application/json; x= y",
            "application/json; x=\"y",
            "application/json; x=\"y\"z",
            "application/json; x=y z",
            "application/json, text/plain",
            "application/json; x=y, text/plain",
            "application/json; x=y/z",
            "application/json; x=a; text/plain",
            "application/json text/plain",
            "application /json",
            "text/plain; application/json",
        ] {
            assert!(!is_json(refused), "{refused}");
        }
    }
}
