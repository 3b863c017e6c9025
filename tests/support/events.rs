//! A client of `GET /v1/live`: server-sent events over HTTP/1.1.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::http;
use super::openapi::{DOCUMENT, faults};

/// A subscription.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    /// Bytes of the body that belong to no event yet.
    rest: Vec<u8>,
    pub(crate) head: String,
}

impl Events {
    /// Subscribes by `/v1/live` and this query, and reads the head of the answer.
    pub(crate) fn open(address: &str, query: &str, token: Option<&str>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut stream = BufReader::new(stream);
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer.as_deref().map(|bearer| ("Authorization", bearer)).into_iter().collect();
        let request = http::request("GET", &format!("/v1/live{query}"), &headers, b"");
        stream.get_mut().write_all(&request).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
        Self { stream, rest: Vec::new(), head: head.to_lowercase() }
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap()
    }

    /// The text of the next event, or none at the end of the stream.
    pub(crate) fn next_text(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                return Some(String::from_utf8(event).unwrap());
            }
            let chunk = self.chunk()?;
            self.rest.extend(chunk);
        }
    }

    /// The next snapshot, which must match the OpenAPI document.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            let text = self.next_text()?;
            let Some(data) = text.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
            let snapshot: Value = serde_json::from_str(data).unwrap();
            assert!(text.starts_with(&format!("event: snapshot\nid: {}\n", snapshot["at"])), "{text}");
            let found = faults(&DOCUMENT["components"]["schemas"]["Snapshot"], &snapshot, "");
            assert!(found.is_empty(), "openapi.json knows nothing of {found:#?}\nin {snapshot}");
            return Some(snapshot);
        }
    }

    /// The next snapshot for which `condition` holds.
    pub(crate) fn until(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..30 {
            let snapshot = self.next().unwrap_or_else(|| panic!("the stream ended before {what}"));
            if condition(&snapshot) {
                return snapshot;
            }
        }
        panic!("30 snapshots came before {what}");
    }

    /// The next chunk of the body; none at its end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("{error}"),
        }
        let length = usize::from_str_radix(line.trim_end(), 16).ok().filter(|length| *length > 0)?;
        let mut chunk = vec![0; length + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(length);
        Some(chunk)
    }
}

/// The counts of all `seconds` by policy, outcome and source.
pub(crate) fn sum(snapshots: &[Value], policy: &str, outcome: &str, source: &str) -> u64 {
    let seconds = snapshots.iter().flat_map(|snapshot| snapshot["seconds"].as_array().unwrap());
    let checks = seconds.flat_map(|second| second["checks"].as_array().unwrap());
    let of = checks
        .filter(|checks| checks["policy"] == policy && checks["outcome"] == outcome && checks["source"] == source);
    of.map(|checks| checks["count"].as_u64().unwrap()).sum()
}
