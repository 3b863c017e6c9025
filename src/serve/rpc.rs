//! gRPC by tonic's codec, on the node's own listener.
//!
//! tonic frames messages, and writes statuses and trailers. The node bounds the bytes and the time
//! of a message, so each call reads its message here, with the codes that callers know.

use std::marker::PhantomData;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt, Limited};
use prost::Message;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBody, HEADER_SIZE, Streaming};
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;

use crate::node::{ArrivingBody, BodyError, LIGHT};

/// The longest message, bytes. HTTP bodies up to it are light, so calls need no budget for theirs.
const MAX_MESSAGE_BYTES: usize = LIGHT;

/// The buffer of a call, bytes: most messages fit, and unfinished ones take little.
const BUFFER_BYTES: usize = 512;

/// Longest time for a message to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the only message of a call.
///
/// # Errors
/// The message is compressed, malformed, too long or too slow, or not the only one.
pub(super) async fn read<M: Message + Default + 'static>(head: Parts, body: ArrivingBody) -> Result<M, Status> {
    if head.headers.get("grpc-encoding").is_some_and(|encoding| encoding != "identity") {
        return Err(Status::unimplemented("compressed messages are not supported: send `identity`"));
    }
    // The fields of the call must not wait for its message.
    drop(head);
    let body = body.map_err(|error| match error {
        BodyError::NoRoom => overloaded(),
        BodyError::Broken(_) => Status::internal("the message broke off before its end"),
    });
    let read = tokio::time::timeout(MESSAGE_TIMEOUT, only_message(body)).await;
    read.unwrap_or_else(|_| Err(Status::deadline_exceeded("the message did not arrive in time")))
}

async fn only_message<M: Message + Default + 'static>(
    body: impl HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
) -> Result<M, Status> {
    let mut messages = Streaming::new_request(MessageDecoder(PhantomData), body, None, Some(MAX_MESSAGE_BYTES));
    let too_long = |status: Status| match status.code() {
        Code::OutOfRange => Status::resource_exhausted(format!("a message may have at most {MAX_MESSAGE_BYTES} bytes")),
        _ => status,
    };
    let message = messages.message().await.map_err(too_long)?;
    let message = message.ok_or_else(|| Status::internal("the call has no message"))?;
    match messages.message().await {
        Ok(None) => Ok(message),
        Err(status) if status.code() == Code::Unavailable => Err(status),
        Ok(Some(_)) | Err(_) => Err(Status::internal("the call must have exactly one whole message")),
    }
}

/// The status of a call without room.
pub(super) fn overloaded() -> Status {
    Status::unavailable("the node has too many calls: retry in a second")
}

/// tonic's own decoder of messages reports malformed ones as faults of the node.
struct MessageDecoder<M>(PhantomData<M>);

impl<M: Message + Default> Decoder for MessageDecoder<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        let malformed = |error| Status::invalid_argument(format!("the message is malformed: {error}"));
        M::decode(bytes).map(Some).map_err(malformed)
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, MAX_MESSAGE_BYTES)
}

/// The answer to a call: its message, or its status.
pub(super) fn answer<M: Message + 'static>(result: Result<M, Status>) -> Response {
    match result {
        Ok(message) => {
            let length = HEADER_SIZE + message.encoded_len();
            // An answer of known length is no stream.
            with_body(Limited::new(encoded(stream::iter([Ok(message)])), length))
        }
        Err(status) => status.into_http(),
    }
}

/// The answer to a call with any number of messages.
pub(super) fn answer_stream<M: Message + 'static>(
    result: Result<impl Stream<Item = Result<M, Status>> + Send + 'static, Status>,
) -> Response {
    result.map_or_else(Status::into_http, |messages| with_body(encoded(messages)))
}

fn encoded<M: Message + 'static>(
    messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
) -> impl HttpBody<Data = Bytes, Error = Status> + Send + 'static {
    EncodeBody::new_server(ProstEncoder::new(buffers()), messages, None, Default::default(), None)
}

fn with_body(body: impl HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The time that the caller waits, by `grpc-timeout`: up to 8 digits and a unit.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
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

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use http_body_util::Full;

    use super::*;
    use crate::gateway::envoy::messages::HealthCheckRequest;

    #[tokio::test]
    async fn malformed_messages_have_the_codes_of_grpc() {
        let decoded = async |bytes: &'static [u8]| {
            let read = only_message::<HealthCheckRequest>(Full::from(bytes));
            read.await.map_err(|status| status.code())
        };
        assert_eq!(decoded(&[0, 0, 0, 0, 3, 10, 1, b'x']).await, Ok(HealthCheckRequest { service: "x".into() }));
        assert_eq!(decoded(&[0, 0, 0, 0, 0]).await, Ok(HealthCheckRequest::default()));
        for (bytes, code) in [
            (&[][..], Code::Internal),
            (&[0, 0, 0, 0], Code::Internal),
            (&[0, 0, 0, 0, 2, 10], Code::Internal),
            (&[0, 0, 0, 0, 0, 0], Code::Internal),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Code::Internal),
            (&[1, 0, 0, 0, 0], Code::Internal),
            (&[0, 255, 255, 255, 255], Code::ResourceExhausted),
            (&[0, 0, 0, 0, 3, 10, 1, 255], Code::InvalidArgument),
            (&[0, 0, 0, 0, 1, 10], Code::InvalidArgument),
        ] {
            assert_eq!(decoded(bytes).await, Err(code), "{bytes:?}");
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
            let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_static("grpc-timeout"), value)]);
            assert_eq!(timeout(&headers), expected, "{text}");
        }
    }
}
