//! More calls than a node accepts: it rejects the rest before it reads them.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::json;
use tollgate::clock::Clock;
use tollgate::config::{Overrides, Setup, built_in};
use tollgate::engine::Engine;
use tollgate::engine::fallback::FallbackStore;
use tollgate::node::{Lifecycle, Load, Node, Phase, Refusals, Sizes, Watchers};
use tollgate::prefilter::Prefilter;
use tollgate::reload::Reloader;
use tollgate::store::Generations;
use tollgate::store::{MemoryStore, Store};

use crate::support::http::{self, Connection};
use crate::support::serving::serve;
use crate::support::wait_until;

/// Room for two bodies of 20,000 bytes, and no share of each connection besides.
fn small() -> Load {
    let (own, pool) = ([32_768, 32_768, 0, 65_536], [1 << 20, 1 << 20, 45_000, 1 << 20]);
    Load::sized(Sizes { own, pool })
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_beyond_their_budget_are_rejected_until_others_finish() {
    let load = small();
    let address = start(load.clone()).await;
    let test = tokio::task::spawn_blocking(move || {
        let check = || http::post(&address, "/v1/check", json!({"key": "k"}).to_string());
        // Calls without their bodies hold nothing.
        let head = "POST /v1/check HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n";
        let mut waiting: Vec<_> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
        waiting.iter_mut().for_each(|stream| stream.write_all(head.as_bytes()).unwrap());
        assert_eq!(check().status, 200);

        // Heavy bodies count by the bytes that have arrived.
        let head = "POST /v1/check/batch HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
        let mut long = Vec::new();
        let batch = format!(r#"{{"checks": [{{"key": "k"}}]{}}}"#, " ".repeat(20_000));
        let mut refused = None;
        wait_until("another long one is refused", || {
            // The previous batch may still have had the place when this one arrived.
            let mut connection = Connection::open(&address).unwrap();
            connection.send(format!("{head}{}", " ".repeat(20_000)).as_bytes()).unwrap();
            long.push(connection);
            refused = Some(http::post(&address, "/v1/check/batch", &batch)).filter(|answer| answer.status == 503);
            refused.is_some()
        });
        let refused = refused.unwrap();
        assert_eq!((refused.header("retry-after"), refused.header("x-request-id").is_some()), (Some("1"), true));
        assert_eq!(refused.json()["type"], "urn:tollgate:problem:overloaded");
        assert_eq!(check().status, 200);
        assert!(load.shed_total() >= 1);
        let metrics = String::from_utf8(http::get(&address, "/metrics").body).unwrap();
        assert!(metrics.contains(&format!("\ntollgate_shed_total {}\n", load.shed_total())), "{metrics}");
        assert_eq!(http::get(&address, "/health/ready").status, 200, "health is always answered");
        drop(long);
        wait_until("who leaves makes room", || http::post(&address, "/v1/check/batch", &batch).status == 200);
    });
    test.await.unwrap();
}

/// A body without a length counts as it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn chunked_body_counts_received_bytes() {
    let address = start(small()).await;
    let test = tokio::task::spawn_blocking(move || {
        let begin = |body: &str| {
            let mut connection = Connection::open(&address).unwrap();
            let head = "POST /v1/check/batch HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
                 Transfer-Encoding: chunked\r\n\r\n";
            connection.send(format!("{head}{:x}\r\n{body}\r\n", body.len()).as_bytes()).unwrap();
            connection
        };
        let post = |body: &str| {
            let mut connection = begin(body);
            connection.send(b"0\r\n\r\n").unwrap();
            connection.receive(true).unwrap()
        };
        let batch = format!(r#"{{"checks": [{{"key": "k"}}]{}}}"#, " ".repeat(20_000));
        assert_eq!(post(&batch).status, 200);
        let mut others = Vec::new();
        wait_until("a long one has no place", || {
            others.push(begin(&batch[..20_000]));
            let refused = post(&batch);
            refused.status == 503 && refused.json()["type"] == "urn:tollgate:problem:overloaded"
        });
        drop(others);
        wait_until("who leaves makes room", || post(&batch).status == 200);
        assert_eq!(http::post(&address, "/v1/check", json!({"key": "k"}).to_string()).status, 200);
    });
    test.await.unwrap();
}

async fn start(load_cap: Load) -> String {
    let config = built_in(&Overrides::default(), 0).unwrap();
    let memory = || MemoryStore::new(Clock::system(), 1000);
    let prefilter = Prefilter::new(10, std::time::Duration::from_secs(1), Arc::new(Generations::default()));
    let fallback = FallbackStore::new(memory(), config.expected_nodes);
    let engine = Engine::new(config.policies.clone(), prefilter, Store::Memory(memory()), fallback, Clock::system());
    let reloader = Arc::new(Reloader::new(Setup::default(), config, engine.clone()));
    let (lifecycle, refusals) = (Lifecycle::default(), Refusals::default());
    lifecycle.advance(Phase::Serving);
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
