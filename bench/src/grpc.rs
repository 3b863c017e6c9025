//! Envoy's rate limit service by gRPC: the message of a call, its head, and its answer.

use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, Request};
use percent_encoding::percent_decode;
use prost::Message;

use tollgate::cli::target::Target;
use tollgate::config::visible;
use tollgate::gateway::envoy::messages::{Code, Entry, RateLimitDescriptor, RateLimitRequest};

use super::dialect::{Subject, descriptor_key, hits};
use super::verdicts::{Failure, Verdicts};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

#[derive(Debug)]
pub(super) struct Answer {
    /// Of HTTP.
    pub(super) status: u16,
    /// The trailers; the head, if there are none.
    pub(super) fields: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The part of a response that decides; decoding skips the rest.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Overall {
    #[prost(enumeration = "Code", tag = "1")]
    code: i32,
}

/// The message of a call, with a descriptor for each quota.
///
/// # Errors
/// When the protocol does not support the cost.
pub(super) fn message(subject: &Subject, key: &str, quotas: usize) -> Result<Vec<u8>, String> {
    let descriptor = |place: usize| RateLimitDescriptor {
        entries: vec![Entry { key: descriptor_key(place), value: key.to_owned() }],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: subject.policy.clone(),
        descriptors: (1..=quotas).map(descriptor).collect(),
        hits_addend: hits(subject.cost)?,
    };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).map_err(|_| "the message is longer than 4 GiB")?;
    Ok([&[0][..], &length.to_be_bytes(), &message].concat())
}

/// # Errors
/// When the target or the token cannot be in a request.
pub(super) fn head(target: &Target, token: Option<&str>) -> Result<Request<()>, String> {
    let mut head = Request::post(format!("http://{}{}{METHOD}", target.authority, target.path))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if let Some(token) = token {
        head = head.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    head.body(()).map_err(|error| format!("{target}: {error}"))
}

/// # Errors
/// When the answer holds no decision.
pub(super) fn verdicts(answer: &Answer) -> Result<Verdicts, Failure> {
    if answer.status != 200 {
        return Err(Failure::Status(answer.status));
    }
    let code = answer.fields.get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok());
    match code.ok_or(Failure::Malformed)? {
        0 => decision(&answer.body).map(Verdicts::one).ok_or(Failure::Malformed),
        code => Err(Failure::Grpc(code)),
    }
}

/// Whether the only message allows the call.
fn decision(body: &[u8]) -> Option<bool> {
    let (&[0, a, b, c, d], message) = body.split_first_chunk::<PREFIX_BYTES>()? else { return None };
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return None;
    }
    match Overall::decode(message).ok()?.code() {
        Code::Ok => Some(true),
        Code::OverLimit => Some(false),
        Code::Unknown => None,
    }
}

/// The message of a status.
pub(super) fn status_text(answer: &Answer) -> Option<String> {
    let text = answer.fields.get("grpc-message").filter(|text| !text.is_empty())?;
    Some(visible(&percent_decode(text.as_bytes()).decode_utf8_lossy()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tollgate::gateway::envoy::messages::{DescriptorStatus, RateLimitResponse};

    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &'static str)], body: Vec<u8>) -> Answer {
        let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        Answer { status, fields: fields.collect(), body }
    }

    fn framed(message: &impl Message) -> Vec<u8> {
        let message = message.encode_to_vec();
        [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat()
    }

    fn response(code: Code) -> Vec<u8> {
        let status = DescriptorStatus { code: code.into(), limit_remaining: 300, ..DescriptorStatus::default() };
        framed(&RateLimitResponse {
            overall_code: code.into(),
            statuses: vec![status; 2],
            ..RateLimitResponse::default()
        })
    }

    #[test]
    fn each_quota_has_a_descriptor() {
        let subject = Subject { policy: "d".into(), key_prefix: String::new(), cost: 2 };
        let message = message(&subject, "k7", 2).unwrap();
        assert_eq!(message, framed(&RateLimitRequest::decode(&message[PREFIX_BYTES..]).unwrap()));
        let request = RateLimitRequest::decode(&message[PREFIX_BYTES..]).unwrap();
        let asked: Vec<_> = request.descriptors.into_iter().flat_map(|it| it.entries).collect();
        let entry = |key: &str| Entry { key: key.into(), value: "k7".into() };
        assert_eq!((asked, request.hits_addend, &*request.domain), (vec![entry("q1"), entry("q2")], 2, "d"));
    }

    #[test]
    fn token_is_metadata() {
        let target: Target = "http://127.0.0.1:8081".parse().unwrap();
        let head = head(&target, Some("t")).unwrap();
        assert_eq!(head.uri().to_string(), format!("http://127.0.0.1:8081{METHOD}"));
        assert_eq!(head.headers()["authorization"], "Bearer t");
    }

    #[test]
    fn overall_code_decides() {
        let ok = [("grpc-status", "0")];
        assert_eq!(verdicts(&answer(200, &ok, response(Code::Ok))), Ok(Verdicts::one(true)));
        assert_eq!(verdicts(&answer(200, &ok, response(Code::OverLimit))), Ok(Verdicts::one(false)));
        let mut compressed = response(Code::Ok);
        compressed[0] = 1;
        for body in
            [response(Code::Unknown), compressed, vec![], vec![0, 0, 0, 0, 9, 8, 1], vec![0, 0, 0, 0, 2, 8, 255]]
        {
            assert_eq!(verdicts(&answer(200, &ok, body.clone())), Err(Failure::Malformed), "{body:?}");
        }
        assert_eq!(verdicts(&answer(200, &[], response(Code::Ok))), Err(Failure::Malformed));
    }

    #[test]
    fn a_status_is_a_failure_with_a_text() {
        let unavailable = answer(200, &[("grpc-status", "14"), ("grpc-message", "caf%C3%A9 100%25")], vec![]);
        assert_eq!(verdicts(&unavailable), Err(Failure::Grpc(14)));
        assert_eq!(status_text(&unavailable).as_deref(), Some("café 100%"));
        assert_eq!(verdicts(&answer(415, &[], vec![])), Err(Failure::Status(415)));
    }
}
