//! Many overrides in Redis: the load, the memory of a node, and a change. `TOLLGATE_OVERRIDES` sets
//! their number, at most 999999. `benches/decisions.rs` measures checks beside a million.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::time::{Duration, Instant};

use serde_json::json;
use tollgate::store::redis::Registry;

use crate::support::redis::Server;
use crate::support::{Node, config_on, http, resident_kib};

/// How many overrides there are, 100 to 999,999.
fn count() -> usize {
    std::env::var("TOLLGATE_OVERRIDES").map_or(100_000, |count| count.parse().unwrap())
}

/// Writes the records as the node's script does.
fn fill(server: &Server, count: usize) {
    let mut connection = server.connection().unwrap();
    for first in (0..count).step_by(10_000) {
        let mut pipeline = redis::pipe();
        for number in first..first + 10_000 {
            let name = format!("p\0key:customer-{number:07}");
            // The script reads the version at its beginning.
            let record = format!(
                r#"{{"version":{},"at":1795000000000000,"expires_at":0,"quotas":["{} per 1h"],"reason":"contract {number}","by":"support"}}"#,
                number + 1,
                100 + number % 10
            );
            let part = Registry::part(&name);
            pipeline.hset(format!("{{ratelimit:%o{part}:}}records"), name, record).ignore();
        }
        pipeline.exec(&mut connection).unwrap();
    }
}

fn now() -> Instant {
    Instant::now()
}

fn change(node: &Node, method: &str, body: &serde_json::Value) -> http::Answer {
    http::call(&node.address, method, "/v1/overrides/p", None, &body.to_string())
}

#[test]
fn many_overrides_load_and_change_in_bounded_memory() {
    let (server, count) = (Server::start(), count());
    let policies = "policies: {p: {quotas: [5 per 1h], timeout: 10s}}";
    let empty = Node::with_config(config_on(&[server.url()], policies));
    let before = resident_kib(empty.pid());
    drop(empty);
    fill(&server, count);
    let since = now();
    let node = Node::with_config(config_on(&[server.url()], policies));
    // A debug build on busy cores takes longer than `wait_until` waits.
    while http::get(&node.address, "/health/ready").status != 200 {
        assert!(since.elapsed() < Duration::from_secs(300), "the node loads the overrides");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (took, growth) = (since.elapsed(), (resident_kib(node.pid()) - before) * 1024);
    println!("{count} overrides: ready after {took:?}, {} bytes of memory each", growth / count as u64);
    assert!(growth < 600 * count as u64, "{growth}");
    for number in [0, 1, 77, count - 1] {
        let decision = node.check("p", &format!("customer-{number:07}"), 0);
        assert_eq!(decision["limit"], 100 + number % 10, "{decision}");
    }
    assert_eq!(node.check("p", "customer-", 0)["limit"], 5);
    let since = now();
    for number in 0..20 {
        let body = json!({"match": {"key": format!("customer-{number:07}")}, "quotas": ["200 per 1h"]});
        assert_eq!(change(&node, "PUT", &body).status, 200);
    }
    println!("a change among them takes {:?}", since.elapsed() / 20);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(change(&node, "PUT", &json!({"match": {"key": "one-more"}, "deny": true})).status, 200);
    let page = http::get(&node.address, &format!("/v1/overrides/p?cursor=key:customer-{:07}", count - 2)).json();
    assert_eq!(
        (&page["entries"][0]["match"]["key"], page["entries"].as_array().unwrap().len()),
        (&json!(format!("customer-{:07}", count - 1)), 2)
    );
}
