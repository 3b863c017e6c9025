//! The decisions in an answer, found by a search of its bytes. Parsing would cost more than the
//! service's own work.
//!
//! A quote inside a JSON string is always escaped, so no match comes from a key.

use std::sync::LazyLock;

use memchr::memmem::{Finder, find};
use serde_json::Value;

use tollgate::config::visible;

use super::dialect::{Dialect, Service};
use super::resp;
use super::verdicts::{Failure, SOURCES, Verdicts};

/// Parses the answer to one call.
///
/// # Errors
/// When it holds no decision.
pub(super) fn verdicts(dialect: &Dialect, status: u16, body: &[u8]) -> Result<Verdicts, Failure> {
    match (dialect, status) {
        (Dialect::Gate(_) | Dialect::Peer(Service::Limitador, _), 200) => Ok(Verdicts::one(true)),
        (Dialect::Gate(_) | Dialect::Peer(Service::Limitador | Service::Envoy, _), 429) => Ok(Verdicts::one(false)),
        (Dialect::Tollgate { .. } | Dialect::Peer(Service::Throttlecrab, _), 200..=299) => decisions(body),
        (Dialect::Resp { throttle, .. }, 200) => resp::verdicts(body, resp::form(*throttle)),
        (Dialect::Peer(Service::Gubernator, _), 200) => gubernator(body),
        (Dialect::Peer(Service::Envoy, _), 200) => {
            find(body, b"overallCode").map(|_| Verdicts::one(true)).ok_or(Failure::Malformed)
        }
        _ => Err(Failure::Status(status)),
    }
}

/// `"allowed":true` and `"source":"store"`, once for each check.
fn decisions(body: &[u8]) -> Result<Verdicts, Failure> {
    static ALLOWED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"allowed\":"));
    static SOURCE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"source\":\""));
    let mut verdicts = Verdicts::default();
    for at in ALLOWED.find_iter(body) {
        match body.get(at + ALLOWED.needle().len()) {
            Some(b't') => verdicts.allowed += 1,
            Some(b'f') => verdicts.denied += 1,
            _ => return Err(Failure::Malformed),
        }
    }
    for at in SOURCE.find_iter(body) {
        let value = &body[at + SOURCE.needle().len()..];
        if let Some(known) = SOURCES.iter().position(|name| value.starts_with(name.as_bytes())) {
            verdicts.by[known] += 1;
        }
    }
    if verdicts.allowed + verdicts.denied == 0 { Err(refusal(body)) } else { Ok(verdicts) }
}

/// The reason why a body has no decision: the status of the first problem. All items of a batch
/// usually share it.
fn refusal(body: &[u8]) -> Failure {
    static STATUS: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"status\":"));
    let digits = STATUS.find(body).and_then(|at| body.get(at + STATUS.needle().len()..)?.get(..3));
    let status = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    status.map_or(Failure::Malformed, Failure::Status)
}

/// The text of an answer without a decision, if it has one.
pub(super) fn failure_text(dialect: &Dialect, body: &[u8]) -> Option<String> {
    match dialect {
        Dialect::Resp { .. } => resp::error_text(body),
        _ => problem_text(body),
    }
}

/// The text of a problem document, or of the first one in a batch.
pub(super) fn problem_text(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let problem = body.pointer("/results/0/error").unwrap_or(&body);
    let detail = problem["detail"].as_str()?;
    let violations =
        texts(&problem["violations"], |it| Some(format!("{} {}", it["pointer"].as_str()?, it["detail"].as_str()?)));
    let known = texts(&problem["known"], |name| name.as_str().map(str::to_owned));
    Some(visible(&match () {
        () if !violations.is_empty() => violations.join("; "),
        () if !known.is_empty() => format!("{detail}: there are {}", known.join(", ")),
        () => detail.to_owned(),
    }))
}

fn texts(list: &Value, text: impl Fn(&Value) -> Option<String>) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(text).collect()
}

/// A `status` for each quota; some versions omit it for a key under the limit. The blanks in its
/// JSON vary.
fn gubernator(body: &[u8]) -> Result<Verdicts, Failure> {
    let error = find(body, b"\"error\":").map(|at| body[at + 8..].trim_ascii_start());
    if find(body, b"\"responses\":").is_none() || error.is_some_and(|error| !error.starts_with(b"\"\"")) {
        return Err(Failure::Malformed);
    }
    Ok(Verdicts::one(find(body, b"OVER_LIMIT").is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLLGATE: Dialect = Dialect::Tollgate { batch: None };

    fn peer(service: Service) -> Dialect {
        Dialect::Peer(service, Vec::new())
    }

    #[test]
    fn decisions_are_counted_by_verdict_and_source() {
        let body = br#"{"results":[{"allowed":true,"key":"\"allowed\":false","source":"store"},
            {"allowed":false,"source":"prefilter"},{"error":{"status":422}},{"allowed":true,"source":"new"}]}"#;
        let expected = Verdicts { allowed: 2, denied: 1, by: [1, 1, 0, 0, 0] };
        assert_eq!(verdicts(&TOLLGATE, 200, body), Ok(expected));
        assert_eq!(verdicts(&TOLLGATE, 200, b"{}"), Err(Failure::Malformed));
        assert_eq!(verdicts(&TOLLGATE, 200, br#"{"status":"UP"}"#), Err(Failure::Malformed));
        let refused = br#"{"results":[{"error":{"type":"t","status":404}},{"error":{"type":"t","status":404}}]}"#;
        assert_eq!(verdicts(&TOLLGATE, 200, refused), Err(Failure::Status(404)));
        assert_eq!(verdicts(&TOLLGATE, 503, body), Err(Failure::Status(503)));
    }

    #[test]
    fn only_a_problem_has_a_text() {
        let text = |body: &str| failure_text(&TOLLGATE, body.as_bytes());
        assert!(["", "<html>", r#"{"status": 502}"#].iter().all(|body| text(body).is_none()));
        assert_eq!(text(r#"{"detail": "why"}"#).as_deref(), Some("why"));
        let resp = Dialect::Resp { pipeline: 1, throttle: None };
        assert_eq!(failure_text(&resp, b"-ERR why\r\n").as_deref(), Some("ERR why"));
    }

    #[test]
    fn each_peer_tells_a_denial_in_its_way() {
        let (yes, no) = (Ok(Verdicts::one(true)), Ok(Verdicts::one(false)));
        let crab = |body: &[u8]| verdicts(&peer(Service::Throttlecrab), 200, body);
        assert_eq!(crab(br#"{"allowed":true,"limit":3}"#), yes);
        assert_eq!(crab(br#"{"allowed":false,"limit":3}"#), no);
        assert_eq!(verdicts(&Dialect::Gate("g".into()), 200, b""), yes);
        assert_eq!(verdicts(&Dialect::Gate("g".into()), 429, b"{}"), no);
        assert_eq!(verdicts(&Dialect::Gate("g".into()), 401, b"{}"), Err(Failure::Status(401)));
        assert_eq!(verdicts(&peer(Service::Limitador), 200, b"null"), yes);
        assert_eq!(verdicts(&peer(Service::Limitador), 429, b"null"), no);
        assert_eq!(verdicts(&peer(Service::Envoy), 200, br#"{"overallCode": "OK"}"#), yes);
        assert_eq!(verdicts(&peer(Service::Envoy), 429, br#"{"overallCode":"OVER_LIMIT"}"#), no);
        let guber = |body: &[u8]| verdicts(&peer(Service::Gubernator), 200, body);
        assert_eq!(guber(br#"{"responses":[{"status":"UNDER_LIMIT", "error":""}]}"#), yes);
        assert_eq!(guber(br#"{"responses": [{"status": "OVER_LIMIT", "error": ""}]}"#), no);
        assert_eq!(guber(br#"{"responses":[{"error": "no peer"}]}"#), Err(Failure::Malformed));
    }
}
