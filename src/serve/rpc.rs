//! Unary gRPC calls over HTTP/2: one message in, one message or a status out.
//!
//! A message has a prefix of five bytes: a flag for compression, and the length. The status follows
//! in trailers, or in the head of an answer without a message.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;

use crate::node::{ArrivingBody, BodyError, LIGHT};

/// The longest message, bytes. HTTP bodies up to it are light, so calls need no budget for theirs.
const MAX_MESSAGE_BYTES: usize = LIGHT;

/// Flag and length.
const PREFIX_BYTES: usize = 5;

/// Longest time for a message to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The characters that `grpc-message` escapes.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The codes of gRPC that this node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum RpcCode {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A call without a message in its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: RpcCode,
    pub(super) message: String,
}

impl RpcError {
    pub(super) fn new(code: RpcCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = status_headers(self.code);
        let message = utf8_percent_encode(&self.message, ESCAPED).to_string();
        headers.extend(HeaderValue::try_from(message).ok().map(|message| (GRPC_MESSAGE, message)));
        headers
    }
}

fn status_headers(code: RpcCode) -> HeaderMap {
    HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from(code as u16))])
}

/// Whether the messages of a call are not compressed.
///
/// # Errors
/// They are.
pub(super) fn require_plain(headers: &HeaderMap) -> Result<(), RpcError> {
    match headers.get(GRPC_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(compressed()),
        _ => Ok(()),
    }
}

/// Reads the only message of a call.
pub(super) async fn read<M: Message + Default>(body: ArrivingBody) -> Result<M, RpcError> {
    let Ok(read) = tokio::time::timeout(MESSAGE_TIMEOUT, whole(body)).await else {
        return Err(RpcError::new(RpcCode::DeadlineExceeded, "the message did not arrive in time"));
    };
    message(&read?)
}

/// The bytes of a body, copied: the pieces of a slow client would keep the buffers of all frames.
async fn whole(mut body: ArrivingBody) -> Result<Vec<u8>, RpcError> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error {
            BodyError::NoRoom => overloaded(),
            BodyError::Broken(_) => RpcError::new(RpcCode::Internal, "the message broke off before its end"),
        })?;
        whole.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if whole.len() > PREFIX_BYTES + MAX_MESSAGE_BYTES {
            return Err(too_long());
        }
    }
    Ok(whole)
}

/// The status of a call without room.
pub(super) fn overloaded() -> RpcError {
    RpcError::new(RpcCode::Unavailable, "the node has too many calls: retry in a second")
}

fn compressed() -> RpcError {
    RpcError::new(RpcCode::Unimplemented, "compressed messages are not supported: send `identity`")
}

fn too_long() -> RpcError {
    let limit = format!("a message may have at most {MAX_MESSAGE_BYTES} bytes");
    RpcError::new(RpcCode::ResourceExhausted, limit)
}

/// Decodes the message after its prefix.
fn message<M: Message + Default>(bytes: &[u8]) -> Result<M, RpcError> {
    let Some((&[flag, a, b, c, d], message)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(RpcError::new(RpcCode::Internal, "the call has no message"));
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    match flag {
        _ if length > MAX_MESSAGE_BYTES => Err(too_long()),
        0 if message.len() == length => M::decode(message)
            .map_err(|error| RpcError::new(RpcCode::InvalidArgument, format!("the message is malformed: {error}"))),
        0 => Err(RpcError::new(RpcCode::Internal, "the call must have exactly one whole message")),
        _ => Err(compressed()),
    }
}

/// The time that the caller waits, by `grpc-timeout`: up to 8 digits and a unit.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The answer to a call.
pub(super) fn answer(result: Result<impl Message, RpcError>) -> Response {
    let (headers, body) = match result {
        Ok(message) => (HeaderMap::new(), Body::new(Reply::new(&message))),
        Err(error) => (error.headers(), Body::empty()),
    };
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// A message and the trailers with status OK.
struct Reply {
    message: Bytes,
    trailers: Option<HeaderMap>,
}

impl Reply {
    fn new(message: &impl Message) -> Self {
        let length = message.encoded_len();
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
        bytes.push(0);
        bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        message.encode_raw(&mut bytes);
        Self { message: bytes.into(), trailers: Some(status_headers(RpcCode::Ok)) }
    }
}

impl HttpBody for Reply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let message = std::mem::take(&mut self.message);
        let frame =
            if message.is_empty() { self.trailers.take().map(Frame::trailers) } else { Some(Frame::data(message)) };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }

    /// The exact length would become a Content-Length, which gRPC does not have.
    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_upper(self.message.len() as u64);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::envoy::messages::HealthCheckRequest;

    fn decoded(bytes: &[u8]) -> Result<HealthCheckRequest, RpcCode> {
        message(bytes).map_err(|error| error.code)
    }

    #[test]
    fn malformed_messages_have_the_codes_of_grpc() {
        assert_eq!(decoded(&[0, 0, 0, 0, 3, 10, 1, b'x']), Ok(HealthCheckRequest { service: "x".into() }));
        assert_eq!(decoded(&[0, 0, 0, 0, 0]), Ok(HealthCheckRequest::default()));
        for (bytes, code) in [
            (&[][..], RpcCode::Internal),
            (&[0, 0, 0, 0], RpcCode::Internal),
            (&[0, 0, 0, 0, 2, 10], RpcCode::Internal),
            (&[0, 0, 0, 0, 0, 0], RpcCode::Internal),
            (&[1, 0, 0, 0, 0], RpcCode::Unimplemented),
            (&[0, 255, 255, 255, 255], RpcCode::ResourceExhausted),
            (&[0, 0, 0, 0, 3, 10, 1, 255], RpcCode::InvalidArgument),
            (&[0, 0, 0, 0, 1, 10], RpcCode::InvalidArgument),
        ] {
            assert_eq!(decoded(bytes), Err(code), "{bytes:?}");
        }
    }

    #[test]
    fn timeouts_have_a_unit() {
        for (text, expected) in [
            ("15m", Some(Duration::from_millis(15))),
            ("14900u", Some(Duration::from_micros(14_900))),
            ("1S", Some(Duration::from_secs(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("100000000n", None),
            ("15", None),
            ("m", None),
            ("", None),
            ("+5m", None),
            ("5é", None),
        ] {
            let headers = HeaderMap::from_iter([(GRPC_TIMEOUT, HeaderValue::from_bytes(text.as_bytes()).unwrap())]);
            assert_eq!(timeout(&headers), expected, "{text}");
        }
    }
}
