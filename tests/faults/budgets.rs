//! Requests count before they are whole, on each door, and take nothing from other callers.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::doors::Doors;
use crate::support::frames::{self, GOAWAY, HEADERS, fields, opening, references, requests, settle};
use crate::support::{http, resident_kib, wait_until};

const MIB: u64 = 1024;

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const GRPC: [(&str, &str); 1] = [("content-type", "application/grpc")];
const CHECK: &[u8] = br#"{"policy": "p", "key": "k"}"#;

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Connections with so many requests each, which the node has read, or has ended.
fn hold(address: &str, connections: usize, fields: &[u8], is_whole: bool) -> Vec<TcpStream> {
    let bytes = [opening(), requests(200, fields, is_whole)].concat();
    let opened = (0..connections).map(|_| {
        let mut stream = connect(address);
        let _ = stream.write_all(&[bytes.clone(), frames::ping()].concat());
        stream
    });
    let mut opened: Vec<_> = opened.collect();
    for stream in &mut opened {
        while frames::next_frame(stream).is_some_and(|(kind, flags, _)| !frames::is_pong(kind, flags)) {}
    }
    opened
}

/// A batch whose body and answer exceed the share of a connection.
fn batch() -> Vec<u8> {
    let checks: Vec<_> = (0..1000).map(|key| format!(r#"{{"policy":"p","key":"{key:040}"}}"#)).collect();
    format!(r#"{{"checks":[{}]}}"#, checks.join(",")).into_bytes()
}

fn assert_serves(doors: &Doors) {
    for _ in 0..5 {
        assert_eq!(http::post(&doors.node.address, "/v1/check", CHECK).status, 200);
        assert_eq!(http::post(&doors.node.address, "/v1/check/batch", batch()).status, 200);
    }
}

#[test]
fn calls_without_their_bodies_take_nothing_from_others() {
    let doors = Doors::start("{request_timeout: 50s}");
    let json = [("content-type", "application/json"), ("content-length", "27")];
    let _held = hold(&doors.node.address, 84, &fields("POST", "/v1/check", &json), false);
    assert_serves(&doors);
}

#[test]
fn unread_answers_to_strangers_take_nothing_from_others() {
    let doors = Doors::start("{request_timeout: 50s}");
    let _held = hold(&doors.node.address, 90, &fields("GET", "/health/live", &[]), true);
    assert_serves(&doors);
}

/// Fields that HPACK repeats by a byte each take a hundred bytes in memory.
#[test]
fn header_fields_count_after_decompression() {
    let doors = Doors::start("{request_timeout: 50s}");
    let json = fields("POST", "/v1/check", &[("content-type", "application/json")]);
    let grpc = fields("POST", HEALTH_CHECK, &GRPC);
    for (address, head) in [(&doors.node.address, json), (&doors.envoy, grpc)] {
        for count in [95, 470] {
            let before = resident_kib(doors.node.pid());
            let _held = hold(address, 60, &[head.clone(), references(count)].concat(), false);
            let grown = resident_kib(doors.node.pid()).saturating_sub(before);
            assert!(grown < 160 * MIB, "{grown} KiB more by {count} fields at {address}");
            assert_serves(&doors);
        }
    }
}

/// The node decodes the fields of each request, also of one that it rejects.
#[test]
fn endless_rejected_requests_end_their_connection() {
    const ENDLESS: u32 = 3_000;
    let doors = Doors::start("{request_timeout: 50s}");
    let json = fields("POST", "/v1/check", &[("content-type", "application/json")]);
    let grpc = fields("POST", HEALTH_CHECK, &GRPC);
    for (address, head) in [(&doors.node.address, json), (&doors.envoy, grpc)] {
        // Rejected for their fields, by the library for the sum of these, and for want of room.
        for count in [470, 3_000, 95, 1] {
            let mut stream = connect(address);
            let sending = stream.try_clone().unwrap();
            let bytes = requests(ENDLESS, &[head.clone(), references(count)].concat(), false);
            let sending = std::thread::spawn(move || _ = { sending }.write_all(&[opening(), bytes].concat()));
            let (mut rejected, mut is_told) = (0, false);
            while let Some((kind, _, _)) = frames::next_frame(&mut stream) {
                rejected += usize::from(kind == HEADERS);
                is_told |= kind == GOAWAY;
            }
            sending.join().unwrap();
            assert!(is_told && rejected < 200, "{rejected} of {count} fields at {address}");
            assert_serves(&doors);
        }
    }
}

/// The calls of an honest client precede the requests that end its connection.
#[test]
fn calls_in_flight_outlive_the_end_of_their_connection() {
    let doors = Doors::start("{request_timeout: 50s}");
    let length = CHECK.len().to_string();
    let check = fields("POST", "/v1/check", &[("content-type", "application/json"), ("content-length", &length)]);
    let call = [requests(1, &check, false), frames::frame(0, 1, 1, CHECK)].concat();
    let rejected = [check, references(470)].concat();
    let rejected = (0..100).flat_map(|number| frames::frame(HEADERS, 4, 2 * number + 3, &rejected));
    let mut stream = connect(&doors.node.address);
    let begin = [frames::PREFACE, &frames::frame(4, 0, 0, b"")].concat();
    stream.write_all(&[begin, call, rejected.collect()].concat()).unwrap();
    let mut answer = Vec::new();
    while let Some((kind, _, payload)) = frames::next_frame(&mut stream) {
        if kind == 0 {
            answer.extend(payload);
        }
    }
    assert!(answer.starts_with(br#"{"allowed":true"#), "{}", String::from_utf8_lossy(&answer));
}

/// An intermediary forwards some malformed requests and long ones among many others.
#[test]
fn rejections_among_calls_end_no_connection() {
    let doors = Doors::start("{request_timeout: 50s}");
    let long = ("cookie", "x".repeat(120));
    let long: Vec<_> = (0..90).map(|_| (long.0, &*long.1)).collect();
    let (call, long) = (fields("GET", "/health/live", &[]), fields("GET", "/health/live", &long));
    let rejected = [call.clone(), references(470)].concat();
    let heads = (0..300).map(|number| [&call, &call, &rejected, &long][number % 4].clone());
    let mut stream = connect(&doors.node.address);
    stream.write_all(&[frames::PREFACE, &frames::frame(4, 0, 0, b"")].concat()).unwrap();
    for (number, head) in heads.enumerate() {
        let id = 2 * u32::try_from(number).unwrap() + 1;
        stream.write_all(&frames::frame(HEADERS, 5, id, &head)).unwrap();
        if number % 20 == 19 {
            settle(&mut stream);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_count_without_a_token() {
    let doors = Doors::start("{request_timeout: 50s}");
    let before = resident_kib(doors.node.pid());
    let held = (0..60).map(async |_| {
        let stream = tokio::net::TcpStream::connect(&doors.envoy).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let calls: Vec<_> = (0..200)
            .map(|_| {
                let part = Frame::data(Bytes::from(vec![0; 15_000]));
                let body = StreamBody::new(stream::iter([Ok::<_, Infallible>(part)]).chain(stream::pending()));
                let request = Request::post(format!("http://t{HEALTH_CHECK}")).header("content-type", GRPC[0].1);
                sender.send_request(request.body(body).unwrap())
            })
            .collect();
        (sender, calls)
    });
    let held = join_all(held).await;
    // Within the ten seconds of a message.
    let refused = held.into_iter().flat_map(|(_, calls)| calls).map(|call| async {
        let answered = tokio::time::timeout(Duration::from_secs(5), call).await;
        // Or the node has ended the connection.
        answered.is_ok_and(|answer| answer.map_or(true, |answer| answer.headers()["grpc-status"] == "14"))
    });
    let refused = join_all(refused).await.into_iter().filter(|refused| *refused).count();
    let grown = resident_kib(doors.node.pid()).saturating_sub(before);
    assert!(refused > 5_000, "{refused} refused");
    assert!(grown < 128 * MIB, "{grown} KiB more");
    assert_serves(&doors);
}

/// A watch of the health needs no token and has no end.
#[tokio::test(flavor = "multi_thread")]
async fn watches_of_health_count_until_they_end() {
    const WATCH: &str = "http://t/grpc.health.v1.Health/Watch";
    let doors = Doors::start("{request_timeout: 50s}");
    let before = resident_kib(doors.node.pid());
    let held = (0..120).map(async |_| {
        let stream = tokio::net::TcpStream::connect(&doors.envoy).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let request = Request::post(WATCH).header("content-type", GRPC[0].1);
                sender.send_request(request.body(Full::new(Bytes::from_static(&[0; 5]))).unwrap())
            })
            .collect();
        (sender, join_all(calls).await)
    });
    let held = join_all(held).await;
    let is_refused = |answer: &Response<Incoming>| answer.headers().get("grpc-status").is_some_and(|code| code == "14");
    let answers = held.iter().flat_map(|(_, answers)| answers).map(|answer| answer.as_ref().unwrap());
    let refused = answers.filter(|answer| is_refused(answer)).count();
    let grown = resident_kib(doors.node.pid()).saturating_sub(before);
    assert!((1_000..5_000).contains(&refused), "{refused} refused");
    assert!(grown < 96 * MIB, "{grown} KiB more");
    assert_serves(&doors);
}

#[test]
fn unfinished_commands_count_in_all() {
    let doors = Doors::start("{request_timeout: 50s}");
    let before = resident_kib(doors.node.pid());
    let command = [&b"*2\r\n$4\r\nAUTH\r\n$64900\r\n"[..], &vec![b'x'; 64_800]].concat();
    let mut held: Vec<_> = (0..800).map(|_| connect(&doors.resp)).collect();
    held.iter_mut().for_each(|stream| _ = stream.write_all(&command));
    let mut refused = 0;
    wait_until("some are refused", || {
        held.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            let mut answer = [0; 100];
            let is_refused = stream.read(&mut answer).is_ok_and(|count| count > 0);
            refused += usize::from(is_refused);
            assert!(!is_refused || answer.starts_with(b"-ERR the node is overloaded"));
            !is_refused
        });
        refused > 300
    });
    let grown = resident_kib(doors.node.pid()).saturating_sub(before);
    assert!(grown < 96 * MIB, "{grown} KiB more");
    assert_serves(&doors);
}

#[test]
fn queued_commands_count_in_all() {
    let doors = Doors::start("{request_timeout: 50s}");
    let words = vec![b'x'; 8_000];
    let command = [&b"*2\r\n$4\r\nECHO\r\n$8000\r\n"[..], &words, b"\r\n"].concat();
    // With a long command that does not end, the commands exceed the share of a connection.
    let unfinished = [&b"*2\r\n$4\r\nECHO\r\n$30000\r\n"[..], &vec![b'x'; 29_000]].concat();
    let commands = [&b"*1\r\n$5\r\nMULTI\r\n"[..], &command.repeat(4), &unfinished].concat();
    let mut held: Vec<_> = (0..800).map(|_| connect(&doors.resp)).collect();
    held.iter_mut().for_each(|stream| _ = stream.write_all(&commands));
    wait_until("some are refused", || {
        let refused = held.iter_mut().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            let mut answer = [0; 200];
            let count = stream.peek(&mut answer).unwrap_or(0);
            String::from_utf8_lossy(&answer[..count]).contains("-ERR the node is overloaded")
        });
        refused.count() > 100
    });
    drop(held);
    wait_until("the room is free again", || {
        http::post(&doors.node.address, "/v1/check/batch", batch()).status == 200
    });
}

#[test]
fn connections_that_send_nothing_are_closed_on_each_door() {
    let doors = Doors::start("{request_timeout: 1s, idle_timeout: 1h}");
    for address in [&doors.node.address, &doors.resp, &doors.envoy] {
        let mut silent = connect(address);
        // Envoy's door sends its settings first.
        assert!(silent.read_to_end(&mut Vec::new()).is_ok(), "{address} is not closed");
    }
}

#[test]
fn idle_connections_of_envoy_get_goaway() {
    let doors = Doors::start("{request_timeout: 1s, idle_timeout: 2s}");
    assert!(is_told(&mut connect(&doors.envoy), &frames::opening()), "it is closed without a word");
}

/// Pings keep a connection, but not its unread answers.
#[test]
fn unread_answers_of_envoy_have_a_time() {
    let doors = Doors::start("{request_timeout: 1s, idle_timeout: 1h}");
    let head = requests(1, &fields("POST", HEALTH_CHECK, &GRPC), false);
    let message = frames::frame(0, 1, 1, &[0; 5]);
    is_told(&mut connect(&doors.envoy), &[opening(), head, message].concat());
}

/// Answers pings until the connection ends, and returns whether GOAWAY came.
fn is_told(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).unwrap();
    let mut is_told = false;
    while let Some((kind, flags, payload)) = frames::next_frame(stream) {
        is_told |= kind == GOAWAY;
        if frames::is_ping(kind, flags) {
            let _ = stream.write_all(&frames::pong(&payload));
        }
    }
    is_told
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_busy_proxy_use_more_than_their_share() {
    let doors = Doors::start("{request_timeout: 50s}");
    let stream = tokio::net::TcpStream::connect(&doors.node.address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let calls = (0..200).map(|_| {
        let request = Request::post("http://t/v1/check").header("content-type", "application/json");
        sender.send_request(request.body(Full::new(Bytes::from_static(CHECK))).unwrap())
    });
    for answer in join_all(calls.collect::<Vec<_>>()).await {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
    }
}

#[test]
fn reads_for_operators_start_few_threads() {
    let doors = Doors::start("{request_timeout: 50s}");
    let before = doors.node.threads();
    let request = http::request("GET", "/v1/top", &[], b"");
    let mut most = 0;
    for _ in 0..5 {
        let mut streams: Vec<_> = (0..200).map(|_| connect(&doors.node.address)).collect();
        streams.iter_mut().for_each(|stream| stream.write_all(&request.repeat(20)).unwrap());
        for stream in &mut streams {
            most = most.max(doors.node.threads());
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        }
    }
    // A few of each worker, and not one for each of the 200 calls.
    assert!(most <= before + 50, "{most} threads after {before}");
}
