//! A node rejects requests whose length or target a proxy may understand differently.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::tls::Authority;
use crate::support::{Node, node_with};

const CHECK: &str = r#"{"key":"k"}"#;

/// A second request after a rejected one: it must get no response.
const HIDDEN: &str = "GET /health/live HTTP/1.1\r\nHost: t\r\n\r\n";

/// (request, status). `BODY` is a check of 11 bytes, `CHUNKS` the same in one chunk.
const REQUESTS: &[(&str, u16)] = &[
    // RFC 9112, 6: a length, or one `chunked`.
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11||BODY", 200),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked||CHUNKS", 200),
    ("POST /v1/check HTTP/1.1|Host: t|J|tRANSFER-eNCODING: Chunked||CHUNKS", 200),
    ("GET /health/live HTTP/1.1|Host: t||", 200),
    // RFC 9112, 6.1 and 6.3: both.
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11|Transfer-Encoding: chunked||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked|Content-Length: 11||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|transfer-encoding:chunked|X: y|CONTENT-LENGTH:4||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 0|Transfer-Encoding: chunked||CHUNKS", 400),
    ("GET /health/live HTTP/1.1|Host: t|Content-Length: 0|Transfer-Encoding: chunked||0||", 400),
    // RFC 9112, 6.1: codings that a server does not understand; `chunked` not last, or twice.
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: gzip, chunked||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked, chunked||CHUNKS", 400),
    (
        "POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked|Transfer-Encoding: chunked||CHUNKS",
        400,
    ),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: gzip|Transfer-Encoding: chunked||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: identity||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked, identity||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: identity, chunked||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: xchunked||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: \"chunked\"||CHUNKS", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding:||CHUNKS", 400),
    // RFC 9112, 6.1: HTTP/1.0 has no codings.
    ("POST /v1/check HTTP/1.0|Host: t|J|Transfer-Encoding: chunked||CHUNKS", 400),
    // RFC 9112, 6.3, and RFC 9110, 8.6: invalid lengths, or two.
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: +11||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 0x0b||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11, 11||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11|Content-Length: 12||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 1 1||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: -1||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length:||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 99999999999999999999||BODY", 400),
    // RFC 9112, 3.2: exactly one valid Host; only HTTP/1.0 needs none.
    ("GET /health/live HTTP/1.1||", 400),
    ("GET /health/live HTTP/1.1|Host: t|Host: t||", 400),
    ("GET /health/live HTTP/1.1|Host: t|hOST: u||", 400),
    ("GET /health/live HTTP/1.1|Host: a b||", 400),
    ("GET /health/live HTTP/1.1|Host: a, b||", 400),
    ("GET /health/live HTTP/1.1|Host: me@t||", 400),
    ("GET /health/live HTTP/1.1|Host: t/x||", 400),
    ("GET /health/live HTTP/1.1|Host: t:x||", 400),
    ("GET /health/live HTTP/1.1|Host: [::1||", 400),
    ("GET /health/live HTTP/1.1|Host: [::1]:7070||", 200),
    ("GET /health/live HTTP/1.1|Host:||", 200),
    ("GET /health/live HTTP/1.0||", 200),
    ("GET /health/live HTTP/1.0|Host: t|Host: u||", 400),
    // RFC 9112, 3.2.2: an absolute target overrides Host, which is still required.
    ("GET http://other/health/live HTTP/1.1|Host: t||", 200),
    ("GET http://other/health/live HTTP/1.1||", 400),
    // RFC 9112, 5.1 and 5.2: no space before a colon, no folded line.
    ("GET /health/live HTTP/1.1|Host : t||", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Content-Length : 11||BODY", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding : chunked||CHUNKS", 400),
    ("GET /health/live HTTP/1.1|Host: t|X: a| b||", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding:| chunked||CHUNKS", 400),
    ("GET /health/live HTTP/1.1| Host: t||", 400),
    // RFC 9112, 2.2: a line may end in a single LF; a single CR ends no line.
    ("GET /health/live HTTP/1.1\nHost: t\n\n", 200),
    ("POST /v1/check HTTP/1.1\nHost: t\nContent-Length: 11\nTransfer-Encoding: chunked\n\nCHUNKS", 400),
    ("GET /health/live HTTP/1.1|Host: t|X: a\rY: b||", 400),
    ("GET /health/live HTTP/1.1|Host: t|X: a\0b||", 400),
    // RFC 9112, 3: one request line.
    ("GET /health/live  HTTP/1.1|Host: t||", 400),
    ("GET /health/live HTTP/1.1 x|Host: t||", 400),
    ("GET /health/ live HTTP/1.1|Host: t||", 400),
    ("GET /health/live HTTP/2.0|Host: t||", 400),
    // RFC 9112, 7.1: chunks.
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked||0x0b|BODY|0||", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked||-1|BODY|0||", 400),
    ("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked||bBODYx|0||", 400),
];

fn bytes(request: &str) -> Vec<u8> {
    let request = request.replace("CHUNKS", "b|BODY|0||").replace("BODY", CHECK);
    request.replace("|J|", "|Content-Type: application/json|").replace('|', "\r\n").into_bytes()
}

/// Reads everything until the node closes the connection or stays silent for a while.
fn said(address: &str, request: &[u8]) -> (String, bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request).unwrap();
    let mut said = Vec::new();
    let closed = loop {
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(0) => break true,
            Ok(read) => said.extend(&part[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break true,
            Err(_) => break false,
        }
        let answered = said.windows(9).filter(|part| part.starts_with(b"HTTP/1.")).count();
        // Both requests have their responses.
        if answered == 2 {
            let _ = stream.shutdown(Shutdown::Write);
        }
    };
    (String::from_utf8_lossy(&said).into_owned(), closed)
}

#[test]
fn ambiguous_framing_is_rejected_and_connection_closed() {
    let mut node = node_with("policies: {default: {quotas: [1000 per 1h]}}");
    let mut wrong = Vec::new();
    for (request, status) in REQUESTS {
        let sent = [&bytes(request)[..], HIDDEN.as_bytes()].concat();
        let (said, closed) = said(&node.address, &sent);
        let found: Option<u16> = said.get(9..12).and_then(|status| status.parse().ok());
        let answers = said.matches("HTTP/1.").count();
        let only_one = *status == 200 || answers == 1 && closed;
        // A rejection by hyper has no body; any other has a problem document.
        let has_right_body = *status == 200 || said.contains("about:blank") || !said.contains('{');
        if found != Some(*status) || !only_one || !has_right_body && found != Some(400) {
            wrong.push(format!("{request}: {status} expected, and {answers} answers: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REQUESTS.len(), wrong.join("\n"));
    assert!(node.is_alive());
}

#[test]
fn rejected_framing_has_a_problem_document() {
    let node = Node::start();
    let (said, _) = said(&node.address, b"GET /health/live HTTP/1.1\r\n\r\n");
    let said = said.to_ascii_lowercase();
    for part in ["http/1.1 400", "content-type: application/problem+json", "connection: close", "x-request-id: "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        said.contains(r#""type":"about:blank","title":"bad request","status":400,"detail":"send host""#),
        "{said}"
    );
}

/// The check also covers TLS, and requests that arrive in pieces after others.
#[test]
fn conflicting_lengths_are_rejected_in_any_position() {
    let authority = Authority::new();
    authority.sign("node");
    let text = "tls: {cert_file: node.pem, key_file: node.key}\npolicies: {default: {quotas: [1000 per 1h]}}";
    std::fs::write(authority.path("my.yaml"), text).unwrap();
    let encrypted = Node::start_with(&["--config", &authority.text("my.yaml")]);
    let both = bytes("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11|Transfer-Encoding: chunked||CHUNKS");
    let (answer, _) = crate::support::tls::exchange(&encrypted.address, authority.client(None), &both).unwrap();
    assert_eq!(answer.status, 400);

    let node = node_with("policies: {default: {quotas: [1000 per 1h]}}");
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let before = bytes("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11||BODY");
    let chunked = bytes("POST /v1/check HTTP/1.1|Host: t|J|Transfer-Encoding: chunked||CHUNKS");
    let all = [&before[..], &chunked, &before, &both].concat();
    for piece in all.chunks(7) {
        // The node may already have closed the connection.
        let _ = stream.write_all(piece);
    }
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    assert_eq!((said.matches("HTTP/1.1 200").count(), said.matches("HTTP/1.1 400").count()), (3, 1), "{said}");
}

/// Field lines in a body belong to no head.
#[test]
fn header_like_body_does_not_split_the_request() {
    let node = node_with("policies: {default: {quotas: [1000 per 1h]}}");
    let body = "\r\nTransfer-Encoding: chunked\r\n\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let length = body.len();
    let hiding = format!(
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let good = bytes("POST /v1/check HTTP/1.1|Host: t|J|Content-Length: 11|Connection: close||BODY");
    let (said, closed) = said(&node.address, &[hiding.as_bytes(), &good].concat());
    assert!(closed && said.contains("malformed-json") && said.contains("\"allowed\":true"), "{said}");
}

/// The status of `GET /health/live` over HTTP/2 with these fields.
async fn status_over_http2(node: &Node, fields: &[(&str, &str)]) -> Option<u16> {
    let stream = tokio::net::TcpStream::connect(&node.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake::<_, _, String>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(format!("{}/health/live", node.url()));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let answer = sender.send_request(request.body(String::new()).unwrap()).await;
    answer.map(|answer| answer.status().as_u16()).ok()
}

/// RFC 9113, 8.2.2 and 8.3.1.
#[tokio::test]
async fn http2_host_and_authority_must_agree() {
    let node = node_with("policies: {default: {quotas: [1000 per 1h]}}");
    let ask = async |fields: &[(&str, &str)]| status_over_http2(&node, fields).await;
    let own = node.address.as_str();
    assert_eq!(ask(&[]).await, Some(200));
    assert_eq!(ask(&[("host", own)]).await, Some(200));
    assert_eq!(ask(&[("host", "other")]).await, Some(400));
    assert_eq!(ask(&[("host", own), ("host", own)]).await, Some(400));
    assert_eq!(ask(&[("te", "trailers")]).await, Some(200));
}

#[tokio::test]
async fn more_than_hundred_fields_are_refused_over_each_version() {
    let node = node_with("policies: {default: {quotas: [1000 per 1h]}}");
    for (count, status) in [(95, 200), (101, 431), (400, 431)] {
        assert_eq!(status_over_http2(&node, &vec![("x", "y"); count]).await, Some(status), "{count}");
        let request = format!("GET /health/live HTTP/1.1\r\nHost: t\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert_eq!(crate::support::http::exchange(&node.address, request.as_bytes()).status, status, "{count}");
    }
}
