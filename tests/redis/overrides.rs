//! Overrides in Redis: nodes see each change, versions never repeat, and a change is all or nothing.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::redis::Server;
use crate::support::{Node, config_on, http, node_with, redis, unique, wait_until};

/// Nodes on one server, under a policy of this test.
struct Nodes {
    nodes: Vec<Node>,
    policy: String,
}

impl Nodes {
    fn start(url: &str, count: usize) -> Self {
        let policy = unique("overridden");
        let nodes = (0..count).map(|_| node(url, &policy)).collect();
        Self { nodes, policy }
    }

    fn put(&self, node: usize, body: &Value) -> http::Answer {
        change(&self.nodes[node], "PUT", &self.policy, body)
    }

    fn remove(&self, node: usize, body: &Value) -> http::Answer {
        change(&self.nodes[node], "DELETE", &self.policy, body)
    }

    fn limit(&self, node: usize, key: &str) -> Value {
        limit(&self.nodes[node], &self.policy, key)
    }
}

fn node(url: &str, policy: &str) -> Node {
    let policies = format!(
        "plans: {{pro: {{quotas: [1000 per 1h]}}}}\npolicies: {{{policy}: {{quotas: [5 per 1h], timeout: 5s}}}}"
    );
    Node::with_config(config_on(&[url.to_owned()], &policies))
}

fn change(node: &Node, method: &str, policy: &str, body: &Value) -> http::Answer {
    let fields = [("Content-Type", "application/json")];
    let path = format!("/v1/overrides/{policy}");
    http::exchange(&node.address, &http::request(method, &path, &fields, body.to_string().as_bytes()))
}

fn limit(node: &Node, policy: &str, key: &str) -> Value {
    node.check(policy, key, 0)["limit"].clone()
}

/// A busy server may answer late, and then there is no list.
fn audit(node: &Node, policy: &str) -> Vec<Value> {
    let mut entries = None;
    wait_until("the node reads the audit", || {
        let answer = http::get(&node.address, &format!("/v1/audit?policy={policy}")).json();
        entries = answer["entries"].as_array().cloned();
        entries.is_some()
    });
    entries.unwrap()
}

#[test]
fn raise_admits_an_exhausted_key_on_every_node() {
    let nodes = Nodes::start(&redis::shared().url(), 2);
    for node in [0, 1] {
        for _ in 0..6 {
            nodes.nodes[node].check(&nodes.policy, "k", 1);
        }
        assert_eq!(nodes.nodes[node].check(&nodes.policy, "k", 1)["source"], "prefilter");
    }
    let put = nodes.put(0, &json!({"match": {"key": "k"}, "plan": "pro", "reason": "support"}));
    assert_eq!(put.status, 200, "{put:?}");
    // The node that makes the change has it at once.
    assert_eq!(nodes.nodes[0].check(&nodes.policy, "k", 1)["remaining"], 994);
    wait_until("the other node has it, too", || nodes.limit(1, "k") == 1000);
    assert_eq!(nodes.nodes[1].check(&nodes.policy, "k", 1)["remaining"], 993);
    assert_eq!(nodes.remove(1, &json!({"match": {"key": "k"}})).json(), json!({"removed": true}));
    wait_until("the first node has the end", || nodes.limit(0, "k") == 5);
    for node in &nodes.nodes {
        let told = audit(node, &nodes.policy);
        assert_eq!((told.len(), &told[1]["reason"]), (2, &json!("support")));
        assert_eq!((&told[0]["before"]["plan"], &told[0]["after"]), (&json!("pro"), &Value::Null));
    }
}

/// The measure of guarantee 12 on an idle machine: 99 of 100 changes within 100 ms.
#[test]
fn changes_reach_the_other_node_within_a_second() {
    let nodes = Nodes::start(&redis::shared().url(), 2);
    let mut delays: Vec<Duration> = (0..100u64)
        .map(|number| {
            let body = json!({"match": {"key": "k"}, "quotas": [format!("{} per 1h", 10 + number)]});
            assert_eq!(nodes.put(0, &body).status, 200);
            let since = now();
            wait_until("the other node has the change", || nodes.limit(1, "k") == 10 + number);
            since.elapsed()
        })
        .collect();
    delays.sort();
    println!("a change reaches the other node: median {:?}, p99 {:?}", delays[50], delays[98]);
    assert!(delays[98] < Duration::from_secs(1), "{delays:?}");
}

fn now() -> Instant {
    Instant::now()
}

#[test]
fn node_that_starts_later_loads_all_entries() {
    let server = Server::start();
    let nodes = Nodes::start(&server.url(), 1);
    for number in 0..300 {
        let body = json!({"match": {"key": format!("k{number}")}, "quotas": ["9 per 1h"]});
        assert_eq!(nodes.put(0, &body).status, 200);
    }
    assert_eq!(nodes.put(0, &json!({"match": {"cidr": "192.0.2.0/24"}, "deny": true})).status, 200);
    assert_eq!(nodes.remove(0, &json!({"match": {"key": "k7"}})).status, 200);
    let later = node(&server.url(), &nodes.policy);
    assert_eq!(limit(&later, &nodes.policy, "k8"), 9);
    assert_eq!(limit(&later, &nodes.policy, "k7"), 5);
    assert_eq!(later.check(&nodes.policy, "192.0.2.1", 1)["reason"], "deny_listed");
    let metrics = later.metrics();
    assert!(metrics.contains(&format!("tollgate_overrides{{policy=\"{}\"}} 300", nodes.policy)), "{metrics}");
    assert!(metrics.contains("tollgate_overrides_lag_seconds "), "{metrics}");
}

#[test]
fn one_of_many_writers_on_two_nodes_wins() {
    let nodes = Nodes::start(&redis::shared().url(), 2);
    let body = json!({"match": {"key": "k"}, "quotas": ["9 per 1h"], "if_version": 0});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                scope.spawn({
                    let (nodes, body) = (&nodes, &body);
                    move || nodes.put(writer % 2, body).status
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 7, "{statuses:?}");
    assert_eq!(audit(&nodes.nodes[0], &nodes.policy).len(), 1);
}

#[test]
fn entry_ends_by_the_clock_of_the_server_on_all_nodes() {
    let server = Server::start();
    let nodes = Nodes::start(&server.url(), 2);
    let body = json!({"match": {"key": "k"}, "quotas": ["9 per 1h"], "expires_in_ms": 1500});
    assert_eq!(nodes.put(0, &body).status, 200);
    wait_until("the other node has it", || nodes.limit(1, "k") == 9);
    let later = node(&server.url(), &nodes.policy);
    for node in [&nodes.nodes[0], &nodes.nodes[1], &later] {
        wait_until("it has ended", || limit(node, &nodes.policy, "k") == 5);
    }
    wait_until("the server has dropped it", || {
        let mut connection = server.connection().unwrap();
        let records: Vec<String> = ::redis::cmd("KEYS").arg("*records").query(&mut connection).unwrap();
        let kept = |key: String| ::redis::cmd("HKEYS").arg(key).query::<Vec<String>>(&mut connection).unwrap();
        records.into_iter().flat_map(kept).all(|name| name == "%state")
    });
    // Its name is free again.
    let body = json!({"match": {"key": "k"}, "quotas": ["8 per 1h"], "if_version": 0});
    assert_eq!(nodes.put(1, &body).status, 200);
}

#[test]
fn nodes_keep_the_last_known_entries_while_the_server_is_away() {
    let server = Server::start();
    let nodes = Nodes::start(&server.url(), 1);
    assert_eq!(nodes.put(0, &json!({"match": {"key": "k"}, "deny": true})).status, 200);
    server.freeze();
    wait_until("health names the age", || {
        let health = http::get(&nodes.nodes[0].address, "/health/ready").json();
        health["overrides"]["reason"].as_str().is_some_and(|reason| reason.contains("s ago"))
    });
    assert_eq!(nodes.nodes[0].check(&nodes.policy, "k", 1)["reason"], "deny_listed");
    let refused = nodes.put(0, &json!({"match": {"key": "other"}, "deny": true}));
    assert_eq!(refused.status, 503, "{refused:?}");
    server.thaw();
    wait_until("health is well", || http::get(&nodes.nodes[0].address, "/health/ready").json()["status"] == "ok");
}

#[test]
fn node_that_starts_without_its_overrides_is_not_ready() {
    let server = Server::start();
    let policy = unique("starts");
    let before = node(&server.url(), &policy);
    assert_eq!(change(&before, "PUT", &policy, &json!({"match": {"key": "k"}, "allow": true})).status, 200);
    server.freeze();
    let node = node(&server.url(), &policy);
    let ready = http::get(&node.address, "/health/ready");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("starting")), "{ready:?}");
    let decision = node.check(&policy, "k", 1);
    assert_eq!((&decision["source"], &decision["fallback"]["mode"]), (&json!("fallback"), &json!("local")));
    // An empty list would be a wrong backup.
    for path in [format!("/v1/overrides/{policy}"), format!("/v1/explain?policy={policy}&key=k")] {
        let unknown = http::get(&node.address, &path);
        assert_eq!(unknown.status, 503, "{path}: {unknown:?}");
    }
    server.thaw();
    wait_until("the node is ready", || http::get(&node.address, "/health/ready").status == 200);
    assert_eq!(node.check(&policy, "k", 1)["reason"], "allow_listed");
}

/// A node that is frozen for five seconds decides by the limit that it knows, until it catches up.
#[test]
fn frozen_node_admits_at_most_the_larger_limit() {
    let nodes = Nodes::start(&redis::shared().url(), 2);
    let of = |limit: u64| json!({"match": {"key": "k"}, "quotas": [format!("{limit} per 1h")], "lower": true});
    let admitted = |node: usize| {
        let checks = (0..30).filter(|_| nodes.nodes[node].check(&nodes.policy, "k", 1)["allowed"] == true);
        checks.count()
    };
    assert_eq!(admitted(1), 5);
    nodes.nodes[1].stop();
    let since = now();
    assert_eq!(nodes.put(0, &of(20)).status, 200);
    assert_eq!(admitted(0), 15);
    wait_until("five seconds have passed", || {
        assert_eq!(nodes.nodes[0].check(&nodes.policy, "k", 1)["allowed"], false);
        since.elapsed() > Duration::from_secs(5)
    });
    nodes.nodes[1].go_on();
    assert_eq!(admitted(1), 0);
    wait_until("the frozen node has the change", || nodes.limit(1, "k") == 20);
    // A lower limit admits nothing more anywhere.
    nodes.nodes[1].stop();
    assert_eq!(nodes.put(0, &of(10)).status, 200);
    nodes.nodes[1].go_on();
    assert_eq!(admitted(1) + admitted(0), 0);
    wait_until("the frozen node has the change", || nodes.limit(1, "k") == 10);
}

const PLANS: &str = "
plans:
  pro: {quotas: [100 per 1d]}
  two: {quotas: [9 per 1m, 50 per 1h]}
  small: {quotas: [50 per 1h]}
  large: {quotas: [1000 per 1h]}
  steady: {quotas: [{rate: 2 per 1h, burst: 80}]}
policies:
  p: {quotas: [10 per 1h], timeout: 5s}
  held: {quotas: [10 per 1h], hold: {ttl: 1s, on_expiry: release}, timeout: 5s}
  bucket: {algorithm: token-bucket, quotas: [{rate: 1 per 1h, burst: 5}], timeout: 5s}
";

/// A settle and a refund name no plan. The charge may lie in windows that only its plan has.
#[test]
fn charges_of_a_plan_with_other_windows_are_settled_and_given_back() {
    let server = Server::start();
    for node in [node_with(PLANS), Node::with_config(config_on(&[server.url()], PLANS))] {
        let post = |path: &str, body: Value| {
            let answer = http::post(&node.address, path, body.to_string());
            assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
            answer.json()
        };
        let left = |policy: &str, plan: &str| {
            let path = format!("/v1/usage?policy={policy}&key=k&plan={plan}");
            http::get(&node.address, &path).json()["remaining"].clone()
        };
        for (policy, plan, limit) in [("p", "pro", 100), ("p", "two", 9), ("bucket", "steady", 80)] {
            post("/v1/check", json!({"policy": policy, "key": "k", "plan": plan, "cost": 6, "id": plan}));
            assert_eq!(left(policy, plan), limit - 6, "{policy} {plan}");
            let refunded = post("/v1/refund", json!({"policy": policy, "key": "k", "id": plan}));
            assert_eq!((&refunded["refunded"], &refunded["remaining"]), (&json!(6), &json!(limit)), "{policy} {plan}");
            assert_eq!(left(policy, plan), limit, "{policy} {plan}");
        }
        let open = |id: &str, cost: u64| {
            let opened =
                post("/v1/check", json!({"policy": "held", "key": "k", "plan": "pro", "cost": cost, "id": id}));
            assert_eq!(opened["allowed"], true, "{opened}");
        };
        for (id, cost, charged, refunded, remaining) in [("below", 20, 20, 30, 80), ("above", 60, 60, 0, 20)] {
            open(id, 50);
            let settled = post("/v1/settle", json!({"policy": "held", "key": "k", "id": id, "cost": cost}));
            let told = (&settled["charged"], &settled["refunded"], &settled["limit"], &settled["remaining"]);
            assert_eq!(told, (&json!(charged), &json!(refunded), &json!(100), &json!(remaining)), "{id}");
            assert_eq!(left("held", "pro"), remaining, "{id}");
        }
        // Plans with the windows of the policy have limits of their own.
        for (plan, cost, charged, owed) in [("large", 800, 800, 0), ("large", 3000, 1000, 2000), ("small", 80, 50, 30)]
        {
            let key = unique("same");
            let body = json!({"policy": "held", "key": key, "plan": plan, "cost": 30, "id": "a"});
            assert_eq!(post("/v1/check", body)["allowed"], true);
            let settled = post("/v1/settle", json!({"policy": "held", "key": key, "id": "a", "cost": cost}));
            assert_eq!((&settled["charged"], &settled["owed"]), (&json!(charged), &json!(owed)), "{plan}: {settled}");
            let again = post("/v1/settle", json!({"policy": "held", "key": key, "id": "a", "cost": cost}));
            assert_eq!((&again["charged"], &again["replayed"]), (&json!(charged), &json!(true)), "{plan}: {again}");
        }
        // A look under the policy ends no hold of the plan without giving its charge back.
        open("dead", 15);
        wait_until("the hold has expired", || {
            let usage = http::get(&node.address, "/v1/usage?policy=held&key=k").json();
            usage["in_flight"] == 0
        });
        assert_eq!(left("held", "pro"), 20);
    }
}

/// The commands of the registry, also those inside of its scripts.
const ASKED: [&str; 9] = ["mget", "exists", "hget", "hlen", "eval", "xrevrange", "zrangebyscore", "zscore", "get"];

/// What an idle node asks its server, with overrides and without.
#[test]
fn idle_node_asks_few_commands_whatever_the_number_of_parts() {
    let server = Server::start();
    let policy = unique("quiet");
    let node = node(&server.url(), &policy);
    for (when, most) in [("without overrides", 15), ("with overrides", 20)] {
        if when == "with overrides" {
            for number in 0..100 {
                let body = json!({"match": {"key": format!("k{number}")}, "deny": true});
                // A busy server may answer too late.
                wait_until("the change is made", || change(&node, "PUT", &policy, &body).status == 200);
            }
        }
        // A node that has just started reads each part, and the last change may still be asked for.
        wait_until(&format!("the node is quiet {when}"), || {
            let (before, mut begun) = (server.calls(ASKED), None);
            wait_until("five seconds of looks have passed", || {
                begun.get_or_insert_with(now).elapsed() > Duration::from_secs(5)
            });
            let counts: Vec<u64> =
                server.calls(ASKED).iter().zip(before).map(|(after, before)| after - before).collect();
            println!("{when}: {} commands in 5 s: {ASKED:?} {counts:?}", counts.iter().sum::<u64>());
            assert!(counts[0] <= 11, "{when}: {} looks in 5 s", counts[0]);
            counts[0] >= 5 && counts.iter().sum::<u64>() <= 5 * most
        });
    }
}

/// A user without rights to channels learns of each change by its looks.
#[test]
fn changes_are_seen_within_a_second_without_messages() {
    let server = Server::start();
    let policy = unique("silent");
    let rules = "ACL SETUSER tollgate on >pass ~{ratelimit:* resetchannels +@all -@admin -@dangerous -@pubsub +info";
    let rules: Vec<&str> = rules.split(' ').collect();
    ::redis::cmd(rules[0]).arg(&rules[1..]).exec(&mut server.connection().unwrap()).unwrap();
    let url = format!("redis://tollgate:pass@127.0.0.1:{}", server.port);
    let nodes = [node(&url, &policy), node(&url, &policy)];
    let mut delays: Vec<Duration> = (0..20u64)
        .map(|number| {
            let body = json!({"match": {"key": format!("k{number}")}, "quotas": ["9 per 1h"]});
            let since = now();
            assert_eq!(change(&nodes[0], "PUT", &policy, &body).status, 200);
            wait_until("the other node has the change", || limit(&nodes[1], &policy, &format!("k{number}")) == 9);
            since.elapsed()
        })
        .collect();
    delays.sort();
    println!("without messages: median {:?}, the slowest {:?}", delays[10], delays[19]);
    assert!(delays[10] > Duration::from_millis(50), "there are messages: {delays:?}");
    // A busy machine may delay a look.
    assert!(delays[10] < Duration::from_secs(1) && delays[19] < Duration::from_secs(5), "{delays:?}");
}
