//! Redis loses its data, or a part of it, while nodes run: they write the overrides back, and keep
//! deciding by them meanwhile.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate::store::redis::Registry;

use crate::support::override_set::{Expected, POLICIES, assert_in_force, change, decides, fill};
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::sentinel::Watched;
use crate::support::{Node, config_on, http, node_with, wait_until};

/// How many keys have an override, besides the prefixes and networks.
fn count() -> usize {
    std::env::var("TOLLGATE_OVERRIDES").map_or(48, |count| count.parse().unwrap())
}

fn node(server: &Server) -> Node {
    Node::with_config(config_on(&[server.url()], POLICIES))
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

/// When each record ends, us.
fn ends(server: &Server) -> Vec<(String, String)> {
    let mut connection = server.connection().unwrap();
    let mut all: Vec<(String, String)> = Vec::new();
    for key in keys(server, "*ends") {
        let ends: Vec<(String, String)> =
            redis::cmd("ZRANGE").arg(&key).arg(&["0", "-1", "WITHSCORES"]).query(&mut connection).unwrap();
        all.extend(ends.into_iter().filter(|(name, _)| name != "%"));
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
    // A node looks each part through once a minute, and a change looks at its own.
    let near = (0..).map(|number| format!("near{number}")).find(|key| part(key) == part("k0")).unwrap();
    for (number, (name, lose)) in LOSSES.into_iter().enumerate() {
        let (before, ends_before) = (records(&server), ends(&server));
        server = lose(server);
        let since = Instant::now();
        let mut rounds = 0;
        while rounds < 2 || since.elapsed() < Duration::from_millis(1500) {
            nodes.iter().for_each(|node| assert_in_force(node, &expected, name));
            rounds += 1;
        }
        // A change after the loss stands, on both nodes.
        let limit = json!(100 + number);
        let changed = change(
            &nodes[1],
            "PUT",
            "q",
            &json!({"match": {"key": near}, "quotas": [format!("{limit} per 1h")], "lower": true}),
        );
        assert!(changed["version"].as_u64() > before.iter().filter_map(|(_, text)| version(text)).max(), "{name}");
        wait_until("the change is in force", || nodes.iter().all(|node| decides(node, "q", &near) == limit));
        let removed = format!("k{}", number * 4 + 1);
        change(&nodes[0], "DELETE", "q", &json!({"match": {"key": removed}}));
        expected
            .iter_mut()
            .filter(|(_, key, _)| *key == removed)
            .for_each(|(_, _, decides)| *decides = json!(5));
        wait_until("the removal is in force", || nodes.iter().all(|node| decides(node, "q", &removed) == 5));
        let is_changed = |name: &String| name.ends_with(&format!(":{near}")) || name.ends_with(&format!(":{removed}"));
        let unchanged =
            |all: Vec<(String, String)>| -> Vec<_> { all.into_iter().filter(|(name, _)| !is_changed(name)).collect() };
        let (before, ends_before) = (unchanged(before), unchanged(ends_before));
        wait_until("Redis has all entries as they were", || unchanged(records(&server)) == before);
        wait_until("Redis has all ends as they were", || unchanged(ends(&server)) == ends_before);
        nodes.iter().for_each(|node| assert_eq!(node.health()["status"], "ok", "{name}: {}", node.health()));
        let later = self::node(&server);
        wait_until("the later node is ready", || later.health()["status"] == "ok");
        assert_in_force(&later, &expected, name);
    }
}

fn version(text: &str) -> Option<u64> {
    serde_json::from_str::<Value>(text).ok()?["version"].as_u64()
}

fn put(node: &Node, key: &str, grant: &Value) {
    let mut body = grant.clone();
    body["match"] = json!({"key": key});
    change(node, "PUT", "q", &body);
}

fn reason(node: &Node) -> String {
    node.health()["overrides"]["reason"].as_str().unwrap_or_default().to_owned()
}

fn is_ok(node: &Node) -> bool {
    node.health()["status"] == "ok"
}

/// Each key of a part is lost, and no node runs: it may be that another one still has them.
#[test]
fn node_that_starts_beside_a_lost_part_waits_for_others() {
    let server = Server::start();
    let first = node(&server);
    put(&first, "k0", &json!({"deny": true}));
    put(&first, "k1", &json!({"deny": true}));
    drop(first);
    assert_ne!(part("k0"), part("k1"));
    delete(&server, &format!("{}*", part("k0")));
    let since = Instant::now();
    let alone = node(&server);
    assert_eq!(alone.health()["status"], "starting");
    assert!(reason(&alone).contains("is lost in Redis"), "{}", alone.health());
    wait_until("it goes on without the part", || is_ok(&alone));
    assert!(since.elapsed() > Duration::from_secs(2), "{:?}", since.elapsed());
    assert_eq!((decides(&alone, "q", "k0"), decides(&alone, "q", "k1")), (json!(5), json!("deny")));
    // Beside a node that has the part, a new one is ready with it.
    put(&alone, "k0", &json!({"allow": true}));
    delete(&server, &format!("{}*", part("k0")));
    let later = node(&server);
    wait_until("the later node is ready", || is_ok(&later));
    assert_eq!(decides(&later, "q", "k0"), "allow");
}

/// A starting node cannot know what a part has lost, so it must not call the part complete.
#[test]
fn node_that_starts_beside_a_lost_record_ends_none() {
    let server = Server::start();
    let near = node(&server);
    put(&near, "k0", &json!({"deny": true}));
    put(&near, "k1", &json!({"deny": true}));
    run(&server, &["HDEL", &format!("{}records", part("k0")), "q\0key:k0"]);
    let later = node(&server);
    wait_until("both deny", || [&near, &later].iter().all(|node| decides(node, "q", "k0") == "deny"));
    wait_until("Redis has it", || records(&server).iter().any(|(name, _)| name == "q\0key:k0"));
    assert!(is_ok(&near) && is_ok(&later));
}

/// A removal that finds nothing stands against a node that still has the entry.
#[test]
fn removal_of_nothing_ends_the_entry_of_a_node_that_was_cut_off() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let far = Node::with_config(config_on(&[proxy.url()], POLICIES));
    put(&far, "k0", &json!({"deny": true}));
    proxy.fall_silent();
    wait_until("the node is away", || reason(&far).contains("s ago"));
    run(&server, &["FLUSHALL"]);
    let near = node(&server);
    put(&near, "k1", &json!({"deny": true}));
    change(&near, "DELETE", "q", &json!({"match": {"key": "k0"}}));
    proxy.delay(0);
    proxy.cut();
    wait_until("the node is back", || is_ok(&far) && decides(&far, "q", "k1") == "deny");
    wait_until("the entry has ended", || [&near, &far].iter().all(|node| decides(node, "q", "k0") == 5));
    assert!(!records(&server).iter().any(|(name, _)| name == "q\0key:k0"));
}

/// A right that is missing leaves neither half a change nor a silent health.
#[test]
fn change_without_a_right_writes_nothing_and_health_says_so() {
    let server = Server::start();
    run(
        &server,
        &["ACL", "SETUSER", "tollgate", "on", ">pass", "~{ratelimit:*", "&{ratelimit:*", "+@all", "-@admin"],
    );
    let url = format!("redis://tollgate:pass@127.0.0.1:{}", server.port);
    let node = Node::with_config(config_on(&[url], POLICIES));
    put(&node, "k0", &json!({"deny": true}));
    let acts = || http::get(&node.address, "/v1/audit").json()["entries"].as_array().unwrap().len();
    for right in ["hset", "set", "zadd", "zrem", "hdel", "xadd", "xtrim", "pexpire"] {
        let before = (acts(), records(&server));
        run(&server, &["ACL", "SETUSER", "tollgate", &format!("-{right}")]);
        let body = json!({"match": {"key": "k0"}, "quotas": ["7 per 1h"]}).to_string();
        let fields = [("Content-Type", "application/json")];
        let raised = http::request("PUT", "/v1/overrides/q", &fields, body.as_bytes());
        let refused = http::exchange(&node.address, &raised);
        assert_eq!(refused.status, 503, "{right}: {refused:?}");
        assert_eq!((acts(), records(&server)), before, "{right}");
        assert!(reason(&node).contains("lacks rights"), "{right}: {}", node.health());
        run(&server, &["ACL", "SETUSER", "tollgate", &format!("+{right}")]);
        put(&node, "k0", &json!({"deny": true}));
        wait_until("health is well again", || is_ok(&node));
    }
}

/// The text of a record of a former version, which knew no generations, and its script.
fn former_write(server: &Server, key: &str, body: &str) {
    let name = format!("q\0key:{key}");
    let part = part(key);
    let mut call = redis::cmd("EVAL");
    call.arg(include_str!("../fixtures/registry/former_write.lua")).arg(3);
    ["records", "ends", "changes"].iter().for_each(|what| _ = call.arg(format!("{part}{what}")));
    call.arg(name).arg("").arg(0).arg(0).arg(body).arg(16_384).arg("{ratelimit:%o}changes").arg(1562);
    call.arg(90_u64 * 86_400 * 1_000_000).arg("kind").arg("override").arg("by").arg("former");
    call.exec(&mut server.connection().unwrap()).unwrap();
}

#[test]
fn registry_of_a_former_version_is_adopted_and_former_nodes_may_go_on() {
    let server = Server::start();
    let deny = r#"{"deny":true,"by":"former"}"#;
    ["k0", "k1", "k2"].iter().for_each(|key| former_write(&server, key, deny));
    let nodes = [node(&server), node(&server)];
    let is = |key: &str, wanted: Value| {
        wait_until(&format!("{key} is {wanted}"), || nodes.iter().all(|node| decides(node, "q", key) == wanted));
    };
    nodes.iter().for_each(|node| wait_until("it is ready", || is_ok(node)));
    is("k0", json!("deny"));
    // Changes by a former node, and by these.
    former_write(&server, "k0", "");
    is("k0", json!(5));
    former_write(&server, "k3", r#"{"allow":true,"by":"former"}"#);
    is("k3", json!("allow"));
    change(&nodes[1], "DELETE", "q", &json!({"match": {"key": "k1"}}));
    put(&nodes[0], "k0", &json!({"plan": "pro"}));
    former_write(&server, "k2", r#"{"allow":true,"by":"former"}"#);
    for _ in 0..2 {
        is("k0", json!(1000));
        is("k1", json!(5));
        is("k2", json!("allow"));
        is("k3", json!("allow"));
        run(&server, &["FLUSHALL"]);
        wait_until("the nodes write all back", || records(&server).len() == 3);
    }
    // What a former node loads has only its own kind of records, and the state that it ignores.
    let later = node(&server);
    wait_until("it is ready", || is_ok(&later));
    assert_eq!((decides(&later, "q", "k1"), decides(&later, "q", "k3")), (json!(5), json!("allow")));
    let names = records(&server).into_iter().map(|(name, _)| name);
    assert!(names.into_iter().all(|name| name.starts_with("q\0key:")));
}

/// The address of the store leads to an older registry, such as that of a test system.
#[test]
fn another_registry_gets_nothing_and_health_says_so() {
    let (other, own) = (Server::start(), Server::start());
    let theirs = node(&other);
    put(&theirs, "k0", &json!({"allow": true}));
    let proxy = Proxy::start(own.port);
    let node = Node::with_config(config_on(&[proxy.url()], POLICIES));
    put(&node, "k0", &json!({"deny": true}));
    put(&node, "k1", &json!({"deny": true}));
    wait_until("the node has looked after the birth of the other one", || is_ok(&node));
    let before = records(&other);
    proxy.lead_to(other.port);
    proxy.cut();
    wait_until("health names the other registry", || reason(&node).contains("another registry of overrides"));
    // The entries stay in force here, and nothing is written there.
    assert_eq!((decides(&node, "q", "k0"), decides(&node, "q", "k1")), (json!("deny"), json!("deny")));
    assert_eq!(records(&other), before);
    wait_until("the metric counts both", || node.metrics().contains("tollgate_overrides_lost{policy=\"q\"} 2"));
    // Changes reach the registry that is there, and end the doubt.
    change(&node, "DELETE", "q", &json!({"match": {"key": "k1"}}));
    put(&node, "k0", &json!({"plan": "pro"}));
    wait_until("the other node has it", || decides(&theirs, "q", "k0") == 1000);
    assert_eq!(decides(&node, "q", "k1"), 5);
    wait_until("health is ok", || is_ok(&node));
}

/// A node was away, and Redis no longer knows what was removed meanwhile.
#[test]
fn node_that_was_away_for_long_writes_nothing_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port);
    let (near, far) = (node(&server), Node::with_config(config_on(&[proxy.url()], POLICIES)));
    put(&near, "k0", &json!({"deny": true}));
    put(&near, "k1", &json!({"deny": true}));
    wait_until("the other node has them", || decides(&far, "q", "k1") == "deny");
    proxy.fall_silent();
    wait_until("the other node is away", || reason(&far).contains("s ago"));
    change(&near, "DELETE", "q", &json!({"match": {"key": "k0"}}));
    // A node that knows the removal would write it back.
    drop(near);
    // As after 90 days, or after thousands of removals.
    let mut connection = server.connection().unwrap();
    let part = part("k0");
    let state: String = redis::cmd("HGET").arg(format!("{part}records")).arg("%state").query(&mut connection).unwrap();
    let mut words: Vec<&str> = state.split(' ').collect();
    (words[3], words[5]) = (words[2], "0");
    let state = words.join(" ");
    redis::cmd("HSET")
        .arg(format!("{part}records"))
        .arg("%state")
        .arg(state)
        .exec(&mut connection)
        .unwrap();
    redis::cmd("ZREM").arg(format!("{part}removals")).arg("q\0key:k0").exec(&mut connection).unwrap();
    redis::cmd("DEL").arg(format!("{part}changes")).exec(&mut connection).unwrap();
    proxy.delay(0);
    proxy.cut();
    wait_until("health names the entry that ended", || reason(&far).contains("1 overrides ended at this node"));
    assert_eq!((decides(&far, "q", "k0"), decides(&far, "q", "k1")), (json!(5), json!("deny")));
    assert!(!records(&server).iter().any(|(name, _)| name == "q\0key:k0"));
}

/// One entry of the audit for each part that got something back.
#[test]
fn audit_and_metrics_say_what_was_written_back() {
    let server = Server::start();
    let node = node(&server);
    put(&node, "k0", &json!({"deny": true}));
    put(&node, "k1", &json!({"deny": true}));
    change(&node, "DELETE", "q", &json!({"match": {"key": "k1"}}));
    run(&server, &["FLUSHALL"]);
    let restored = || http::get(&node.address, "/v1/audit?kind=restore").json()["entries"].clone();
    wait_until("the audit has both parts", || restored().as_array().unwrap().len() == 2);
    let reasons: Vec<_> = restored().as_array().unwrap().iter().map(|entry| entry["reason"].clone()).collect();
    assert!(
        reasons.iter().any(|reason| reason.as_str().unwrap().contains("1 overrides and 0 removals")),
        "{reasons:?}"
    );
    assert!(reasons.iter().all(|reason| reason.as_str().unwrap().contains("after version 0")), "{reasons:?}");
    let entry = &restored()[0];
    assert_eq!((&entry["kind"], &entry["by"], &entry["match"]), (&json!("restore"), &json!("a node"), &Value::Null));
    assert!(node.metrics().contains("tollgate_overrides_restored_total 1"));
    let unknown = http::get(&node.address, "/v1/audit?kind=restored");
    assert_eq!(unknown.status, 422, "{unknown:?}");
}

/// The replica gets none of the last changes, and the sentinels promote it.
#[test]
fn failover_by_sentinels_that_loses_the_last_changes_undoes_none() {
    let mut watched = Watched::start_with(1, 500);
    let config = format!("{}\n{POLICIES}", watched.store());
    let on_sentinels = || node_with(&config);
    let nodes = [on_sentinels(), on_sentinels()];
    nodes.iter().for_each(|node| wait_until("it is ready", || is_ok(node)));
    put(&nodes[0], "k0", &json!({"deny": true}));
    put(&nodes[0], "k1", &json!({"deny": true}));
    // A frozen one would find them in its socket.
    run(&watched.servers[0], &["ACL", "SETUSER", "default", "-psync", "-sync"]);
    run(&watched.servers[0], &["CLIENT", "KILL", "TYPE", "replica"]);
    change(&nodes[0], "DELETE", "q", &json!({"match": {"key": "k0"}}));
    put(&nodes[0], "k1", &json!({"plan": "pro"}));
    put(&nodes[0], "k2", &json!({"allow": true}));
    let expected: Expected =
        vec![("q", "k0".into(), json!(5)), ("q", "k1".into(), json!(1000)), ("q", "k2".into(), json!("allow"))];
    let has_all = |node: &Node| expected.iter().all(|(_, key, wanted)| decides(node, "q", key) == *wanted);
    wait_until("the other node has them", || has_all(&nodes[1]));
    let former = watched.servers.remove(0);
    let port = former.port;
    former.end();
    let promoted = watched.promoted(port);
    wait_until("the promoted one has them again", || {
        let names = records(&watched.servers[promoted]);
        names.len() == 2 && names.iter().all(|(name, _)| !name.ends_with(":k0"))
    });
    nodes.iter().for_each(|node| {
        wait_until("health is ok", || is_ok(node));
        assert_in_force(node, &expected, "a failover");
    });
    let restored = |node: &Node| !node.metrics().contains("tollgate_overrides_restored_total 0");
    assert!(nodes.iter().any(restored), "the replica had all changes");
    let later = on_sentinels();
    wait_until("the later node is ready", || is_ok(&later));
    assert_in_force(&later, &expected, "a failover");
}

/// A node of a later version writes what this one does not know, in a rolling upgrade or before a
/// rollback.
#[test]
fn grant_of_a_later_version_is_kept_as_it_is_and_counts_as_none() {
    let server = Server::start();
    let node = node(&server);
    put(&node, "own", &json!({"allow": true}));
    let later = r#"{"throttle":{"x":1.50},"by":"later","zz":[1, 2],"reason":"ä"}"#;
    former_write(&server, "later", later);
    former_write(&server, "mixed", r#"{"deny":true,"by":"later","except":["a"]}"#);
    wait_until("the known grant counts", || decides(&node, "q", "mixed") == "deny");
    assert_eq!(decides(&node, "q", "later"), 5);
    let named = || reason(&node).contains("1 overrides count as absent, since only a later version");
    wait_until("health names it", named);
    let listed = http::get(&node.address, "/v1/overrides/q?match=key:later").json();
    assert_eq!(listed["entries"][0]["throttle"], json!({"x": 1.5}), "{listed}");
    let before = records(&server);
    assert!(before.iter().any(|(_, text)| text.ends_with(&later[1..])), "{before:?}");
    run(&server, &["FLUSHALL"]);
    wait_until("all is written back, byte for byte", || records(&server) == before);
    let started = self::node(&server);
    wait_until("a new node has it, too", || reason(&started).contains("only a later version"));
    // The next change replaces it, and so does a removal.
    put(&node, "later", &json!({"plan": "pro"}));
    assert_eq!(decides(&node, "q", "later"), 1000);
    wait_until("health is ok", || is_ok(&node) && is_ok(&started));
}

/// A former version takes places alone for no grant, and not for an allowance.
#[test]
fn places_alone_are_absent_to_a_former_version() {
    let server = Server::start();
    let policies = "policies: {q: {quotas: [5 per 1h], hold: {ttl: 60s, in_flight: 2}, timeout: 5s}}";
    let node = Node::with_config(config_on(&[server.url()], policies));
    put(&node, "k0", &json!({"in_flight": 8}));
    let texts = records(&server);
    assert!(texts[0].1.contains(r#""quotas":[],"in_flight":8,"#), "{texts:?}");
    let later = Node::with_config(config_on(&[server.url()], policies));
    wait_until("it is ready", || is_ok(&later));
    let opened = later.post("/v1/check", &json!({"policy": "q", "key": "k0", "id": "a"})).json();
    assert_eq!(opened["hold"]["in_flight_limit"], 8, "{opened}");
}

/// What the author of the first change, and the log, learn of the server.
#[test]
fn author_of_the_first_change_learns_that_the_server_may_lose_it() {
    let server = Server::start_with(&["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"]);
    let node = node(&server);
    let changed = change(&node, "PUT", "q", &json!({"match": {"key": "k0"}, "deny": true}));
    let warnings = changed["warnings"].to_string();
    assert!(
        warnings.contains("set maxmemory-policy noeviction") && warnings.contains("set appendonly yes"),
        "{changed}"
    );
    let changed = change(&node, "PUT", "q", &json!({"match": {"key": "k1"}, "deny": true}));
    assert_eq!(changed["warnings"], Value::Null);
}
