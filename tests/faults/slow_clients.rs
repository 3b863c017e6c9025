//! Clients that send requests slowly, stay silent, or open many connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

use crate::support::frames::{PREFACE, frame, next_frame, ping};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::{Node, config_on, file_with, http, wait_until};

const PEEK: &[u8] = br#"{"policy": "p", "key": "k", "cost": 0}"#;

fn node(limits: &str) -> (Node, NamedTempFile) {
    let file = file_with(&format!("limits: {limits}\npolicies: {{p: {{quotas: [5 per 1h]}}}}\n"));
    (Node::with_config(&file), file)
}

/// Sends the next piece of its request. Returns whether the node has closed the connection.
fn trickles(stream: &mut TcpStream, piece: &[u8]) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    if stream.write_all(piece).is_err() {
        return true;
    }
    match stream.read(&mut [0; 1024]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// Slowloris: a header field at a time, never the last; and bodies without an end.
#[test]
fn trickled_request_is_cut_off_without_delaying_others() {
    let (node, _file) = node("{request_timeout: 2s}");
    let open = |start: &[u8]| {
        let mut stream = TcpStream::connect(&node.address).unwrap();
        stream.write_all(start).unwrap();
        stream
    };
    let mut headers: Vec<_> = (0..50).map(|_| open(b"POST /v1/check HTTP/1.1\r\nHost: t\r\n")).collect();
    let body =
        b"POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n ";
    let mut bodies: Vec<_> = (0..50).map(|_| open(body)).collect();
    let mut silent: Vec<_> = (0..50).map(|_| open(b"")).collect();
    assert_eq!(http::post(&node.address, "/v1/check", PEEK).status, 200);
    for (streams, piece) in [(&mut headers, &b"X-A: b\r\n"[..]), (&mut bodies, b" "), (&mut silent, b"")] {
        wait_until("each is cut off", || {
            streams.retain_mut(|stream| !trickles(stream, piece));
            streams.is_empty()
        });
    }
    assert_eq!(http::post(&node.address, "/v1/check", PEEK).status, 200);
}

/// Many requests in one write, more than one turn of a connection handles. The same in pieces with
/// arbitrary bounds, and with bodies without a length. Each must wake the connection again.
#[test]
fn pipelined_and_fragmented_requests_are_answered() {
    const REQUESTS: usize = 100;
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {p: {quotas: [1000000 per 1h], timeout: 10s}}");
    let (by_redis, (embedded, _file)) = (Node::with_config(&file), node("{request_timeout: 10s}"));
    let check = http::json_request("/v1/check", PEEK);
    let head =
        "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunked = [head.as_bytes(), format!("{:x}\r\n", PEEK.len()).as_bytes(), PEEK, b"\r\n0\r\n\r\n"].concat();
    for node in [&embedded, &by_redis] {
        for request in [&check, &chunked] {
            for piece in [usize::MAX, 1000, 97, 2] {
                let mut connection = http::Connection::open(&node.address).unwrap();
                let count = if piece < 97 { 3 } else { REQUESTS };
                for piece in request.repeat(count).chunks(piece) {
                    connection.send(piece).unwrap();
                }
                for answered in 0..count {
                    let answer = connection.receive(true);
                    let answer = answer.unwrap_or_else(|error| panic!("{error} after {answered}, pieces of {piece}"));
                    assert_eq!((answer.status, &answer.json()["source"]), (200, &Value::from("store")), "{piece}");
                }
            }
        }
    }
}

/// A half-closed client, such as `nc -N`. The node reads the end of the stream long before the
/// store answers.
#[test]
fn half_closed_client_receives_its_response() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let file = config_on(&[proxy.url()], "policies: {p: {quotas: [1000000 per 1h], timeout: 10s}}");
    let node = Node::with_config(&file);
    wait_until("the store decides", || http::post(&node.address, "/v1/check", PEEK).json()["source"] == "store");
    proxy.delay(100);
    for call in 0..5 {
        let mut stream = TcpStream::connect(&node.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&http::json_request("/v1/check", PEEK)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the connection is closed");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""source":"store""#), "{call}: {answer}");
    }
}

/// A partial HTTP/2 preface does not exempt a connection from the timeout.
#[test]
fn half_an_http2_preface_is_cut_off() {
    let (node, _file) = node("{request_timeout: 1s}");
    let mut streams: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&node.address).unwrap();
            stream.write_all(&PREFACE[..12]).unwrap();
            stream
        })
        .collect();
    wait_until("each is cut off", || {
        streams.retain_mut(|stream| !trickles(stream, b""));
        streams.is_empty()
    });
}

#[test]
fn http2_preface_may_arrive_in_pieces() {
    let (node, _file) = node("{request_timeout: 1s}");
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut silent = TcpStream::connect(&node.address).unwrap();
    // SETTINGS, and the acknowledgement of the node's own, which gets no reply.
    for piece in [&PREFACE[..3], &PREFACE[3..], &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")] {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "the time of a client is over");
    stream.write_all(&ping()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut heard = Vec::new();
    let mut bytes = [0; 1024];
    while !heard.ends_with(b"anybody?") {
        let count = stream.read(&mut bytes).expect("the connection stands");
        assert!(count > 0, "it was cut off after {heard:?}");
        heard.extend(&bytes[..count]);
    }
}

/// An HTTP/2 client that grants a window for all its responses, and reads nothing.
#[test]
fn http2_client_that_never_reads_is_cut_off() {
    let (node, _file) = node("{request_timeout: 1s}");
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let room = i32::MAX.to_be_bytes();
    let settings = [&[0, 4], &room[..]].concat();
    let more = (i32::MAX - 65_535).to_be_bytes();
    let hello = [PREFACE, &frame(4, 0, 0, &settings), &frame(8, 0, 0, &more)].concat();
    stream.write_all(&hello).unwrap();
    // GET, http, and two literal fields (RFC 7541, 6.2.2): a path and a host.
    let head = b"\x82\x86\x04\x08/metrics\x01\x04host";
    for call in 0..2000 {
        let stream_id = 2 * call + 1;
        if stream.write_all(&frame(1, 5, stream_id, head)).is_err() {
            break;
        }
        if call % 50 == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let stuck =
        |error: &std::io::Error| matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
    wait_until("it is cut off", || {
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&ping()).is_err_and(|error| !stuck(&error))
    });
}

/// An HTTP/2 client may send requests continuously and grant no window for the responses.
#[tokio::test]
async fn http2_client_that_leaves_long_response_unread_is_cut_off() {
    let (node, _file) = node("{request_timeout: 5s}");
    let checks = vec![str::from_utf8(PEEK).unwrap(); 1000].join(",");
    let ask = async || {
        let stream = tokio::net::TcpStream::connect(&node.address).await.unwrap();
        let mut client = http2::Builder::new(TokioExecutor::new());
        let connected = client.initial_stream_window_size(1000).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::post(format!("{}/v1/check/batch", node.url()))
            .header("Content-Type", "application/json")
            .body(format!("{{\"checks\": [{checks}]}}"));
        (sender.send_request(request.unwrap()).await.unwrap(), sender, connection)
    };
    let (answer, _sender, _) = ask().await;
    let length: usize = answer.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((body.len(), length > 100_000), (length, true));
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["results"].as_array().unwrap().len(), 1000);

    let (unread, _sender, connection) = ask().await;
    let _ = tokio::time::timeout(Duration::from_secs(30), connection).await.expect("it is cut off");
    assert!(unread.into_body().collect().await.is_err());
}

/// An HTTP/2 client that grants no window, and the task of its connection.
async fn without_window(node: &Node) -> (http2::SendRequest<String>, JoinHandle<hyper::Result<()>>) {
    let stream = tokio::net::TcpStream::connect(&node.address).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    let connected = client.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.unwrap();
    (sender, tokio::spawn(connection))
}

fn post_to(node: &Node, path: &str, body: &str) -> Request<String> {
    let request = Request::post(format!("{}{path}", node.url())).header("Content-Type", "application/json");
    request.body(body.to_owned()).unwrap()
}

/// Unread short responses have a time limit too.
#[tokio::test]
async fn http2_client_that_leaves_short_response_unread_is_cut_off() {
    let (node, _file) = node("{request_timeout: 1s}");
    let (mut sender, connection) = without_window(&node).await;
    let check = post_to(&node, "/v1/check", str::from_utf8(PEEK).unwrap());
    let unread = sender.send_request(check).await.unwrap();
    assert_eq!(unread.status(), 200);
    let _ = tokio::time::timeout(Duration::from_secs(10), connection).await.expect("it is cut off");
}

/// Responses are longer than their requests. The node buffers unread data up to a cap; connections
/// that read continue.
#[tokio::test]
async fn unread_http2_responses_are_bounded_per_connection() {
    let (node, _file) = node("{request_timeout: 50s}");
    let (mut sender, _connection) = without_window(&node).await;
    // Answers repeat the keys, so 99 of them exceed the half of the budget that a connection gets.
    let check = format!(r#"{{"key": "{}"}}"#, "k".repeat(200));
    let batch = format!(r#"{{"checks": [{}]}}"#, vec![check; 1000].join(","));
    // A connection has at most 100 streams, and one is for health.
    let asked = (0..99).map(|_| {
        let (mut sender, request) = (sender.clone(), post_to(&node, "/v1/check/batch", &batch));
        async move { sender.send_request(request).await.unwrap() }
    });
    let unread = join_all(asked).await;
    let length = |answer: &Response<Incoming>| -> usize {
        answer.headers()["content-length"].to_str().unwrap().parse().unwrap()
    };
    let (kept, refused): (Vec<_>, Vec<_>) = unread.iter().partition(|answer| length(answer) > 1000);
    let bytes: usize = kept.iter().map(|answer| length(answer)).sum();
    assert!((1_000_000..34_000_000).contains(&bytes), "{bytes} bytes in {} answers are kept", kept.len());
    assert!(refused.iter().all(|answer| answer.status() == 503 && answer.headers().contains_key("x-request-id")));
    let metrics = node.metrics();
    assert!(metrics.contains(&format!("\ntollgate_shed_total {}\n", refused.len())), "{metrics}");
    let alive = Request::get(format!("http://{}/health/live", node.address)).body(String::new()).unwrap();
    assert_eq!(sender.send_request(alive).await.unwrap().status(), 200, "health is always answered");
    assert_eq!(http::post(&node.address, "/v1/check", PEEK).status, 200);
}

#[test]
fn idle_connection_is_closed() {
    let (node, _file) = node("{idle_timeout: 1s}");
    let mut connection = http::Connection::open(&node.address).unwrap();
    connection.send(&http::json_request("/v1/check", PEEK)).unwrap();
    assert_eq!(connection.receive(true).unwrap().status, 200);
    assert!(connection.receive(true).is_err(), "it is closed, within the ten seconds of a read");
}

/// A client that answers pings without a request occupies a place that others need.
#[test]
fn idle_http2_connection_gets_goaway_and_closes() {
    let (node, _file) = node("{idle_timeout: 1s}");
    let mut idle = TcpStream::connect(&node.address).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    idle.write_all(&[PREFACE, &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat()).unwrap();
    let mut told = false;
    while let Some((kind, flags, payload)) = next_frame(&mut idle) {
        told |= kind == 7;
        if (kind, flags) == (6, 0) {
            idle.write_all(&frame(6, 1, 0, &payload)).unwrap();
        }
    }
    assert!(told, "it is closed without a word");
}

/// The node closes it even without a reaction to GOAWAY.
#[test]
fn silent_idle_http2_connection_is_closed() {
    let (node, _file) = node("{idle_timeout: 1s, request_timeout: 1s}");
    let mut idle = TcpStream::connect(&node.address).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    idle.write_all(&[PREFACE, &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat()).unwrap();
    let mut told = false;
    while let Some((kind, ..)) = next_frame(&mut idle) {
        told |= kind == 7;
    }
    assert!(told, "it is closed without a word");
}

/// Open connections continue; the node rejects new ones until one of them closes.
#[test]
fn connections_beyond_limit_are_rejected() {
    let (node, _file) = node("{max_connections: 10}");
    let mut open: Vec<_> = (0..10)
        .map(|_| {
            let mut connection = http::Connection::open(&node.address).unwrap();
            connection.send(&http::json_request("/v1/check", PEEK)).unwrap();
            assert_eq!(connection.receive(true).unwrap().status, 200);
            connection
        })
        .collect();
    let ask = || http::try_exchange(&node.address, &http::json_request("/v1/check", PEEK));
    for _ in 0..5 {
        assert!(ask().is_err(), "an eleventh connection was answered");
    }
    open[3].send(&http::json_request("/v1/check", PEEK)).unwrap();
    assert_eq!(open[3].receive(true).unwrap().status, 200);
    open.pop();
    wait_until("there is room again", || ask().is_ok_and(|answer| answer.status == 200));
}

/// A log line for each connection would let a client fill the disk.
#[test]
fn rejected_connections_are_counted_and_rarely_logged() {
    const REFUSED: usize = 30;
    let file =
        file_with("limits: {max_connections: 1}\nadmin_listen: 127.0.0.1:0\npolicies: {p: {quotas: [5 per 1h]}}\n");
    let log = NamedTempFile::new().unwrap();
    let mut program = Command::new(crate::support::TOLLGATE);
    program.stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &["--config", file.path().to_str().unwrap()]);
    let admin = node.greeting.split("http://").find_map(|rest| {
        let address = rest.split_whitespace().next()?;
        (address.starts_with("127.0.0.1:") && address != node.address).then(|| address.to_owned())
    });
    let admin = admin.unwrap_or_else(|| panic!("no second address in {}", node.greeting));
    let peek = http::json_request("/v1/check", PEEK);
    let mut answered = None;
    for _ in 0..REFUSED {
        // The client occupies the one place, the node rejects a second client, and the first one
        // leaves.
        drop(answered.take());
        wait_until("there is room", || {
            let mut connection = http::Connection::open(&node.address).unwrap();
            answered = connection.send(&peek).and_then(|()| connection.receive(true)).is_ok().then_some(connection);
            answered.is_some()
        });
        assert!(http::try_exchange(&node.address, &peek).is_err(), "a second connection was answered");
    }
    let metrics = String::from_utf8(http::get(&admin, "/metrics").body).unwrap();
    let counted = metrics.lines().find_map(|line| line.strip_prefix("tollgate_connections_refused_total "));
    assert!(counted.unwrap().parse::<usize>().unwrap() >= REFUSED, "{metrics}");
    let told = std::fs::read_to_string(log.path()).unwrap();
    let lines = told.lines().filter(|line| line.contains("connections are refused")).count();
    assert!((1..REFUSED / 3).contains(&lines), "{lines} lines of {REFUSED} refusals: {told}");
    assert!(told.contains("suppressed"), "{told}");
}

/// The same for connections beyond the node's descriptors.
#[test]
fn exhausted_descriptors_are_rarely_logged() {
    let log = NamedTempFile::new().unwrap();
    let mut program = Command::new(crate::support::TOLLGATE);
    program.stderr(log.reopen().unwrap());
    let node = Node::start_by(program, &[]);
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count();
    let limit = Rlimit { current: Some(open as u64 + 3), ..getrlimit(Resource::Nofile) };
    prlimit(Pid::from_raw(node.pid().cast_signed()), Resource::Nofile, limit).unwrap();
    let clients: Vec<_> = (0..10).map(|_| TcpStream::connect(&node.address).unwrap()).collect();
    // The node retries every 100 ms.
    std::thread::sleep(Duration::from_secs(2));
    drop(clients);
    wait_until("there is room again", || {
        http::try_exchange(&node.address, &http::json_request("/v1/policies", b"")).is_ok()
    });
    let told = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(told.matches("cannot accept connections").count(), 1, "{told}");
}

/// The same for HTTP/2 protocol errors.
#[test]
fn http2_client_faults_are_not_logged() {
    let log = NamedTempFile::new().unwrap();
    let mut program = Command::new(crate::support::TOLLGATE);
    program.env_remove("RUST_LOG").stderr(log.reopen().unwrap());
    let mut node = Node::start_by(program, &[]);
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // Unsolicited ping acknowledgements, and a ping.
    let unwanted = frame(6, 1, 0, b"nothing!").repeat(100);
    stream.write_all(&[PREFACE, &frame(4, 0, 0, b""), &unwanted, &ping()].concat()).unwrap();
    wait_until("it has heard all", || next_frame(&mut stream).unwrap() == (6, 1, b"anybody?".to_vec()));
    drop(stream);
    node.terminate();
    node.ended();
    let told = std::fs::read_to_string(log.path()).unwrap();
    assert!(told.contains("stopped") && !told.contains("h2::"), "{told}");
}

/// With fewer descriptors than permitted connections, clients do not use those reserved for Redis.
#[test]
fn clients_leave_descriptors_for_redis() {
    let server = Server::start();
    let file = config_on(&[server.url()], "policies: {p: {quotas: [5 per 1h]}}");
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=300:300", crate::support::TOLLGATE]);
    let node = Node::start_by(limited, &["--config", file.path().to_str().unwrap()]);
    let mut asking = http::Connection::open(&node.address).unwrap();
    let mut source = || {
        asking.send(&http::json_request("/v1/check", PEEK)).unwrap();
        asking.receive(true).unwrap().json()["source"].clone()
    };
    wait_until("the store decides", || source() == "store");
    let _open: Vec<_> = (0..400).map(|_| TcpStream::connect(&node.address)).collect();
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal"])
        .exec(&mut server.connection().unwrap())
        .unwrap();
    // Waiting clients would get the freed descriptors, if the node permitted it.
    std::thread::sleep(Duration::from_millis(200));
    wait_until("the store decides again", || source() == "store");
}

/// The kernel grows a shared descriptor table only after all cores have been idle once. This blocks
/// a thread, for seconds on busy cores. The node therefore sets the size at the start.
#[test]
fn descriptors_are_reserved_at_start() {
    let file = file_with("limits: {max_connections: 3000}\npolicies: {p: {quotas: [5 per 1h]}}\n");
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=300:5000", crate::support::TOLLGATE]);
    let node = Node::start_by(limited, &["--config", file.path().to_str().unwrap()]);
    let told = |file: &str, line: &str| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", node.pid())).unwrap();
        let rest = text.lines().find_map(|each| each.strip_prefix(line)).unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert!(told("limits", "Max open files") > 3000);
    assert!(told("status", "FDSize:") > 3000);
    drop(node);

    let log = NamedTempFile::new().unwrap();
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=100:200", crate::support::TOLLGATE]).stderr(log.reopen().unwrap());
    let mut node = Node::start_by(limited, &["--config", file.path().to_str().unwrap()]);
    assert_eq!(http::post(&node.address, "/v1/check", str::from_utf8(PEEK).unwrap()).status, 200);
    node.terminate();
    node.ended();
    let told = std::fs::read_to_string(log.path()).unwrap();
    assert!(told.contains("ulimit -n"), "{told}");
}
