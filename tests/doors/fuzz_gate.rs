//! Malformed questions over a socket: the node answers or closes each, and keeps its memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::support::dice::Dice;
use crate::support::fuzz::{cases, corpus};
use crate::support::mutation::mutant;
use crate::support::{Node, file_with, http, resident_kib};

const GATES: &str = "
policies:
  per-ip: {key: {type: ip}, quotas: [1000000 per 1h]}
  per-user: {quotas: [1000000 per 1h]}
gates:
  edge: &edge
    client_from: x-forwarded-for
    trusted_proxies: [127.0.0.1/32, 10.0.0.0/8]
    identity_headers: [x-user]
    rules:
      - {name: login, match: {methods: [POST], paths: [/login]}, checks: [{policy: per-ip, key: '{client_ip}'}]}
      - {match: {hosts: [api.example.com], paths: [/v1/*]}, checks: [{policy: per-user, key: '{host}:{header.x-user}'}]}
      - checks: [{policy: per-user, key: '{method} {header.x-user}'}, {policy: per-ip, key: '{client_ip}'}]
  forwarded: {<<: *edge, request_from: forwarded, missing_key: client_ip}
  original: {<<: *edge, request_from: original, client_from: x-real-ip, missing_key: allow}
";

/// The maximum growth of a node, MiB: buffers and the counters of keys.
const GROWTH: u64 = 64;

/// A hundred thousand in the long run: `scripts/fuzz 50`.
#[test]
fn malformed_questions_get_a_response_or_close_without_memory_growth() {
    let file = file_with(GATES);
    let mut node = Node::with_config(&file);
    let corpus = corpus(&["fuzz/gate"]);
    let attempt = |seed| {
        let bytes = mutant(&corpus, &mut Dice::new(seed));
        let answer = exchange(&node.address, &bytes);
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        let answer = answer.unwrap_or_else(|| panic!("seed {seed}: neither answered nor cut off: {:?}", text()));
        let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        let is_http2 = bytes.starts_with(b"PRI * HTTP/2.0") && answer.get(3) == Some(&4);
        assert!(answer.is_empty() || is_http2 || head.starts_with("HTTP/1."), "seed {seed}: {head}");
        assert!(!head.contains(" 5"), "seed {seed}: {head}: {:?}", text());
    };
    let count = cases(2000);
    (0..count / 10).for_each(attempt);
    let before = resident_kib(node.pid());
    (count / 10..count).for_each(attempt);
    let after = resident_kib(node.pid());
    println!("{count} malformed questions: {before} KiB before the last nine tenths, {after} KiB after");
    assert!(after < before + GROWTH * 1024, "{before} KiB before, {after} KiB after");
    let allowed = http::request("POST", "/v1/gate/edge/login", &[("X-Forwarded-For", "203.0.113.7")], b"");
    assert_eq!(http::exchange(&node.address, &allowed).status, 200);
    assert!(node.is_alive());
}

/// The answer of the node, or none if it neither answers nor closes.
fn exchange(address: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The node may have answered and closed before it had everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        _ => Some(answer),
    }
}
