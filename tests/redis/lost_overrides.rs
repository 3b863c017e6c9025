//! Redis loses its data, or a part of it, while nodes run: they write the overrides back, and keep
//! deciding by them meanwhile.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate::store::redis::Registry;

use crate::support::redis::Server;
use crate::support::{Node, config_on, http, wait_until};

/// How many keys have an override, besides the prefixes and networks.
fn count() -> usize {
    std::env::var("TOLLGATE_OVERRIDES").map_or(150, |count| count.parse().unwrap())
}

const POLICIES: &str = "
plans: {pro: {quotas: [1000 per 1h]}}
policies: {p: {key: {type: ip}, quotas: [5 per 1h], timeout: 5s}, q: {quotas: [5 per 1h], timeout: 5s}}
";

pub(crate) fn node(server: &Server) -> Node {
    Node::with_config(config_on(&[server.url()], POLICIES))
}

fn change(node: &Node, method: &str, policy: &str, body: &Value) -> Value {
    let answer = http::call(&node.address, method, &format!("/v1/overrides/{policy}"), None, &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {answer:?}");
    answer.json()
}

/// What decides for a key: a word, or the limit.
fn decides(node: &Node, policy: &str, key: &str) -> Value {
    let decision = node.check(policy, key, 0);
    match decision["reason"].as_str() {
        Some("deny_listed") => json!("deny"),
        Some("allow_listed") => json!("allow"),
        _ => decision["limit"].clone(),
    }
}

/// The keys to ask for, and what must decide for each.
type Expected = Vec<(&'static str, String, Value)>;

/// Gives keys, prefixes and networks overrides of each kind, and removes every seventh.
fn fill(node: &Node, count: usize) -> Expected {
    let mut expected = Vec::new();
    for number in 0..count {
        let (key, grant) = (format!("k{number}"), number % 4);
        let limit = 6 + number;
        let (body, decides) = match grant {
            0 => (json!({"deny": true, "reason": "abuse \u{a0}\"ä"}), json!("deny")),
            1 => (json!({"allow": true}), json!("allow")),
            2 => (json!({"plan": "pro", "expires_in_ms": 3_600_000}), json!(1000)),
            _ => (json!({"quotas": [format!("{limit} per 1h")]}), json!(limit)),
        };
        let mut put = body;
        put["match"] = json!({"key": key});
        change(node, "PUT", "q", &put);
        if number % 7 == 3 {
            change(node, "DELETE", "q", &json!({"match": {"key": key}}));
            expected.push(("q", key, json!(5)));
        } else {
            expected.push(("q", key, decides));
        }
    }
    for number in 0..20 {
        let (cidr, prefix) = (format!("10.{number}.0.0/16"), format!("team{number}:"));
        change(node, "PUT", "p", &json!({"match": {"cidr": cidr}, "quotas": [format!("{} per 1h", 10 + number)]}));
        change(node, "PUT", "q", &json!({"match": {"prefix": prefix}, "deny": true}));
        expected.push(("p", format!("10.{number}.1.1"), json!(10 + number)));
        expected.push(("q", format!("{prefix}a"), json!("deny")));
    }
    expected
}

fn assert_in_force(node: &Node, expected: &Expected, when: &str) {
    let wrong: Vec<_> = expected
        .iter()
        .map(|(policy, key, wanted)| (key, decides(node, policy, key), wanted))
        .filter(|(_, found, wanted)| found != *wanted)
        .collect();
    assert!(
        wrong.is_empty(),
        "{when}: {} of {} differ: {:?}",
        wrong.len(),
        expected.len(),
        &wrong[..wrong.len().min(5)]
    );
}

fn run(server: &Server, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(&mut server.connection().unwrap()).unwrap();
}

fn keys(server: &Server, pattern: &str) -> Vec<String> {
    redis::cmd("KEYS").arg(pattern).query(&mut server.connection().unwrap()).unwrap()
}

/// All records with their texts.
fn records(server: &Server) -> Vec<(String, String)> {
    let mut connection = server.connection().unwrap();
    let mut all: Vec<(String, String)> = Vec::new();
    for key in keys(server, "*records") {
        let records: Vec<(String, String)> = redis::cmd("HGETALL").arg(&key).query(&mut connection).unwrap();
        all.extend(records.into_iter().filter(|(name, _)| name != "%state"));
    }
    all.sort();
    all
}

fn delete(server: &Server, pattern: &str) {
    let keys = keys(server, pattern);
    assert!(!keys.is_empty(), "{pattern}");
    redis::cmd("DEL").arg(keys).exec(&mut server.connection().unwrap()).unwrap();
}

/// A name, and what it does to the server.
type Loss = (&'static str, fn(Server) -> Server);

fn evict(server: Server) -> Server {
    run(&server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    run(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    wait_until("all is evicted", || {
        let _ = redis::cmd("SET").arg("more").arg(1).exec(&mut server.connection().unwrap());
        keys(&server, "*records").is_empty()
    });
    run(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    run(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server
}

fn restart_empty(server: Server) -> Server {
    let port = server.port;
    server.end();
    Server::start_on(port, &[])
}

/// The part of the override of a key.
fn part(key: &str) -> String {
    format!("{{ratelimit:%o{}:}}", Registry::part(&format!("q\0key:{key}")))
}

const LOSSES: [Loss; 11] = [
    ("FLUSHALL", |server| {
        run(&server, &["FLUSHALL"]);
        server
    }),
    ("FLUSHDB ASYNC", |server| {
        run(&server, &["FLUSHDB", "ASYNC"]);
        server
    }),
    ("an empty restart", restart_empty),
    ("an eviction", evict),
    ("the keys of a part", |server| {
        delete(&server, &format!("{}*", part("k0")));
        server
    }),
    ("the records", |server| {
        delete(&server, "*records");
        server
    }),
    ("the ends", |server| {
        delete(&server, "*ends");
        server
    }),
    ("the logs", |server| {
        delete(&server, "*changes");
        server
    }),
    ("the removals", |server| {
        delete(&server, "*removals");
        server
    }),
    ("the states", |server| {
        delete(&server, "*state");
        server
    }),
    ("a record", |server| {
        run(&server, &["HDEL", &format!("{}records", part("k0")), "q\0key:k0"]);
        server
    }),
];

/// The heart of guarantee 12.
#[test]
fn entries_stay_in_force_whatever_redis_loses() {
    let mut server = Server::start();
    let nodes = [node(&server), node(&server)];
    let mut expected = fill(&nodes[0], count());
    wait_until("the other node has them", || {
        expected
            .iter()
            .rev()
            .take(50)
            .all(|(policy, key, wanted)| decides(&nodes[1], policy, key) == *wanted)
    });
    for (number, (name, lose)) in LOSSES.into_iter().enumerate() {
        let before = records(&server);
        server = lose(server);
        let since = Instant::now();
        let mut rounds = 0;
        while rounds < 2 || since.elapsed() < Duration::from_millis(1500) {
            nodes.iter().for_each(|node| assert_in_force(node, &expected, name));
            rounds += 1;
        }
        // A change of before the loss is undone by one after it, on both nodes.
        let limit = json!(100 + number);
        let changed = change(
            &nodes[1],
            "PUT",
            "q",
            &json!({"match": {"key": "changed"}, "quotas": [format!("{limit} per 1h")], "lower": true}),
        );
        assert!(changed["version"].as_u64() > before.iter().filter_map(|(_, text)| version(text)).max(), "{name}");
        wait_until("the change is in force", || nodes.iter().all(|node| decides(node, "q", "changed") == limit));
        let removed = format!("k{}", number * 4 + 1);
        change(&nodes[0], "DELETE", "q", &json!({"match": {"key": removed}}));
        expected
            .iter_mut()
            .filter(|(_, key, _)| *key == removed)
            .for_each(|(_, _, decides)| *decides = json!(5));
        wait_until("the removal is in force", || nodes.iter().all(|node| decides(node, "q", &removed) == 5));
        let is_changed = |name: &String| name.ends_with(":changed") || name.ends_with(&format!(":{removed}"));
        let kept: Vec<_> = before.into_iter().filter(|(name, _)| !is_changed(name)).collect();
        wait_until("Redis has all entries as they were", || {
            let now: Vec<_> = records(&server).into_iter().filter(|(name, _)| !is_changed(name)).collect();
            now == kept
        });
        nodes.iter().for_each(|node| assert_eq!(node.health()["status"], "ok", "{name}: {}", node.health()));
        let later = self::node(&server);
        assert_in_force(&later, &expected, name);
    }
}

fn version(text: &str) -> Option<u64> {
    serde_json::from_str::<Value>(text).ok()?["version"].as_u64()
}
