//! More calls than a node accepts: it rejects the rest before it reads them.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::json;
use tollgate::clock::Clock;
use tollgate::config::{Overrides, Setup, built_in};
use tollgate::engine::Engine;
use tollgate::engine::fallback::FallbackStore;
use tollgate::node::{Lifecycle, Load, Node, Refusals, Watchers};
use tollgate::prefilter::Prefilter;
use tollgate::reload::Reloader;
use tollgate::store::Generations;
use tollgate::store::{MemoryStore, Store};

use crate::support::http::{self, Connection};
use crate::support::serving::serve;
use crate::support::wait_until;

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_cap_are_rejected_until_others_finish() {
    let load = Load::capped(2, 30_000);
    let address = start(load.clone()).await;
    let test = tokio::task::spawn_blocking(move || {
        let check = || http::post(&address, "/v1/check", json!({"key": "k"}).to_string());
        // Two calls without their bodies occupy both places.
        let head = "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n";
        let mut waiting = Vec::new();
        wait_until("calls are refused", || {
            // The previous check may still have had a place when these arrived.
            for _ in 0..2 {
                let mut stream = TcpStream::connect(&address).unwrap();
                stream.write_all(head.as_bytes()).unwrap();
                waiting.push(stream);
            }
            check().status == 503
        });
        let refused = check();
        assert_eq!((refused.header("retry-after"), refused.header("x-request-id").is_some()), (Some("1"), true));
        assert_eq!(refused.json()["type"], "urn:tollgate:problem:overloaded");
        assert!(load.shed_total() >= 2);
        let metrics = String::from_utf8(http::get(&address, "/metrics").body).unwrap();
        assert!(metrics.contains(&format!("\ntollgate_shed_total {}\n", load.shed_total())), "{metrics}");
        assert_eq!(http::get(&address, "/health/ready").status, 200, "health is always answered");
        waiting.iter_mut().for_each(|stream| stream.write_all(br#"{"key":"k"}"#).unwrap());
        wait_until("a place is free again", || check().status == 200);

        // Heavy bodies count by the bytes that have arrived.
        let head = "POST /v1/check/batch HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
        let mut long = Vec::new();
        let batch = format!(r#"{{"checks": [{{"key": "k"}}]{}}}"#, " ".repeat(20_000));
        wait_until("another long one is refused", || {
            // The previous batch may still have had the place when this one arrived.
            let mut connection = Connection::open(&address).unwrap();
            connection.send(format!("{head}{}", " ".repeat(20_000)).as_bytes()).unwrap();
            long.push(connection);
            http::post(&address, "/v1/check/batch", &batch).status == 503
        });
        assert_eq!(check().status, 200);
        drop(long);
        wait_until("who leaves makes room", || http::post(&address, "/v1/check/batch", &batch).status == 200);
    });
    test.await.unwrap();
}

/// A body without a length is long once more than a little has arrived.
#[tokio::test(flavor = "multi_thread")]
async fn chunked_body_counts_received_bytes() {
    let load = Load::capped(3, 30_000);
    let address = start(load.clone()).await;
    let test = tokio::task::spawn_blocking(move || {
        let head = |path: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
        };
        let begin = |path: &str, body: &str| {
            let mut connection = Connection::open(&address).unwrap();
            connection.send(format!("{}{:x}\r\n{body}\r\n", head(path), body.len()).as_bytes()).unwrap();
            connection
        };
        let post = |path: &str, body: &str| {
            let mut connection = begin(path, body);
            connection.send(b"0\r\n\r\n").unwrap();
            connection.receive(true).unwrap()
        };
        let (check, short) = (json!({"key": "k"}).to_string(), "/v1/check");
        let (batch, long) = (format!(r#"{{"checks": [{{"key": "k"}}]{}}}"#, " ".repeat(20_000)), "/v1/check/batch");
        let two = [begin(short, "{"), begin(short, "{")];
        wait_until("the third has its place", || post(short, &check).status == 200);
        drop(two);
        wait_until("a long one has its place", || post(long, &batch).status == 200);
        let mut others = Vec::new();
        wait_until("a long one has none", || {
            others.push(begin(long, &batch[..20_000]));
            let refused = post(long, &batch);
            refused.status == 503 && refused.json()["type"] == "urn:tollgate:problem:overloaded"
        });
        drop(others);
        wait_until("who leaves makes room", || post(long, &batch).status == 200);
        assert_eq!(http::post(&address, short, check.as_str()).status, 200);
    });
    test.await.unwrap();
}

async fn start(load_cap: Load) -> String {
    let config = built_in(&Overrides::default(), 0).unwrap();
    let memory = || MemoryStore::new(Clock::system(), 1000);
    let prefilter = Prefilter::new(10, std::time::Duration::from_secs(1), Arc::new(Generations::default()));
    let fallback = FallbackStore::new(memory(), config.expected_nodes);
    let engine =
        Arc::new(Engine::new(config.policies.clone(), prefilter, Store::Memory(memory()), fallback, Clock::system()));
    let reloader = Arc::new(Reloader::new(Setup::default(), config, engine.clone()));
    let (lifecycle, refusals) = (Lifecycle::default(), Refusals::default());
    let node = Node {
        engine,
        lifecycle,
        load: load_cap,
        refusals,
        reloader,
        tracing: None,
        keys: Arc::default(),
        watchers: Watchers::default(),
    };
    serve(node).await
}
