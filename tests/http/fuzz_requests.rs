//! Broken requests over a socket: the node answers or closes each, and continues unchanged.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::json;
use tempfile::NamedTempFile;

use crate::support::dice::Dice;
use crate::support::fuzz::{cases, corpus};
use crate::support::http::{self, Connection};
use crate::support::mutation::mutant;
use crate::support::{Node, file_with, resident_kib};

const POLICIES: &str = "\
policies:
  default: {quotas: [1000000 per 1h]}
  own: {quotas: [1000000 per 1h], inline: true}
  log: {algorithm: sliding-log, quotas: [100 per 1s]}
";

/// The maximum growth of a node, MiB: buffers and the counters of keys, not leftovers of broken
/// requests.
const GROWTH: u64 = 64;

fn node() -> (Node, NamedTempFile) {
    let file = file_with(POLICIES);
    (Node::with_config(&file), file)
}

#[test]
fn mutated_bodies_get_a_response_with_detail() {
    let (mut node, _file) = node();
    let corpus = corpus(&["fuzz/bodies"]);
    let mut connection = Connection::open(&node.address).unwrap();
    for seed in 0..cases(4000) {
        let dice = &mut Dice::new(seed);
        let path = dice.one_of(&["/v1/check", "/v1/check/batch", "/v1/check/all", "/v1/refund"]);
        let body = mutant(&corpus, dice);
        connection.send(&http::json_request(path, &body)).unwrap();
        let answer = connection.receive(true).unwrap_or_else(|error| panic!("seed {seed}, {path}: {error}"));
        assert!(matches!(answer.status, 200 | 400 | 404 | 409 | 413 | 422), "seed {seed}, {path}: {answer:?}");
        if answer.status != 200 {
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "seed {seed}, {path}");
            let problem = answer.json();
            assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "seed {seed}: {problem}");
        }
    }
    assert!(node.is_alive());
}

/// A hundred thousand in the long run.
#[test]
fn mutated_bytes_get_a_response_or_close_without_memory_growth() {
    let (mut node, _file) = node();
    let corpus = corpus(&["fuzz/requests"]);
    let attempt = |seed| {
        // Odd seeds, so that these differ from those of the bodies.
        let bytes = mutant(&corpus, &mut Dice::new(seed * 2 + 1));
        let mut stream = TcpStream::connect(&node.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The node may have answered and closed before it had everything.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("seed {seed}: neither answered nor cut off: {:?}", String::from_utf8_lossy(&bytes))
            }
            _ => {}
        }
        let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        // A client with the HTTP/2 preface first gets a SETTINGS frame (RFC 9113, section 3.4).
        let is_http2 = bytes.starts_with(b"PRI * HTTP/2.0") && answer.get(3) == Some(&4);
        assert!(answer.is_empty() || is_http2 || head.starts_with("HTTP/1."), "seed {seed}: {head}");
        assert!(!head.contains(" 500"), "seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
    };
    let count = cases(2000);
    (0..count / 10).for_each(attempt);
    let before = resident_kib(node.pid());
    (count / 10..count).for_each(attempt);
    let after = resident_kib(node.pid());
    assert!(after < before + GROWTH * 1024, "{before} KiB before, {after} KiB after");
    println!("{count} broken requests: {before} KiB before the last nine tenths, {after} KiB after");
    let body = json!({"key": "k"}).to_string();
    assert_eq!(http::post(&node.address, "/v1/check", body).status, 200);
    assert!(node.is_alive());
}
