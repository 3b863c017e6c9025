//! The decisions in an answer, found by a search of its bytes. Parsing would cost more than the
//! service's own work.
//!
//! A quote inside a JSON string is always escaped, so no match comes from a key.

use std::sync::LazyLock;

use memchr::memmem::{Finder, find};
use serde_json::Value;

use tollgate::config::visible;

use super::dialect::{Dialect, Service};

pub(super) const SOURCES: [&str; 4] = ["store", "prefilter", "fallback", "list"];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdicts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Checks by `SOURCES`; all 0 if the answers name no source.
    pub(super) by: [u64; SOURCES.len()],
}

impl Verdicts {
    pub(super) fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.by.iter_mut().zip(other.by).for_each(|(sum, more)| *sum += more);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// No connection, or a broken one.
    Broken(String),
    Closed,
    Status(u16),
    Malformed,
    /// A batch item without a decision.
    Refused,
    Unanswered,
}

impl Failure {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Broken(reason) => reason.clone(),
            Self::Closed => "connection closed".into(),
            Self::Status(status) => format!("status {status}"),
            Self::Malformed => "malformed answer".into(),
            Self::Refused => "refused item of a batch".into(),
            Self::Unanswered => "no answer before the end".into(),
        }
    }
}

/// Parses the answer to one call.
///
/// # Errors
/// When it holds no decision.
pub(super) fn verdicts(dialect: &Dialect, status: u16, body: &[u8]) -> Result<Verdicts, Failure> {
    match (dialect, status) {
        (Dialect::Gate(_) | Dialect::Peer(Service::Limitador, _), 200) => Ok(one(true)),
        (Dialect::Gate(_) | Dialect::Peer(Service::Limitador | Service::Envoy, _), 429) => Ok(one(false)),
        (Dialect::Tollgate { .. } | Dialect::Peer(Service::Throttlecrab, _), 200..=299) => decisions(body),
        (Dialect::Resp { .. }, 200) => resp(body),
        (Dialect::Peer(Service::Gubernator, _), 200) => gubernator(body),
        (Dialect::Peer(Service::Envoy, _), 200) => {
            find(body, b"overallCode").map(|_| one(true)).ok_or(Failure::Malformed)
        }
        _ => Err(Failure::Status(status)),
    }
}

fn one(allowed: bool) -> Verdicts {
    Verdicts { allowed: allowed.into(), denied: (!allowed).into(), ..Verdicts::default() }
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

/// The lines of an answer to TG.CHECK, which has six items and names its source last.
const LINES: usize = 8;

/// The length of `answers` answers to TG.CHECK; none while they are incomplete. An error has one
/// line.
pub(super) fn resp_length(bytes: &[u8], answers: u64) -> Option<usize> {
    let mut at = 0;
    for _ in 0..answers {
        let lines = if *bytes.get(at)? == b'*' { LINES } else { 1 };
        for _ in 0..lines {
            at += memchr::memchr(b'\n', &bytes[at..])? + 1;
        }
    }
    Some(at)
}

/// The answers to a pipeline. One error fails the call.
fn resp(body: &[u8]) -> Result<Verdicts, Failure> {
    let mut verdicts = Verdicts::default();
    let mut lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    while let Some(head) = lines.next().filter(|head| !head.is_empty()) {
        if head != b"*6" {
            return Err(Failure::Refused);
        }
        match lines.next() {
            Some(b":0") => verdicts.allowed += 1,
            Some(b":1") => verdicts.denied += 1,
            _ => return Err(Failure::Malformed),
        }
        let source = lines.nth(LINES - 3).unwrap_or_default();
        if let Some(known) = SOURCES.iter().position(|name| source == name.as_bytes()) {
            verdicts.by[known] += 1;
        }
    }
    Ok(verdicts)
}

/// A `status` for each quota; some versions omit it for a key under the limit. The blanks in its
/// JSON vary.
fn gubernator(body: &[u8]) -> Result<Verdicts, Failure> {
    let error = find(body, b"\"error\":").map(|at| body[at + 8..].trim_ascii_start());
    if find(body, b"\"responses\":").is_none() || error.is_some_and(|error| !error.starts_with(b"\"\"")) {
        return Err(Failure::Malformed);
    }
    Ok(one(find(body, b"OVER_LIMIT").is_none()))
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
        let expected = Verdicts { allowed: 2, denied: 1, by: [1, 1, 0, 0] };
        assert_eq!(verdicts(&TOLLGATE, 200, body), Ok(expected));
        assert_eq!(verdicts(&TOLLGATE, 200, b"{}"), Err(Failure::Malformed));
        assert_eq!(verdicts(&TOLLGATE, 200, br#"{"status":"UP"}"#), Err(Failure::Malformed));
        let refused = br#"{"results":[{"error":{"type":"t","status":404}},{"error":{"type":"t","status":404}}]}"#;
        assert_eq!(verdicts(&TOLLGATE, 200, refused), Err(Failure::Status(404)));
        assert_eq!(verdicts(&TOLLGATE, 503, body), Err(Failure::Status(503)));
    }

    #[test]
    fn answers_of_a_pipeline_are_counted_one_by_one() {
        let answers = b"*6\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:9\r\n$5\r\nstore\r\n*6\r\n:1\r\n:5\r\n:0\r\n:7\r\n:9\r\n$9\r\nprefilter\r\n";
        assert_eq!((0..answers.len()).find_map(|end| resp_length(&answers[..end], 2)), None);
        assert_eq!(resp_length(answers, 2), Some(answers.len()));
        let expected = Verdicts { allowed: 1, denied: 1, by: [1, 1, 0, 0] };
        assert_eq!(verdicts(&Dialect::Resp { pipeline: 2 }, 200, answers), Ok(expected));
        assert_eq!(resp_length(b"-ERR a\r\n", 1), Some(8));
        assert_eq!(verdicts(&Dialect::Resp { pipeline: 1 }, 200, b"-ERR a\r\n"), Err(Failure::Refused));
    }

    #[test]
    fn each_peer_tells_a_denial_in_its_way() {
        let (yes, no) = (Ok(one(true)), Ok(one(false)));
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
