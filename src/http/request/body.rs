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
use crate::node::HeavyBody;

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
    if body.size_hint().lower() > limit as u64 {
        return Err(Problem::too_large(limit));
    }
    match in_time(read(body, limit)).await.ok_or_else(Problem::slow_body)? {
        Ok(body) => Ok(body),
        Err(error) if is::<LengthLimitError>(&*error) => Err(Problem::too_large(limit)),
        Err(error) if is::<Overloaded>(&*error) => Err(Problem::overloaded()),
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

fn is<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    error.is::<E>() || error.source().is_some_and(is::<E>)
}

/// A body became long while too many others were.
#[derive(Debug, thiserror::Error)]
#[error("too many long bodies at a time")]
struct Overloaded;

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

/// A body that is read to its end even after its reader has dropped it.
///
/// A server that answers early and closes resets the connection. The sender still writes, and never
/// reads the answer. Clients that wait for `100 Continue` have not begun to write.
pub(in crate::http) struct DrainOnDrop {
    body: Option<Incoming>,
    lingers: bool,
    /// The body is of HTTP/1, where reading the end causes a needless wake of the connection.
    wakes: bool,
    /// Bytes that have arrived.
    read: usize,
    heavy: Option<HeavyBody>,
}

impl DrainOnDrop {
    pub(in crate::http) fn new(head: &Parts, body: Incoming, heavy: Option<HeavyBody>) -> Self {
        let lingers = !head.headers.contains_key(header::EXPECT);
        Self { body: Some(body), lingers, wakes: head.version < Version::HTTP_2, read: 0, heavy }
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
            Some(Ok(frame)) => {
                if ended && self.wakes {
                    spurious_wakes::body_ended();
                }
                self.read += frame.data_ref().map_or(0, Bytes::len);
                if self.heavy.as_ref().is_some_and(|heavy| !heavy.has_room(self.read)) {
                    return Poll::Ready(Some(Err(Overloaded.into())));
                }
            }
            None | Some(Err(_)) => self.body = None,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if !self.lingers || self.is_end_stream() {
            return;
        }
        if let (Some(rest), Ok(runtime)) = (self.body.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(TIMEOUT, discard(rest)));
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
        for taken in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\";v=1"] {
            assert!(is_json(taken), "{taken}");
        }
        for refused in ["", "text/json", "application/json2", "application/x-www-form-urlencoded"] {
            assert!(!is_json(refused), "{refused}");
        }
        assert!(!is_json("application/json; charset=latin1"));
    }
}
