//! Callers with long batches leave the store to the single checks of others, at each door.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tempfile::TempDir;
use tollgate::access::TokenHash;

use crate::support::redis::Server;
use crate::support::{Node, TOLLGATE, http, wait_until};

/// Connections of the greedy token, and the entries of each of its batches.
const CONNECTIONS: usize = 32;
const ENTRIES: usize = 1000;

/// The single checks of the modest token, one every 20 ms.
const SINGLES: usize = 100;
const EVERY: Duration = Duration::from_millis(20);

/// A node with two tokens, whose secrets are their names.
struct Fixture {
    node: Node,
    resp: String,
    _server: Server,
    _folder: TempDir,
}

impl Fixture {
    /// `TOLLGATE_HOSTILE_PROGRAM` names another build, which gets the usual timeout.
    fn start() -> Self {
        let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
        let tokens = ["greedy", "modest"].map(|name| {
            std::fs::write(folder.path().join(name), TokenHash::of(name).to_string()).unwrap();
            format!("  - {{name: {name}, file: {name}, scopes: [check]}}\n")
        });
        let other = std::env::var_os("TOLLGATE_HOSTILE_PROGRAM");
        let timeout = if other.is_some() { "100ms" } else { "1s" };
        let config = format!(
            "store: {{redis: [{}], timeout: {timeout}}}\nresp: {{listen: 127.0.0.1:0}}\ntokens:\n{}policies:\n  \
             p: {{quotas: [1000000 per 1h]}}\n  h: {{hold: {{ttl: 1m}}, quotas: [1000000 per 1h]}}\n",
            server.url(),
            tokens.concat()
        );
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, config).unwrap();
        let program = other.map_or_else(|| Command::new(TOLLGATE), Command::new);
        let node = Node::start_by(program, &["--config", file.to_str().unwrap()]);
        let resp = node.greeting.lines().find_map(|line| line.trim().strip_prefix("RESP ")).unwrap();
        let resp = resp.trim().split_once("://").unwrap().1.to_owned();
        Self { node, resp, _server: server, _folder: folder }
    }

    /// Sends single checks while `CONNECTIONS` threads run `attack` again and again. Nearly all of
    /// them must come from the store.
    #[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
    fn beside<C>(&self, name: &str, connect: impl Fn(usize) -> C + Sync, attack: impl Fn(&mut C) + Sync) {
        let (is_over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..CONNECTIONS {
                let (connect, attack, is_over, sent) = (&connect, &attack, &is_over, &sent);
                scope.spawn(move || {
                    let mut connection = connect(number);
                    while !is_over.load(Ordering::Relaxed) {
                        attack(&mut connection);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            wait_until("each connection has had an answer", || sent.load(Ordering::Relaxed) >= CONNECTIONS);
            let (began, before) = (Instant::now(), sent.load(Ordering::Relaxed));
            let mut connection = http::Connection::open(&self.node.address).unwrap();
            let (mut by_store, mut longest) = (0, Duration::ZERO);
            for number in 0..SINGLES {
                let asked = Instant::now();
                let check = json!({"policy": "p", "key": format!("single-{number}")}).to_string();
                connection.send(&request("/v1/check", "modest", &check)).unwrap();
                let answer = connection.receive(true).unwrap();
                by_store += usize::from(answer.status == 200 && answer.json()["source"] == "store");
                longest = longest.max(asked.elapsed());
                thread::sleep(EVERY.saturating_sub(asked.elapsed()));
            }
            let batches = sent.load(Ordering::Relaxed) - before;
            is_over.store(true, Ordering::Relaxed);
            let took = began.elapsed();
            println!(
                "{name}: {by_store} of {SINGLES} from the store, {longest:?} at most; {batches} batches in {took:?}"
            );
            assert!(100 * by_store >= 90 * SINGLES, "{name}: {by_store} of {SINGLES}");
        });
    }

    fn beside_batches(&self, path: &str, list: &str, entry: impl Fn(&str) -> String + Sync) {
        let connect = |number| {
            let entries: Vec<_> = (0..ENTRIES).map(|key| entry(&format!("{number}-{key}"))).collect();
            let body = format!(r#"{{"{list}":[{}]}}"#, entries.join(","));
            (http::Connection::open(&self.node.address).unwrap(), request(path, "greedy", &body))
        };
        self.beside(path, connect, |(connection, request)| {
            connection.send(request).unwrap();
            let answer = connection.receive(true).unwrap();
            assert!([200, 503].contains(&answer.status), "{answer:?}");
        });
    }
}

fn request(path: &str, token: &str, body: &str) -> Vec<u8> {
    let bearer = format!("Bearer {token}");
    let headers = [("Content-Type", "application/json"), ("Authorization", &*bearer)];
    http::request("POST", path, &headers, body.as_bytes())
}

#[test]
fn batches_of_checks_leave_the_store_to_others() {
    Fixture::start().beside_batches("/v1/check/batch", "checks", |key| format!(r#"{{"policy":"p","key":"{key}"}}"#));
}

#[test]
fn batches_of_settles_leave_the_store_to_others() {
    let settle = |key: &str| format!(r#"{{"policy":"h","key":"{key}","id":"job"}}"#);
    Fixture::start().beside_batches("/v1/settle", "settlements", settle);
}

#[test]
fn batches_of_renewals_leave_the_store_to_others() {
    let renew = |key: &str| format!(r#"{{"policy":"h","key":"{key}","id":"job"}}"#);
    Fixture::start().beside_batches("/v1/renew", "holds", renew);
}

#[test]
fn pipelines_of_redis_clients_leave_the_store_to_others() {
    let fixture = Fixture::start();
    let connect = |number| {
        let mut stream = BufReader::new(TcpStream::connect(&fixture.resp).unwrap());
        stream.get_mut().write_all(b"AUTH greedy\r\n").unwrap();
        stream.read_line(&mut String::new()).unwrap();
        let command = |key| format!("CL.THROTTLE {number}-{key} 15 30 60\r\n");
        (stream, (0..ENTRIES).map(command).collect::<String>())
    };
    fixture.beside("RESP", connect, |(stream, commands)| {
        stream.get_mut().write_all(commands.as_bytes()).unwrap();
        // Each answer has a line for its length, and five numbers.
        let mut line = String::new();
        for _ in 0..6 * ENTRIES {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0);
        }
    });
}

/// Single checks of a crowd take turns, too.
#[test]
fn crowd_of_single_checks_leaves_the_store_to_others() {
    const STREAMS: usize = 40;
    let fixture = Fixture::start();
    let url = format!("{}/v1/check", fixture.node.url());
    let connect = |number: usize| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(&fixture.node.address).await.unwrap();
            let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        (runtime, sender, number)
    };
    fixture.beside("single checks", connect, |(runtime, sender, number)| {
        let asked: Vec<_> = (0..STREAMS)
            .map(|key| {
                let check = json!({"policy": "p", "key": format!("{number}-{key}")}).to_string();
                let request = Request::post(&url).header("content-type", "application/json");
                let request = request.header("authorization", "Bearer greedy").body(Full::new(Bytes::from(check)));
                sender.send_request(request.unwrap())
            })
            .collect();
        let answers = runtime.block_on(join_all(asked));
        assert!(answers.into_iter().all(|answer| [200, 503].contains(&answer.unwrap().status().as_u16())));
    });
}
