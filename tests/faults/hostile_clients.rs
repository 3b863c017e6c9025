//! Clients request long responses and do not read them, or never end their requests. Memory stays
//! bounded, and other clients get timely responses. `scripts/hostile` runs the same with 1000
//! connections for a minute.

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use http_body_util::StreamBody;
use hyper::Request;
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::doors::Doors;
use crate::support::frames::{fields, frame, opening, pong, references, requests};
use crate::support::{TOLLGATE, http, resident_kib, socket_kib};

/// The maximum resident memory of a node with that of its connections in the kernel, KiB. The
/// documents state it.
const MAX_KIB: u64 = 512 * 1024;

/// The same for one connection in the kernel alone.
const MAX_SOCKET_KIB: u64 = 2 * (128 + 64);

/// The slowest response to a well-behaved caller. The suite runs on busy machines;
/// `scripts/hostile` asserts 250 ms.
const MAX_WAIT: Duration = Duration::from_secs(10);

fn program() -> Command {
    std::env::var_os("TOLLGATE_HOSTILE_PROGRAM").map_or_else(|| Command::new(TOLLGATE), Command::new)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The largest faulty batch: 1000 checks of 50 unknown members each.
fn faulty_batch() -> String {
    let members: Vec<_> = (0..50).map(|member| format!(r#""m{member}":1"#)).collect();
    batch(|_| format!("{{{}}}", members.join(",")))
}

/// One long check with as many unknown members as a body holds.
fn one_faulty_check() -> String {
    let members: Vec<_> = (0..90_000).map(|member| format!(r#""{member}":1"#)).collect();
    format!(r#"{{"checks":[{{{}}}]}}"#, members.join(","))
}

/// Names that a JSON pointer escapes.
fn long_names() -> String {
    batch(|place| format!(r#"{{"{}{place}":1}}"#, "~/".repeat(500)))
}

/// Faults that only the engine finds.
fn unknown_policies() -> String {
    batch(|place| format!(r#"{{"policy":"{}{place}","key":"k"}}"#, "p".repeat(900)))
}

fn faulty_quotas() -> String {
    let quotas = vec![r#""x""#; 100].join(",");
    batch(|_| format!(r#"{{"policy":"inline","key":"k","quotas":[{quotas}]}}"#))
}

fn valid_batch() -> String {
    batch(|place| format!(r#"{{"policy":"p","key":"{}{place:04}"}}"#, "k".repeat(1000)))
}

/// Parsed checks and their decisions take thirty times the room of this text.
fn usual_batch() -> String {
    batch(|place| format!(r#"{{"policy":"p","key":"k{place}"}}"#))
}

fn short_batch() -> String {
    batch(|_| "{}".to_owned())
}

fn batch(check: impl Fn(usize) -> String) -> String {
    let checks: Vec<_> = (0..1000).map(check).collect();
    let body = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
    assert!(body.len() <= 1024 * 1024, "{} bytes", body.len());
    body
}

#[derive(Clone, Copy, PartialEq)]
enum Transport {
    /// Sends requests as long as the socket accepts them, and reads nothing.
    Http1,
    /// The same, and reads a byte a second.
    Http1Sips,
    /// Grants no window.
    Http2,
}

/// The longest waits of a well-behaved caller, and the most memory meanwhile, KiB.
struct Probe {
    p50: Duration,
    p99: Duration,
    longest: Duration,
    /// Of the node.
    resident: u64,
    /// Of its connections in the kernel.
    sockets: u64,
    both: u64,
}

impl Probe {
    #[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
    fn run(doors: &Doors, span: Duration) -> Self {
        let node = &doors.node;
        let addresses = [&*node.address, &doors.resp, &doors.envoy];
        let (mut waits, mut resident, mut sockets, mut both) = (Vec::new(), 0, 0, 0);
        let started = Instant::now();
        while started.elapsed() < span {
            let asked = Instant::now();
            let answer = http::post(&node.address, "/v1/check", br#"{"policy":"p","key":"probe"}"#);
            assert_eq!((answer.status, &answer.json()["source"]), (200, &"store".into()));
            waits.push(asked.elapsed());
            let now = (resident_kib(node.pid()), socket_kib(&addresses));
            (resident, sockets, both) = (resident.max(now.0), sockets.max(now.1), both.max(now.0 + now.1));
            std::thread::sleep(Duration::from_millis(50).saturating_sub(asked.elapsed()));
        }
        waits.sort();
        let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
        Self { p50: at(50), p99: at(99), longest: at(100), resident, sockets, both }
    }
}

/// One attack: a node, many clients, and a well-behaved caller. A client gets the number of
/// requests to add to.
fn attack<C: Future<Output = ()> + Send + 'static>(name: &str, client: impl Fn(&Doors, Arc<AtomicUsize>) -> C) {
    let connections = setting("TOLLGATE_HOSTILE_CONNECTIONS", 150);
    let span = Duration::from_secs(setting("TOLLGATE_HOSTILE_SECONDS", 4));
    let doors = Doors::start_by(program(), "{request_timeout: 50s}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let mut attackers = JoinSet::new();
    for _ in 0..connections {
        attackers.spawn_on(client(&doors, sent.clone()), runtime.handle());
    }
    let Probe { p50, p99, longest, resident, sockets, both } = Probe::run(&doors, span);
    let metrics = doors.node.metrics();
    let shed = metrics.lines().find_map(|line| line.strip_prefix("tollgate_shed_total ")).unwrap();
    let sent = sent.load(Ordering::Relaxed);
    let memory = [both, resident, sockets].map(|kib| kib / 1024);
    println!(
        "{name}: {sent} sent, {shed} shed, {memory:?} MiB in all, of the node and of its sockets, p50 {p50:?}, p99 \
         {p99:?}, longest {longest:?}"
    );
    drop(attackers);
    runtime.shutdown_background();
    let max_wait = std::env::var_os("TOLLGATE_HOSTILE_CONNECTIONS").map_or(MAX_WAIT, |_| Duration::from_millis(250));
    assert!(both < MAX_KIB, "{resident} KiB of the node and {sockets} KiB of its sockets");
    assert!(sockets < connections * MAX_SOCKET_KIB, "{sockets} KiB of the sockets");
    assert!(p99 < max_wait, "{p99:?}");
    assert!(sent > 0);
}

/// An attack by clients that send the same request.
fn attack_by_requests(transport: Transport, method: &'static str, path: &'static str, body: String) {
    let body: Arc<str> = body.into();
    attack(path, |doors, sent| {
        let (address, body) = (doors.node.address.clone(), body.clone());
        async move {
            match transport {
                Transport::Http1 => over_http1(&address, method, path, &body, &sent, false).await,
                Transport::Http1Sips => over_http1(&address, method, path, &body, &sent, true).await,
                Transport::Http2 => over_http2(&address, method, path, &body, &sent).await,
            }
        }
    });
}

/// Connects with a small receive buffer: what the client does not read stays at the node.
async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 * 1024)?;
    socket.connect(address.parse().unwrap()).await
}

async fn over_http1(address: &str, method: &str, path: &str, body: &str, sent: &AtomicUsize, sips: bool) {
    let request = http::request(method, path, &[("Content-Type", "application/json")], body.as_bytes());
    loop {
        let Ok(mut stream) = connect(address).await else { return };
        let (mut reading, mut writing) = stream.split();
        let write = async {
            // The node resets the connection in time.
            while writing.write_all(&request).await.is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        let read = async {
            let mut byte = [0];
            while sips && reading.read(&mut byte).await.is_ok_and(|count| count > 0) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! { () = write => {} () = read => {} }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn over_http2(address: &str, method: &str, path: &str, body: &str, sent: &AtomicUsize) {
    loop {
        let Ok(stream) = connect(address).await else { return };
        let mut client = http2::Builder::new(TokioExecutor::new());
        let connected = client.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await;
        let Ok((mut sender, connection)) = connected else { continue };
        let connection = tokio::spawn(connection);
        let mut unread = Vec::new();
        while sender.ready().await.is_ok() && unread.len() < 190 {
            let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
            let request = request.header("Content-Type", "application/json").body(body.to_owned()).unwrap();
            sent.fetch_add(1, Ordering::Relaxed);
            let Ok(answer) = sender.send_request(request).await else { break };
            unread.push(answer);
        }
        let _ = connection.await;
    }
}

macro_rules! attacks {
    ($($name:ident: $transport:ident, $method:literal $path:literal, $body:expr;)*) => {
        $(#[test] fn $name() { attack_by_requests(Transport::$transport, $method, $path, $body); })*
    };
}

attacks! {
    unread_faulty_batches_over_http1_are_bounded: Http1, "POST" "/v1/check/batch", faulty_batch();
    unread_faulty_batches_over_http2_are_bounded: Http2, "POST" "/v1/check/batch", faulty_batch();
    sipped_faulty_batches_are_bounded: Http1Sips, "POST" "/v1/check/batch", faulty_batch();
    unread_valid_batches_over_http1_are_bounded: Http1, "POST" "/v1/check/batch", valid_batch();
    unread_valid_batches_over_http2_are_bounded: Http2, "POST" "/v1/check/batch", valid_batch();
    sipped_valid_batches_are_bounded: Http1Sips, "POST" "/v1/check/batch", valid_batch();
    usual_batches_over_http1_are_bounded: Http1, "POST" "/v1/check/batch", usual_batch();
    usual_batches_over_http2_are_bounded: Http2, "POST" "/v1/check/batch", usual_batch();
    unread_descriptions_over_http1_are_bounded: Http1, "GET" "/openapi.json", String::new();
    unread_descriptions_over_http2_are_bounded: Http2, "GET" "/openapi.json", String::new();
    unread_health_is_bounded: Http2, "GET" "/health/live", String::new();
    unread_dashboards_over_http1_are_bounded: Http1, "GET" "/dashboard", String::new();
    unread_dashboards_over_http2_are_bounded: Http2, "GET" "/dashboard", String::new();
    unread_metrics_are_bounded: Http2, "GET" "/metrics", String::new();
    unread_gates_over_http1_are_bounded: Http1, "GET" "/v1/gate/edge/path", String::new();
    unread_gates_over_http2_are_bounded: Http2, "GET" "/v1/gate/edge/path", String::new();
    heaviest_keys_are_read_by_few_threads: Http1Sips, "GET" "/v1/top", String::new();
    sipped_descriptions_are_bounded: Http1Sips, "GET" "/openapi.json", String::new();
    unread_policies_over_http1_are_bounded: Http1, "GET" "/v1/policies", String::new();
    unread_streams_over_http1_are_bounded: Http1, "GET" "/v1/live?seconds=900", String::new();
    unread_streams_over_http2_are_bounded: Http2, "GET" "/v1/live?seconds=900", String::new();
    one_long_faulty_check_is_bounded: Http1, "POST" "/v1/check/batch", one_faulty_check();
    long_names_of_members_are_bounded: Http1, "POST" "/v1/check/batch", long_names();
    unknown_policies_are_bounded: Http2, "POST" "/v1/check/batch", unknown_policies();
    faulty_quotas_are_bounded: Http1, "POST" "/v1/check/batch", faulty_quotas();
    short_batches_with_long_answers_are_bounded: Http2, "POST" "/v1/check/batch", short_batch();
}

/// The payload of the pings of a node.
const NODE_PING: &[u8] = &[0x3b, 0x7c, 0xdb, 0x7a, 0x0b, 0x87, 0x16, 0xb4];

/// Bytes that a client sends first, and again after each pause.
type Script = (Arc<[u8]>, Arc<[u8]>, Duration);

/// Sends the bytes of a script, reads nothing, and connects again when the node ends the
/// connection.
async fn send_and_hold(address: String, (bytes, more, pause): Script, sent: Arc<AtomicUsize>) {
    loop {
        let Ok(mut stream) = connect(&address).await else { return };
        sent.fetch_add(1, Ordering::Relaxed);
        let mut written = stream.write_all(&bytes).await;
        while written.is_ok() {
            tokio::time::sleep(pause).await;
            written = stream.write_all(&more).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// An attack by clients that send `bytes`, and answer the pings of the node.
fn attack_by_frames(name: &str, door: fn(&Doors) -> &String, bytes: &[u8]) {
    let script: Script = ([&opening(), bytes].concat().into(), pong(NODE_PING).into(), Duration::from_secs(10));
    attack(name, |doors, sent| send_and_hold(door(doors).clone(), script.clone(), sent));
}

/// An attack by clients that send `bytes`, then `more` each second.
fn attack_by_commands(name: &str, bytes: Vec<u8>, more: &[u8]) {
    let script: Script = (bytes.into(), more.into(), Duration::from_secs(1));
    attack(name, |doors, sent| send_and_hold(doors.resp.clone(), script.clone(), sent));
}

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

fn main_door(doors: &Doors) -> &String {
    &doors.node.address
}

fn envoy_door(doors: &Doors) -> &String {
    &doors.envoy
}

fn check_fields() -> Vec<u8> {
    fields("POST", "/v1/check", &[("content-type", "application/json")])
}

fn health_fields() -> Vec<u8> {
    fields("POST", HEALTH_CHECK, &[("content-type", "application/grpc")])
}

/// 200 requests with so many more fields, all without their bodies.
fn with_references(head: Vec<u8>, count: usize) -> Vec<u8> {
    requests(200, &[head, references(count)].concat(), false)
}

#[test]
fn calls_without_bodies_are_bounded() {
    attack_by_frames("calls without bodies", main_door, &requests(200, &check_fields(), false));
}

#[test]
fn references_to_fields_are_bounded() {
    attack_by_frames("95 fields", main_door, &with_references(check_fields(), 95));
}

#[test]
fn many_references_to_fields_are_bounded() {
    attack_by_frames("470 fields", main_door, &with_references(check_fields(), 470));
}

#[test]
fn references_to_fields_of_envoy_are_bounded() {
    attack_by_frames("95 fields, Envoy", envoy_door, &with_references(health_fields(), 95));
}

#[test]
fn many_references_to_fields_of_envoy_are_bounded() {
    attack_by_frames("470 fields, Envoy", envoy_door, &with_references(health_fields(), 470));
}

#[test]
fn unread_health_of_envoy_is_bounded() {
    let messages = (0..200).flat_map(|number| frame(0, 1, 2 * number + 1, &[0; 5]));
    let bytes = requests(200, &health_fields(), false).into_iter().chain(messages).collect::<Vec<_>>();
    attack_by_frames("unread health, Envoy", envoy_door, &bytes);
}

#[test]
fn idle_connections_of_envoy_are_bounded() {
    attack_by_frames("idle, Envoy", envoy_door, b"");
}

/// Messages of 16 KiB without their last bytes.
#[test]
fn unfinished_messages_are_bounded() {
    attack("unfinished messages, Envoy", |doors, sent| {
        let address = doors.envoy.clone();
        async move {
            loop {
                let Ok(stream) = connect(&address).await else { return };
                let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
                let Ok((mut sender, connection)) = connected else { continue };
                let connection = tokio::spawn(connection);
                let calls: Vec<_> = (0..200)
                    .map(|_| {
                        let part = Frame::data(Bytes::from_static(&[0; 16_000]));
                        let body = StreamBody::new(stream::iter([Ok::<_, Infallible>(part)]).chain(stream::pending()));
                        sent.fetch_add(1, Ordering::Relaxed);
                        let request = Request::post(format!("http://t{HEALTH_CHECK}"));
                        sender.send_request(request.header("content-type", "application/grpc").body(body).unwrap())
                    })
                    .collect();
                futures_util::future::join_all(calls).await;
                connection.abort();
            }
        }
    });
}

/// Each of them has its answers in the kernel before the node waits for the client.
#[test]
fn pipelined_pages_are_bounded() {
    let page = http::request("GET", "/dashboard", &[], b"").repeat(40);
    let script: Script = (page.into(), Arc::new([]), Duration::from_secs(10));
    attack("40 pages", |doors, sent| send_and_hold(doors.node.address.clone(), script.clone(), sent));
}

#[test]
fn unfinished_commands_are_bounded() {
    let command = [&b"*2\r\n$4\r\nAUTH\r\n$64900\r\n"[..], &vec![b'x'; 64_800]].concat();
    attack_by_commands("unfinished AUTH, RESP", command, b"x");
}

#[test]
fn unread_replies_are_bounded() {
    let echo = [&b"*2\r\n$4\r\nECHO\r\n$64900\r\n"[..], &vec![b'x'; 64_900], b"\r\n"].concat();
    attack_by_commands("unread ECHO, RESP", echo.repeat(100), &echo);
}

#[test]
fn silent_connections_are_bounded() {
    attack("silent, RESP and Envoy", |doors, sent| {
        let number = sent.fetch_add(1, Ordering::Relaxed);
        let address = if number.is_multiple_of(2) { &doors.resp } else { &doors.envoy }.clone();
        async move {
            while let Ok(mut stream) = connect(&address).await {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        }
    });
}
